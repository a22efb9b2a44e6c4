"""Imaging quality as ICE-Bench takes it: MUSIQ trained on KonIQ-10k, on the image at a height of 1024 pixels.

Ke et al., "MUSIQ: Multi-scale Image Quality Transformer", ICCV 2021; pyiqa's `musiq`, ICE-Bench section B ("imaging").
On KonIQ's scale of opinions, about 0 to 100 (the network's output is not cut off), higher is better. The image is first
brought to height 1024 and width int(width * 1024 / height) (Pillow bicubic); MUSIQ then looks at it in that size and
with longer sides of 384 and 224 (bicubic without antialiasing, in patches of 32). ICE-Bench divides by 100 afterwards.
Another metric than `pyiqa:musiq`, which takes the image in its own size.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric
from local_bench.judges.metrics.registry import Weights

MUSIQ_KONIQ = "musiq_koniq"
HEIGHT = 1024
_SOURCE = "Ke et al. 2021, MUSIQ on KonIQ-10k as in ICE-Bench"


def make(name: str, weights: Weights) -> PyiqaMetric:
    return PyiqaMetric(name, weights, "musiq", _SOURCE, HEIGHT)
