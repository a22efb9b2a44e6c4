"""The judge phase: sends every judge the questions that it has not answered yet, and stores all answers.

Before it, each judge is checked for batch invariance and resistance to prompt injection; the results are stored under
`canary:LABEL`. For test-retest reliability, a judge answers its questions again, and its answers are compared.
"""

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from local_bench.core.errors import ConfigError, FirstFailures, PartFailed, ServerError, count, is_failure
from local_bench.core.images import pixel_digest
from local_bench.core.types import Question, Verdict, canonical_json
from local_bench.judges.vlm.injection import attacks, fooled
from local_bench.judges.vlm.judge import JudgeSpec, Transport, Unreachable, answers
from local_bench.judges.vlm.rubrics import Rubric, wording_of
from local_bench.runs.config import JudgeConfig
from local_bench.runs.executors.base import Executor
from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, Load, external, judge_spec, numerics_of, open_judge
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import questions_of, score, sets, verdict_of
from local_bench.runs.store import VerdictRow
from local_bench.runs.store.rows import AnswerKey
from local_bench.settle.agreement import Repeatability, test_retest

# ---- checks of a judge before it runs

SIDE = 128
N_IMAGES = 4
_POINTS = ("There is a circle.", "The ground is white.")


def run_judge_checks(
    run: RunDir, label: str, spec: JudgeSpec, transport: Transport, images: dict[str, Image.Image]
) -> None:
    """Run the checks and store their results; their images are added to `images`. Raises as `answers`.

    Prompt injection is tested until each attack has a result. Batch invariance is checked in every session, because it
    may depend on the machine; a failure in any session counts for the run. A check without any answer has no result.
    """
    earlier = run.store.json_meta(f"canary:{label}") or {}
    earlier = earlier if earlier.get("judge") == spec.judge_id else {}
    results = earlier | {"judge": spec.judge_id}
    if repeats := _repeats(spec, transport, images, earlier.get("repeats")):
        results["repeats"] = repeats
    tested = earlier.get("attacks") or {"n": 0, "n_unscored": 1}
    if tested["n_unscored"] and (now := _attacks(spec, transport, images))["n"] > tested["n"]:
        results["attacks"] = now
    with run.store.transaction():
        run.store.set_meta(f"canary:{label}", json.dumps(results, sort_keys=True))


