"""PIQE: perception-based image quality evaluator, no-reference and without training.

Venkatanath N et al., "Blind image quality evaluation using perception based features", NCC 2015; pyiqa's `piqe`. In [0,
100], lower is better. The image is not resized; sRGB is converted to luma inside the metric.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaFormula

PIQE = "piqe"
_SOURCE = "Venkatanath et al. 2015"


def make(name: str) -> PyiqaFormula:
    return PyiqaFormula(name, PIQE, _SOURCE, min_side=32)
