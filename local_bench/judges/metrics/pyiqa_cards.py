"""pyiqa's metrics as model cards, read from the file of pyiqa's own table without importing heavy modules.

`pyiqa:NAME` is one of about a hundred metrics. Most need files, which `models fetch pyiqa:NAME` downloads
(pyiqa_store.py); some are formulas; some are not supported, and `refused` has the reason.
"""

import difflib
import importlib.util
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

from local_bench.core.environment import location
from local_bench.core.errors import ConfigError, MissingExtra
from local_bench.models.cards import ModelCard, Source

GATHER = "local_bench.judges.metrics.pyiqa_store:gather"
_TABLE = "default_model_configs"

_SETS = "it compares two sets of images and has no value for a single image"
_LANGUAGE = "it is a language model whose code comes with its weights, and such code is never run"
_TRANSFORMERS = "pyiqa loads a backbone of it through transformers by the name of a repository, without a commit"
_SEVERAL = "it returns several values for a pair of images, not one"
_CAPTIONS = "it needs captions, which pyiqa's interface does not accept: use clip_cap"
_REFUSED = {
    "clipscore": _CAPTIONS,
    "fgresq": _TRANSFORMERS,
    "fgresq_pair": _SEVERAL,
    "maclip": "pyiqa implements it for CUDA only",
    **dict.fromkeys(("fid", "fid_dinov2", "inception_score", "sfid"), _SETS),
    **dict.fromkeys(("compare2score", "qalign", "qalign_4bit", "qalign_8bit"), _LANGUAGE),
    **dict.fromkeys(("qrealign", "qrealign-lite", "qrealign-mini", "qrealign-pro"), _LANGUAGE),
}
FORMULAS = frozenset(
    (
        *("cw_ssim", "entropy", "fsim", "gmsd", "mad", "ms_ssim", "nlpd", "piqe", "psnr", "psnry"),
        *("ssim", "ssimc", "vif", "vsi"),
    )
)
"""Metrics that need no file."""
_BOUNDS: dict[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(("LPIPS", "NLPD", "STLPIPS"), (0.0, None)),  # distances, whose usual maximum is no bound
    "ARNIQA": (None, None),  # a linear function of a regression
}
"""Bounds of classes whose values pass those of pyiqa's table."""


@dataclass(frozen=True)
class Named:
    """A pyiqa metric with a name of its own, for any weights of its kind (`musiq:CARD`)."""

    pyiqa_name: str
    source: str
    default_card: str | None = None
    """None for a formula."""
    height: int | None = None
    """Height in pixels to which the image is resized first; None: not resized."""
    min_side: int = 1
    """Smaller images are unscored."""
    bounds: tuple[float | None, float | None] | None = None
    """Bounds, if pyiqa's own are not right."""


NAMED = {
    # Mittal, Moorthy and Bovik, "No-reference image quality assessment in the spatial domain", IEEE TIP 2012:
    # statistics of locally normalised luma, by a support vector regression with the original support vectors. About 0
    # to 150, not clipped, lower is better.
    "brisque": Named("brisque", "Mittal et al. 2012", "pyiqa:brisque"),
    # Wang et al., "Exploring CLIP for Assessing the Look and Feel of Images", AAAI 2023, eq. 2, averaged over five
    # pairs of antonyms: CLIP RN50 without its position embedding, in the image's own size. In [0, 1], higher is better.
    "clipiqa": Named("clipiqa", "Wang et al. 2023, eq. 2", "pyiqa:clipiqa"),
    # Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR 2018, eq. 1: AlexNet,
    # version 0.1, distance to the source, at the source's size. Not negative, 0 for the same image, lower is better.
    "lpips": Named("lpips", "Zhang et al. 2018, eq. 1, AlexNet, v0.1", "pyiqa:lpips"),
    # Ke et al., "MUSIQ: Multi-scale Image Quality Transformer", ICCV 2021, on the image in its own size. On KonIQ's
    # scale, about 0 to 100, higher is better.
    "musiq": Named("musiq", "Ke et al. 2021", "pyiqa:musiq"),
    # The same as ICE-Bench uses it (section B, "imaging"): the image is first scaled to height 1024 and width
    # int(width * 1024 / height) (Pillow bicubic). ICE-Bench divides by 100 afterwards.
    "musiq_koniq": Named("musiq", "Ke et al. 2021, MUSIQ on KonIQ-10k as in ICE-Bench", "pyiqa:musiq", 1024),
    # Talebi and Milanfar, "NIMA: Neural Image Assessment", IEEE TIP 2018: the mean, sum of i p_i, of a distribution of
    # aesthetic opinions over i = 1 … 10 on AVA's scale, with InceptionResNetV2. In [1, 10], higher is better.
    "nima": Named("nima", "Talebi and Milanfar 2018", "pyiqa:nima", bounds=(1.0, 10.0)),
    # Mittal, Soundararajan and Bovik, "Making a 'completely blind' image quality analyzer", IEEE SPL 2013, eq. 10, with
    # the original parameters: luma (YIQ), blocks of 96 pixels and of 48 after halving, in float64, stored as float32.
    # Not negative, lower is better.
    "niqe": Named("niqe", "Mittal et al. 2013, eq. 10", "pyiqa:niqe", bounds=(0.0, None)),
    # Venkatanath N et al., "Blind image quality evaluation using perception based features", NCC 2015. In [0, 100],
    # lower is better. The image is not resized.
    "piqe": Named("piqe", "Venkatanath et al. 2015", min_side=32),
}


