"""Where to find a metric by name; nothing of it is imported before it is asked for.

A name is `metric`, or `metric:card` for one that is read off a model: `clip_cap` is `clip_cap:clip-vit-l-14-336`, and
`clip_cap:tiny-clip` is another metric with a name of its own. `pyiqa:NAME` is any metric of pyiqa's. A lab adds its own
by an entry point in the group `local_bench.metrics` that names such a `make` function; ours keep their names.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.core.suggest import hint
from local_bench.judges.metrics.base import Metric
from local_bench.models.cards import ModelCard, card
from local_bench.models.weights import check_local, resolve, resolve_parts

PLUGINS = "local_bench.metrics"
PYIQA = "pyiqa:"


@dataclass(frozen=True)
class Weights:
    """A model's files on this machine."""

    card: ModelCard
    folder: Path
    parts: dict[str, Path]


@dataclass(frozen=True)
class _Entry:
    make: str
    """`package.module:function`; called with the name, and where there is a model with its `Weights`."""
    default_card: str | None = None
    """The model that it is read off, for a metric that is."""
    family: str | None = None
    """Of the models that it can be read off; None for a plugin's, which sees to that itself."""


_PACKAGE = "local_bench.judges.metrics."
_METRICS = {
    "aes_v2.5": _Entry(f"{_PACKAGE}aesthetic:make", "aesthetic-v2-5", "aesthetic_v2_5"),
    "brisque": _Entry(f"{_PACKAGE}pyiqa_table:make", "pyiqa:brisque", "pyiqa"),
    "clip_cap": _Entry(f"{_PACKAGE}clip_cap:make", "clip-vit-l-14-336", "open_clip"),
    "clip_ref": _Entry(f"{_PACKAGE}clip_ref:make", "clip-vit-l-14-336", "open_clip"),
    "clip_src": _Entry(f"{_PACKAGE}clip_src:make", "clip-vit-l-14-336", "open_clip"),
    "clipiqa": _Entry(f"{_PACKAGE}pyiqa_table:make", "pyiqa:clipiqa", "pyiqa"),
    "colorfulness": _Entry(f"{_PACKAGE}colorfulness:make"),
    "dino_ref": _Entry(f"{_PACKAGE}dino_ref:make", "dinov2-giant", "dinov2"),
    "entropy": _Entry(f"{_PACKAGE}entropy:make"),
    "face_ref": _Entry(f"{_PACKAGE}face_ref:make", "buffalo-l", "insightface"),
    "l1_aligned": _Entry(f"{_PACKAGE}l1_aligned:make"),
    "l1_canny": _Entry(f"{_PACKAGE}l1_canny:make"),
    "l1_colorize": _Entry(f"{_PACKAGE}l1_colorize:make"),
    "l1_depth": _Entry(f"{_PACKAGE}l1_depth:make", "dpt-hybrid-midas", "dpt"),
    "l1_pose": _Entry(f"{_PACKAGE}l1_pose:make", "openpose", "openpose"),
    "l1_raw": _Entry(f"{_PACKAGE}l1_raw:make"),
    "laion_aes": _Entry(f"{_PACKAGE}laion_aes:make", "laion-aesthetic", "laion_aesthetic"),
    "lpips": _Entry(f"{_PACKAGE}pyiqa_table:make", "pyiqa:lpips", "pyiqa"),
    "musiq": _Entry(f"{_PACKAGE}pyiqa_table:make", "pyiqa:musiq", "pyiqa"),
    "musiq_koniq": _Entry(f"{_PACKAGE}pyiqa_table:make", "pyiqa:musiq", "pyiqa"),
    "nima": _Entry(f"{_PACKAGE}pyiqa_table:make", "pyiqa:nima", "pyiqa"),
    "niqe": _Entry(f"{_PACKAGE}pyiqa_table:make", "pyiqa:niqe", "pyiqa"),
    "piqe": _Entry(f"{_PACKAGE}piqe:make"),
    "psnr": _Entry(f"{_PACKAGE}psnr:make"),
    "ssim": _Entry(f"{_PACKAGE}ssim:make"),
    "ssim_aligned": _Entry(f"{_PACKAGE}ssim_aligned:make"),
    "style_ref": _Entry(f"{_PACKAGE}style_ref:make", "csd-vit-l", "csd"),
}


def metric_names() -> list[str]:
    """The metrics there are, without their models: ours and those of plugins, but not pyiqa's own."""
    return sorted(_known())


def metric_card(name: str) -> ModelCard | None:
    """The card of the model that a metric is read off; None for one without. ConfigError if there is no such metric."""
    if name.startswith(PYIQA):
        from local_bench.judges.metrics.pyiqa_cards import pyiqa_card

        return pyiqa_card(name.removeprefix(PYIQA))
    metric, colon, variant = name.partition(":")
    known = _known()
    entry = known.get(metric)
    if entry is None or (colon and entry.default_card is None):
        suggestion = hint(metric, known, f"there are {', '.join(sorted(known))} and pyiqa:NAME")
        raise ConfigError(f"metrics: there is no metric {name!r}: {suggestion}")
    if entry.default_card is None:
        return None
    chosen = card(variant or entry.default_card, "metric")
    if entry.family and chosen.family != entry.family:
        raise ConfigError(
            f"metrics: {metric} is read off a model of the family {entry.family}, and {chosen.name} is of "
            f"{chosen.family}: name another (`local-bench models list`)"
        )
    return chosen


def check_metric(name: str) -> None:
    """ConfigError for a name that is no metric, WeightsError for one whose model is not here; loads nothing."""
    described = metric_card(name)
    if described is None:
        return
    try:
        check_local(described)
    except WeightsError:
        if described.source.gather:
            from local_bench.judges.metrics.pyiqa_store import Store

            Store(described.name.removeprefix(PYIQA)).load(described.name)  # whose sentence names the file
        raise


def check_metrics(names: Sequence[str]) -> None:
    """`check_metric` for all of them."""
    for name in names:
        check_metric(name)


def make_metric(name: str) -> Metric:
    """The metric of that name. Light: a network is opened by whoever uses it. Errors as `check_metric`."""
    described = metric_card(name)
    where = f"{_PACKAGE}pyiqa_metric:make" if name.startswith(PYIQA) else _known()[name.partition(":")[0]].make
    module, _, function = where.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"metrics: {name!r} cannot be loaded from {where} ({e}): mend or remove that package") from e
    weights = [Weights(described, resolve(described), resolve_parts(described))] if described else []
    metric: Metric = make(name, *weights)
    return metric


def _known() -> dict[str, _Entry]:
    """Ours and those of plugins; a plugin cannot take the place of ours."""
    plugins = {point.name: _Entry(point.value) for point in entry_points(group=PLUGINS)}
    return plugins | _METRICS
