"""Merges run directories: the shards of a run, or runs of other models on the same tasks, into one run.

The result does not depend on the order of the parts, and merging it again with any of them changes nothing.
"""

import heapq
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

from local_bench.core.errors import ConfigError, LedgerError, UserError, is_failure
from local_bench.core.files import link, scratch, storage_errors
from local_bench.core.types import Task, canonical_json, digest
from local_bench.judges.metrics.base import RETRIED
from local_bench.runs.config import RunConfig, SettlementConfig, parse_shard
from local_bench.runs.image_store import IMAGES, INPUTS
from local_bench.runs.judge import combined_repeats
from local_bench.runs.plan import in_shard
from local_bench.runs.rundir import SIDE_FILES, RunDir, first_config_difference, take_lock
from local_bench.runs.scoring import computed_scores, decide, sets
from local_bench.runs.scoring import parts as parts_of
from local_bench.runs.store import Candidate, MeterRow, ScoreRow, SessionRow, Store, VerdictRow
from local_bench.runs.store.contents import file_digests, record, recorded, root
from local_bench.runs.verify import verify

_SAME = ("numerics", "metric", "served")
"""Kinds of values in `meta` that all parts must agree on."""
_MISSING = "missing_shards"
"""The key in `meta` of a run merged with `partial`: by model, the shards that it lacks."""
Row = TypeVar("Row", VerdictRow, ScoreRow)


@dataclass(frozen=True)
class Merged:
    """The merged run."""

    path: Path
    n_parts: int
    n_tasks: int
    n_candidates: int
    missing_shards: tuple[str, ...]


def merge(
    out: Path,
    parts: Sequence[Path],
    partial: bool = False,
    note: Callable[[str], None] = lambda _: None,
    *,
    merge_annotations: Callable[[Path, Sequence[Path]], None],
) -> Merged:
    """Merge the runs in `parts` into `out`; a run that is already at `out` is one more part. `merge_annotations` writes
    the annotations of the parts' folders to a folder: they are not a part of the run's store.

    UserError, with nothing written, for other tasks, plans, numerics, metrics, judges or acceptance rules, other bytes
    of an image, another answer or score, a missing shard (unless `partial`), or a part with faults (`verify`).
    """
    with storage_errors(out):
        if _former(out).is_dir():
            os.close(take_lock(_former(out), held=f"another process replaces {out}: wait for it, then merge again"))
        _end_replacement(out)
    whole = out.resolve()
    paths = sorted({path.resolve() for path in parts} | ({whole} if (out / "run.yaml").exists() else set()))
    if len(paths) < 2 and not (len(paths) == 1 and paths[0] != whole):
        raise UserError("merge needs at least one run besides the result: give the run directories of the shards")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is not a folder: give a new one")
    if out.exists() and not (out / "run.yaml").exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty and not a run directory: give an empty or new folder")
    if nested := [path for path in paths if path in whole.parents or whole in path.parents]:
        raise UserError(f"one of {out} and {nested[0]} is inside the other: give a folder outside of the parts")
    with ExitStack() as stack:
        if whole in paths:  # what another process wrote there meanwhile would be lost
            stack.callback(os.close, take_lock(whole))
        runs = [stack.enter_context(RunDir.open(path)) for path in paths]
        of_shard = any(run.config.suite.shard for run in runs if run.path == whole)
        if of_shard or whole in {path.resolve() for path in parts}:
            raise UserError(f"{out} is one of the parts, which are not changed: give a new folder before them")
        for run in runs:
            note(f"checking {run.path}")
            if findings := verify(run):
                first = findings[0 if recorded(run.store, "meta") else -1]  # a command that did not finish explains all
                raise UserError(
                    f"{run.path} cannot be merged: {first.subject} {first.fault} (`local-bench verify "
                    f"{run.path}` lists {'it' if len(findings) == 1 else f'all {len(findings)} findings'})"
                )
        runs.sort(key=lambda run: (canonical_json(run.config.model_dump()), root(run.store)))
        config, missing = _merged_config(runs, partial)
        tasks = _tasks(runs)
        candidates = _candidates(runs, config, tasks)
        metas = _metas(runs) | ({_MISSING: json.dumps(missing, sort_keys=True)} if missing else {})
        with storage_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(scratch(out.parent))
        new = folder / "run"
        _write(new, config, runs, tasks, candidates, metas, note)
        merge_annotations(new, [run.path for run in runs])
        if changed := [run.path for run in runs if run.path != whole and run.written_meanwhile]:
            raise LedgerError(f"{changed[0]} was written during the merge: wait for its command, then merge again")
        _put(new, out, whole in paths)
    return Merged(out, len(runs), len(tasks), len(candidates), tuple(dict.fromkeys(chain(*missing.values()))))


