"""pyiqa metrics with names of their own, for any weights of their kind (`musiq:CARD`), with citation and bounds."""

from dataclasses import dataclass

from local_bench.judges.metrics.pyiqa_metric import Bounds, PyiqaMetric
from local_bench.judges.metrics.registry import Weights


@dataclass(frozen=True)
class _Row:
    pyiqa_name: str
    source: str
    height: int | None = None
    """Height in pixels to which the image is resized first; None: not resized."""
    bounds: Bounds | None = None
    """Bounds, if pyiqa's own are not right."""


_ROWS = {
    # Mittal, Moorthy and Bovik, "No-reference image quality assessment in the spatial domain", IEEE TIP 2012:
    # statistics of locally normalised luma, by a support vector regression with the original support vectors. About 0
    # to 150, not clipped, lower is better.
    "brisque": _Row("brisque", "Mittal et al. 2012"),
    # Wang et al., "Exploring CLIP for Assessing the Look and Feel of Images", AAAI 2023, eq. 2, averaged over five
    # pairs of antonyms: CLIP RN50 without its position embedding, in the image's own size. In [0, 1], higher is better.
    "clipiqa": _Row("clipiqa", "Wang et al. 2023, eq. 2"),
    # Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR 2018, eq. 1: AlexNet,
    # version 0.1, distance to the source, at the source's size. Not negative, 0 for the same image, lower is better.
    "lpips": _Row("lpips", "Zhang et al. 2018, eq. 1, AlexNet, v0.1"),
    # Ke et al., "MUSIQ: Multi-scale Image Quality Transformer", ICCV 2021, on the image in its own size. On KonIQ's
    # scale, about 0 to 100, higher is better.
    "musiq": _Row("musiq", "Ke et al. 2021"),
    # The same as ICE-Bench uses it (section B, "imaging"): the image is first scaled to height 1024 and width
    # int(width * 1024 / height) (Pillow bicubic). ICE-Bench divides by 100 afterwards.
    "musiq_koniq": _Row("musiq", "Ke et al. 2021, MUSIQ on KonIQ-10k as in ICE-Bench", height=1024),
    # Talebi and Milanfar, "NIMA: Neural Image Assessment", IEEE TIP 2018: the mean, sum of i p_i, of a distribution of
    # aesthetic opinions over i = 1 … 10 on AVA's scale, with InceptionResNetV2. In [1, 10], higher is better.
    "nima": _Row("nima", "Talebi and Milanfar 2018", bounds=(1.0, 10.0)),
    # Mittal, Soundararajan and Bovik, "Making a 'completely blind' image quality analyzer", IEEE SPL 2013, eq. 10, with
    # the original parameters: luma (YIQ), blocks of 96 pixels and of 48 after halving, in float64, stored as float32.
    # Not negative, lower is better.
    "niqe": _Row("niqe", "Mittal et al. 2013, eq. 10", bounds=(0.0, None)),
}


def make(name: str, weights: Weights) -> PyiqaMetric:
    """The metric `name`, `metric` or `metric:card`."""
    row = _ROWS[name.partition(":")[0]]
    return PyiqaMetric(name, weights, row.pyiqa_name, row.source, row.height, row.bounds)
