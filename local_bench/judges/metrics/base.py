"""What a metric is, and where to find one by name."""

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.core.nouns import Score


@dataclass(frozen=True)
class MetricSpec:
    """A metric's identity: what it is, how images are prepared for it, and which way is better."""

    name: str
    higher_is_better: bool
    preprocessing: str
    source: str


class Metric(Protocol):
    """Scores images one by one or many at once, with the same numbers either way."""

    spec: MetricSpec

    def score(self, images: Sequence[Image.Image]) -> list[Score]:
        """One score an image, in order; an image that it cannot measure is unscored with the reason."""


_METRICS = {
    "piqe": "local_bench.judges.metrics.piqe:make",
    "entropy": "local_bench.judges.metrics.entropy:make",
}


def metric_names() -> list[str]:
    return sorted(_METRICS)


def check_names(names: Sequence[str]) -> None:
    """ConfigError for the first name that is no metric; imports nothing heavy."""
    for name in names:
        if name not in _METRICS:
            near = difflib.get_close_matches(name, _METRICS, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(metric_names())}"
            raise ConfigError(f"metrics: there is no metric {name!r}: {hint}")


def make_metric(name: str) -> Metric:
    """The metric of that name, loaded now."""
    check_names([name])
    module, _, function = _METRICS[name].partition(":")
    metric: Metric = getattr(importlib.import_module(module), function)()
    return metric