# ---- what the parts must have in common


def _merged_config(runs: Sequence[RunDir], partial: bool) -> tuple[RunConfig, dict[str, list[str]]]:
    """The config of the whole, and by model the shards that no part has."""
    first, models = runs[0].config, {model.label: model for run in runs for model in run.config.models}
    for run in runs[1:]:
        others = first.whole.model_copy(update={"models": [models[model.label] for model in run.config.models]})
        if difference := first_config_difference(others, run.config.whole):
            raise ConfigError(f"{runs[0].path} and {run.path} are runs with different configs ({difference}): {_RERUN}")
    lists = {tuple(model.label for model in run.config.models) for run in runs}
    labels = next(iter(lists)) if len(lists) == 1 else tuple(sorted(models))
    update = {"models": [models[label] for label in labels], "settlement": _settlement(runs)}
    return first.whole.model_copy(update=update), _missing(runs, labels, partial)


def _settlement(runs: Sequence[RunDir]) -> SettlementConfig:
    """The settlement of the whole, with all parts' prices at APIs. ConfigError if two parts follow different rules:
    their decisions, costs or scores cannot be mixed."""
    rule: dict[str, Any] = {}
    for run in runs:
        own = _rule(run.config)
        differ = [key for key, value in own.items() if rule.setdefault(key, value) != value]
        if differ:
            key, part = differ[0], shlex.quote(str(run.path))
            saved = [name for name in differ if name.startswith(("acceptance.", "settlement."))]
            settings = " --set ".join(shlex.quote(f"{k}={canonical_json(rule[k])}") for k in saved or [key])
            advice = f"`local-bench settle {part} --set {settings} --save` makes them equal" if saved else _RERUN
            if key == "panel_word":
                advice = (
                    f"`local-bench judge {part} --set {settings}` and then `local-bench settle {part}` make them equal"
                )
            here, there = canonical_json(own[key]), canonical_json(rule[key])
            raise ConfigError(f"{run.path}: {key} is {here}, and {there} in another part: {advice}")
    prices = {label: usd for run in runs for label, usd in run.config.settlement.api_usd_per_image.items()}
    return runs[0].config.settlement.model_copy(update={"api_usd_per_image": prices})


def _rule(config: RunConfig) -> dict[str, Any]:
    """The settings that decisions, costs and the judges' scores follow from, by key."""
    sections = config.model_dump(include={"acceptance", "settlement"})
    rule = {f"{section}.{key}": value for section, inner in sections.items() for key, value in inner.items()}
    prices = rule.pop("settlement.api_usd_per_image")  # by model, and parts may have different models
    rule |= {f"settlement.api_usd_per_image.{label}": usd for label, usd in prices.items()}
    judges = {"panel_word": config.panel_word, "panel": [judge.label for judge in config.panel]}
    return rule | judges | {"suite.questions_from": config.suite.questions_from}


def _missing(runs: Sequence[RunDir], labels: Sequence[str], partial: bool) -> dict[str, list[str]]:
    """By model, the shards that no part has. UserError if there are any, unless `partial`."""
    missing: dict[str, list[str]] = {}
    for label in labels:
        shards = [_shards(run, label) for run in runs if label in {model.label for model in run.config.models}]
        if all(shards):  # a part that is a whole run has all tasks
            present = set().union(*shards)
            (n_shards, *others) = {parse_shard(shard)[1] for shard in present}
            if others:
                raise UserError(f"the parts are shards of different numbers ({', '.join(sorted(present))}): {_RERUN}")
            missing[label] = [shard for shard in _all_shards(n_shards) if shard not in present]
    missing = {label: shards for label, shards in missing.items() if shards}
    if missing and not partial:
        of_all = list(missing) == list(labels) and len({tuple(shards) for shards in missing.values()}) == 1
        names = {", ".join(shards) + ("" if of_all else f" of {label}"): 0 for label, shards in missing.items()}
        raise UserError(f"shard {'; '.join(names)} is missing: add its run directory, or merge with --partial")
    return missing


def _shards(run: RunDir, label: str) -> set[str]:
    """The shards of a model's tasks that a run has; empty if it has all tasks."""
    if run.config.suite.shard:
        return {run.config.suite.shard}
    noted = (run.store.json_meta(_MISSING) or {}).get(label) or ["1/1"]
    every = set(_all_shards(int(noted[0].partition("/")[2])))
    tasks = {row.task_id for row in run.store.candidates(label)}
    added = any(in_shard(task_id, shard) for shard in every & set(noted) for task_id in tasks)  # since it was noted
    return set() if added else every - set(noted)


