"""The judge phase: sends every judge the questions that it has not answered yet, and stores all answers."""

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.core.identity import canonical_json
from local_bench.core.item_errors import FirstFailures, is_failure
from local_bench.core.types import Question, Task, Verdict
from local_bench.judges.vlm.judge import JudgeSpec, Transport, Unreachable, answers
from local_bench.runs.device import JudgeDevice
from local_bench.runs.executors.base import Executor
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import Load, judge_spec, numerics_of, open_judge, served_by
from local_bench.runs.progress import Progress
from local_bench.runs.robustness import check_questions, run_judge_checks
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import score, sets
from local_bench.runs.store import VerdictRow
from local_bench.suites.questions_from import all_questions
from local_bench.suites.registry import suite


class SaveInterval:
    """Saving is due immediately, and then as often as keeps the time spent on saving at or below `share`."""

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self._next = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time the block; the longer it takes, the later the next saving is due."""
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        self._next = ended + (ended - begun) * (1 / self._share - 1)


COMMIT_EVERY = 32
"""Maximum number of answers per commit; commits are smaller where the disk is fast (`SaveInterval`)."""
NO_QUESTION_ID = ""
"""The question id of a verdict that is unscored because an image is faulty, or judging it failed: the next session
judges it."""
PACE = "pace"
"""Kind of `meta`: by judge id, the number of answered questions and the seconds that they took in all sessions."""
Key = tuple[str, str, int, int, int]
"""(work id, rubric, point, repeat, round)"""
StoreAnswers = Callable[[Sequence[tuple["JudgeRequest", Verdict]]], None]


@dataclass(frozen=True)
class JudgeRequest:
    """One question about a candidate's image, with its id, which includes the judge and its numerics."""

    work_id: str
    question: Question
    question_id: str
    round: int = 0
    """0, or the round of a retest, from 1."""

    @property
    def key(self) -> Key:
        return self.work_id, self.question.rubric, self.question.point, self.question.repeat, self.round


