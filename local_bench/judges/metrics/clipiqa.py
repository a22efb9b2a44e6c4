"""CLIP-IQA: how much nearer a picture is to "good" than to "bad" words, by CLIP alone.

Wang et al., "Exploring CLIP for Assessing the Look and Feel of Images", AAAI 2023, eq. 2, averaged over five pairs of
words as in pyiqa's `clipiqa`: CLIP RN50 without its position embedding, so that pictures keep their size. In [0, 1],
higher is better. The image as it is, CLIP's mean and deviation.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric
from local_bench.judges.metrics.registry import Weights

CLIPIQA = "clipiqa"
_SOURCE = "Wang et al. 2023, eq. 2"


def make(name: str, weights: Weights) -> PyiqaMetric:
    return PyiqaMetric(name, weights, CLIPIQA, _SOURCE)