def _all_shards(n: int) -> list[str]:
    return [f"{i}/{n}" for i in range(1, n + 1)]


_RERUN = "merge runs that were made with the same config"


def _tasks(runs: Sequence[RunDir]) -> dict[str, tuple[int, Task]]:
    """Task id -> (position, task) of all parts, in order of positions."""
    tasks: dict[str, tuple[int, Task]] = {}
    for run in runs:
        positions = run.store.task_positions()
        for task in run.store.tasks():
            placed = positions[task.task_id], task
            position, other = tasks.setdefault(task.task_id, placed)
            if other != task:
                raise UserError(f"{run.path}: the task {task.task_id!r} differs from that of another part: {_RERUN}")
            if position != placed[0]:
                raise UserError(
                    f"{run.path}: the task {task.task_id!r} is at another position than in another part: {_RERUN}"
                )
    return dict(sorted(tasks.items(), key=lambda item: item[1][0]))


def _candidates(runs: Sequence[RunDir], config: RunConfig, tasks: Mapping[str, tuple[int, Task]]) -> list[Candidate]:
    """All candidates in the order of the whole's plan, each in its most advanced state."""
    by_key: dict[tuple[str, str, int, int], Candidate] = {}
    for run in runs:
        for row in run.store.candidates():
            behind, ahead = sorted((by_key.get(row.key, row), row), key=_state)
            found = behind.state == "unscored" and ahead.image and "imported" in ahead.work["model"]
            if behind.work_id != ahead.work_id and not found:
                raise UserError(f"{run.path}: {row.name} was planned differently in another part: {_RERUN}")
            if behind.work_id == ahead.work_id and _state(behind)[0] == 2 and _result(behind) != _result(ahead):
                raise UserError(
                    f"{run.path}: {row.name} has other bytes than in another part: generation is not reproducible "
                    "between the machines, so the runs cannot be merged"
                )
            by_key[row.key] = ahead
    order = {model.label: i for i, model in enumerate(config.models)}
    rows = sorted(by_key.values(), key=lambda r: (order[r.model], tasks[r.task_id][0], r.deliverable, r.attempt))
    return [replace(row, position=i) for i, row in enumerate(rows)]


def _state(row: Candidate) -> tuple[int, bool, str]:
    """How advanced a candidate is: planned, failed (the next session generates it again), unscored, with an image."""
    return 0 if row.state == "planned" else 1 if is_failure(row.unscored) else 2, row.image is not None, repr(row)


def _result(row: Candidate) -> tuple[Any, ...]:
    return row.state, row.pixels_sha256, row.unscored, row.identity


def _metas(runs: Sequence[RunDir]) -> dict[str, str]:
    metas: dict[str, str] = {}
    for run in runs:
        for kind in _SAME:
            for name, value in run.store.notes(kind).items():
                text = canonical_json(value)
                if metas.setdefault(f"{kind}:{name}", text) != text:
                    raise UserError(f"{run.path}: the {kind} of {name} differ from those of another part: {_RERUN}")
        for kind, combine in _COMBINED.items():
            for name, value in run.store.notes(kind).items():
                key = f"{kind}:{name}"
                metas[key] = json.dumps(
                    combine(json.loads(metas[key]), value) if key in metas else value, sort_keys=True
                )
    judges = {canonical_json(labels) for run in runs if (labels := run.store.json_meta("judges"))}
    if len(judges) > 1:
        raise UserError(f"the parts were judged by different judges: {_RERUN}")
    numerics: dict[str, Any] = {}
    for run in runs:
        provenance = run.store.json_meta("provenance") or {}
        for entry in filter(None, (provenance.get("judge"), *provenance.get("panel", []))):
            if numerics.setdefault(entry["judge_id"], entry["numerics"]) != entry["numerics"]:
                raise UserError(
                    f"{run.path}: the judge {entry['name']} has other numerics than in another part: {_RERUN}"
                )
    return metas | _captions_cut(runs)


