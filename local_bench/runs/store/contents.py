"""Digests of a run's rows, by task, session and key, so that a later change can be found and located."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

from local_bench.core.identity import digest, json_lines
from local_bench.runs.store.columns import ColumnReader
from local_bench.runs.store.constraints import CONDITIONS, checks_of_rows

RECORDED = "recorded"
"""The key in `meta` that says whether `contents` describes the current rows: "1", or "0" while a command runs."""
_BY_TASK = {
    "task": "SELECT task_id, * FROM tasks ORDER BY task_id",
    "candidates": "SELECT task_id, * FROM candidates ORDER BY task_id, work_id",
    "verdicts": "SELECT work_id, * FROM verdicts ORDER BY work_id, judge, rubric, point, repeat",
    "retests": "SELECT work_id, * FROM retests ORDER BY work_id, judge, rubric, point, repeat, round",
    "scores": "SELECT work_id, * FROM scores ORDER BY work_id, name",
    "decisions": "SELECT work_id, * FROM decisions ORDER BY work_id",
    "session": "SELECT session, * FROM sessions ORDER BY session",
    "meter": "SELECT session, * FROM meter ORDER BY session, t0_ns",
    "meta": f"SELECT key, * FROM meta WHERE key <> '{RECORDED}' ORDER BY key",
}
_OF_CANDIDATES = {"verdicts", "retests", "scores", "decisions"}
"""Kinds whose queries give the work id instead of the group, and are ordered by it."""
_TABLES = {"task": "tasks", "session": "sessions"}
"""Table of each kind of row, if its name differs."""
_OF_RESULTS = {
    "task": "SELECT task_id, content FROM tasks ORDER BY task_id",
    "candidates": """SELECT task_id, work_id, model, state, pixels_sha256, unscored FROM candidates ORDER BY work_id""",
    "verdicts": """SELECT work_id, work_id, judge, rubric, point, repeat, rubric_sha256, answer, labels, unscored
                   FROM verdicts WHERE {judges} ORDER BY work_id, judge, rubric, point, repeat""",
    "scores": "SELECT work_id, work_id, name, value, unscored, applies FROM scores ORDER BY work_id, name",
    "decisions": "SELECT work_id, work_id, accepted, unscored, price_micro_usd FROM decisions ORDER BY work_id",
}
"""Results of a run, without clocks, costs, numerics and raw answers: equal for runs with equal digests."""
_TO_DIGEST = {
    "candidates": "SELECT work_id, model, state, pixels_sha256, unscored FROM candidates ORDER BY work_id",
    "verdicts": """SELECT work_id, rubric, point, repeat, rubric_sha256, judge, answer, labels, unscored FROM verdicts
                   WHERE {judges} ORDER BY work_id, judge, rubric, point, repeat""",
    "scores": "SELECT work_id, name, value, unscored, applies FROM scores ORDER BY work_id, name",
    "decisions": "SELECT work_id, accepted, unscored, price_micro_usd FROM decisions ORDER BY work_id",
}
"""The rows of a kind that the digests cover, in identity order."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_first = itemgetter(0)
Contents = dict[tuple[str, str], str]
"""(kind of row or `file`, task, session, key or file name) -> sha256."""


