"""The judge phase: asks what has not been answered, keeps every answer, and reads the suite's scores off them."""

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from local_bench.core.cards import card
from local_bench.core.errors import ImageError
from local_bench.core.identity import canonical_json
from local_bench.core.images import load_image
from local_bench.core.nouns import Question, Score, Task, Verdict
from local_bench.core.weights import resolve, weights_digest
from local_bench.judges.vlm.client import Client, Unreachable
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.rubrics import rubric
from local_bench.judges.vlm.server import (
    ExternalServer,
    ManagedServer,
    server_arguments,
    server_environment,
    vllm_version,
)
from local_bench.runs.config import JudgeConfig
from local_bench.runs.ledger import Ledger
from local_bench.runs.measure import write_scores
from local_bench.runs.meter import Meter
from local_bench.runs.planned import planned_tasks
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.suites.registry import suite

COMMIT_EVERY = 32
BATCH_INVARIANT_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Ask:
    """One question about one candidate's image, and the identity of asking it here."""

    work_id: str
    task_id: str
    key: tuple[int, str, int]
    question: Question
    question_id: str


@dataclass(frozen=True)
class Place:
    """Where our own judge runs."""

    device: str
    """What the device calls itself."""
    cuda_index: int | None

    @property
    def on_gpu(self) -> bool:
        return self.cuda_index is not None

    @property
    def batch_invariant(self) -> bool:
        """Whether vLLM can be told to give the same answer in any company."""
        if self.cuda_index is None:
            return False
        import torch

        return torch.cuda.get_device_capability(self.cuda_index) >= BATCH_INVARIANT_CAPABILITY

    def numerics(self, judge: JudgeConfig) -> dict[str, Any]:
        """The judge's numerics signature; of an external server only that it is one, the rest is not ours to know."""
        if judge.base_url:
            return {"server": "external"}
        return {"vllm": vllm_version(), "device": self.device, "batch_invariant": self.batch_invariant}


def judge_spec(config: JudgeConfig, place: Place) -> JudgeSpec:
    """The judge of a run. WeightsError if its files are not here (those of an external server need not be)."""
    described = card(config.card, "judge")
    if config.base_url and not described.source.build and config.weights is None:
        weights = "external"
    else:
        weights = weights_digest(resolve(described, config.weights))
    return JudgeSpec(
        card=described.name,
        weights_sha256=weights,
        dtype=described.dtype if place.on_gpu else "float32",
        max_pixels=config.max_pixels or described.judge_max_pixels,
        patch=described.patch,
        max_tokens=config.max_tokens,
        seed=config.seed,
        extra_args=() if config.base_url else tuple(config.extra_args),
    )


def judge(run: RunDir, place: Place, meter: Meter, progress: Progress) -> None:
    """Asks, keeps and scores. ServerError where the judge cannot be had; what was answered until then is kept."""
    spec = judge_spec(run.config.judge, place)
    tasks = {task.task_id: task for task in planned_tasks(run.ledger)}
    asks = list(_asks(run, tasks, spec, place.numerics(run.config.judge)))
    there = {
        (r["work_id"], r["rubric"], r["point"]): r["question_id"]
        for r in run.ledger.rows("SELECT work_id, rubric, point, question_id FROM verdicts")
    }
    open_asks = [a for a in asks if there.get((a.work_id, a.question.rubric, a.question.point)) != a.question_id]
    if open_asks:
        _Sitting(run, spec, open_asks, meter, progress).hold(place)
    _score(run.ledger, tasks, suite(run.config.suite.name).load())


def _asks(run: RunDir, tasks: dict[str, Task], spec: JudgeSpec, numerics: dict[str, Any]) -> Iterator[Ask]:
    asked = suite(run.config.suite.name).load()
    for (task_id, _, _), images in _sets(run.ledger).items():
        shown = {deliverable: sha for deliverable, (_, sha) in images.items() if sha}
        for key, question in asked.questions(tasks[task_id], shown):
            yield Ask(images[key[0]][0], task_id, key, question, spec.question_id(question, numerics))


def _sets(ledger: Ledger) -> dict[tuple[str, str, int], dict[int, tuple[str, str | None]]]:
    """(task, model, attempt) -> deliverable -> (work id, pixel digest or None where there is no image)."""
    sets: dict[tuple[str, str, int], dict[int, tuple[str, str | None]]] = defaultdict(dict)
    for row in ledger.rows("SELECT * FROM candidates ORDER BY position"):
        sha = row["pixels_sha256"] if row["state"] == "done" else None
        sets[row["task_id"], row["model"], row["attempt"]][row["deliverable"]] = (row["work_id"], sha)
    return dict(sets)


