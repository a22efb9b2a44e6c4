"""Workers on the nodes of a Ray cluster: nodes join and leave, and the share of a lost worker goes to another."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from local_bench.core.errors import LocalBenchError
from local_bench.core.events import TimeCharged
from local_bench.core.storage import write_atomic
from local_bench.runs.executors.base import WorkerDevice
from local_bench.runs.executors.ray_actors import Failed, NodeFacts, RayWorker, Setting
from local_bench.runs.executors.ray_cluster import Cluster, Slot, lost_error
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.work import Event
from local_bench.runs.worker_pool import HasDevice, Work

P = ParamSpec("P")
T = TypeVar("T")
_GROW_S = 1.0
"""How often nodes that joined are looked for."""
_START_S = 60.0
_REST_S = 10.0
_AHEAD = 4
"""Events that a worker may be ahead of the store."""


@dataclass(eq=False)
class _Worker:
    slot: Slot
    actor: Any
    hello: Any
    """The pending reference of its facts; None once they have arrived."""
    meter: Meter | None = None
    offset_ns: int = 0
    """Difference of this machine's monotonic clock to the node's."""
    started: float = field(default_factory=time.monotonic)
    share: list[Any] | None = None
    events: Any = None


class Membership:
    """The nodes that a run may use, and what was learnt about them; shared by all stages of a session."""

    def __init__(self, run: RunDir, cluster: Cluster, progress: Progress) -> None:
        self.run = run
        self.cluster = cluster
        self.progress = progress
        self.settings = run.config.engine.ray
        self.refused: set[str] = set()
        """Ids of nodes that cannot be used."""
        self.facts: NodeFacts | None = None
        """Of the first node; all others must have equal numerics."""
        self._resting: dict[str, float] = {}
        """When workers may be started again on nodes where a start has failed."""
        self._losses = 0
        self._last_usable = time.monotonic()

    def accept(self, slot: Slot, facts: NodeFacts | Failed) -> bool:
        """Whether a node can be used; notes why not."""
        if isinstance(facts, Failed):
            why = str(facts.error or facts.trace.strip().splitlines()[-1])
        elif not facts.sees_run:
            why = f"cannot access {self.run.path}: put the run directory on a file system that all nodes share"
        elif self.facts is not None and (changed := _difference(self.facts.numerics, facts.numerics)):
            why = f"would compute other bytes ({changed}): choose nodes of one type with engine.ray.gpu_type"
        else:
            self.facts = self.facts or facts
            self.usable()
            return True
        self.refused.add(slot.node_id)
        self.progress.note(f"the node {slot.host} is not used: it {why}")
        return False

    def free(self, taken: Sequence[Slot], gpus: int = 1) -> list[Slot]:
        """Free slots on nodes on which a worker may be started now."""
        now = time.monotonic()
        resting = {node_id for node_id, until in self._resting.items() if now < until}
        return self.cluster.free(taken, self.refused | resting, gpus)

    def not_started(self, slot: Slot, why: str) -> None:
        """Note that a worker could not be started: its node may have left, or lack something."""
        if slot.node_id not in self._resting:
            self.progress.note(
                f"nothing could be started on the node {slot.host} ({why}): trying again every {_REST_S:.0f} s"
            )
        self._resting[slot.node_id] = time.monotonic() + _REST_S

    def usable(self) -> None:
        """Note that a node can be used now."""
        self._last_usable = time.monotonic()

    def check_alone(self) -> None:
        """LocalBenchError if there has been no usable node for too long."""
        limit_s = self.settings.wait_s
        if time.monotonic() - self._last_usable > limit_s:
            why = "; the messages above say why others are not used" if self.refused else ""
            raise LocalBenchError(
                f"the Ray cluster has had no usable node for {limit_s:.0f} s (engine.ray.wait_s{why}): finished work "
                "is kept, run the same command again when it has one"
            )

    def lose(self, what: str, why: str) -> None:
        """Count a loss. LocalBenchError after too many."""
        self._losses += 1
        if self._losses > self.settings.max_losses:
            raise LocalBenchError(
                f"{self._losses} workers of the Ray cluster were lost (engine.ray.max_losses; the last: {what}, {why}"
                "): finished work is kept, run the same command again"
            )
        self.progress.note(f"{what} was lost ({why}): its work goes to the others")


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str | None:
    key = next((k for k in sorted({*first, *other}) if first.get(k) != other.get(k)), None)
    return None if key is None else f"{key}: {other.get(key)} instead of {first.get(key)}"


class RayWorkers:
    """One worker per GPU of the cluster, or per node on CPUs; at most `engine.workers`."""

    def __init__(self, nodes: Membership, setting: Callable[[int], Setting]) -> None:
        self._nodes = nodes
        self._setting = setting
        self._ray = nodes.cluster.ray
        self._workers: list[_Worker] = []
        self._grown = 0.0

    @property
    def n(self) -> int:
        slots = len(self._nodes.cluster.free([], self._nodes.refused))
        return max(1, min(slots, self._most))

    @property
    def n_shares(self) -> int:
        return self.n * self._nodes.settings.shares_per_worker

    @property
    def _most(self) -> int:
        return self._nodes.run.config.engine.workers or 10**6

    def call(self, function: Callable[Concatenate[WorkerDevice, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            worker = self._any()
            try:
                result = self._ray.get(worker.actor.call.remote(function, args, kwargs))
            except self._ray.exceptions.RayError as e:
                self._lose(worker, lost_error(self._ray, e))
                continue
            if isinstance(result, Failed):
                raise self._error(worker, result)
            answer: T = result
            return answer

    def do(
        self,
        work: Work,
        order: HasDevice,
        shares: Sequence[list[Any]],
        left: Callable[[list[Any]], list[Any]],
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
                if worker.hello is not None:
                    self._greet(worker)
                    continue
                try:
                    yield from self._event(worker)
                except self._ray.exceptions.RayError as e:
                    remaining = left(worker.share or [])
                    if remaining:
                        waiting.appendleft(remaining)
                    self._lose(worker, lost_error(self._ray, e))

    def _event(self, worker: _Worker) -> Iterator[tuple[Meter, Event]]:
        """The next event of a worker. Raises RayError if it is lost."""
        try:
            message = self._ray.get(next(worker.events))
        except StopIteration:
            worker.share = worker.events = None
            return
        if isinstance(message, Failed):
            raise self._error(worker, message)
        event, energy_mj = message
        assert worker.meter is not None
        self._nodes.usable()
        if isinstance(event, TimeCharged):
            worker.meter.energy_mj = energy_mj
            event = TimeCharged(event.phase, event.n_items, event.now_ns + worker.offset_ns)
        yield worker.meter, event

    def _any(self) -> _Worker:
        """A worker that is ready, waiting for one if there is none. LocalBenchError if none appears."""
        while True:
            ready = next((worker for worker in self._workers if worker.meter), None)
            if ready is not None:
                return ready
            self._grow(1)
            for worker in self._ready():
                self._greet(worker)

    def _grow(self, n_waiting: int) -> None:
        """Request workers on nodes that have a free slot, without waiting for them."""
        if time.monotonic() - self._grown < _GROW_S:
            return
        self._grown = time.monotonic()
        if not any(worker.meter for worker in self._workers):
            self._nodes.check_alone()
        taken = [worker.slot for worker in self._workers]
        # a worker that has not started by now waits for a node that is used by others
        counted = sum(w.meter is not None or time.monotonic() - w.started < _START_S for w in self._workers)
        wanted = min(self._most, n_waiting + sum(w.share is not None for w in self._workers)) - counted
        for slot in self._nodes.free(taken)[: max(0, wanted)]:
            actor = self._nodes.cluster.start(RayWorker, slot, self._setting(slot.workers))
            self._workers.append(_Worker(slot, actor, actor.facts.remote()))

    def _ready(self) -> list[_Worker]:
        """Workers with a message, after waiting for one for a moment."""
        pending = {}
        for worker in self._workers:
            reference = worker.hello if worker.hello is not None else worker.events
            if reference is not None:
                pending[reference] = worker
        if not pending:
            time.sleep(_GROW_S / 5)
            return []
        ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=_GROW_S)
        return [pending[reference] for reference in ready]

    def _greet(self, worker: _Worker) -> None:
        """Begin the session of a worker whose facts have arrived."""
        try:
            facts = self._ray.get(worker.hello)
        except self._ray.exceptions.RayError as e:
            self._workers.remove(worker)
            self._nodes.not_started(worker.slot, lost_error(self._ray, e))
            return
        worker.hello = None
        if not self._nodes.accept(worker.slot, facts):
            self._workers.remove(worker)
            self._nodes.cluster.end(worker.actor)
            return
        worker.meter = Meter(self._nodes.run.store, facts.device)
        worker.offset_ns = time.monotonic_ns() - facts.now_ns

    def _lose(self, worker: _Worker, why: str) -> None:
        """Remove a worker; its process is ended, in case it is alive but cannot be reached."""
        self._workers.remove(worker)
        self._nodes.cluster.end(worker.actor)
        if worker.meter:
            worker.meter.end("lost")
        self._nodes.lose(f"the worker on {worker.slot.host}", why)

    def _error(self, worker: _Worker, failed: Failed) -> LocalBenchError:
        if failed.error is not None:
            return failed.error
        log = self._nodes.run.logs / f"worker-{worker.slot.host}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(log, failed.trace.encode())
        return LocalBenchError(f"the worker on {worker.slot.host} failed, see {log}: finished work is kept")

    def end(self, status: str) -> None:
        """End all workers and their sessions."""
        for worker in self._workers:
            self._nodes.cluster.end(worker.actor)
            if worker.meter:
                worker.meter.end(status)
        self._workers.clear()
