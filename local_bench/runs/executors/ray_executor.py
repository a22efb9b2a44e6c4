"""Executes a run on the nodes of a Ray cluster: one worker per GPU, or per node on CPUs. Nodes join and leave, and the
share of a lost worker goes to another. This process alone writes the store."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from local_bench.core.errors import LocalBenchError, ServerError
from local_bench.core.events import TimeCharged
from local_bench.core.types import Question
from local_bench.judges.vlm.judge import JudgeSpec, Transport
from local_bench.judges.vlm.replicas import Replicas
from local_bench.models.cards import card
from local_bench.runs.device import JudgeDevice
from local_bench.runs.executors.ray_actors import RayWorker
from local_bench.runs.executors.ray_cluster import Cluster, Lost, Slot
from local_bench.runs.executors.ray_judges import RayReplica
from local_bench.runs.executors.ray_nodes import Nodes
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import open_judge
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.work import Event
from local_bench.runs.worker_pool import Work

T = TypeVar("T")
_GROW_S = 1.0
"""How often nodes that joined are looked for."""
_START_S = 60.0
_AHEAD = 4
"""Events that a worker may be ahead of the store."""
_NO_LIMIT = 10**6


@dataclass(eq=False)
class _Worker:
    slot: Slot
    actor: Any
    facts: Any
    """The pending reference of its facts; None once they have arrived."""
    meter: Meter | None = None
    offset_ns: int = 0
    """Difference of this machine's monotonic clock to the node's."""
    started: float = field(default_factory=time.monotonic)
    share: list[Any] | None = None
    events: Any = None


class RayExecutor:
    """The cluster of `engine.ray`, for the open run `run`. ConfigError if it cannot be used."""

    def __init__(self, run: RunDir, progress: Progress) -> None:
        self._run = run
        self._cluster = Cluster(run.config.engine)
        self._ray = self._cluster.ray
        self._nodes = Nodes(run, self._cluster, progress)
        self._most = run.config.engine.workers or _NO_LIMIT
        self._workers: list[_Worker] = []
        """They continue for the next stage; `open_judge` ends them."""
        self._grown = 0.0
        self._replicas: list[RayReplica] = []

    def stage(self) -> AbstractContextManager[object]:
        return nullcontext()

    # ---- workers

    @property
    def n_workers(self) -> int:
        return max(1, min(len(self._cluster.free([], self._nodes.refused)), self._most))

    @property
    def n_shares(self) -> int:
        return self.n_workers * self._nodes.settings.shares_per_worker

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        while True:
            while (worker := next((worker for worker in self._workers if worker.meter), None)) is None:
                self._grow(1)
                for started in self._ready():
                    self._greet(started)
            try:
                result: T = self._nodes.get(worker.actor.call.remote(function, *arguments), "the worker", worker.slot)
            except Lost as e:
                self._lose(worker, e)
            else:
                return result

    def do(
        self, work: Work, order: Any, shares: Sequence[list[Any]], left: Callable[[list[Any]], list[Any]]
    ) -> Iterator[tuple[Meter, Event]]:
        waiting = deque(shares)
        while waiting or any(worker.share for worker in self._workers):
            self._grow(len(waiting))
            for worker in self._workers:
                if waiting and worker.meter and worker.share is None:
                    worker.share = waiting.popleft()
                    worker.meter.charge("idle")
                    streaming = worker.actor.work.options(
                        num_returns="streaming", _generator_backpressure_num_objects=_AHEAD
                    )
                    worker.events = streaming.remote(work, order, worker.share)
            for worker in self._ready():
                if worker.facts is not None:
                    self._greet(worker)
                    continue
                try:
                    yield from self._event(worker)
                except Lost as e:
                    remaining = left(worker.share or [])
                    if remaining:
                        waiting.appendleft(remaining)
                    self._lose(worker, e)

    def _event(self, worker: _Worker) -> Iterator[tuple[Meter, Event]]:
        """The next event of a worker. Raises Lost."""
        reference = next(worker.events, None)
        if reference is None:
            worker.share = worker.events = None
            return
        event = self._nodes.get(reference, "the worker", worker.slot)
        assert worker.meter is not None
        self._nodes.usable()
        if isinstance(event, TimeCharged):
            event = replace(event, now_ns=event.now_ns + worker.offset_ns)
        yield worker.meter, event

    def _grow(self, n_waiting: int) -> None:
        """Request workers on nodes that have a free slot, without waiting for them."""
        if time.monotonic() - self._grown < _GROW_S:
            return
        self._grown = time.monotonic()
        if not any(worker.meter for worker in self._workers):
            self._nodes.check_alone()
        # a worker that has not started by now waits for a node that is used by others
        counted = sum(w.meter is not None or time.monotonic() - w.started < _START_S for w in self._workers)
        wanted = min(self._most, n_waiting + sum(w.share is not None for w in self._workers)) - counted
        for slot in self._nodes.free([worker.slot for worker in self._workers])[: max(0, wanted)]:
            actor = self._nodes.start(RayWorker, slot)
            self._workers.append(_Worker(slot, actor, actor.facts.remote()))

    def _ready(self) -> list[_Worker]:
        """Workers with a message, after waiting for one for a moment."""
        pending = {worker.facts or worker.events: worker for worker in self._workers if worker.facts or worker.events}
        if not pending:
            time.sleep(_GROW_S / 5)
            return []
        ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=_GROW_S)
        return [pending[reference] for reference in ready]

    def _greet(self, worker: _Worker) -> None:
        """Begin the session of a worker whose facts have arrived."""
        try:
            facts = self._nodes.get(worker.facts, "did not start: the worker", worker.slot)
        except Lost as e:
            self._workers.remove(worker)
            self._nodes.not_started(worker.slot, e)
            return
        except LocalBenchError as e:
            facts = e
        worker.facts = None
        if not self._nodes.accept(worker.slot, facts):
            self._workers.remove(worker)
            self._cluster.end(worker.actor)
            return
        worker.meter = Meter(self._run.store, facts.device)
        worker.offset_ns = time.monotonic_ns() - facts.now_ns

    def _lose(self, worker: _Worker, why: Lost) -> None:
        """Remove a worker; its process is ended, in case it is alive but cannot be reached."""
        self._end_worker(worker, "lost")
        self._nodes.lose(f"the worker on {worker.slot.host}", why)

    def _end_worker(self, worker: _Worker, status: str) -> None:
        self._workers.remove(worker)
        self._cluster.end(worker.actor)
        if worker.meter:
            worker.meter.end(status)

    def _end_workers(self, status: str) -> None:
        for worker in list(self._workers):
            self._end_worker(worker, status)

    # ---- judges

    @property
    def judge_devices(self) -> Sequence[JudgeDevice]:
        if self._nodes.facts is None:
            self.call(_nothing)
        facts = self._nodes.facts
        assert facts is not None
        if not self._cluster.on_gpu:
            return [JudgeDevice(facts.device, None)]
        return [JudgeDevice(facts.device, i, facts.capability) for i in range(max(1, self._cluster.most_gpus()))]

    @contextmanager
    def open_judge(
        self,
        config: JudgeConfig,
        spec: JudgeSpec,
        questions: Sequence[Question],
        load: Callable[[str], Image.Image],
        log: Path,
        progress: Progress,
    ) -> Iterator[Transport]:
        """Open one replica on every free slot of the cluster; nodes that join get one too. This process queries an
        external server itself."""
        if config.base_url is not None:
            with open_judge(config, spec, self.judge_devices, questions, load, log, progress) as transport:
                yield transport
            return
        self._end_workers("done")  # the judge needs their devices
        gpus = min(card(config.card, "judge").tensor_parallel_size, self._cluster.most_gpus())
        arguments = (config, spec, gpus, self._ray.put(list(questions)))
        numbers = count()

        def joining() -> list[RayReplica]:
            taken = [replica.slot for replica in self._replicas if replica.slot.node_id not in self._nodes.refused]
            free = self._nodes.free(taken, max(1, gpus))[: max(0, self._most - len(taken))]
            names = (f"{log.stem}-{number}{log.suffix}" for number in numbers)
            joined = [RayReplica(self._nodes, slot, (*arguments, name), load) for slot, name in zip(free, names)]  # noqa: B905
            self._replicas += joined
            return joined

        try:
            with Replicas(_opened(joining(), progress), progress.note, joining) as replicas:
                yield replicas
        finally:
            for replica in self._replicas:
                replica.end_session("done")
            self._replicas.clear()

    def charge(self, phase: str, n_items: int = 0) -> None:
        for replica in self._replicas:
            if replica.charge(phase, n_items):
                n_items = 0

    def end(self, status: str) -> None:
        self._end_workers(status)
        self._nodes.close()


def _opened(replicas: Sequence[RayReplica], progress: Progress) -> list[RayReplica]:
    """The replicas that could be opened. Raises the first error if there is none."""

    def opened(replica: RayReplica) -> LocalBenchError | None:
        try:
            replica.__enter__()
        except LocalBenchError as e:
            return e
        return None

    with ThreadPoolExecutor(max(1, len(replicas))) as pool:
        errors = list(pool.map(opened, replicas))
    usable = [replica for replica, error in zip(replicas, errors, strict=True) if error is None]
    if not usable:
        no_node = ServerError("the Ray cluster has no node for the judge: start one and run the same command again")
        raise next((error for error in errors if error), no_node)
    for note in (*dict.fromkeys(str(error) for error in errors if error), *usable[0].notes):
        progress.note(note)
    return usable


def _nothing(_: object) -> None:
    """Called on a worker to learn about its node."""
