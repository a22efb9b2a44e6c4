"""The plan as it stands in the ledger: written once, then held against every later session's."""

from sqlite3 import Row
from typing import Any

from pydantic import TypeAdapter, ValidationError

from local_bench.core.errors import ConfigError, LedgerError
from local_bench.core.identity import canonical_json
from local_bench.core.types import Task
from local_bench.runs.ledger import Ledger
from local_bench.runs.plan import Planned, RunPlan
from local_bench.runs.rundir import RunDir

_TASK = TypeAdapter(Task)


def enter_plan(run: RunDir, plan: RunPlan) -> None:
    """Writes the plan into the ledger, or checks that the plan there is the same one. ConfigError where it is not."""
    ledger = run.ledger
    if ledger.meta("planned"):
        _refuse_other_plan(run, plan)
        return
    with ledger.transaction():
        ledger.write_many(
            "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)",
            (
                (t.task_id, i, t.category, t.price_micro_usd, canonical_json(t.content), t.unscored)
                for i, t in enumerate(plan.tasks)
            ),
        )
        ledger.write_many(
            """INSERT INTO candidates (work_id, position, task_id, deliverable, model, attempt, prompt, work, seed,
               height, width, state, identity, pixels_sha256, unscored, cost_micro_usd)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (_row(i, planned) for i, planned in enumerate(plan.planned)),
        )
        ledger.set_meta("planned", "1")


def _row(position: int, planned: Planned) -> tuple[Any, ...]:
    candidate = planned.candidate
    sampler = candidate.work.get("sampler", {})
    state = "unscored" if planned.unscored else "done" if planned.pixels_sha256 else "planned"
    return (
        candidate.work_id,
        position,
        candidate.deliverable.task_id,
        candidate.deliverable.index,
        candidate.model,
        candidate.attempt,
        candidate.deliverable.prompt,
        canonical_json(candidate.work),
        candidate.seed,
        sampler.get("height"),
        sampler.get("width"),
        state,
        candidate.work_id if state == "done" else None,
        planned.pixels_sha256,
        planned.unscored,
        planned.cost_micro_usd,
    )


def _refuse_other_plan(run: RunDir, plan: RunPlan) -> None:
    there = {row["work_id"]: row for row in run.ledger.rows("SELECT * FROM candidates")}
    here = {c.work_id for c in plan.candidates}
    tasks = {row["task_id"]: row["content"] for row in run.ledger.rows("SELECT task_id, content FROM tasks")}
    changed = next((t.task_id for t in plan.tasks if tasks.get(t.task_id) != canonical_json(t.content)), None)
    if changed is not None:
        raise ConfigError(
            f"{run.path}: the order {changed!r} is not what it was when this run began: give a new --run-dir"
        )
    if here != set(there):
        raise ConfigError(
            f"{run.path}: the models' files or the imported pictures are not what they were when this run began: "
            "give a new --run-dir"
        )


def planned_tasks(ledger: Ledger) -> list[Task]:
    """The tasks of a run, from its ledger."""
    return [read_task(row) for row in ledger.rows("SELECT task_id, content FROM tasks ORDER BY position")]


def read_task(row: Row) -> Task:
    """The task in a row of the ledger. LedgerError if it is none."""
    try:
        return _TASK.validate_json(row["content"])
    except ValidationError as e:
        raise LedgerError(
            f"the ledger's task {row['task_id']!r} is not a task ({e.errors()[0]['msg']}): "
            "the run directory was changed by hand or made by another release, make the run again"
        ) from None