@dataclass(frozen=True)
class Described:
    """pyiqa's description of one of its metrics."""

    name: str
    kind: str
    """The class that computes it."""
    full_reference: bool
    lower_better: bool
    lowest: float | None
    highest: float | None
    """pyiqa's bounds without a tilde, which marks rough bounds; `_BOUNDS` if its own are not right."""
    options: dict[str, Any] = field(default_factory=dict)


def pyiqa_card(name: str) -> ModelCard | None:
    """The card of pyiqa's metric `name`; None if it needs no file. ConfigError if there is no such metric, or it is not
    supported."""
    try:
        kind, revision = describe(name).kind, pyiqa_version()
    except MissingExtra:  # planning and settling do not need pyiqa
        kind, revision = name, None
    if name in FORMULAS:
        return None
    return ModelCard(
        name=f"pyiqa:{name}",
        role="metric",
        family="pyiqa",
        title=f"{kind} as pyiqa has it",
        source=Source(gather=GATHER, revision=revision),
        licence="CC-BY-NC-SA-4.0 (pyiqa's own files; its backbones by their authors')",
        parameters_b=0.1,
        vram_gb=2,
        dtype="float32",
    )


def describe(name: str) -> Described:
    """pyiqa's description of its metric `name`. ConfigError as `pyiqa_card`."""
    table = _table()
    if name not in table:
        near = difflib.get_close_matches(name, table, 1, 0.4)
        hint = f"did you mean 'pyiqa:{near[0]}'?" if near else f"available: {', '.join(sorted(table))}"
        raise ConfigError(f"metrics: pyiqa has no metric {name!r}: {hint}")
    if name in _REFUSED:
        raise ConfigError(f"metrics: pyiqa:{name} cannot be run here: {_REFUSED[name]}")
    entry = table[name]
    options = dict(entry["metric_opts"])
    kind = options.pop("type")
    stated = entry["score_range"].replace(" ", "").split(",")  # a bound with `~` is rough, or there is none
    lowest, highest = _BOUNDS.get(kind) or (None if text.startswith("~") else float(text) for text in stated)
    full_reference, lower_better = entry["metric_mode"] == "FR", entry.get("lower_better", False)
    return Described(name, kind, full_reference, lower_better, lowest, highest, options)


def pyiqa_version() -> str:
    """The installed version of pyiqa."""
    return version("pyiqa")


@cache
def _table() -> dict[str, Any]:
    """pyiqa's table of metrics, from its file: importing the package would take seconds and torch."""
    path = location("pyiqa").with_name(f"{_TABLE}.py")
    spec = importlib.util.spec_from_file_location(f"_pyiqa_{_TABLE}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop(spec.name, None)
    table: dict[str, Any] = module.DEFAULT_CONFIGS
    return table
