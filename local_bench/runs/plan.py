"""What a run will do, decided before anything is loaded: its tasks, its models, its candidates."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from sqlite3 import Row

from pydantic import TypeAdapter, ValidationError

from local_bench.core.cards import ModelCard, card
from local_bench.core.errors import ConfigError, LedgerError
from local_bench.core.identity import canonical_json
from local_bench.core.images import pixel_digest, store_image
from local_bench.core.nouns import Candidate, Task
from local_bench.core.weights import check_here, resolve, weights_digest
from local_bench.judges.metrics.base import check_metrics
from local_bench.judges.vlm.server import claim_port
from local_bench.runs.config import ModelConfig, RunConfig
from local_bench.runs.ledger import Ledger
from local_bench.runs.rundir import RunDir
from local_bench.suites.registry import SuiteEntry, suite

_TASK = TypeAdapter(Task)


@dataclass(frozen=True)
class ModelPlan:
    """One generator of the run, all settings resolved."""

    label: str
    card: ModelCard
    weights: Path
    weights_sha256: str
    sampler: dict[str, int | float]
    attempts: int
    batch_size: int


@dataclass(frozen=True)
class RunPlan:
    """The whole run."""

    suite: SuiteEntry
    tasks: list[Task]
    models: list[ModelPlan]
    candidates: list[Candidate]


def make_plan(config: RunConfig, inputs: Path | None = None) -> RunPlan:
    """Plans a run; source and reference pictures are kept below `inputs` if given. UserError says what is wrong."""
    check_config(config)
    entry = suite(config.suite.name)
    keep = pixel_digest if inputs is None else lambda image: store_image(inputs, image)
    tasks = entry.tasks(config.suite.path, keep)[: config.suite.limit]
    models = [_model(m, config) for m in config.models]
    candidates = list(_candidates(entry, tasks, models, config.seed))
    _refuse_twins(candidates)
    return RunPlan(entry, tasks, models, candidates)


def check_config(config: RunConfig) -> None:
    """What can be told at once and without torch: wrong names, files that are not here. UserError says which."""
    check_metrics(config.metrics)
    suite(config.suite.name)
    for model in config.models:
        check_here(card(model.card, "generator"), model.weights)
    judge = card(config.judge.card, "judge")
    if config.judge.base_url is None:
        check_here(judge, config.judge.weights)
        claim_port(config.judge.port)


def _model(config: ModelConfig, run: RunConfig) -> ModelPlan:
    described = card(config.card, "generator")
    names = ("height", "width", "num_inference_steps", "guidance_scale", "max_sequence_length")
    own = {name: getattr(config, name) for name in names}
    weights = resolve(described, config.weights)
    return ModelPlan(
        label=config.label,
        card=described,
        weights=weights,
        weights_sha256=weights_digest(weights),
        sampler={name: getattr(described.sampler, name) if value is None else value for name, value in own.items()},
        attempts=config.attempts,
        batch_size=config.batch_size or run.engine.batch_size,
    )


def _candidates(entry: SuiteEntry, tasks: list[Task], models: list[ModelPlan], seed: int) -> Iterator[Candidate]:
    asked = entry.load()
    for model in models:
        made_by = {
            "card": model.card.name,
            "family": model.card.family,
            "weights": model.weights_sha256,
            "dtype": model.card.dtype,
        }
        for task in tasks:
            for deliverable in asked.deliverables(task):
                for attempt in range(1, model.attempts + 1):
                    work = {
                        "task": task.task_id,
                        "deliverable": deliverable.index,
                        "prompt": deliverable.prompt,
                        "source": task.source_sha256,
                        "references": task.reference_sha256,
                        "model": made_by,
                        "sampler": model.sampler,
                        "attempt": attempt,
                        "run_seed": seed,
                    }
                    yield Candidate(model.label, deliverable, attempt, work)


def _refuse_twins(candidates: list[Candidate]) -> None:
    seen: dict[str, str] = {}
    for candidate in candidates:
        other = seen.setdefault(candidate.work_id, candidate.model)
        if other != candidate.model:
            raise ConfigError(
                f"models: {other!r} and {candidate.model!r} are the same in all that decides a picture: keep one"
            )


def enter_plan(run: RunDir, plan: RunPlan) -> None:
    """Writes the plan into the ledger, or checks that the plan there is the same one. ConfigError where it is not."""
    ledger = run.ledger
    if ledger.meta("planned"):
        _refuse_other_plan(run, plan)
        return
    sizes = {model.label: (model.sampler["height"], model.sampler["width"]) for model in plan.models}
    unscored = {task.task_id: task.unscored for task in plan.tasks}
    with ledger.transaction():
        ledger.write_many(
            "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)",
            (
                (t.task_id, i, t.category, t.price_micro_usd, canonical_json(asdict(t)), t.unscored)
                for i, t in enumerate(plan.tasks)
            ),
        )
        ledger.write_many(
            """INSERT INTO candidates (work_id, position, task_id, deliverable, model, attempt, prompt, work, seed,
               height, width, state, unscored) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (
                (
                    c.work_id,
                    i,
                    c.deliverable.task_id,
                    c.deliverable.index,
                    c.model,
                    c.attempt,
                    c.deliverable.prompt,
                    canonical_json(c.work),
                    c.seed,
                    *sizes[c.model],
                    "unscored" if unscored[c.deliverable.task_id] else "planned",
                    unscored[c.deliverable.task_id],
                )
                for i, c in enumerate(plan.candidates)
            ),
        )
        ledger.set_meta("planned", "1")


def _refuse_other_plan(run: RunDir, plan: RunPlan) -> None:
    there = {row["work_id"]: row for row in run.ledger.rows("SELECT * FROM candidates")}
    here = {c.work_id for c in plan.candidates}
    tasks = {row["task_id"]: row["content"] for row in run.ledger.rows("SELECT task_id, content FROM tasks")}
    changed = next((t.task_id for t in plan.tasks if tasks.get(t.task_id) != canonical_json(asdict(t))), None)
    if changed is not None:
        raise ConfigError(
            f"{run.path}: the order {changed!r} is not what it was when this run began: give a new --run-dir"
        )
    if here != set(there):
        raise ConfigError(
            f"{run.path}: the models' files are not what they were when this run began: give a new --run-dir"
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
