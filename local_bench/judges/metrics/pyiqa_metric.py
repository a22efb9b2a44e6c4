"""Any pyiqa metric by its name, `pyiqa:NAME`; and the base of metrics of our own that pyiqa computes.

No-reference metrics use only the image; full-reference ones use the image, resized to the source's size as in
ICE-Bench, and the source. Range and direction are from pyiqa's table; bounds that it marks as rough are ignored.
"""

import copy
import math
import threading
from collections.abc import Sequence
from typing import Any

import torch

from local_bench.core.errors import ConfigError
from local_bench.judges.metrics.base import (
    Array,
    FeatureInput,
    HostMetric,
    LoadedSubject,
    MetricSpec,
    NetworkMetric,
    Subject,
    Unscorable,
)
from local_bench.judges.metrics.pyiqa_cards import describe, pyiqa_version
from local_bench.judges.metrics.pyiqa_network import PyiqaNetwork, as_tensor, called, preprocessing, sized
from local_bench.judges.metrics.pyiqa_store import Store, read_store
from local_bench.judges.metrics.registry import Weights

Bounds = tuple[float | None, float | None]


def make(name: str, weights: Weights | None = None) -> "PyiqaMetric | PyiqaFormula":
    """`pyiqa:NAME`. ConfigError if pyiqa has no such metric or it is not supported."""
    of = name.partition(":")[2]
    return PyiqaFormula(name, of) if weights is None else PyiqaMetric(name, weights, of)


class PyiqaMetric(NetworkMetric):
    """The value that one of pyiqa's networks computes for an image, unmodified."""

    def __init__(
        self,
        name: str,
        weights: Weights,
        of: str,
        source: str | None = None,
        height: int | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        """`of`: pyiqa's name of the metric; `height` as in `PyiqaNetwork`; `bounds` if pyiqa's own are not right."""
        store = read_store(weights.folder)
        if store.metric != of:
            raise ConfigError(
                f"metrics: {weights.card.name} has the weights of pyiqa's {store.metric}, but {name} needs {of}"
            )
        self.network: PyiqaNetwork = PyiqaNetwork(weights.card.name, store, height)
        self.spec = _spec(name, store, source, height, bounds)

    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        if "source" in self.spec.needs:
            assert subject.source is not None
            return (FeatureInput((subject.image, subject.source)),)
        return (FeatureInput((subject.image,)),)

    def value(self, arrays: Sequence[Array]) -> float:
        (array,) = arrays  # (1,)
        return _finite(float(array[0]))


class PyiqaFormula(HostMetric):
    """A pyiqa metric that needs no file, on the CPU in float64.

    pyiqa's modules store results and settings of a call as attributes (PIQE its masks, MAD its channels, CW_SSIM its
    window), so each thread has its own copy.
    """

    def __init__(self, name: str, of: str, source: str | None = None, min_side: int = 1) -> None:
        self._store = Store(of)
        self._min_side = min_side
        self._making = threading.Lock()
        self._made: Any = None
        self._own = threading.local()
        self.spec = _spec(name, self._store, source)

    def measure(self, seen: LoadedSubject) -> float:
        if min(seen.image.size) < self._min_side:
            raise Unscorable(f"the image is smaller than {self._min_side} pixels on a side")
        images = [seen.image, seen.source] if "source" in self.spec.needs else [seen.image]
        with torch.inference_mode():
            inputs = [as_tensor(image, torch.float64) for image in sized(images)]
            return _finite(called(self._network(), inputs))

    def _network(self) -> Any:
        """This thread's copy of pyiqa's module; the original is created once and never called."""
        if not hasattr(self._own, "network"):
            with self._making:
                if self._made is None:
                    self._made = self._store.build().net.double()
                self._own.network = copy.deepcopy(self._made)
        return self._own.network


def _spec(
    name: str, store: Store, source: str | None, height: int | None = None, bounds: Bounds | None = None
) -> MetricSpec:
    described = describe(store.metric)
    lowest, highest = bounds or (described.lowest, described.highest)
    own = f"pyiqa {pyiqa_version()} `{store.metric}`"
    return MetricSpec(
        name,
        not described.lower_better,
        preprocessing(store, height),
        f"{source}; {own}" if source else own,
        ("source",) if described.full_reference else (),
        lowest,
        highest,
    )


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise Unscorable("the metric gave no finite number")
    return value
