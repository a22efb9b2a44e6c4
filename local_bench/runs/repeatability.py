"""Test-retest reliability: each judge answers its questions again, and its answers are compared."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from local_bench.core.types import Verdict
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.rubrics import Rubric, wording_of
from local_bench.runs.executors.base import Executor
from local_bench.runs.judge import (
    JudgeRequest,
    JudgeSession,
    judge_requests,
    spec_in,
    split_faulty,
    verdict_columns,
)
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import verdict_of
from local_bench.runs.store import RepeatRow
from local_bench.settle.agreement import Repeatability, test_retest


@dataclass(frozen=True)
class RepeatabilityRow:
    """Test-retest agreement of one judge on one criterion of a rubric."""

    judge: str
    rubric: str
    criterion: str
    rounds: int
    """Number of rounds, including the first."""
    retest: Repeatability


def rejudge(run: RunDir, executor: Executor, progress: Progress, rounds: int) -> None:
    """Repeat all questions until each judge has answered `rounds` additional rounds; the run's verdicts do not change.
    Raises as `judge`."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    judge_devices = executor.judge_devices
    for config in run.config.judges:
        spec = spec_in(run, config, judge_devices[0])
        requests = list(judge_requests(run, tasks, config, spec, judge_devices))
        rows = run.store.repeats(spec.judge_id)
        stored = {(r.work_id, r.rubric, r.point, r.repeat, r.round): r.question_id for r in rows}
        repeats = [replace(request, round=i) for i in range(1, rounds + 1) for request in requests]
        left, _ = split_faulty(run, [r for r in repeats if stored.get(r.key) != r.question_id], progress)
        if left:
            JudgeSession(run, config, spec, executor, progress, partial(_store_repeats, run, spec)).judge(left)


def _store_repeats(run: RunDir, spec: JudgeSpec, answered: Sequence[tuple[JudgeRequest, Verdict]]) -> None:
    """Store answers of additional rounds."""
    run.store.enter_repeats(
        RepeatRow(*r.key[:4], spec.judge_id, r.round, r.question_id, *verdict_columns(verdict))
        for r, verdict in answered
    )


def retest_rows(run: RunDir) -> list[RepeatabilityRow]:
    """One row per judge, rubric and criterion with repeated answers, over the rounds that all repeated questions have;
    empty if there are none."""
    labels = run.store.json_meta("judges") or {}
    answers_by_question: dict[tuple[str, str], dict[tuple[str, str, int, int], list[Verdict]]] = defaultdict(dict)
    first = {(r.judge, r.work_id, r.rubric, r.point, r.repeat): verdict_of(r) for r in run.store.verdicts()}
    for row in run.store.repeats():
        question = row.work_id, row.rubric, row.point, row.repeat
        if (row.judge, *question) in first:
            of_rubric = answers_by_question[row.judge, row.rubric]
            of_rubric.setdefault(question, [first[row.judge, *question]]).append(verdict_of(row))
    tasks = {row.work_id: row.task_id for row in run.store.candidates()}
    rows = []
    for (judge, name), questions in sorted(answers_by_question.items()):
        n = min(map(len, questions.values()))
        complete = [verdicts[:n] for verdicts in questions.values()]
        of_tasks = [tasks[work_id] for work_id, *_ in questions]
        answers = (verdict.answer for verdicts in complete for verdict in verdicts)
        rubric = wording_of(name, (field for answer in answers for field in answer or ()))
        for criterion in rubric.criteria:
            table = [[_number(rubric, criterion.name, verdicts[i]) for verdicts in complete] for i in range(n)]
            rows.append(
                RepeatabilityRow(labels.get(judge, judge[:8]), name, criterion.name, n, test_retest(table, of_tasks))
            )
    return rows


def _number(rubric: Rubric, criterion: str, verdict: Verdict) -> float | None:
    """The criterion's value; -1 if the answer does not include it (for example no text in the image)."""
    if verdict.answer is None:
        return None
    if verdict.labels is not None and criterion in verdict.labels:
        return verdict.value(criterion)
    return float(rubric.labels_of(verdict.answer).get(criterion, -1))
