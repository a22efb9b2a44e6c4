"""Enters the plan into the store; every later session compares its own plan with the one that is stored."""

from local_bench.core.errors import ConfigError
from local_bench.core.identity import canonical_json
from local_bench.runs.plan import Planned, RunPlan
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import CandidateRow
from local_bench.runs.store.rows import State


def enter_plan(run: RunDir, plan: RunPlan) -> None:
    """Store the plan, or check that the stored plan is the same. ConfigError if it is not."""
    if run.store.planned:
        _refuse_other_plan(run, plan)
    else:
        run.store.add_plan(plan.tasks, (_row(i, planned) for i, planned in enumerate(plan.planned)))


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


def _refuse_other_plan(run: RunDir, plan: RunPlan) -> None:
    stored = {row.work_id for row in run.store.candidates()}
    tasks = run.store.task_contents()
    changed = next((t.task_id for t in plan.tasks if tasks.get(t.task_id) != canonical_json(t.content)), None)
    if changed is not None:
        raise ConfigError(f"{run.path}: the task {changed!r} has changed since this run began: give a new --run-dir")
    if stored != {c.work_id for c in plan.candidates}:
        raise ConfigError(
            f"{run.path}: the models' files or the imported images have changed since this run began: "
            "give a new --run-dir"
        )
