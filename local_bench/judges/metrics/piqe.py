"""PIQE: perception-based image quality evaluator, blind and without training.

Venkatanath N et al., "Blind image quality evaluation using perception based features", NCC 2015; pyiqa's `piqe`.
In [0, 100], lower is better. The image as it is: no resize, sRGB to luma inside the metric.
"""

from local_bench.judges.metrics.base import MetricSpec
from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric


def make(name: str) -> PyiqaMetric:
    return PyiqaMetric(MetricSpec(name, False, "RGB8 / 255, float32, no resize", "pyiqa 0.1.16 `piqe`"), min_side=32)
