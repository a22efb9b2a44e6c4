"""What a metric is, and where to find one by name.

A name is `metric`, or `metric:card` for one that is read off a model: `clip_cap` is `clip_cap:clip-vit-l-14-336`, and
`clip_cap:tiny-clip` is another metric with a name of its own.
"""

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from local_bench.core.cards import ModelCard, card
from local_bench.core.errors import ConfigError
from local_bench.core.nouns import Score
from local_bench.core.weights import check_here, resolve


@dataclass(frozen=True)
class MetricSpec:
    """A metric's identity: what it is, how images are prepared for it, and which way is better."""

    name: str
    higher_is_better: bool
    preprocessing: str
    source: str
    needs_caption: bool = False


class Metric(Protocol):
    """Scores images one by one or many at once, with the same numbers either way."""

    spec: MetricSpec

    def score(self, images: Sequence[Image.Image], captions: Sequence[str | None]) -> list[Score]:
        """One score an image, in order; an image that it cannot measure is unscored with the reason."""


@dataclass(frozen=True)
class _Entry:
    make: str
    """`package.module:function`; called with the name and, where there is a model, the folder of its weights."""
    default_card: str | None = None
    """The model that it is read off, for a metric that is."""


_METRICS = {
    "piqe": _Entry("local_bench.judges.metrics.piqe:make"),
    "entropy": _Entry("local_bench.judges.metrics.entropy:make"),
    "clip_cap": _Entry("local_bench.judges.metrics.clip_cap:make", "clip-vit-l-14-336"),
}


def metric_names() -> list[str]:
    """The metrics there are, without their models."""
    return sorted(_METRICS)


def metric_card(name: str) -> ModelCard | None:
    """The card of the model that a metric is read off; None for one without. ConfigError if there is no such metric."""
    metric, colon, variant = name.partition(":")
    entry = _METRICS.get(metric)
    if entry is None or (colon and entry.default_card is None):
        near = difflib.get_close_matches(metric, _METRICS, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(metric_names())}"
        raise ConfigError(f"metrics: there is no metric {name!r}: {hint}")
    return card(variant or entry.default_card, "metric") if entry.default_card else None


def check_metrics(names: Sequence[str]) -> None:
    """ConfigError for the first name that is no metric, WeightsError for one whose model is not here; loads nothing."""
    for name in names:
        described = metric_card(name)
        if described is not None:
            check_here(described)


def make_metric(name: str) -> Metric:
    """The metric of that name, loaded now."""
    described = metric_card(name)
    module, _, function = _METRICS[name.partition(":")[0]].make.partition(":")
    make = getattr(importlib.import_module(module), function)
    metric: Metric = make(name, *([resolve(described)] if described else []))
    return metric