def judge(run: RunDir, executor: Executor, progress: Progress) -> None:
    """Run all judges and compute the scores. ServerError if a judge is unavailable; answers received before are
    kept."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    judge_devices = executor.judge_devices
    judges = [(config, spec_in(run, config, judge_devices[0])) for config in run.config.judges]
    _refuse_same_judge(judges)
    for config, spec in judges:
        requests = list(judge_requests(run, tasks, config, spec, judge_devices))
        rows = run.store.verdicts(spec.judge_id)
        stored = {(r.work_id, r.rubric, r.point, r.repeat, 0): r.question_id for r in rows}
        missing = [request for request in requests if stored.get(request.key) != request.question_id]
        pending, faulty = split_faulty(run, missing, progress)
        unscored = [(replace(r, question_id=NO_QUESTION_ID), Verdict(None, reason, "")) for r, reason in faulty]
        store_verdicts(run, spec, [u for u in unscored if stored.get(u[0].key, NO_QUESTION_ID) == NO_QUESTION_ID])
        if pending:
            begun = any(row.answer_json is not None for row in rows)
            JudgeSession(run, config, spec, executor, progress, partial(store_verdicts, run, spec), begun).judge(
                pending
            )
    labels = {spec.judge_id: config.label for config, spec in judges}
    run.store.enter_judges(labels)
    score(run, list(labels))


def spec_in(run: RunDir, config: JudgeConfig, device: JudgeDevice) -> JudgeSpec:
    """The spec of a judge of the run. The first session stores what an external server serves, for all later ones;
    verdicts of releases that did not store it keep their judge."""
    spec = judge_spec(config, device)
    if config.base_url is None:
        return spec
    key = f"served:{config.label}"
    served = run.store.json_meta(key)
    if served is None and not run.store.verdicts(spec.judge_id):
        served = dict(served_by(config))
        run.store.set_meta(key, json.dumps(served, sort_keys=True))
    return replace(spec, served=tuple(sorted((served or {}).items())))


def judge_requests(
    run: RunDir, tasks: dict[str, Task], config: JudgeConfig, spec: JudgeSpec, judge_devices: Sequence[JudgeDevice]
) -> Iterator[JudgeRequest]:
    """Yield all questions of this judge about the existing images, grouped by shared images."""
    numerics = numerics_of(config, judge_devices)
    entry = suite(run.config.suite.name)
    for (task_id, _, _), images in sets(run.store).items():
        shown = {deliverable: sha for deliverable, (_, sha) in images.items() if sha}
        settings = run.config.suite.questions_from, tasks[task_id], shown, run.config.order_swap
        for key, question in sorted(
            all_questions(entry, *settings), key=lambda keyed: spec.rubrics.shares_requests(keyed[1])
        ):
            fitted = spec.rubrics.fitted(question)
            yield JudgeRequest(images[key[0]][0], fitted, spec.question_id(fitted, numerics))


def split_faulty(
    run: RunDir, requests: Sequence[JudgeRequest], progress: Progress
) -> tuple[list[JudgeRequest], list[tuple[JudgeRequest, str]]]:
    """Split requests into those whose images are intact, and the others with the reason."""
    shas = (sha for request in requests for sha in request.question.images)
    faults = run.image_store.faulty(shas, run.config.engine.io_workers, either=True)
    intact: list[JudgeRequest] = []
    faulty: list[tuple[JudgeRequest, str]] = []
    for request in requests:
        fault = next((faults[sha] for sha in request.question.images if sha in faults), None)
        if fault is None:
            intact.append(request)
        else:
            faulty.append((request, fault.sentence))
    if faulty:
        progress.note(f"{len(faulty):,} questions are skipped: {faulty[0][1]}" + (" …" if len(faults) > 1 else ""))
    return intact, faulty


def store_verdicts(run: RunDir, spec: JudgeSpec, answered: Sequence[tuple[JudgeRequest, Verdict]]) -> None:
    """Store answers as the run's verdicts; a later answer replaces an earlier one."""
    run.store.enter_verdicts(
        VerdictRow(
            *request.key[:4],
            NO_QUESTION_ID if is_failure(verdict.unscored) else request.question_id,
            spec.rubrics[request.question.rubric].sha256,
            spec.judge_id,
            *verdict_columns(verdict),
        )
        for request, verdict in answered
    )


def verdict_columns(verdict: Verdict) -> tuple[str | None, str | None, str | None, str]:
    """The columns answer, labels, unscored and raw."""
    return (
        None if verdict.answer is None else canonical_json(verdict.answer),
        None if verdict.labels is None else json.dumps(verdict.labels),
        verdict.unscored,
        verdict.raw,
    )


