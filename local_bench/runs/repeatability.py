"""Test and retest: the same judge asked the same again, and how often it says the same."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from local_bench.core.types import Verdict
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.rubrics import Rubric
from local_bench.judges.vlm.variants import wording_of
from local_bench.runs.device import Place
from local_bench.runs.judge import JudgeRequest, JudgeSession, asks_of, readable, verdict_columns
from local_bench.runs.judge_factory import judge_spec
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import verdict_of
from local_bench.runs.store import RepeatRow
from local_bench.settle.agreement import Repeatability, test_retest


@dataclass(frozen=True)
class RepeatabilityRow:
    """How far one judge agrees with itself on one criterion of one rubric."""

    judge: str
    rubric: str
    criterion: str
    rounds: int
    """Askings in all, the first included."""
    retest: Repeatability


def rejudge(run: RunDir, places: Sequence[Place], meters: Sequence[Meter], progress: Progress, rounds: int) -> None:
    """Asks every judge all its questions until each has been asked `rounds` times over and above the first; the run's
    verdicts stay as they are. Raises as `judge`."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    for config in run.config.judges:
        spec = judge_spec(config, places[0])
        asks = list(asks_of(run, tasks, config, spec, places))
        rows = run.store.repeats(spec.judge_id)
        there = {(r.work_id, r.rubric, r.point, r.repeat, r.round): r.question_id for r in rows}
        again = [JudgeRequest(a.work_id, a.question, a.question_id, i) for i in range(1, rounds + 1) for a in asks]
        left, _ = readable(run, [ask for ask in again if there.get(ask.key) != ask.question_id], progress)
        if left:
            JudgeSession(run, config, spec, places, meters, progress).hold(left, KeepRepeats(run, spec))


@dataclass(frozen=True)
class KeepRepeats:
    """Enters answers beside the run's verdicts."""

    run: RunDir
    spec: JudgeSpec

    def __call__(self, answered: Sequence[tuple[JudgeRequest, Verdict]]) -> None:
        self.run.store.enter_repeats(
            RepeatRow(*ask.key[:4], self.spec.judge_id, ask.round, ask.question_id, *verdict_columns(verdict))
            for ask, verdict in answered
        )


def retest_rows(run: RunDir) -> list[RepeatabilityRow]:
    """One row a judge, rubric and criterion, of all that was asked again; empty where nothing was."""
    labels = run.store.json_meta("judges") or {}
    heard: dict[tuple[str, str], dict[tuple[str, str, int, int], list[Verdict]]] = defaultdict(dict)
    first = {(r.judge, r.work_id, r.rubric, r.point, r.repeat): verdict_of(r) for r in run.store.verdicts()}
    for row in run.store.repeats():
        question = row.work_id, row.rubric, row.point, row.repeat
        if (row.judge, *question) in first:
            of = heard[row.judge, row.rubric]
            of.setdefault(question, [first[row.judge, *question]]).append(verdict_of(row))
    rows = []
    for (judge, name), questions in sorted(heard.items()):
        n = max(len(verdicts) for verdicts in questions.values())
        whole = [verdicts for verdicts in questions.values() if len(verdicts) == n]
        answers = (verdict.answer for verdicts in whole for verdict in verdicts)
        asked = wording_of(name, (field for answer in answers for field in answer or ()))
        for criterion in asked.criteria:
            table = [[_number(asked, criterion.name, verdicts[i]) for verdicts in whole] for i in range(n)]
            rows.append(RepeatabilityRow(labels.get(judge, judge[:8]), name, criterion.name, n, test_retest(table)))
    return rows


def _number(asked: Rubric, criterion: str, verdict: Verdict) -> float | None:
    """The criterion's value, or -1 where the answer took a form without it (no text, no score for text)."""
    if verdict.answer is None:
        return None
    if verdict.labels is not None and criterion in verdict.labels:
        return verdict.value(criterion)
    return float(asked.labels_of(verdict.answer).get(criterion, -1))
