"""Executes a run on the nodes of a Ray cluster: one worker per GPU, or per node on CPUs. Nodes join and leave, and the
share of a lost worker goes to another; all nodes must compute the same bytes. Judges have a replica on each node. This
process alone writes the store."""

import itertools
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from PIL import Image

from local_bench.core.errors import LocalBenchError, PartFailed, ServerError
from local_bench.core.files import write_atomic
from local_bench.core.types import TimeCharged
from local_bench.judges.vlm.judge import Transport, Unreachable
from local_bench.judges.vlm.protocols import Reply, Request
from local_bench.judges.vlm.replicas import Replicas
from local_bench.models.cards import card
from local_bench.runs.executors.base import Executor
from local_bench.runs.executors.processes import Work
from local_bench.runs.executors.ray_cluster import HELLO, Cluster, Lost, NodeFacts, RayJudge, RayWorker, Setting, Slot
from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, open_judge
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.work import Event

_KEPT = ("LOCAL_BENCH_CACHE", "HF_HOME", "VLLM_USE_V2_MODEL_RUNNER")
"""Variables that nodes take over from this process."""
_REST_S, _WATCH_S = 10.0, 10.0


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str | None:
    key = next((k for k in sorted({*first, *other}) if first.get(k) != other.get(k)), None)
    return None if key is None else f"{key}: {other.get(key)} instead of {first.get(key)}"


# ---- replicas of a judge

K = TypeVar("K")
_CHUNK = 16
"""Requests sent together."""
_REQUESTS_AHEAD = 512
"""Maximum number of requests sent ahead of their replies."""
_CLOSE_S = 30.0


class RayReplica:
    """A replica of a judge on one node; implements `Transport`."""

    def __init__(
        self, executor: "RayExecutor", slot: Slot, arguments: tuple[Any, ...], load: Callable[[str], Image.Image]
    ) -> None:
        """`arguments` are those of `RayJudge.open`; `load` returns an image that a node does not find in the run
        directory."""
        self.slot = slot
        self._executor = executor
        self._arguments = arguments
        self._load = load
        self._actor: Any = None
        self._sent: set[str] = set()
        self._calls = itertools.count()
        self._meter: Meter | None = None
        self._device: str | None = None
        self._opened_ns = 0
        self._lost_ns: int | None = None
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        if self._actor is not None:  # opened before
            return self
        actor = self._executor.start(RayJudge, self.slot, threads=3)
        try:
            facts = self._get(actor.facts.remote())
            if not self._executor.accept(self.slot, facts):
                raise ServerError(f"the judge cannot use the node {self.slot.host}")
            self._opened_ns, self._device = time.monotonic_ns(), facts.device
            self.notes = self._get(actor.open.remote(*self._arguments))
        except Lost as e:
            self._executor.cluster.end(actor)
            self._executor.not_started(self.slot, e)
            raise ServerError(f"the judge on the node {self.slot.host} ended while it started ({e})") from None
        except BaseException:
            self._executor.cluster.end(actor)
            raise
        self._actor, self._sent, self._lost_ns = actor, set(), None
        return self

    def __exit__(self, *_: object) -> None:
        if self._actor is not None:
            ray = self._executor.cluster.ray
            with suppress(ray.exceptions.RayError, TimeoutError):
                ray.get(self._actor.close.remote(), timeout=_CLOSE_S)
            self._leave()

    def _leave(self) -> None:
        if self._actor is not None:
            self._executor.cluster.end(self._actor)
            self._actor, self._lost_ns = None, time.monotonic_ns()

    def _get(self, reference: Any) -> Any:
        return self._executor.get(reference, "the judge", self.slot)

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as replies arrive. Raises Unreachable if the actor or its judge has ended."""
        if self._actor is None:
            raise Unreachable("it has ended")
        call, ahead = next(self._calls), at_once or _REQUESTS_AHEAD
        chunk_size = min(_CHUNK, ahead)
        numbered = enumerate(requests)
        under_way: dict[int, K] = {}
        stream = self._actor.replies.options(num_returns="streaming").remote(call, at_once)
        sent_all = complete = False
        try:
            while True:
                while not sent_all and len(under_way) + chunk_size <= ahead:
                    chunk = list(itertools.islice(numbered, chunk_size))
                    under_way.update((number, key) for number, (key, _) in chunk)
                    self._send(call, [(number, request) for number, (_, request) in chunk])
                    sent_all = not chunk
                reference = next(stream, None)
                if reference is None:
                    break
                number, reply = self._get(reference)
                yield under_way.pop(number), reply
            complete = True
        finally:
            if not complete:  # a reply to an abandoned request must not be read by the next call
                self._leave()

    def _send(self, call: int, requests: Sequence[tuple[int, Request]]) -> None:
        """Send requests of a call of `complete` with the images that only this process has; none: there are no more."""
        images = {}
        for _, request in requests:
            for sha256 in (sha for shown in request.shown for sha in shown.images):
                if sha256 not in self._sent:
                    self._sent.add(sha256)
                    if not self._executor.run.image_store.exists(sha256):
                        images[sha256] = self._load(sha256)
        self._get(self._actor.feed.remote(call, requests, images))

    def restart(self) -> None:
        """Start the actor again if its node is alive. ServerError if it cannot be started."""
        self._leave()
        free = self._executor.cluster.free([], self._executor.refused, max(1, self.slot.gpus))
        if not any(slot.node_id == self.slot.node_id for slot in free):
            raise ServerError(f"the node {self.slot.host} has left the cluster")
        self.__enter__()

    def counters(self) -> dict[str, float]:
        counts: dict[str, float] = {}
        if self._actor is not None:
            with suppress(Lost):
                counts = self._get(self._actor.counters.remote())
        return counts

    # ---- metering, from the main thread

    def charge(self, phase: str, n_items: int) -> bool:
        """Charge the time since the last charge to the node's device; returns whether it is in use."""
        if self._meter is None and self._device is not None:
            self._meter = Meter(self._executor.run.store, self._device, start_ns=self._opened_ns)
        if self._meter is None:
            return False
        if self._lost_ns is not None:
            self.end_session("lost")
            return False
        self._meter.charge(phase, n_items)
        return True

    def end_session(self, status: str) -> None:
        if self._meter is not None:
            if self._lost_ns is not None:
                self._meter.charge("idle", now_ns=self._lost_ns)
                status = "lost"
            self._meter.end(status)
            self._meter = self._device = None


