"""Replicas of a judge on the nodes of a Ray cluster."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from PIL import Image

from local_bench.core.errors import ServerError
from local_bench.judges.vlm.judge import Unreachable
from local_bench.judges.vlm.protocols import Reply, Request
from local_bench.runs.executors.ray_actors import RayJudge
from local_bench.runs.executors.ray_cluster import Lost, Slot
from local_bench.runs.executors.ray_nodes import Nodes
from local_bench.runs.meter import Meter

K = TypeVar("K")
_CHUNK = 16
"""Requests sent together."""
_AHEAD = 512
"""Maximum number of requests sent ahead of their replies."""
_CLOSE_S = 30.0


class RayReplica:
    """A replica of a judge on one node; implements `Transport`."""

    def __init__(
        self, nodes: Nodes, slot: Slot, arguments: tuple[Any, ...], load: Callable[[str], Image.Image]
    ) -> None:
        """`arguments` are those of `RayJudge.open`; `load` returns an image that a node does not find in the run
        directory."""
        self.slot = slot
        self._nodes = nodes
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
        actor = self._nodes.start(RayJudge, self.slot, threads=3)
        try:
            facts = self._get(actor.facts.remote())
            if not self._nodes.accept(self.slot, facts):
                raise ServerError(f"the judge cannot use the node {self.slot.host}")
            self._opened_ns, self._device = time.monotonic_ns(), facts.device
            self.notes = self._get(actor.open.remote(*self._arguments))
        except Lost as e:
            self._nodes.cluster.end(actor)
            self._nodes.not_started(self.slot, e)
            raise ServerError(f"the judge on the node {self.slot.host} ended while it started ({e})") from None
        except BaseException:
            self._nodes.cluster.end(actor)
            raise
        self._actor, self._sent, self._lost_ns = actor, set(), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._actor is not None:
            ray = self._nodes.cluster.ray
            with suppress(ray.exceptions.RayError, TimeoutError):
                ray.get(self._actor.close.remote(), timeout=_CLOSE_S)
            self._leave()

    def _leave(self) -> None:
        """End the actor."""
        if self._actor is not None:
            self._nodes.cluster.end(self._actor)
            self._actor, self._lost_ns = None, time.monotonic_ns()

    def _get(self, reference: Any) -> Any:
        return self._nodes.get(reference, "the judge", self.slot)

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as replies arrive. Raises Unreachable if the actor or its judge has ended."""
        if self._actor is None:
            raise Unreachable("it has ended")
        call, ahead = next(self._calls), at_once or _AHEAD
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
                    if not self._nodes.run.image_store.exists(sha256):
                        images[sha256] = self._load(sha256)
        self._get(self._actor.feed.remote(call, requests, images))

    def restart(self) -> None:
        """Start the actor again if its node is alive. ServerError if it cannot be started."""
        self._leave()
        free = self._nodes.cluster.free([], self._nodes.refused, max(1, self.slot.gpus))
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
            self._meter = Meter(self._nodes.run.store, self._device, start_ns=self._opened_ns)
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
