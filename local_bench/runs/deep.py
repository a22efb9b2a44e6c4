"""`verify --deep`: generates and judges some of a run's tasks again, and compares bytes and answers."""

from collections.abc import Iterator
from pathlib import Path

from local_bench.core.identity import digest
from local_bench.core.scratch import scratch
from local_bench.runs.config import RunConfig
from local_bench.runs.engine import run_stages
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.verify import Finding


def repeat_tasks(run: RunDir, config: RunConfig, n_tasks: int, progress: Progress) -> list[Finding]:
    """Generate, measure and judge `n_tasks` tasks of `run` again under `config`, in a temporary folder.

    The tasks are a random sample that depends on the run's seed alone. Raises as `run_stages`.
    """
    task_ids = sorted(run.store.task_positions(), key=lambda task_id: digest([run.config.seed, task_id]))
    sample = frozenset(task_ids[:n_tasks])
    whole = config.model_copy(update={"suite": config.suite.model_copy(update={"shard": None})})
    stages = ("generate", "measure", *(("judge",) if run.store.json_meta("judges") else ()))
    with scratch() as folder:
        run_stages(whole, Path(folder) / "run", stages, progress, only=sample)
        with RunDir.open(Path(folder) / "run") as repeated:
            return list(_differences(run, repeated, sample))


def _differences(run: RunDir, repeated: RunDir, sample: frozenset[str]) -> Iterator[Finding]:
    again = {row.work_id: row for row in repeated.store.candidates()}
    names = {}
    for row in run.store.candidates():
        if row.task_id not in sample:
            continue
        name = names[row.work_id] = f"image {row.deliverable} of {row.task_id} by {row.model}, attempt {row.attempt}"
        other = again.get(row.work_id)
        if other is None:
            yield Finding("deep", name, "is not in the plan any more")
        elif (other.pixels_sha256, other.unscored) != (row.pixels_sha256, row.unscored) and row.state != "planned":
            yield Finding("deep", name, "has other bytes when it is generated again")
    scores = repeated.store.scores_by_candidate("metric")
    for work_id, _, score in run.store.scores("metric"):
        if work_id in names and scores.get(work_id, {}).get(score.name) not in (None, score):
            yield Finding("deep", f"{score.name} of {names[work_id]}", "has another value when it is measured again")
    verdicts = {(v.work_id, v.judge, v.rubric, v.point, v.repeat): v for v in repeated.store.verdicts()}
    for verdict in run.store.verdicts():
        if verdict.work_id in names:
            key = verdict.work_id, verdict.judge, verdict.rubric, verdict.point, verdict.repeat
            repeat = verdicts.get(key)
            if repeat is None or (repeat.answer_json, repeat.unscored) != (verdict.answer_json, verdict.unscored):
                subject = f"verdict {verdict.rubric}/{verdict.point}/{verdict.repeat} on {names[verdict.work_id]}"
                yield Finding("deep", subject, "has another answer when it is judged again")
