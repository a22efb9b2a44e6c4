"""L1 distance to the source outside the mask after correction of a translation; a variant of `l1_raw`.

The same mean as `l1_raw` (ICE-Bench B.4), over the overlap of the two images (see `alignment`). In [0, 1], lower is
better, never above `l1_raw`. It is in no published table.
"""

from local_bench.judges.metrics.alignment import ALIGNED, overlap
from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec
from local_bench.judges.metrics.l1_raw import PREPARED, distance

L1_ALIGNED = "l1_aligned"


def make(name: str) -> "L1Aligned":
    return L1Aligned(name)


class L1Aligned(HostMetric):
    """`l1_aligned`."""

    def __init__(self, name: str) -> None:
        self.spec = MetricSpec(
            name, False, PREPARED + ALIGNED, "l1_raw (ICE-Bench B.4) after phase correlation", ("source",), 0.0, 1.0
        )

    def measure(self, seen: LoadedSubject) -> float:
        return distance(*overlap(seen))
