"""Metrics by name, imported on first use; and those computed from a network's arrays, one row of `ROWS` each.

A name is `metric`, or `metric:card` for one that uses a model: `clip_cap` is `clip_cap:clip-vit-l-14-336`, and
`clip_cap:tiny-clip` is another metric with its own name. `pyiqa:NAME` is any pyiqa metric. Other packages add metrics
with an entry point in the group `local_bench.metrics` that refers to such a `make` function; built-in names take
precedence.
"""

import importlib
import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from local_bench.core.environment import entry_points, load_object, made_by, require
from local_bench.core.errors import ConfigError, WeightsError, hint
from local_bench.judges.metrics.base import (
    Array,
    FeatureInput,
    HostMetric,
    ImageFile,
    Metric,
    MetricSpec,
    Need,
    Network,
    NetworkMetric,
    Subject,
    Unscorable,
)
from local_bench.judges.metrics.base import Weights as Weights  # noqa: PLC0414  # metrics of others import it from here
from local_bench.judges.metrics.pixels import METRICS
from local_bench.judges.metrics.pyiqa_cards import NAMED, pyiqa_card
from local_bench.models.cards import ModelCard, card
from local_bench.models.weights import check_local, resolve, resolve_parts

Inputs = Callable[[Subject], tuple[FeatureInput, ...]]


def cosine(arrays: Sequence[Array]) -> float:
    """Cosine of two embeddings with norm 1, in float64, clipped to [-1, 1]."""
    return float(np.clip(dot(arrays), -1, 1))


def dot(arrays: Sequence[Array]) -> float:
    """Inner product of two embeddings, in float64."""
    return float(np.dot(arrays[0].astype(np.float64), arrays[1].astype(np.float64)))


def number(arrays: Sequence[Array]) -> float:
    """The number that the network computes itself."""
    return float(arrays[0][0])


def most_similar_face(arrays: Sequence[Array]) -> float:
    """The highest cosine of a face of the result with the reference's first face; 0 if the result has no face."""
    faces, reference = (array.astype(np.float64) for array in arrays)
    if not len(reference):
        raise Unscorable("no face was found in the reference")
    return float((faces @ reference[0]).max()) if len(faces) else 0.0


def image_alone(subject: Subject) -> tuple[FeatureInput, ...]:
    return (FeatureInput((subject.image,)),)


def image_and_source(subject: Subject) -> tuple[FeatureInput, ...]:
    """Both in one input."""
    return (FeatureInput((subject.image, _source(subject))),)


def _with(other: Callable[[Subject], FeatureInput]) -> Inputs:
    return lambda subject: (FeatureInput((subject.image,)), other(subject))


def _source(subject: Subject) -> ImageFile:
    assert subject.source
    return subject.source


def _first_reference(subject: Subject) -> FeatureInput:
    return FeatureInput((subject.references[0],))


def _masked_and_reference(subject: Subject) -> tuple[FeatureInput, ...]:
    """The image with its mask, if there is one, and the first reference, which is never masked."""
    return FeatureInput((subject.image, subject.mask) if subject.mask else (subject.image,)), _first_reference(subject)


@dataclass(frozen=True)
class Row:
    """A metric: its network, how that is used, and its specification."""

    network: str
    """`module:Class` in this package."""
    default_card: str
    family: str
    """Model family of supported cards."""
    inputs: Inputs
    value: Callable[[Sequence[Array]], float]
    preprocessing: str
    """With attributes of the network, `{0.description}`."""
    source: str
    needs: tuple[Need, ...] = ()
    lowest: float | None = None
    highest: float | None = None
    undefined: str = ""
    """The reason of a value that is NaN, if the network gives it a meaning."""


