"""The judge phase: every judge of the run is asked what it has not answered yet, and every answer is kept."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.core.identity import canonical_json
from local_bench.core.types import Question, Task, Verdict
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.transport import Transport, Unreachable, answers
from local_bench.runs.device import Place
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import judge_spec, numerics_of, open_judge
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.robustness import canary_questions, try_judge
from local_bench.runs.rundir import RunDir
from local_bench.runs.save_interval import SaveInterval
from local_bench.runs.scoring import score, sets
from local_bench.runs.store import VerdictRow
from local_bench.suites.questions_from import borrowed_questions
from local_bench.suites.registry import suite

COMMIT_EVERY = 32
"""Answers that are committed together at most; fewer wherever the disk is quick (`SaveInterval`)."""
NOT_ASKED = ""
"""The question id of what is unscored because a picture is faulty: it is asked once the picture is back."""
Key = tuple[str, str, int, int, int]
"""(work id, rubric, point, repeat, round)"""
Keep = Callable[[Sequence[tuple["JudgeRequest", Verdict]]], None]


@dataclass(frozen=True)
class JudgeRequest:
    """One question about one candidate's image, and the identity of asking it here."""

    work_id: str
    question: Question
    question_id: str
    round: int = 0
    """Of a retest, from 1."""

    @property
    def key(self) -> Key:
        return self.work_id, self.question.rubric, self.question.point, self.question.repeat, self.round