def _captions_cut(runs: Sequence[RunDir]) -> dict[str, str]:
    """How many captions each metric cut, added over parts that share no image."""
    metas: dict[str, str] = {}
    for name in sorted({name for run in runs for name in run.store.notes("captions_cut")}):
        measured = (run.store.frame("scores", ["work_id"], "name = ? AND value IS NOT NULL", name) for run in runs)
        noted = (run.store.json_meta(f"captions_cut:{name}") for run in runs)
        parts = [(set(frame["work_id"]), cut) for frame, cut in zip(measured, noted, strict=True)]
        parts.sort(key=lambda part: (part[1] is not None, -len(part[0])))
        for part in list(parts):  # a merged run gives way to all of its parts, else they give way to it
            if part[0] <= set().union(*(other[0] for other in parts if other is not part)):
                parts.remove(part)
        total, counted = Counter[str](), set[str]()
        for ids, cut in parts:
            if not ids & counted:
                counted |= ids
                total.update(cut or {"n": len(ids)})  # it is noted only where captions were cut
        if total["n_cut"]:
            limit = max(cut["max_tokens"] for _, cut in parts if cut)
            metas[f"captions_cut:{name}"] = json.dumps({**total, "max_tokens": limit}, sort_keys=True)
    return metas


def _union(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    both = {key for key, value in b.items() if isinstance(value, dict) and isinstance(a.get(key), dict)}
    return a | {key: _union(a[key], value) if key in both else value for key, value in b.items()}


def _checks(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """The judge's checks: batch invariance must hold in every session of every part."""
    first, second = a.get("repeats"), b.get("repeats")
    if not first or not second:
        return a | b
    return a | b | {"repeats": combined_repeats(first, second)}


def _larger(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return max(a, b, key=lambda value: (len(value.get("offload", ())), value.get("n", 0), canonical_json(value)))


_COMBINED = {
    "batches": lambda a, b: a | {k: min(n, a.get(k, n)) for k, n in b.items()},
    "canary": _checks,
    **dict.fromkeys(("operations", "delivered"), _union),
}
_COMBINED |= dict.fromkeys(("pace", "placement"), _larger)
"""Kinds of values in `meta` that differ between parts, and what the whole has: of a judge's pace, that of the part with
the most answers; of placements, which differ in streaming alone, the one that streams."""


# ---- writing the whole


def _write(
    path: Path,
    config: RunConfig,
    runs: Sequence[RunDir],
    tasks: Mapping[str, tuple[int, Task]],
    candidates: Sequence[Candidate],
    metas: Mapping[str, str],
    note: Callable[[str], None],
) -> None:
    with RunDir.begin(path, config) as whole:
        store = whole.store
        store.enter_plan([position for position, _ in tasks.values()], [task for _, task in tasks.values()], candidates)
        for run in runs:
            note(f"adding {run.path}")
            _copy_images(run, whole)
        _add_results(whole, runs)
        sessions = _sessions(runs)
        for session, rows in sessions:
            store.add_session(session, rows)
        with store.transaction():
            for key, value in metas.items():
                store.set_meta(key, value)
        provenance: dict[str, Any] = {}
        for run in sorted(runs, key=lambda run: bool(run.config.suite.shard)):  # first a merged run, which has all
            provenance = _union(run.store.json_meta("provenance") or {}, provenance)
        whole.write_provenance(provenance | {"sessions": len(sessions)})
        record(whole.store, file_digests(whole.path))


def _add_results(whole: RunDir, runs: Sequence[RunDir]) -> None:
    """Add the judges' answers and the metrics' scores. The judges' scores and the decisions are computed from what was
    taken, which no single part may have."""
    store, made = whole.store, sets(whole.store.images())
    # A question may show all images of a set: a part with fewer of them has answers to other questions.
    whole_sets = [
        {
            work_id
            for key, images in sets(run.store.images()).items()
            if images == made[key]
            for work_id, _ in images.values()
        }
        for run in runs
    ]
    planned = [{work_id for images in made.values() for work_id, _ in images.values()}] * len(runs)
    tables: tuple[Literal["verdicts", "retests"], ...] = ("verdicts", "retests")
    for table in tables:
        read = partial(Store.verdicts, counted=False, table=table)
        store.enter_verdicts(_best(runs, whole_sets, read, _VERDICT), table)
    store.enter_scores("metric", _best(runs, planned, lambda part: part.scores("metric"), _SCORE))
    for run, ids in zip(runs, whole_sets, strict=True):
        store.enter_scores("judge", (row for row in run.store.scores("judge") if row.work_id in ids))
    labels = next((labels for run in runs if (labels := run.store.json_meta("judges"))), None)
    if labels:
        judged = [ids for run, ids in zip(runs, whole_sets, strict=True) if run.store.meta("judges")]
        if {work_id for *_, work_id, image in store.images() if image} <= set().union(*judged):
            store.set_meta("judges", json.dumps(labels))
        scored = {row.work_id for row in store.scores("judge")}
        computed = (pair for part in parts_of(store) for pair in computed_scores(whole, part, list(labels)))
        store.enter_scores("judge", (pair for pair in computed if pair[0] in scored), replace_all=True)
    if any(len(run.store.frame("decisions", ["work_id"])) for run in runs):
        decide(whole)


_VERDICT = attrgetter("work_id", "judge", "rubric", "point", "repeat", "round")
_SCORE = attrgetter("work_id", "score.name")
"""The keys of rows, in the order in which the store reads them."""


def _best(
    runs: Sequence[RunDir], ids: Sequence[set[str]], read: Callable[[Store], Iterable[Row]], key: Callable[[Row], Any]
) -> Iterator[Row]:
    """Of the parts' rows on the candidates `ids` of each, one for every key: a result, else a final reason for none,
    else one that the next session replaces. UserError for two different results."""

    def of(run: RunDir, ids: set[str]) -> Iterator[tuple[Any, Row, RunDir]]:
        return ((key(row), row, run) for row in read(run.store) if row.work_id in ids)

    first = itemgetter(0)
    for _, same in groupby(heapq.merge(*map(of, runs, ids), key=first), first):
        found = list(same)
        *others, (_, best, run) = sorted(found, key=lambda one: _rank(one[1])) if len(found) > 1 else found
        for _, row, other in others:
            if _value(row) not in (None, _value(best)):
                image = run.store.candidate(best.work_id).name
                what = best.score.name if isinstance(best, ScoreRow) else f"the answer {best.rubric}/{best.point}"
                raise UserError(
                    f"{run.path}: {what} of {image} differs from that in {other.path}: it is not reproducible between "
                    "the machines, so leave one of the two out"
                )
        yield best


def _value(row: VerdictRow | ScoreRow) -> Any:
    """A score or an answer; None if there is none."""
    if isinstance(row, ScoreRow):
        return row.score if row.score.unscored is None else None
    return None if row.answer_json is None else (row.answer_json, row.labels_json)


def _rank(row: VerdictRow | ScoreRow) -> tuple[bool, bool, str]:
    if isinstance(row, ScoreRow):
        replaced = (row.score.unscored or "").startswith(RETRIED)
    else:
        replaced = not row.question_id or is_failure(row.unscored)
    return _value(row) is not None, not replaced, repr(row)


def _copy_images(run: RunDir, whole: RunDir) -> None:
    """Copy image files, as hard links where the file system allows it."""
    for folder in (IMAGES, INPUTS):
        for source in sorted((run.path / folder).rglob("*.png")):
            target = whole.path / source.relative_to(run.path)
            with storage_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    link(source, target)


def _sessions(runs: Iterable[RunDir]) -> list[tuple[SessionRow, list[MeterRow]]]:
    """The sessions of all parts in order of their start, each once; a part that is itself merged has those of its own
    parts."""
    sessions: dict[str, tuple[SessionRow, list[MeterRow]]] = {}
    most: Counter[str] = Counter()
    for run in runs:
        rows = {session: list(metered) for session, metered in groupby(run.store.meter(), attrgetter("session"))}
        counts: Counter[str] = Counter()
        for session in run.store.sessions():
            of_session = rows.get(session.session, [])
            key = digest([list(vars(session).values())[1:], [list(vars(row).values())[1:] for row in of_session]])
            sessions[key] = session, of_session
            counts[key] += 1
        most |= counts
    ordered = sorted(sessions, key=lambda key: (sessions[key][0].started_utc, sessions[key][0].device, key))
    return [sessions[key] for key in ordered for _ in range(most[key])]


def _put(new: Path, out: Path, replaces: bool) -> None:
    """Move the finished run to `out`; an earlier run there is replaced, with a copy of it kept until the end."""
    with storage_errors(out):
        try:
            if replaces:
                out.rename(_former(out))
            elif out.exists() and any(out.iterdir()):
                raise UserError(f"another process has written {out} meanwhile: merge again, or give a new folder")
            new.rename(out)
        finally:
            _end_replacement(out)


def _end_replacement(out: Path) -> None:
    """Remove the run that a merge has replaced, whose other files (notes, logs, reports) stay; without the new run (a
    merge was killed) it goes back in place: it may be all that is left of some parts."""
    former = _former(out)
    if former.is_dir() and out.exists() and any(out.iterdir()):
        for file in sorted(former.rglob("*")):
            target = out / file.relative_to(former)
            of_ledger = file.name.startswith("ledger.") or file.name.endswith(SIDE_FILES)  # the former one
            if file.is_file() and not target.exists() and not of_ledger:
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
        shutil.rmtree(former)
    elif former.is_dir():
        former.rename(out)


def _former(out: Path) -> Path:
    return out.with_name(f".{out.name}.former")