@dataclass
class JudgeSession:
    """Runs one judge on many questions; stores its answers as they arrive and restarts the judge if it fails."""

    run: RunDir
    config: JudgeConfig
    spec: JudgeSpec
    executor: Executor
    progress: Progress
    store_answers: StoreAnswers
    begun: bool = False
    """Whether a question has been answered."""

    def __post_init__(self) -> None:
        self._check_images: dict[str, Image.Image] = {}
        self._pace = SaveInterval()
        self._uncharged = 0
        self._load = lru_cache(maxsize=16)(self._image)

    def judge(self, requests: Sequence[JudgeRequest]) -> None:
        """Judge all requests. ServerError if the judge is unavailable."""
        config, label = self.config, self.config.label
        log = self.run.logs / f"judge-{label}.log"
        questions = [request.question for request in requests] + (check_questions() if config.canaries else [])
        opened = self.executor.open_judge(config, self.spec, questions, self._load, log, self.progress)
        with ExitStack() as stack:
            what = f"connecting to {config.base_url}" if config.base_url else f"starting the judge {label}"
            with self.progress.waiting(what):
                transport = stack.enter_context(opened)
            self.executor.charge("load")
            self.progress.begin(f"{label}: judge", len(requests))
            left = {request.key: request for request in requests}
            run_checks = config.canaries
            while left:
                try:
                    if run_checks:
                        run_judge_checks(self.run, label, self.spec, transport, self._check_images)
                        self.executor.charge("judge")
                        run_checks = False
                    self._receive(transport, left)
                except Unreachable as e:
                    self.progress.note(f"the judge stopped responding ({e}); {len(left)} questions remain")
                    with self.progress.waiting(f"restarting the judge {label}"):
                        transport.restart()
                    self.executor.charge("retry")

    def _receive(self, transport: Transport, left: dict[Key, JudgeRequest]) -> None:
        answered: list[tuple[JudgeRequest, Verdict]] = []
        advice = "check the judge's card, its settings (max_tokens, chat_template_kwargs) and its log"
        first = FirstFailures[tuple[JudgeRequest, Verdict]](f"questions to {self.config.label}", advice, self.begun)
        questions = [(key, request.question) for key, request in left.items()]
        begun = time.monotonic()
        try:
            for key, verdict in answers(transport, self.spec, questions):
                answer = left[key], verdict
                answered += first.failed(verdict.unscored, answer) if verdict.unscored else first.succeeded(answer)
                self.begun |= verdict.unscored is None
                if len(answered) >= COMMIT_EVERY or self._pace.due:
                    self._commit(answered, left)
                if self._uncharged >= COMMIT_EVERY:
                    self._charge_judged()
            answered += first.released()
        finally:  # also if the judge fails: answers received are never requested again
            self._commit(answered, left)
            self._charge_judged()
            self._note_pace(len(questions) - len(left), time.monotonic() - begun)

    def _note_pace(self, n: int, seconds: float) -> None:
        """Add to this judge's number of answered questions and the time for them, without loading and checks."""
        key = f"{PACE}:{self.spec.judge_id}"
        with self.run.store.transaction():
            noted = self.run.store.json_meta(key) or {"n": 0, "seconds": 0.0}
            now = {"n": noted["n"] + n, "seconds": round(noted["seconds"] + seconds, 3)}
            self.run.store.set_meta(key, json.dumps(now))

    def _commit(self, answered: list[tuple[JudgeRequest, Verdict]], left: dict[Key, JudgeRequest]) -> None:
        if not answered:
            return
        with self._pace.saving():
            self.store_answers(answered)
        self._uncharged += len(answered)
        self.progress.advance(len(answered))
        for request, _ in answered:
            del left[request.key]
        answered.clear()

    def _charge_judged(self) -> None:
        if self._uncharged:
            self.executor.charge("judge", self._uncharged)
            self._uncharged = 0

    def _image(self, sha256: str) -> Image.Image:
        if sha256 in self._check_images:
            return self._check_images[sha256]
        return self.run.image_store.load_any(sha256)


def _refuse_same_judge(judges: Sequence[tuple[JudgeConfig, JudgeSpec]]) -> None:
    seen: dict[str, str] = {}
    for config, spec in judges:
        if spec.judge_id in seen:
            raise ConfigError(
                f"panel: {seen[spec.judge_id]!r} and {config.label!r} are the same judge under two names: remove one"
            )
        seen[spec.judge_id] = config.label


def judge_answers(
    config: JudgeConfig,
    spec: JudgeSpec,
    devices: Sequence[JudgeDevice],
    questions: Mapping[str, Question],
    load: Load,
    log: Path,
    progress: Progress,
    title: str,
) -> Generator[tuple[str, Verdict]]:
    """Yield (key, verdict) for every question; a judge that stops is restarted with what is left. `load` returns an
    image by its digest. ServerError if the judge is unavailable."""
    if not questions:
        return
    left = dict(questions)
    opened = open_judge(config, spec, devices, list(left.values()), load, log, progress)
    with ExitStack() as stack:
        with progress.waiting(f"starting the judge {config.label}"):
            transport = stack.enter_context(opened)
        progress.begin(f"{config.label}: {title}", len(left))
        while left:
            try:
                for key, verdict in answers(transport, spec, list(left.items())):
                    del left[key]
                    yield key, verdict
                    progress.advance()
            except Unreachable as e:
                progress.note(f"the judge stopped responding ({e}); {len(left)} questions remain")
                transport.restart()