_SIMILARITY: dict[str, Any] = {"value": cosine, "lowest": -1.0, "highest": 1.0}
_CONDITION: dict[str, Any] = {"value": number, "needs": ("source",), "lowest": 0.0, "highest": 1.0}
_CLIP: dict[str, Any] = {
    "network": "embeddings:ClipNetwork",
    "default_card": "clip-vit-l-14-336",
    "family": "open_clip",
}
_TO_REFERENCE: dict[str, Any] = {"inputs": _with(_first_reference), "needs": ("reference",)} | _SIMILARITY
_TO_CAPTION: dict[str, Any] = {
    "inputs": _with(lambda s: FeatureInput(text=s.caption)),
    "needs": ("caption",),
} | _SIMILARITY
_WITH_CONDITION: dict[str, Any] = {"inputs": image_and_source} | _CONDITION
ROWS: dict[str, Row] = {
    # ICE-Bench (arXiv 2503.14482), section B.3, with ViT-L/14 at 336 px. Typical pairs score between 0.1 and 0.4. The
    # caption is normalised as by the transformers tokenizer. The benchmark's evaluator replaces the markers <SOURCE>
    # and <REF_1> only in the instruction, which it does not use here.
    "clip_cap": Row(
        preprocessing="image: {0.description}; caption: NFC, single spaces, lower case, CLIP's BPE, cut at 77 tokens",
        source="Radford et al. 2021, open_clip; ICE-Bench section B.3 (undivided): cos(f(image), g(caption))",
        **_CLIP | _TO_CAPTION,
    ),
    # ICE-Bench, section B.5, eq. 8; only the first of several references is used, here and below.
    "clip_ref": Row(
        preprocessing="image and first reference: {0.description}",
        source="Radford et al. 2021, open_clip; ICE-Bench section B.5: cos(f(image), f(reference))",
        **_CLIP | _TO_REFERENCE,
    ),
    # ICE-Bench, section B.4, eq. 7: image and source are preprocessed independently, neither is resized to the other.
    "clip_src": Row(
        preprocessing="image and source: {0.description}",
        source="Radford et al. 2021, open_clip; ICE-Bench section B.4: cos(f(image), f(source))",
        inputs=_with(lambda subject: FeatureInput((_source(subject),))),
        needs=("source",),
        **_CLIP | _SIMILARITY,
    ),
    # ICE-Bench, section B.5, eq. 8, with DINOv2 giant. If a mask marks the edited region, only that part of the image
    # is used.
    "dino_ref": Row(
        network="embeddings:DinoNetwork",
        default_card="dinov2-giant",
        family="dinov2",
        preprocessing="{0.mask_description}; then image and first reference: {0.description}",
        source="Oquab et al. 2023; ICE-Bench section B.5: cosine of the means of all tokens",
        **_TO_REFERENCE | {"inputs": _masked_and_reference},
    ),
    # ICE-Bench, section B.5, eq. 8, with CSD ViT-L.
    "style_ref": Row(
        network="embeddings:CsdNetwork",
        default_card="csd-vit-l",
        family="csd",
        preprocessing="image and first reference: {0.description}",
        source="Somepalli et al. 2024 (CSD); ICE-Bench section B.5: cos(style(image), style(reference))",
        **_TO_REFERENCE,
    ),
    # ICE-Bench, section B.5 (eq. 8), as in its code (evaluators/face_sim.py). A reference without a face gives no
    # information about the result: unscored here, 0 in the benchmark's code.
    "face_ref": Row(
        network="face_ref:FaceNetwork",
        default_card="buffalo-l",
        family="insightface",
        preprocessing="{0.description}; the highest cosine of a face of the image with the reference's first face",
        source="ICE-Bench eq. 8; InsightFace buffalo_l (SCRFD, arXiv 2105.04714; ArcFace, arXiv 1801.07698)",
        **_TO_REFERENCE | {"value": most_similar_face},
    ),
    # ICE-Bench, section B.6 (eq. 9), for Depth-guided Generation, as in its code (evaluators/l1_dist.py): 1 if the
    # depth map equals the condition.
    "l1_depth": Row(
        network="condition_maps:DepthNetwork",
        default_card="dpt-hybrid-midas",
        family="dpt",
        preprocessing="{0.description}",
        source="ICE-Bench eq. 9 (ali-vilab/ICE-Bench l1_dist); MiDaS DPT-hybrid, arXiv 2103.13413",
        undefined="its depth map is the same everywhere",
        **_WITH_CONDITION,
    ),
    # ICE-Bench, section B.6 (eq. 9), for Pose-guided Generation, as in its code (evaluators/l1_dist.py). A skeleton
    # covers a small part of the image, so a result without a person has the high score of a black image.
    "l1_pose": Row(
        network="condition_maps:PoseNetwork",
        default_card="openpose",
        family="openpose",
        preprocessing="{0.description}",
        source="ICE-Bench eq. 9 (ali-vilab/ICE-Bench l1_dist); OpenPose, arXiv 1611.08050",
        undefined="it has more joints than people can be made of",
        **_WITH_CONDITION,
    ),
    "hps_v2.1": Row(
        network="preferences:HpsNetwork",
        default_card="hps-v2-1",
        family="hps",
        preprocessing=(
            "image: {0.description}; prompt: repaired by ftfy, HTML entities replaced, single spaces, lower case, "
            "CLIP's BPE, cut at 77 tokens"
        ),
        source="Wu et al. 2023, HPS v2.1: cos(f(image), g(prompt))",
        **_TO_CAPTION,
    ),
    "pick_score": Row(
        network="preferences:PickNetwork",
        default_card="pick-score",
        family="pick_score",
        preprocessing="image: {0.description}; caption: NFC, single spaces, lower case, CLIP's BPE, cut at 77 tokens",
        source="Kirstain et al. 2023, PickScore v1: exp(logit_scale) * cos(f(image), g(prompt))",
        **_TO_CAPTION | {"value": dot, "lowest": None, "highest": None},
    ),
    "image_reward": Row(
        network="preferences:RewardNetwork",
        default_card="image-reward",
        family="image_reward",
        inputs=lambda subject: (FeatureInput((subject.image,), subject.caption),),
        value=number,
        preprocessing="image: {0.description}; prompt: BERT's uncased WordPiece, cut at {0.tokens} tokens",
        source="Xu et al. 2023, ImageReward v1.0: (MLP(BLIP(image, prompt)) - mean) / deviation",
        needs=("caption",),
    ),
    # A linear head may slightly exceed the intended scale of 1 to 10, here and below.
    "laion_aes": Row(
        network="preferences:LaionNetwork",
        default_card="laion-aesthetic",
        family="laion_aesthetic",
        inputs=image_alone,
        value=number,
        preprocessing="{0.description}",
        source="LAION, sac+logos+ava1-l14-linearMSE: five linear layers on CLIP's normalised embedding",
        lowest=0.0,
        highest=10.0,
    ),
    "aes_v2.5": Row(
        network="preferences:AestheticNetwork",
        default_card="aesthetic-v2-5",
        family="aesthetic_v2_5",
        inputs=image_alone,
        value=number,
        preprocessing="{0.description}",
        source="ICE-Bench section B.1: aesthetic-predictor-v2-5, five linear layers on SigLIP's embedding",
        lowest=0.0,
        highest=10.0,
    ),
}


