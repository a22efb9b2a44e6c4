"""One network at work: what it read before is found again, the rest is read in batches of one shape.

Looks are fetched in a pool (kept from earlier, or decoded and prepared) while the network runs; short batches are
filled up, so that a batch has one shape always (law 2). Before its first batch on a machine a network is tried on one
batch in two orders; where neighbours change an array's bytes it goes on one by one, and says so.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
from PIL import Image

from local_bench.core.errors import ImageError, LocalBenchError, RunImageError
from local_bench.judges.metrics.base import Array, FeatureInput, Network, Picture, Unscorable
from local_bench.judges.metrics.feature_cache import FeatureCache

Found = Mapping[FeatureInput, "Array | Unscorable"]
A = TypeVar("A")
_TRIAL_SIDE = 64
FAULTY = "a picture of the run is "
"""Begins the reason of what is unscored because such a picture is missing, damaged or altered."""


@dataclass(frozen=True)
class _Fetched:
    """A look on its way: its array, why it has none, or what the network takes to read one."""

    key: str
    array: "Array | Unscorable | None" = None
    prepared: Any = None


class FeatureExtractor:
    """Reads arrays off looks with one network; a context manager, used by one thread."""

    def __init__(
        self,
        network: Network,
        pool: ThreadPoolExecutor,
        io_workers: int,
        device: str,
        numerics: Mapping[str, Any],
        batch_size: int | None = None,
    ) -> None:
        self.opened_ns: int | None = None
        """When the network stood ready, by the machine's monotonic clock; None while nothing had to be read."""
        self._network, self._pool, self._io_workers = network, pool, io_workers
        self._device, self._numerics = device, numerics
        self._device_type = torch.device(device).type
        self._batch_size = batch_size or network.batch_size[self._device_type]
        self._opening = threading.Lock()
        self._swayed = False
        self._kept = self._arrays()
        if self._kept.alone is False:
            self._one_by_one()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()
        if self.opened_ns is not None:
            self._network.close()

    @property
    def sentences(self) -> list[str]:
        """What a person should know of how it went."""
        swayed = "neighbours in a batch change what is read here, so it is read one by one" if self._swayed else None
        return [sentence for sentence in (swayed, self._kept.fault) if sentence]

    def read(self, items: Iterable[tuple[A, Sequence[FeatureInput]]]) -> Iterator[tuple[A, Found]]:
        """Every item with the arrays of its looks, in order. LocalBenchError where the device has not enough memory."""
        found: dict[FeatureInput, Array | Unscorable] = {}
        uses: Counter[FeatureInput] = Counter()
        waiting: deque[tuple[A, Sequence[FeatureInput]]] = deque()
        fetching: deque[tuple[FeatureInput, Future[_Fetched]]] = deque()
        ready: dict[bool, list[tuple[FeatureInput, _Fetched]]] = {False: [], True: []}

        def settle(most: int) -> None:
            while len(fetching) > most:
                look, future = fetching.popleft()
                fetched = future.result()
                if fetched.array is not None:
                    found[look] = fetched.array
                    continue
                batch = ready[look.text is not None]
                batch.append((look, fetched))
                if len(batch) == self._batch_size:
                    found.update(self._run(batch))
                    batch.clear()

        def whole() -> Iterator[tuple[A, Found]]:
            while waiting and all(look in found for look in waiting[0][1]):
                item, looks = waiting.popleft()
                yield item, {look: found[look] for look in looks}
                for look in looks:
                    uses[look] -= 1
                    if not uses[look]:
                        del found[look], uses[look]

        for item, looks in items:
            waiting.append((item, looks))
            for look in looks:
                if not uses[look]:
                    fetching.append((look, self._pool.submit(self._fetch, look)))
                uses[look] += 1
            settle(2 * self._batch_size + 2 * self._io_workers)
            yield from whole()
        settle(0)
        for batch in ready.values():
            found.update(self._run(batch))
        yield from whole()
        assert not waiting, "every look has been read"

    def _fetch(self, look: FeatureInput) -> _Fetched:
        """In a thread of the pool."""
        try:
            named = all(picture.known_sha256 for picture in look.pictures)
            images = None if named else self._load(look.pictures)
            kept = self._kept.get(look.key)
            if kept is not None:
                return _Fetched(look.key, kept)
            if images is None:
                images = self._load(look.pictures)
            self._open()
            return _Fetched(look.key, None, self._network.prepare(images, look.text))
        except ImageError as e:
            return _Fetched("", Unscorable(unreadable(e, look.pictures)))
        except Unscorable as e:
            return _Fetched("", e)

    def _load(self, pictures: Sequence[Picture]) -> list[Image.Image]:
        return [picture.load(self._network.max_pixels) for picture in pictures]

    def _run(self, batch: Sequence[tuple[FeatureInput, _Fetched]]) -> Found:
        if not batch:
            return {}
        inputs = [fetched.prepared for _, fetched in batch]
        inputs += inputs[-1:] * (self._batch_size - len(inputs))
        try:
            arrays = self._network.run(inputs)
        except torch.OutOfMemoryError as e:
            if self._batch_size > 1:
                raise LocalBenchError(
                    f"{self._device} has not enough memory for {self._batch_size} pictures at once: set "
                    "engine.metric_batch_size to less and run the same command again, what was measured is kept"
                ) from e
            return {batch[0][0]: Unscorable("the device has not enough memory for a picture of this size")}
        except Unscorable as e:
            if len(batch) > 1:
                return {look: array for one in batch for look, array in self._run([one]).items()}
            return {batch[0][0]: e}
        self._kept.put({fetched.key: array for (_, fetched), array in zip(batch, arrays, strict=False)})
        return {look: array for (look, _), array in zip(batch, arrays, strict=False)}

    def _open(self) -> None:
        with self._opening:
            if self.opened_ns is not None:
                return
            self._network.open(self._device)
            if self._batch_size > 1 and self._kept.alone is None and self._network.batch_size[self._device_type] > 1:
                self._kept.alone = alone = self._is_alone_in_a_batch()
                if not alone:
                    self._swayed = True
                    self._one_by_one()
            self.opened_ns = time.monotonic_ns()

    def _is_alone_in_a_batch(self) -> bool:
        """Whether the same inputs in another order give the same bytes, on this machine."""
        noise = np.random.default_rng(0).integers(0, 256, (self._batch_size, _TRIAL_SIDE, _TRIAL_SIDE, 3), np.uint8)
        inputs = [[self._network.prepare([Image.fromarray(pixels)], None) for pixels in noise]]
        if self._network.reads_words:
            inputs.append([self._network.prepare([], "word " * i) for i in range(1, self._batch_size + 1)])
        for batch in inputs:
            turned = [*batch[1:], batch[0]]
            there, moved = self._network.run(batch), self._network.run(turned)
            if any(a.tobytes() != b.tobytes() for a, b in zip([*there[1:], there[0]], moved, strict=True)):
                return False
        return True

    def _one_by_one(self) -> None:
        self._kept.close()
        self._batch_size = 1
        self._kept = self._arrays()

    def _arrays(self) -> FeatureCache:
        return FeatureCache(
            {"network": self._network.identity, "numerics": self._numerics, "batch_size": self._batch_size}
        )


def unreadable(error: ImageError, pictures: Iterable[Picture]) -> str:
    """Why a picture cannot be read, without where it lies."""
    sentence = str(error)
    for picture in pictures:
        sentence = sentence.replace(str(picture.path), picture.path.name)
    return f"{FAULTY}{error.fault}: {sentence}" if isinstance(error, RunImageError) else sentence