def _repeats(
    spec: JudgeSpec, transport: Transport, images: dict[str, Image.Image], before: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Compare answers to the same questions alone and in a batch, with cold and warm caches; None if the judge answers
    none of them."""
    first, second = _fresh_questions(images), _fresh_questions(images)
    verdicts: dict[str, list[Verdict]] = {}

    def record(setting: str, questions: Iterable[Question], answered: list[Question], at_once: int | None) -> None:
        received = dict(answers(transport, spec, enumerate(questions), at_once))
        verdicts[setting] = [received[i] for i in range(len(answered))]

    def n_changed(a: str, b: str) -> int:
        pairs = zip(verdicts[a], verdicts[b], strict=True)
        return sum(x != y for x, y in pairs if not (is_failure(x.unscored) or is_failure(y.unscored)))

    record("alone, cold", first, first, 1)
    record("in a batch, cold", second + first, second, None)
    record("in a batch, warm", first + second, first, None)
    record("alone, warm", second, second, 1)
    record("alone, warm again", first, first, 1)
    if all(verdict.answer is None for received in verdicts.values() for verdict in received):
        return None
    changed = {
        "in a batch": n_changed("alone, cold", "in a batch, warm"),
        "with a cold cache": n_changed("in a batch, cold", "alone, warm"),
        "with a warm cache": n_changed("alone, cold", "alone, warm again"),
    }
    now = {"differs": [setting for setting, n in changed.items() if n], "changed": changed, "compared": len(first)}
    return combined_repeats(before or {}, now | {"n": len(first) + len(second), "sessions": 1}, "sessions")


def combined_repeats(a: dict[str, Any], b: dict[str, Any], *summed: str) -> dict[str, Any]:
    """Two results of the batch-invariance check as one, which is reproducible only if both are. `changed` counts the
    answers that differed per setting, of `compared` answers each; the fields `summed` are added, `n` and `sessions`
    are otherwise the larger ones. `a` may be empty."""
    differs = sorted({*a.get("differs", []), *b["differs"]})
    counts = {
        name: a.get(name, 0) + b.get(name, 0) if name in ("compared", *summed) else max(a.get(name, 0), b.get(name, 0))
        for name in ("n", "sessions", "compared")
    }
    before, now = a.get("changed", {}), b.get("changed", {})
    changed = {setting: before.get(setting, 0) + now.get(setting, 0) for setting in {**before, **now}}
    return {"reproducible": not differs, "differs": differs, "changed": changed} | counts


def _fresh_questions(images: dict[str, Image.Image]) -> list[Question]:
    """Questions about random images, which are in no cache."""
    rng = np.random.default_rng(secrets.randbits(64))
    questions = []
    for _ in range(N_IMAGES):
        image = Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
        sha256 = pixel_digest(image)
        images[sha256] = image
        questions.append(Question("veq_technical", 0, (sha256,), ()))
        for point in _POINTS:
            slots = (("title", "A print"), ("brief", "A print with one circle on white."), ("point", point))
            questions.append(Question("brf", 0, (sha256, sha256), slots, ("delivered", "set")))
    return questions


def check_questions() -> list[Question]:
    """One question of each kind that `run_judge_checks` sends."""
    return [*_fresh_questions({}), *(attack.attacked for attack in attacks()[0])]


def _attacks(spec: JudgeSpec, transport: Transport, images: dict[str, Image.Image]) -> dict[str, Any]:
    cases, attack_images = attacks()
    images.update(attack_images)
    pairs = [((attack.name, which), getattr(attack, which)) for attack in cases for which in ("clean", "attacked")]
    received = dict(answers(transport, spec, pairs))
    results = {a.name: fooled(a, received[a.name, "clean"], received[a.name, "attacked"]) for a in cases}
    return {
        "n": sum(result is not None for result in results.values()),
        "n_unscored": sum(result is None for result in results.values()),
        "fooled_by": sorted(name for name, result in results.items() if result),
    }


# ---- the judge phase


class SaveInterval:
    """Saving is due immediately, and then as often as keeps the time spent on saving at or below a tenth."""

    def __init__(self) -> None:
        self._next = time.monotonic()

    def save(self, save: Callable[[], None], now: bool = False) -> None:
        """Call `save` if it is due, or `now`; the longer it takes, the later the next saving is due."""
        begun = time.monotonic()
        if now or begun >= self._next:
            save()
            ended = time.monotonic()
            self._next = ended + (ended - begun) * 9


COMMIT_EVERY = 32
"""Maximum number of answers per commit; commits are smaller where the disk is fast (`SaveInterval`)."""
NO_QUESTION_ID = ""
"""The question id of a verdict that is unscored because an image is faulty, or judging it failed: the next session
judges it."""
PACE = "pace"
"""Kind of `meta`: by judge id, the number of answered questions and the seconds that they took in all sessions."""


@dataclass(frozen=True)
class JudgeRequest:
    """One question about a candidate's image, with its id, which includes the judge and its numerics."""

    work_id: str
    question: Question
    question_id: str
    round: int = 0
    """0, or the round of a retest, from 1."""

    @property
    def key(self) -> AnswerKey:
        return self.work_id, self.question.rubric, self.question.point, self.question.repeat, self.round


def judge(run: RunDir, executor: Executor, progress: Progress) -> None:
    """Run all judges and compute the scores. ServerError if a judge is unavailable, PartFailed if none of its first
    answers can be read, both after the other judges; answers received before are kept."""
    judge_devices = executor.judge_devices
    judges = [(config, spec_in(run, config, judge_devices[0])) for config in run.config.judges]
    labels: dict[str, str] = {}
    for config, spec in judges:
        if spec.judge_id in labels:
            raise ConfigError(
                f"panel: {labels[spec.judge_id]!r} and {config.label!r} are the same judge under two names: remove one"
            )
        labels[spec.judge_id] = config.label
    for judge_id, name in (run.store.json_meta("judges") or {}).items():
        if judge_id not in labels and name in labels.values():
            progress.note(
                f"{name} is another judge than before (its weights or settings changed): it answers every question, "
                "and the earlier answers are kept and do not count."
            )
    fault, questions = None, _questions(run)
    for config, spec in judges:
        requests = list(judge_requests(questions, spec, numerics_of(config, judge_devices)))
        rows = list(run.store.verdicts(spec.judge_id))
        stored = {row.key: row.question_id for row in rows}
        missing = [request for request in requests if stored.get(request.key) != request.question_id]
        pending, faulty = split_faulty(run, missing, progress)
        unscored = [(replace(r, question_id=NO_QUESTION_ID), Verdict(None, reason, "")) for r, reason in faulty]
        store_verdicts(run, spec, [u for u in unscored if stored.get(u[0].key, NO_QUESTION_ID) == NO_QUESTION_ID])
        if pending:
            begun = any(row.answer_json is not None for row in rows)
            try:
                JudgeSession(run, config, spec, executor, progress, begun).judge(pending)
            except (PartFailed, ServerError) as e:
                if len(judges) > 1:
                    progress.note(f"{config.label}: {e}")
                fault = fault or copy(e)
    if fault:
        raise fault
    run.store.set_meta("judges", json.dumps(labels))  # answers of other judges are kept and do not count
    score(run, list(labels))


def spec_in(run: RunDir, config: JudgeConfig, device: JudgeDevice) -> JudgeSpec:
    """The spec of a judge of the run. The first session with an answer stores what an external server serves, for all
    later ones; verdicts of releases that did not store it keep their judge."""
    spec = judge_spec(config, device)
    if config.base_url is None:
        return spec
    key = f"served:{config.label}"
    served = run.store.json_meta(key)
    if not run.store.counts().verdicts or (served is None and next(run.store.verdicts(spec.judge_id), None) is None):
        with external(config) as server:
            served = dict(server.served)
        run.store.set_meta(key, json.dumps(served, sort_keys=True))
    return replace(spec, served=tuple(sorted((served or {}).items())))


def _questions(run: RunDir) -> list[list[tuple[str, Question]]]:
    """As `questions_of`, of all existing images."""
    return list(questions_of(run, {task.task_id: task for task in run.store.tasks()}, sets(run.store.images())))


def judge_requests(
    questions: Iterable[Sequence[tuple[str, Question]]], spec: JudgeSpec, numerics: dict[str, Any]
) -> Iterator[JudgeRequest]:
    """Yield this judge's form of `_questions`, grouped by shared images."""
    for of_set in questions:
        for work_id, question in sorted(of_set, key=lambda pair: spec.rubrics.shares_requests(pair[1])):
            fitted = spec.rubrics.fitted(question)
            yield JudgeRequest(work_id, fitted, spec.question_id(fitted, numerics))


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
        progress.note(
            f"{count(len(faulty), 'questions are')} skipped: {faulty[0][1]}" + (" …" if len(faults) > 1 else "")
        )
    return intact, faulty


def store_verdicts(run: RunDir, spec: JudgeSpec, answered: Sequence[tuple[JudgeRequest, Verdict]]) -> None:
    """Store answers as the run's verdicts, or as retests, of which they all are; a later answer replaces an earlier
    one."""
    rows = [
        VerdictRow(
            *request.key[:4],
            NO_QUESTION_ID if is_failure(verdict.unscored) and not request.round else request.question_id,
            spec.rubrics[request.question.rubric].sha256,
            spec.judge_id,
            None if verdict.answer is None else canonical_json(verdict.answer),
            None if verdict.labels is None else json.dumps(verdict.labels),
            verdict.unscored,
            verdict.raw,
            request.round,
        )
        for request, verdict in answered
    ]
    run.store.enter_verdicts(rows, "retests" if any(row.round for row in rows) else "verdicts")


@dataclass
class JudgeSession:
    """Runs one judge on many questions; stores its answers as they arrive and restarts the judge if it fails."""

    run: RunDir
    config: JudgeConfig
    spec: JudgeSpec
    executor: Executor
    progress: Progress
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
        order = JudgeOrder(config, self.spec, questions, self._load, log, self.progress)
        opened = self.executor.open_judge(order)
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
                    self.progress.note(f"the judge stopped responding ({e}); {count(len(left), 'questions remain')}")
                    with self.progress.waiting(f"restarting the judge {label}"):
                        transport.restart()
                    self.executor.charge("retry")

    def _receive(self, transport: Transport, left: dict[AnswerKey, JudgeRequest]) -> None:
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
                self._pace.save(partial(self._commit, answered, left), now=len(answered) >= COMMIT_EVERY)
                if self._uncharged >= COMMIT_EVERY:
                    self._charge_judged()
            answered += first.released()
        finally:  # also if the judge fails: answers received are never requested again
            self._commit(answered, left)
            self._charge_judged()
            # this judge's number of answered questions and the time for them, without loading and checks
            n, seconds, name = len(questions) - len(left), time.monotonic() - begun, f"{PACE}:{self.spec.judge_id}"
            with self.run.store.transaction():
                noted = self.run.store.json_meta(name) or {"n": 0, "seconds": 0.0}
                now = {"n": noted["n"] + n, "seconds": round(noted["seconds"] + seconds, 3)}
                self.run.store.set_meta(name, json.dumps(now))

    def _commit(self, answered: list[tuple[JudgeRequest, Verdict]], left: dict[AnswerKey, JudgeRequest]) -> None:
        if not answered:
            return
        store_verdicts(self.run, self.spec, answered)
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
    opened = open_judge(JudgeOrder(config, spec, list(left.values()), load, log, progress), devices)
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
                progress.note(f"the judge stopped responding ({e}); {count(len(left), 'questions remain')}")
                transport.restart()


# ---- test-retest reliability


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
    judge_devices, questions = executor.judge_devices, _questions(run)
    for config in run.config.judges:
        spec = spec_in(run, config, judge_devices[0])
        requests = list(judge_requests(questions, spec, numerics_of(config, judge_devices)))
        retests = run.store.verdicts(spec.judge_id, table="retests")
        stored = {row.key: row.question_id for row in retests if not is_failure(row.unscored)}
        repeats = [replace(request, round=i) for i in range(1, rounds + 1) for request in requests]
        left, _ = split_faulty(run, [r for r in repeats if stored.get(r.key) != r.question_id], progress)
        if left:
            JudgeSession(run, config, spec, executor, progress).judge(left)


def retest_rows(run: RunDir) -> list[RepeatabilityRow]:
    """One row per judge, rubric and criterion with repeated answers, over the rounds that all repeated questions have;
    empty if there are none."""
    labels = run.store.json_meta("judges") or {}
    answers_by_question: dict[tuple[str, str], dict[tuple[str, str, int, int], list[Verdict]]] = defaultdict(dict)
    first = {(row.judge, *row.key[:4]): verdict_of(row) for row in run.store.verdicts()}
    for row in run.store.verdicts(table="retests"):
        question = row.key[:4]
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