def judge(run: RunDir, places: Sequence[Place], meters: Sequence[Meter], progress: Progress) -> None:
    """Asks, keeps and scores. ServerError where a judge cannot be had; what was answered until then is kept."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    judges = [(config, judge_spec(config, places[0])) for config in run.config.judges]
    _refuse_one_twice(judges)
    for config, spec in judges:
        asks = list(asks_of(run, tasks, config, spec, places))
        rows = run.store.verdicts(spec.judge_id)
        there = {(r.work_id, r.rubric, r.point, r.repeat, 0): r.question_id for r in rows}
        open_asks, faulty = readable(run, [ask for ask in asks if there.get(ask.key) != ask.question_id], progress)
        unasked = [(replace(ask, question_id=NOT_ASKED), Verdict(None, reason, "")) for ask, reason in faulty]
        KeepVerdicts(run, spec)([one for one in unasked if there.get(one[0].key, NOT_ASKED) == NOT_ASKED])
        if open_asks:
            JudgeSession(run, config, spec, places, meters, progress).hold(open_asks, KeepVerdicts(run, spec))
    labels = {spec.judge_id: config.label for config, spec in judges}
    run.store.enter_judges(labels)
    score(run, tasks, list(labels))


def asks_of(
    run: RunDir, tasks: dict[str, Task], config: JudgeConfig, spec: JudgeSpec, places: Sequence[Place]
) -> Iterator[JudgeRequest]:
    """All that this judge is asked about the pictures that are there, what shares one together."""
    numerics = numerics_of(config, places)
    asked = suite(run.config.suite.name)
    for (task_id, _, _), images in sets(run.store).items():
        shown = {deliverable: sha for deliverable, (_, sha) in images.items() if sha}
        own = asked.questions(tasks[task_id], shown, run.config.order_swap)
        for key, question in (*own, *borrowed_questions(run.config.suite.questions_from, tasks[task_id], shown)):
            yield JudgeRequest(images[key[0]][0], question, spec.question_id(question, numerics))


def readable(
    run: RunDir, asks: Sequence[JudgeRequest], progress: Progress
) -> tuple[list[JudgeRequest], list[tuple[JudgeRequest, str]]]:
    """The questions all of whose pictures are what the ledger says, and the others with the reason."""
    shas = (sha for ask in asks for sha in ask.question.images)
    faults = run.pictures.faulty(shas, run.config.engine.io_workers, either=True)
    whole: list[JudgeRequest] = []
    faulty: list[tuple[JudgeRequest, str]] = []
    for ask in asks:
        fault = next((faults[sha] for sha in ask.question.images if sha in faults), None)
        if fault is None:
            whole.append(ask)
        else:
            faulty.append((ask, fault.sentence))
    if faulty:
        progress.note(f"{len(faulty):,} questions are not asked: {faulty[0][1]}" + (" …" if len(faults) > 1 else ""))
    return whole, faulty


@dataclass(frozen=True)
class KeepVerdicts:
    """Enters answers as the run's verdicts; a later one takes an earlier one's place."""

    run: RunDir
    spec: JudgeSpec

    def __call__(self, answered: Sequence[tuple[JudgeRequest, Verdict]]) -> None:
        self.run.store.enter_verdicts(
            VerdictRow(
                *ask.key[:4],
                ask.question_id,
                self.spec.rubrics[ask.question.rubric].sha256,
                self.spec.judge_id,
                *verdict_columns(verdict),
            )
            for ask, verdict in answered
        )


def verdict_columns(verdict: Verdict) -> tuple[str | None, str | None, str | None, str]:
    """answer, labels, unscored, raw."""
    return (
        None if verdict.answer is None else canonical_json(verdict.answer),
        None if verdict.labels is None else json.dumps(verdict.labels),
        verdict.unscored,
        verdict.raw,
    )


class JudgeSession:
    """One judge before many questions; what is answered is kept and struck off, whatever happens to the judge."""

    def __init__(
        self,
        run: RunDir,
        config: JudgeConfig,
        spec: JudgeSpec,
        places: Sequence[Place],
        meters: Sequence[Meter],
        progress: Progress,
    ) -> None:
        self._run = run
        self._config = config
        self._spec = spec
        self._places = places
        self._meters = meters
        self._progress = progress
        self._made: dict[str, Image.Image] = {}
        self._pace = SaveInterval()
        self._uncharged = 0
        self._load = lru_cache(maxsize=16)(self._picture)

    def hold(self, asks: Sequence[JudgeRequest], keep: Keep) -> None:
        """Asks until nothing is left. ServerError where the judge is not to be had."""
        config, label = self._config, self._config.label
        self._progress.note(f"asking {config.base_url}" if config.base_url else f"starting the judge, {label}")
        log = self._run.logs / f"judge-{label}.log"
        questions = [ask.question for ask in asks] + (canary_questions() if config.canaries else [])
        with open_judge(config, self._spec, self._places, questions, self._load, log, self._progress) as transport:
            self._charge("load")
            self._progress.begin(f"{label}: judge", len(asks))
            left = {ask.key: ask for ask in asks}
            untried = config.canaries
            while left:
                try:
                    if untried:
                        try_judge(self._run, label, self._spec, transport, self._made)
                        self._charge("judge")
                        untried = False
                    self._ask(transport, left, keep)
                except Unreachable as e:
                    self._progress.note(f"the judge stopped answering ({e}); {len(left)} questions are left")
                    transport.restart()
                    self._charge("retry")

    def _ask(
        self,
        transport: Transport,
        left: dict[Key, JudgeRequest],
        keep: Keep,
    ) -> None:
        answered: list[tuple[JudgeRequest, Verdict]] = []
        questions = [(key, ask.question) for key, ask in left.items()]
        try:
            for key, verdict in answers(transport, self._spec, questions):
                answered.append((left[key], verdict))
                if len(answered) >= COMMIT_EVERY or self._pace.due:
                    self._commit(answered, left, keep)
                if self._uncharged >= COMMIT_EVERY:
                    self._charge_judged()
        finally:  # also when the judge goes down in between: an answer that came is never asked for again
            self._commit(answered, left, keep)
            self._charge_judged()

    def _commit(
        self,
        answered: list[tuple[JudgeRequest, Verdict]],
        left: dict[Key, JudgeRequest],
        keep: Keep,
    ) -> None:
        if not answered:
            return
        with self._pace.saving():
            keep(answered)
        self._uncharged += len(answered)
        self._progress.advance(len(answered))
        for ask, _ in answered:
            del left[ask.key]
        answered.clear()

    def _charge_judged(self) -> None:
        if self._uncharged:
            self._charge("judge", self._uncharged)
            self._uncharged = 0

    def _charge(self, phase: str, n_items: int = 0) -> None:
        """Every device that is held pays; what was done counts once."""
        for i, meter in enumerate(self._meters):
            meter.charge(phase, 0 if i else n_items)

    def _picture(self, sha256: str) -> Image.Image:
        if sha256 in self._made:
            return self._made[sha256]
        return self._run.pictures.either(sha256)


def _refuse_one_twice(judges: Sequence[tuple[JudgeConfig, JudgeSpec]]) -> None:
    seen: dict[str, str] = {}
    for config, spec in judges:
        if spec.judge_id in seen:
            raise ConfigError(
                f"panel: {seen[spec.judge_id]!r} and {config.label!r} are the same judge under two names: leave one out"
            )
        seen[spec.judge_id] = config.label
