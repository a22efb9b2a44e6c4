"""Metrics by name, imported on first use.

A name is `metric`, or `metric:card` for one that uses a model: `clip_cap` is `clip_cap:clip-vit-l-14-336`, and
`clip_cap:tiny-clip` is another metric with its own name. `pyiqa:NAME` is any pyiqa metric. Other packages add metrics
with an entry point in the group `local_bench.metrics` that refers to such a `make` function; built-in names take
precedence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from local_bench.core.environment import entry_points, load_object, require
from local_bench.core.errors import ConfigError, WeightsError, hint
from local_bench.judges.metrics.base import Metric
from local_bench.judges.metrics.base import Weights as Weights  # noqa: PLC0414  # metrics of others import it from here
from local_bench.judges.metrics.network_metrics import ROWS
from local_bench.judges.metrics.pixels import METRICS
from local_bench.judges.metrics.pyiqa_cards import NAMED, pyiqa_card
from local_bench.models.cards import ModelCard, card
from local_bench.models.weights import check_local, resolve, resolve_parts

PLUGINS = "local_bench.metrics"
PYIQA = "pyiqa:"


@dataclass(frozen=True)
class _Entry:
    make: str
    """`package.module:function`; called with the name, and with `Weights` if the metric uses a model."""
    default_card: str | None = None
    """The default model card of a metric that uses a model."""
    family: str | None = None
    """Model family of supported cards; None for a plugin's metric, which checks its card itself."""


_PACKAGE = "local_bench.judges.metrics."
BUILT_IN = {
    **{name: _Entry(f"{_PACKAGE}pixels:make") for name in METRICS},
    **{name: _Entry(f"{_PACKAGE}network_metrics:make", row.default_card, row.family) for name, row in ROWS.items()},
    **{
        name: _Entry(f"{_PACKAGE}pyiqa_metric:make", row.default_card, row.default_card and "pyiqa")
        for name, row in NAMED.items()
    },
}


_SYNONYMS = {
    **dict.fromkeys(("clip", "clipscore", "clipt", "cliptext", "cliptextscore", "cliptextimage"), "clip_cap"),
    **dict.fromkeys(("clipi", "clipimage", "clipimagescore"), "clip_ref"),
    **dict.fromkeys(("dino", "dinoi", "dinov2", "dinoscore"), "dino_ref"),
    **dict.fromkeys(("csd", "style", "stylesimilarity"), "style_ref"),
    **dict.fromkeys(("arcface", "face", "facesimilarity", "facesim", "faceid", "identity"), "face_ref"),
    **dict.fromkeys(("aesthetic", "aesthetics", "aestheticscore", "laionaesthetic", "laionaesthetics"), "laion_aes"),
    **dict.fromkeys(("hps", "hpsv2", "hpsv21", "hpscore", "humanpreferencescore"), "hps_v2.1"),
    **dict.fromkeys(("pickscore", "pickscorev1", "pickapic"), "pick_score"),
    **dict.fromkeys(("imagereward", "imagerewardv10", "imr"), "image_reward"),
    **dict.fromkeys(("l1", "mae", "l1distance"), "l1_raw"),
    **dict.fromkeys(("pose", "posesimilarity"), "l1_pose"),
    **dict.fromkeys(("depth", "depthsimilarity"), "l1_depth"),
    **dict.fromkeys(("canny", "edge", "edges"), "l1_canny"),
}
"""The metric that other names mean, in lower-case letters and digits."""


def metric_names() -> list[str]:
    """Names of all metrics without model cards: built-in ones and those of plugins, without pyiqa's own."""
    return sorted(_known())


def metric_card(name: str) -> ModelCard | None:
    """The card of the model that a metric uses; None if it uses none. ConfigError for an unknown metric."""
    if name.startswith(PYIQA):
        return pyiqa_card(name.removeprefix(PYIQA))
    metric, colon, variant = name.partition(":")
    entries = _known()
    entry = entries.get(metric)
    if entry is None or (colon and entry.default_card is None):
        synonym = _SYNONYMS.get(re.sub(r"[^a-z0-9]", "", metric.lower()))
        available = f"available: {', '.join(sorted(entries))} and pyiqa:NAME"
        suggestion = f"did you mean {synonym!r}?" if synonym else hint(metric, entries, available)
        raise ConfigError(f"metrics: unknown metric {name!r}: {suggestion}")
    if entry.default_card is None:
        return None
    chosen = card(variant or entry.default_card, "metric")
    if entry.family and chosen.family != entry.family:
        raise ConfigError(
            f"metrics: {metric} needs a model of the family {entry.family}, but {chosen.name} is of "
            f"{chosen.family}: choose another (`local-bench models list`)"
        )
    return chosen


def check_metric(name: str) -> None:
    """ConfigError for an unknown metric, WeightsError if its model is not on this machine; loads nothing."""
    described = metric_card(name)
    if described is None:
        return
    try:
        check_local(described)
    except WeightsError:
        if described.source.gather:
            from local_bench.judges.metrics.pyiqa_store import Store

            Store(described.name.removeprefix(PYIQA)).load(described.name)  # its message names the file
        raise


def check_extras(names: Sequence[str]) -> None:
    """MissingExtra if a metric of `names` needs a package that is not installed."""
    entries_by_name, extras = _known(), {"pyiqa": "pyiqa", "insightface": "faces"}
    entries = (entries_by_name.get(name.partition(":")[0]) for name in names if not name.startswith(PYIQA))
    families = {entry.family for entry in entries if entry} | {"pyiqa" for name in names if name.startswith(PYIQA)}
    if names:
        require(*(extra for family, extra in extras.items() if family in families), "metrics", "generate")


def check_metrics(names: Sequence[str]) -> None:
    """`check_metric` for all names."""
    for name in names:
        check_metric(name)


def make_metric(name: str) -> Metric:
    """The metric of that name. Does not load weights; `Network.open` does. Errors as `check_metric`, and ConfigError if
    a plugin's metric has another name in its spec."""
    described = metric_card(name)
    where = f"{_PACKAGE}pyiqa_metric:make" if name.startswith(PYIQA) else _known()[name.partition(":")[0]].make
    make = load_object(where, f"metrics: {name!r}")
    weights = [Weights(described, resolve(described), resolve_parts(described))] if described else []
    metric: Metric = make(name, *weights)
    if metric.spec.name != name:
        raise ConfigError(f"metrics: {name!r}: the metric's spec has the name {metric.spec.name!r}: give it {name!r}")
    return metric


def _known() -> dict[str, _Entry]:
    """Built-in metrics and those of plugins; a plugin cannot replace a built-in metric."""
    plugins = {point.name: _Entry(point.value) for point in entry_points(PLUGINS)}
    return plugins | BUILT_IN
