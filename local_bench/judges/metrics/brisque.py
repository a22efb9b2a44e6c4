"""BRISQUE: quality from the statistics of locally normalised luma, by a support vector regression.

Mittal, Moorthy and Bovik, "No-reference image quality assessment in the spatial domain", IEEE TIP 2012; pyiqa's
`brisque` with the original support vectors. About 0 to 150 and not cut off, lower is better. The image as it is.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric
from local_bench.judges.metrics.registry import Weights

BRISQUE = "brisque"
_SOURCE = "Mittal et al. 2012"


def make(name: str, weights: Weights) -> PyiqaMetric:
    return PyiqaMetric(name, weights, BRISQUE, _SOURCE)