class _Sitting:
    """All the open questions of a run before one judge; what is answered is committed and struck off."""

    def __init__(self, run: RunDir, spec: JudgeSpec, asks: list[Ask], meter: Meter, progress: Progress) -> None:
        self._run = run
        self._spec = spec
        self._left = {(ask.work_id, ask.key): ask for ask in asks}
        self._answered: list[tuple[Ask, Verdict]] = []
        self._meter = meter
        self._progress = progress
        self._show = lru_cache(maxsize=64)(self._data_uri)

    def hold(self, place: Place) -> None:
        """Asks until nothing is left. ServerError where the judge is not to be had."""
        config = self._run.config.judge
        self._progress.note(
            f"asking {config.base_url}" if config.base_url else f"starting the judge, {self._spec.card}"
        )
        with _server(self._run, self._spec, place) as server:
            self._meter.charge("load")
            self._progress.begin(f"{self._spec.card}: judge", len(self._left))
            client = Client(
                server,
                lambda question: self._spec.request(question, server.model, self._show),
                config.in_flight,
                config.request_timeout_s,
            )
            while self._left:
                try:
                    asyncio.run(self._ask(client))
                except Unreachable as e:
                    n = len(self._left)
                    self._progress.note(f"the judge's server stopped answering ({e}); {n} questions are left")
                    server.restart()
                    self._meter.charge("retry")

    def _data_uri(self, sha256: str) -> str:
        try:
            return self._spec.data_uri(load_image(self._run.image(sha256)))
        except ImageError as e:
            raise ImageError(f"{e}, or delete it and run the same command again: it is made anew") from e

    async def _ask(self, client: Client) -> None:
        questions = [(key, ask.question) for key, ask in self._left.items()]
        try:
            async for key, verdict in client.ask(questions):
                self._answered.append((self._left[key], verdict))
                if len(self._answered) >= COMMIT_EVERY:
                    self._commit()
        finally:
            self._commit()

    def _commit(self) -> None:
        """Also when the server goes down in between: an answer that came is never asked for again."""
        with self._run.ledger.transaction():
            self._run.ledger.write_many(
                "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (self._row(ask, verdict) for ask, verdict in self._answered),
            )
        self._meter.charge("judge", len(self._answered))
        self._progress.advance(len(self._answered))
        for ask, _ in self._answered:
            del self._left[ask.work_id, ask.key]
        self._answered.clear()

    def _row(self, ask: Ask, verdict: Verdict) -> tuple[str | int | None, ...]:
        return (
            ask.work_id,
            ask.question.rubric,
            ask.question.point,
            ask.question_id,
            rubric(ask.question.rubric).sha256,
            self._spec.judge_id,
            None if verdict.answer is None else canonical_json(verdict.answer),
            verdict.unscored,
            verdict.raw,
        )


def _server(run: RunDir, spec: JudgeSpec, place: Place) -> AbstractContextManager[ManagedServer | ExternalServer]:
    config = run.config.judge
    if config.base_url:
        return ExternalServer(
            config.base_url.rstrip("/"), os.environ.get(config.api_key_env), config.served_model or ""
        )
    weights = resolve(card(config.card, "judge"), config.weights)
    return ManagedServer(
        arguments=lambda port: [
            *server_arguments(weights, port, spec.dtype, place.on_gpu, spec.max_pixels),
            *config.extra_args,
        ],
        environment=lambda key: server_environment(key, place.on_gpu, place.batch_invariant),
        log=run.logs / "judge-server.log",
        start_timeout_s=config.start_timeout_s,
        max_restarts=config.max_restarts,
        port=config.port,
    )


def _score(ledger: Ledger, tasks: dict[str, Task], asked: Any) -> None:
    """Turns all verdicts into the suite's scores."""
    verdicts: dict[str, dict[tuple[str, int], Verdict]] = defaultdict(dict)
    for row in ledger.rows("SELECT * FROM verdicts"):
        answer = None if row["answer"] is None else json.loads(row["answer"])
        verdicts[row["work_id"]][row["rubric"], row["point"]] = Verdict(answer, row["unscored"], row["raw"])
    scored: list[tuple[str, Score]] = []
    for (task_id, _, _), images in _sets(ledger).items():
        answers = {(i, *key): v for i, (work_id, _) in images.items() for key, v in verdicts[work_id].items()}
        for deliverable, scores in asked.scores(tasks[task_id], answers).items():
            work_id, sha = images[deliverable]
            scored += [(work_id, score) for score in scores if sha]
    write_scores(ledger, "judge", scored)
