"""Stores the plan of a run. A later session may extend it; a plan that changes existing work is refused."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from local_bench.core.errors import ConfigError, LedgerError
from local_bench.core.identity import canonical_json
from local_bench.runs.plan import Planned, RunPlan
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import CandidateRow
from local_bench.runs.store.rows import State

_PER_IMAGE = ("encode", "denoise", "decode")
"""Phases whose time grows with the number of images."""
_DETERMINED = ("work_json", "prompt", "seed", "height", "width")
"""The columns of a candidate that follow from its work id."""


def enter_plan(run: RunDir, plan: RunPlan) -> list[str]:
    """Store the plan, or what it adds to the stored plan; return a sentence per model with additions, with the time
    that they take at the speed measured in this run.

    ConfigError, before anything is changed, if the plan lacks stored work or would change it.
    """
    if not run.store.planned:
        run.store.add_plan(plan.positions, plan.tasks, (_row(i, planned) for i, planned in enumerate(plan.planned)))
        return []
    rows = [_row(i, planned) for i, planned in enumerate(plan.planned)]
    stored = run.store.candidates()
    _refuse_other_tasks(run, plan)
    _refuse_other_candidates(run, stored, rows)
    known = {row.work_id for row in stored}
    if [row.work_id for row in stored] != [row.work_id for row in rows]:
        run.store.extend_plan(plan.positions, plan.tasks, rows)
    added = Counter(row.model for row in rows if row.work_id not in known)
    return [
        f"{model}: {n:,} candidates are added to the run's {len(known):,}{_takes(run, model, n)}"
        for model, n in added.items()
    ]


def _takes(run: RunDir, model: str, n: int) -> str:
    """How long `n` images of a model take on one device, if the run has generated images of it."""
    rows = [row for row in run.store.meter() if row.model == model and row.phase in _PER_IMAGE]
    made = sum(row.n_items for row in rows if row.phase == "denoise")
    if not made:
        return ""
    seconds = n * sum(row.t1_ns - row.t0_ns for row in rows) / 1e9 / made
    took = (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.0f} min"
        if seconds >= 90
        else f"{seconds:.0f} s"
    )
    return f", about {took} on one device at the speed measured in this run"


def _row(position: int, planned: Planned) -> CandidateRow:
    candidate = planned.candidate
    sampler = candidate.work.get("sampler", {})
    state: State = "unscored" if planned.unscored else "done" if planned.pixels_sha256 else "planned"
    return CandidateRow(
        work_id=candidate.work_id,
        position=position,
        task_id=candidate.deliverable.task_id,
        deliverable=candidate.deliverable.index,
        model=candidate.model,
        attempt=candidate.attempt,
        prompt=candidate.deliverable.prompt,
        work_json=canonical_json(candidate.work),
        seed=candidate.seed,
        height=sampler.get("height"),
        width=sampler.get("width"),
        state=state,
        identity=candidate.work_id if state == "done" else None,
        pixels_sha256=planned.pixels_sha256,
        unscored=planned.unscored,
        batch_size=None,
        truncated_json=None,
        cost_micro_usd=planned.cost_micro_usd,
    )


def _refuse_other_tasks(run: RunDir, plan: RunPlan) -> None:
    planned = {task.task_id: canonical_json(task.content) for task in plan.tasks}
    for task_id, content in run.store.task_contents().items():
        if task_id not in planned:
            raise ConfigError(
                f"{run.path}: the task {task_id!r} is in the run and not in the plan: tasks can be added, not removed; "
                "give a new --run-dir, or the old settings"
            )
        if planned[task_id] != content:
            raise ConfigError(
                f"{run.path}: the task {task_id!r} has changed since this run began: give a new --run-dir"
            )


def _refuse_other_candidates(run: RunDir, stored: Sequence[CandidateRow], planned: Sequence[CandidateRow]) -> None:
    """ConfigError with the first difference if a stored candidate is not planned, LedgerError if it has other inputs
    than the planned one of the same work id. An imported image that was missing and has been found may replace its
    unscored candidate."""
    by_key = {row.key: row for row in planned}
    for row in stored:
        other = by_key.get(row.key)
        name = f"image {row.deliverable} of {row.task_id!r} by {row.model}, attempt {row.attempt},"
        if other is None:
            raise ConfigError(
                f"{run.path}: {name} is in the run and not in the plan: candidates can be added, not removed; give a "
                "new --run-dir, or the old settings"
            )
        if other.work_id == row.work_id:
            changed = next((column for column in _DETERMINED if getattr(row, column) != getattr(other, column)), None)
            if changed:
                raise LedgerError(
                    f"{run.path}: {name} has a {changed.removesuffix('_json')} that does not follow from its work id: "
                    "the ledger was changed by hand; `local-bench verify` lists what differs, `recover` restores a "
                    "backup"
                )
            continue
        if row.state == "unscored" and "imported" in other.work["model"]:
            continue
        key, before, now = _first_difference(row.work, other.work)
        raise ConfigError(
            f"{run.path}: {name} would change ({key}: {before} then, {now} now), because the models' files, the "
            "imported images or the suite are not the same: give a new --run-dir"
        )


def _first_difference(before: Any, now: Any, at: str = "work") -> tuple[str, str, str]:
    """(path, value before, value now) of the first difference of two JSON values that are not equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                return _first_difference(before.get(key), now.get(key), f"{at}.{key}")
    return at, canonical_json(before)[:80], canonical_json(now)[:80]