@dataclass(frozen=True)
class ArrayMetric(NetworkMetric):
    """A metric of a network, and the functions that choose its inputs and compute its value."""

    spec: MetricSpec
    network: Network
    of_subject: Inputs
    of_arrays: Callable[[Sequence[Array]], float]
    undefined: str = ""
    """The reason of a value that is not finite; empty: the evaluator's."""

    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        return self.of_subject(subject)

    def value(self, arrays: Sequence[Array]) -> float:
        value = self.of_arrays(arrays)
        if not math.isfinite(value) and self.undefined:
            raise Unscorable(self.undefined)
        return value


def make(name: str, weights: Weights) -> ArrayMetric:
    """The metric `name`, `metric` or `metric:card`. Does not load weights."""
    row = ROWS[name.partition(":")[0]]
    module, _, kind = row.network.partition(":")
    network = getattr(importlib.import_module(f"local_bench.judges.metrics.{module}"), kind)(weights)
    spec = MetricSpec(name, True, row.preprocessing.format(network), row.source, row.needs, row.lowest, row.highest)
    return ArrayMetric(spec, network, row.inputs, row.value, row.undefined)


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
    **{name: _Entry(f"{_PACKAGE}registry:make", row.default_card, row.family) for name, row in ROWS.items()},
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


def check_known(name: str) -> None:
    """ConfigError for an unknown metric, or a plugin's that cannot be made."""
    metric_card(name)
    if name in _known().keys() - BUILT_IN.keys():
        make_metric(name)


def check_extras(names: Sequence[str]) -> None:
    """MissingExtra if a metric of `names` needs a package that is not installed; ConfigError for a plugin's that cannot
    be made."""
    entries_by_name, extras = _known(), {"pyiqa": "pyiqa", "insightface": "faces"}
    entries = (entries_by_name.get(name.partition(":")[0]) for name in names if not name.startswith(PYIQA))
    families = {entry.family for entry in entries if entry} | {"pyiqa" for name in names if name.startswith(PYIQA)}
    if names:
        require(*(extra for family, extra in extras.items() if family in families), "metrics", "generate")
    for name in names:
        if name in entries_by_name:
            check_known(name)


def make_metric(name: str) -> Metric:
    """The metric of that name. Does not load weights; `Network.open` does. Errors as `check_metric`, and ConfigError if
    a plugin's metric has another name in its spec."""
    described = metric_card(name)
    where = f"{_PACKAGE}pyiqa_metric:make" if name.startswith(PYIQA) else _known()[name.partition(":")[0]].make
    make = load_object(where, f"metrics: {name!r}")
    weights = [Weights(described, resolve(described), resolve_parts(described))] if described else []
    with nullcontext() if where.startswith(_PACKAGE) else made_by(f"metrics: {name!r} cannot be made by {where}"):
        metric: Metric = make(name, *weights)
    if not isinstance(metric, HostMetric | NetworkMetric) or not isinstance(getattr(metric, "spec", None), MetricSpec):
        raise ConfigError(f"metrics: {name!r}: {where} gives no HostMetric or NetworkMetric with a spec: correct it")
    if metric.spec.name != name:
        raise ConfigError(f"metrics: {name!r}: the metric's spec has the name {metric.spec.name!r}: give it {name!r}")
    spec, numbers = metric.spec, [one for one in (metric.spec.lowest, metric.spec.highest) if one is not None]
    if not all(isinstance(one, int | float) for one in numbers) or numbers != sorted(numbers):
        raise ConfigError(f"metrics: {name!r}: the spec's range is {spec.lowest!r} to {spec.highest!r}: correct it")
    if unknown := {*spec.needs} - {*get_args(Need)}:
        needs = f"{min(unknown)!r}, which is none of {', '.join(get_args(Need))}"
        raise ConfigError(f"metrics: {name!r}: the metric's spec needs {needs}: correct it")
    return metric


def _known() -> dict[str, _Entry]:
    """Built-in metrics and those of plugins; a plugin cannot replace a built-in metric."""
    plugins = {point.name: _Entry(point.value) for point in entry_points(PLUGINS)}
    return plugins | BUILT_IN
