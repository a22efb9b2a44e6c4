"""Entropy of the grey-level histogram, in bits (Shannon 1948); pyiqa's `entropy`.

In [0, 8], higher means more tonal variety. The image as it is: no resize, sRGB to luma inside the metric.
"""

from local_bench.judges.metrics.base import MetricSpec
from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric


def make(name: str) -> PyiqaMetric:
    return PyiqaMetric(MetricSpec(name, True, "RGB8 / 255, float32, no resize", "pyiqa 0.1.16 `entropy`"), min_side=1)
