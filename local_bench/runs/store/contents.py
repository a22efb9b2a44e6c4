"""The record of a run's contents at the end of each command, and the root digest of its results. Its rows have digests
by task, session and key, so that a later change can be found and located."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from local_bench.core.types import digest, json_lines
from local_bench.runs.store.store import KEYS, Store

FILES = ("run.yaml", "provenance.json")


def file_digests(run_dir: Path) -> dict[str, str]:
    """File name -> sha256, for the run's text files that exist."""
    files = {name: run_dir / name for name in FILES}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path.is_file()}


def root(store: Store) -> str:
    """The Merkle root of the results, one leaf per task in order of task ids: sha256, 64 hex digits."""
    return store.once(
        "root", lambda: merkle_root([bytes.fromhex(leaf) for leaf in result_leaves(store).values()]).hex()
    )


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The Merkle tree hash of `leaves` (RFC 6962, section 2.1): a leaf hash is sha256(0x00 || leaf), an inner hash
    sha256(0x01 || left || right), and the left subtree has the largest power of two of leaves below their number."""
    if not leaves:
        return hashlib.sha256().digest()
    level = [hashlib.sha256(b"\x00" + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [hashlib.sha256(b"\x01" + b"".join(pair)).digest() if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


RECORDED = "recorded"
"""The key in `meta` that says whether the stored digests describe the current rows: "1", or while a command runs
"outdated" if they did when it started, "0" if not."""
_OF_CANDIDATES = {
    table: f"{table} AS x JOIN candidates AS c USING (work_id)"
    for table in ("verdicts", "retests", "scores", "decisions")
}
"""Table of rows of candidates -> it with these. Rows of no candidate are left out; `verify` finds them."""
_ROWS = {
    "task": f"SELECT task_id, * FROM tasks ORDER BY {KEYS['tasks']}",
    "candidates": "SELECT task_id, * FROM candidates ORDER BY task_id, work_id",
    **{table: f"SELECT c.task_id, x.* FROM {rows} ORDER BY {KEYS[table]}" for table, rows in _OF_CANDIDATES.items()},
    "decisions": "SELECT '', count(*) FROM decisions HAVING count(*) > 0",  # `verify` computes each of them again
    "session": f"SELECT session, * FROM sessions ORDER BY {KEYS['sessions']}",
    "meter": f"SELECT session, * FROM meter ORDER BY {KEYS['meter']}",
    "meta": f"SELECT key, * FROM meta WHERE key <> '{RECORDED}' ORDER BY key",
}
"""Kind -> query of the group and the row."""
_TABLES = {"task": "tasks", "session": "sessions"}
"""Table of each kind of row, if its name differs."""
_RESULTS = {
    "candidates": "work_id, model, state, pixels_sha256, unscored",
    "verdicts": "work_id, judge, rubric, point, repeat, rubric_sha256, answer, labels, x.unscored",
    "scores": "work_id, name, value, x.unscored, applies",
    "decisions": "work_id, accepted, x.unscored, price_micro_usd",
}
"""Columns of a run's results, without clocks, costs, numerics and raw answers: equal for runs with equal digests."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
Contents = dict[tuple[str, str], str]
"""(kind of row or `file`, task, session, key or file name) -> sha256."""


def contents(store: Store, kinds: Iterable[str] = tuple(_ROWS)) -> Contents:
    """Digests of the current rows of these kinds. Memory grows with the number of tasks, not of rows."""
    return {
        (kind, group): sha256
        for kind in kinds
        if kind in _ROWS
        for group, sha256 in _digests(store, _ROWS[kind]).items()
    }


def recorded(store: Store, kind: str | None = None) -> Contents | None:
    """The digests stored by `record`, all or those of a kind; None while a command runs and after one that was
    killed."""
    if store.meta(RECORDED) != "1":
        return None
    rows = store.rows("SELECT kind, key, sha256 FROM contents WHERE kind = coalesce(?, kind)", kind)
    return {(row["kind"], row["key"]): row["sha256"] for row in rows}


KINDS = sorted({*_ROWS, "file"} - {"decisions"})
"""The kinds of rows and files whose current digests must be those that are recorded."""


def start_recording(store: Store) -> None:
    """Mark the stored digests as outdated; called before a command writes."""
    store.set_meta(RECORDED, "outdated" if store.meta(RECORDED) == "1" else "0")


def record(store: Store, files: dict[str, str]) -> None:
    """Store the digests of the current rows and of `files` (name -> sha256), in one transaction; `verify` compares them
    with the later ones.

    Kinds of rows that this command has not written keep their digests, so that a change made by hand before the command
    is found after it."""
    changed = list(_ROWS)
    if store.meta(RECORDED) in ("1", "outdated"):
        written = store.db.written | {"meta"}
        changed = [kind for kind in changed if "candidates" in written or _TABLES.get(kind, kind) in written]
    digests = [(kind, *row) for kind in sorted(changed) for row in sorted(_digests(store, _ROWS[kind]).items())]
    with store.transaction():
        if len(changed) < len(_ROWS):
            store.write_many("DELETE FROM contents WHERE kind = ?", ((kind,) for kind in (*changed, "file")))
        else:
            store.write("DELETE FROM contents")
        files_of = [("file", *row) for row in sorted(files.items())]
        store.write_many("INSERT INTO contents VALUES (?, ?, ?)", (*digests, *files_of))
        store.set_meta(RECORDED, "1")
    store.db.written.clear()


def result_leaves(store: Store) -> dict[str, str]:
    """Task id -> sha256 of its task, candidates, verdicts, scores and decisions, in order of task ids."""
    counted, judges = store.of_judges()
    leaves: dict[str, list[list[str]]] = {}
    for kind, selected in {"task": "content", **_RESULTS}.items():
        table = _TABLES.get(kind, kind)
        where, values = (counted, judges) if kind == "verdicts" else ("TRUE", [])
        query = (
            f"SELECT task_id, {selected} FROM {_OF_CANDIDATES.get(kind, table)} WHERE {where} ORDER BY {KEYS[table]}"
        )
        for task_id, sha256 in _digests(store, query, *values).items():
            leaves.setdefault(task_id, []).append([kind, sha256])
    return {task_id: digest([task_id, *rows]) for task_id, rows in sorted(leaves.items())}


def rows_to_digest(
    store: Store, kind: Literal["candidates", "verdicts", "scores", "decisions"]
) -> Iterator[list[tuple[Any, ...]]]:
    """The columns that the digest of a kind covers, in identity order, some hundred rows at a time."""
    counted, judges = store.of_judges() if kind == "verdicts" else ("TRUE", ())
    columns = _RESULTS[kind].replace("x.", "")
    if kind == "verdicts":
        columns = "work_id, rubric, point, repeat, rubric_sha256, judge, answer, labels, unscored"
    return store.db.chunks(f"SELECT {columns} FROM {kind} WHERE {counted} ORDER BY {KEYS[kind]}", *judges)


def _digests(store: Store, query: str, *values: str) -> dict[str, str]:
    """Group -> sha256 of its rows in the order of `query`, whose first column is the group."""
    hashes: dict[Any, Any] = defaultdict(hashlib.sha256)
    for rows in store.db.chunks(query, *values):
        lines = json_lines([row[1:] for row in rows], _encode)
        for row, line in zip(rows, lines, strict=True):
            hashes[row[0]].update(f"{line}\n".encode())
    return {str(group): hashed.hexdigest() for group, hashed in hashes.items()}