class ContentStore(ColumnReader):
    """Computes and stores digests of all rows."""

    def contents(self, kinds: Iterable[str] = tuple(_BY_TASK)) -> Contents:
        """Digests of the current rows of these kinds. Memory grows with the number of tasks, not of rows."""
        return {
            (kind, key): sha256
            for kind in kinds
            if kind in _BY_TASK
            for key, sha256 in self._digests(kind, _BY_TASK[kind])
        }

    def recorded(self, kind: str | None = None) -> Contents | None:
        """The digests stored by `record`, all or those of a kind; None while a command runs and after one that was
        killed."""
        if self.meta(RECORDED) != "1":
            return None
        chunks = self._chunks("SELECT kind, key, sha256 FROM contents WHERE kind = ?1 OR ?1 IS NULL", kind)
        return {(kind, key): sha256 for kind, key, sha256 in chain.from_iterable(chunks)}

    def kinds(self) -> list[str]:
        """The kinds of rows and files with recorded or current digests, sorted."""
        return sorted({*_BY_TASK, "file", *(row["kind"] for row in self.rows("SELECT DISTINCT kind FROM contents"))})

    _complete = False
    """Whether the stored digests described all rows when this command started."""

    def start_recording(self) -> None:
        """Mark the stored digests as outdated; called before a command writes."""
        self._complete = self.meta(RECORDED) == "1"
        if self.meta(RECORDED) != "0":
            self.set_meta(RECORDED, "0")

    def record(self, files: dict[str, str]) -> None:
        """Store the digests of the current rows, and of `files` (name -> sha256), in one transaction.

        Kinds of rows that this command has not written keep their digests, so that a change made by hand before the
        command is found after it."""
        changed = list(_BY_TASK)
        if self._complete:
            written = self.written | {"meta"}
            changed = [kind for kind in changed if "candidates" in written or _TABLES.get(kind, kind) in written]
        contents = {kind: sorted(self._digests(kind, _BY_TASK[kind])) for kind in changed} | {
            "file": sorted(files.items())
        }
        with self.transaction():
            if self._complete:
                self.write_many("DELETE FROM contents WHERE kind = ?", ((kind,) for kind in (*changed, "file")))
            else:
                self.write("DELETE FROM contents")
            for kind, digests in sorted(contents.items()):
                self.write_many("INSERT INTO contents VALUES (?, ?, ?)", ((kind, *one) for one in digests))
            self.set_meta(RECORDED, "1")
        self.written.clear()
        self._complete = True

    def result_leaves(self) -> dict[str, str]:
        """Task id -> sha256 of its task, candidates, verdicts, scores and decisions, in order of task ids."""
        where, judges = self._of_judges(None)
        parts: dict[str, list[list[str]]] = {}
        for kind, query in _OF_RESULTS.items():
            values = judges if kind == "verdicts" else ()
            for task_id, sha256 in self._digests(kind, query.format(judges=where), *values):
                parts.setdefault(task_id, []).append([kind, sha256])
        return {task_id: digest([task_id, *rows]) for task_id, rows in sorted(parts.items())}

    def rows_to_digest(
        self, kind: Literal["candidates", "verdicts", "scores", "decisions"]
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The columns that the digest of a kind covers, in identity order, some hundred rows at a time."""
        where, judges = self._of_judges(None)
        return self._chunks(_TO_DIGEST[kind].format(judges=where), *(judges if kind == "verdicts" else ()))

    def integrity_faults(self) -> list[str]:
        """Faults found by SQLite's integrity check, faults of the rows that were not checked when this was opened, and
        rows whose foreign key has no target."""
        faults = [row[0] for row in self.rows("PRAGMA integrity_check(20)") if row[0] != "ok"]
        checked = CONDITIONS.keys() - self._not_checked
        faults += filter(None, self._at_once(checks_of_rows(checked)))
        broken = self.rows("PRAGMA foreign_key_check")
        return faults + [f"row {row[1]} of {row[0]} belongs to a row of {row[2]} that does not exist" for row in broken]

    def _digests(self, kind: str, query: str, *parameters: str) -> Iterator[tuple[str, str]]:
        """(group, sha256 of its rows in the order of `query`); the first column is the group or the work id."""
        if kind == "decisions":
            yield from self._digests_of_decisions()
            return
        hashes: dict[Any, Any] = defaultdict(hashlib.sha256)
        for groups, rows in self._grouped(kind, query, *parameters):
            text = "\n".join(json_lines(rows, _encode)) + "\n"
            for group, line in zip(groups, text.encode().splitlines(keepends=True), strict=True):
                hashes[group].update(line)
        hashes.pop(None, None)  # rows that belong to no candidate are left out; `verify` finds them
        for group, hashed in hashes.items():
            yield str(group), hashed.hexdigest()

    def _digests_of_decisions(self) -> Iterator[tuple[str, str]]:
        """As `_digests`, in less time: SQLite writes the lines, whose JSON of texts and integers is Python's."""
        of = self.attempts()
        tasks = iter(of.task)
        hashes: dict[int, Any] = defaultdict(hashlib.sha256)
        parts = self._aggregates(
            "group_concat(line, '')",
            f"""SELECT iif(d.work_id IS NULL, '', json_array(c.work_id, d.accepted, d.unscored, d.price_micro_usd))
                  || char(10) AS line
                FROM {self._candidates} LEFT JOIN decisions AS d USING (work_id) WHERE TRUE""",
        )
        for (lines,) in parts:
            for line, task in zip((lines or "").encode().splitlines(keepends=True), tasks, strict=False):
                if line != b"\n":
                    hashes[task].update(line)
        return ((of.tasks[task][0], hashed.hexdigest()) for task, hashed in hashes.items())

    def _grouped(self, kind: str, query: str, *parameters: str) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
        """The groups of some hundred rows and the rows, without their first column."""
        tasks = None
        if kind in _OF_CANDIDATES:
            tasks = self._by_work_id("SELECT work_id, task_id FROM candidates ORDER BY work_id")
        for rows in self._chunks(query, *parameters):
            groups = list(map(_first, rows))
            yield tasks.values(groups) if tasks else groups, [row[1:] for row in rows]
