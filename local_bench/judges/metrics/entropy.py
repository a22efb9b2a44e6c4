"""Entropy of the grey-level histogram, in bits (Shannon 1948); pyiqa's `entropy`.

In [0, 8], higher means more tonal variety. The image as it is: no resize, sRGB to luma inside the metric.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaFormula

ENTROPY = "entropy"
_SOURCE = "Shannon 1948"


def make(name: str) -> PyiqaFormula:
    return PyiqaFormula(name, ENTROPY, _SOURCE)
