"""Entropy of the grey-level histogram, in bits (Shannon 1948); pyiqa's `entropy`: -sum p log2(p + 1e-8).

In [0, 8], higher means more tonal variety. The image is not resized. Luma is exact and the sum is in float64, so the
score is the same on every CPU; pyiqa's float32 luma of .5 is rounded to one bin or the next depending on the CPU's
instruction set.
"""

import numpy as np

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec
from local_bench.judges.metrics.luma import LUMA, luma

ENTROPY = "entropy"
LEVELS = 256
EPSILON = 1e-8


def make(name: str) -> "Entropy":
    return Entropy(name)


class Entropy(HostMetric):
    """`entropy`."""

    def __init__(self, name: str) -> None:
        source = "Shannon 1948; pyiqa 0.1.16 `entropy`, in float64"
        self.spec = MetricSpec(name, True, f"{LUMA}; no resize; float64", source, (), 0.0, 8.0)

    def measure(self, seen: LoadedSubject) -> float:
        counts = np.bincount(luma(seen.image).astype(np.int64).ravel(), minlength=LEVELS)
        shares = counts / counts.sum()
        return float(-(shares * np.log2(shares + EPSILON)).sum())