# ---- the executor

T = TypeVar("T")
_GROW_S = 1.0
"""How often nodes that joined are looked for."""
_START_S = 60.0
_EVENTS_AHEAD = 4
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


class RayExecutor(Executor):
    """The cluster of `engine.ray`, for the open run `run`. ConfigError if it cannot be used."""

    def __init__(self, run: RunDir, progress: Progress) -> None:
        self.run, self.progress, self.settings = run, progress, run.config.engine.ray
        self.cluster = Cluster(run.config.engine)
        self.refused: set[str] = set()
        """Ids of nodes that cannot be used."""
        self._facts: NodeFacts | None = None
        """Of the first node; all others must have equal numerics."""
        self._hello = secrets.token_hex(16)
        write_atomic(run.path / HELLO, self._hello.encode())
        self._resting: dict[str, float] = {}
        """When workers may be started again on nodes where a start has failed."""
        self._last_usable = time.monotonic()
        """When a node could be used."""
        self._most = run.config.engine.workers or _NO_LIMIT
        self._workers: list[_Worker] = []
        """They continue for the next stage; `open_judge` ends them."""
        self._grown = 0.0
        self._losses = 0
        self._replicas: list[RayReplica] = []
        self._ended = threading.Event()
        threading.Thread(target=self._watch_head, daemon=True).start()

    @contextmanager
    def stage(self) -> Iterator[None]:
        try:
            yield
        except LocalBenchError:  # what others still compute must not be read as the events of the next work
            self._end_workers("failed")
            raise

    # ---- nodes

    def _watch_head(self) -> None:
        while not self._ended.wait(_WATCH_S):
            if not self.cluster.reaches_head() and not self._ended.is_set():  # `end` closes the run's own cluster
                self.progress.note(
                    "the head node of the Ray cluster cannot be reached: unless it answers within a minute, Ray ends "
                    "this process; finished work is kept, start the cluster again and run the same command again"
                )
                return

    def start(self, kind: type, slot: Slot, threads: int = 1) -> Any:
        """Start an actor of class `kind` on a slot; returns its handle at once. Ray does not restart it if it is lost:
        its node may have left, and the run counts its losses."""
        setting = Setting(
            run_dir=self.run.path.absolute(),
            working_dir=Path.cwd(),
            session=self._hello,
            environ={name: os.environ[name] for name in _KEPT if name in os.environ},
            threads=self.run.config.engine.threads,
            on_gpu=self.cluster.on_gpu,
            workers=slot.workers,
        )
        options = {"num_gpus": slot.gpus, "max_concurrency": threads, "max_restarts": 0, "max_task_retries": 0}
        return self.cluster.ray.remote(kind).options(**options, **self.cluster.pinned(slot.node_id, 1)).remote(setting)

    def get(self, reference: Any, worker: str, slot: Slot) -> Any:
        """The value of `reference`, computed by the `worker` on a slot. Raises as `Cluster.get`, and for a fault a
        PartFailed that names the file with its traceback."""
        try:
            return self.cluster.get(reference)
        except self.cluster.ray.exceptions.RayTaskError as e:
            log = self.run.logs / f"worker-{slot.host}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(log, re.sub(r"\x1b\[\d+m", "", str(e)).encode())
            fault = f"{repr(e.cause)[:300]}, see {log}"
            raise PartFailed(f"{worker} on {slot.host} failed ({fault}): finished work is kept", worker) from None

    def accept(self, slot: Slot, facts: NodeFacts | LocalBenchError) -> bool:
        """Whether a node with these facts, or this error instead of facts, can be used; notes why not."""
        if isinstance(facts, LocalBenchError):
            why = str(facts)
        elif not facts.sees_run:
            why = f"cannot access {self.run.path}: put the run directory on a file system that all nodes share"
        elif self._facts is not None and (changed := _difference(self._facts.numerics, facts.numerics)):
            why = f"would compute other bytes ({changed}): choose nodes of one type with engine.ray.gpu_type"
        else:
            self._facts = self._facts or facts
            self._last_usable = time.monotonic()
            return True
        self.refused.add(slot.node_id)
        self.progress.note(f"the node {slot.host} is not used: it {why}")
        return False

    def free(self, taken: Sequence[Slot], gpus: int = 1) -> list[Slot]:
        """Free slots on nodes on which a worker may be started now."""
        now = time.monotonic()
        resting = {node_id for node_id, until in self._resting.items() if now < until}
        return self.cluster.free(taken, self.refused | resting, gpus)

    def not_started(self, slot: Slot, why: object) -> None:
        """Note that a worker could not be started: its node may have left, or lack something."""
        if slot.node_id not in self._resting:
            self.progress.note(
                f"nothing could be started on the node {slot.host} ({why}): trying again every {_REST_S:.0f} s"
            )
        self._resting[slot.node_id] = time.monotonic() + _REST_S

    # ---- workers

    @property
    def n_workers(self) -> int:
        return max(1, min(len(self.cluster.free([], self.refused)), self._most))

    @property
    def n_shares(self) -> int:
        return self.n_workers * self.settings.shares_per_worker

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        while True:
            while (worker := next((worker for worker in self._workers if worker.meter), None)) is None:
                self._grow(1)
                for started in self._ready():
                    self._greet(started)
            try:
                result: T = self.get(worker.actor.call.remote(function, *arguments), "the worker", worker.slot)
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
                        num_returns="streaming", _generator_backpressure_num_objects=_EVENTS_AHEAD
                    )
                    worker.events = streaming.remote(work, order, worker.share)
            for worker in self._ready():
                if worker.facts is not None:
                    self._greet(worker)
                    continue
                try:
                    yield from self._event(worker, order.label)
                except Lost as e:
                    remaining = left(worker.share or [])
                    if remaining:
                        waiting.appendleft(remaining)
                    self._lose(worker, e)

    def _event(self, worker: _Worker, label: str) -> Iterator[tuple[Meter, Event]]:
        reference = next(worker.events, None)
        if reference is None:
            worker.share = worker.events = None
            return
        event = self.get(reference, f"{label}: the worker", worker.slot)
        assert worker.meter is not None
        self._last_usable = time.monotonic()
        if isinstance(event, TimeCharged):
            event = replace(event, now_ns=event.now_ns + worker.offset_ns)
        yield worker.meter, event

    def _grow(self, n_waiting: int) -> None:
        """Request workers on nodes that have a free slot, without waiting for them."""
        if time.monotonic() - self._grown < _GROW_S:
            return
        self._grown = time.monotonic()
        limit_s, alone_s = self.settings.wait_s, time.monotonic() - self._last_usable
        if alone_s > limit_s and not any(worker.meter for worker in self._workers):
            why = "; the messages above say why others are not used" if self.refused else ""
            raise LocalBenchError(
                f"the Ray cluster has had no usable node for {limit_s:.0f} s (engine.ray.wait_s{why}): finished work "
                "is kept, run the same command again when it has one"
            )
        # a worker that has not started by now waits for a node that is used by others
        counted = sum(w.meter is not None or time.monotonic() - w.started < _START_S for w in self._workers)
        wanted = min(self._most, n_waiting + sum(w.share is not None for w in self._workers)) - counted
        for slot in self.free([worker.slot for worker in self._workers])[: max(0, wanted)]:
            actor = self.start(RayWorker, slot)
            self._workers.append(_Worker(slot, actor, actor.facts.remote()))

    def _ready(self) -> list[_Worker]:
        """Workers with a message, after waiting for one for a moment."""
        pending = {worker.facts or worker.events: worker for worker in self._workers if worker.facts or worker.events}
        if not pending:
            time.sleep(_GROW_S / 5)
            return []
        ready, _ = self.cluster.ray.wait(list(pending), num_returns=1, timeout=_GROW_S)
        return [pending[reference] for reference in ready]

    def _greet(self, worker: _Worker) -> None:
        """Begin the session of a worker whose facts have arrived."""
        try:
            facts = self.get(worker.facts, "did not start: the worker", worker.slot)
        except Lost as e:
            self._workers.remove(worker)
            self.not_started(worker.slot, e)
            return
        except LocalBenchError as e:
            facts = e
        worker.facts = None
        if not self.accept(worker.slot, facts):
            self._workers.remove(worker)
            self.cluster.end(worker.actor)
            return
        worker.meter = Meter(self.run.store, facts.device)
        worker.offset_ns = time.monotonic_ns() - facts.now_ns

    def _lose(self, worker: _Worker, why: Lost) -> None:
        """Remove a worker; its process is ended, in case it is alive but cannot be reached. LocalBenchError after too
        many."""
        self._end_worker(worker, "lost")
        self._losses += 1
        what = f"the worker on {worker.slot.host}"
        if self._losses > self.settings.max_losses:
            raise LocalBenchError(
                f"{self._losses} workers of the Ray cluster were lost (engine.ray.max_losses; the last: {what}, {why}"
                "): finished work is kept, run the same command again"
            )
        self.progress.note(f"{what} was lost ({why}): its work goes to the others")

    def _end_worker(self, worker: _Worker, status: str) -> None:
        self._workers.remove(worker)
        self.cluster.end(worker.actor)
        if worker.meter:
            worker.meter.end(status)

    def _end_workers(self, status: str) -> None:
        for worker in list(self._workers):
            self._end_worker(worker, status)

    # ---- judges

    @property
    def judge_devices(self) -> Sequence[JudgeDevice]:
        if self._facts is None:
            self.call(repr)  # whatever the call: the worker that answers has reported its facts
        facts = self._facts
        assert facts is not None
        if not self.cluster.on_gpu:
            return [JudgeDevice(facts.device, None)]
        return [JudgeDevice(facts.device, i, facts.capability) for i in range(max(1, self.cluster.most_gpus()))]

    @contextmanager
    def open_judge(self, order: JudgeOrder) -> Iterator[Transport]:
        """Open one replica on every free slot of the cluster; nodes that join get one too. This process queries an
        external server itself."""
        if order.config.base_url is not None:
            with open_judge(order, self.judge_devices) as transport:
                yield transport
            return
        self._end_workers("done")  # the judge needs their devices
        gpus = min(card(order.config.card, "judge").tensor_parallel_size, self.cluster.most_gpus())
        arguments = (order.config, order.spec, gpus, self.cluster.ray.put(list(order.questions)))
        numbers = itertools.count()

        def joining() -> list[RayReplica]:
            taken = [replica.slot for replica in self._replicas if replica.slot.node_id not in self.refused]
            free = self.free(taken, max(1, gpus))[: max(0, self._most - len(taken))]
            names = (f"{order.log.stem}-{number}{order.log.suffix}" for number in numbers)
            pairs = zip(free, names)  # noqa: B905  # `names` is endless
            joined = [RayReplica(self, slot, (*arguments, name), order.load) for slot, name in pairs]
            self._replicas += joined
            return joined

        try:
            with Replicas(_opened(joining(), order.progress), order.progress.note, joining) as replicas:
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
        self._ended.set()
        self._end_workers(status)
        self.cluster.close()
        with suppress(OSError):
            (self.run.path / HELLO).unlink()


def _opened(replicas: Sequence[RayReplica], progress: Progress) -> list[RayReplica]:
    """The replicas that could be opened. Raises the first error if there is none."""
    usable, errors = [], []
    with ThreadPoolExecutor(max(1, len(replicas))) as pool:
        for opening in [pool.submit(replica.__enter__) for replica in replicas]:
            try:
                usable.append(opening.result())
            except LocalBenchError as e:
                errors.append(e)
    if not usable:
        no_node = ServerError("the Ray cluster has no node for the judge: start one and run the same command again")
        raise next(iter(errors), no_node)
    for note in (*dict.fromkeys(map(str, errors)), *usable[0].notes):
        progress.note(note)
    return usable
