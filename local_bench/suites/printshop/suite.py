"""The suite `printshop`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.core.types import GroundTruth, Task
from local_bench.suites.servimage.suite import DesignTasks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class PrintShop(DesignTasks):
    """Synthetic design tasks whose ground truth is read from the pixels, judged and settled as ServImage's."""

    name = "printshop"
    title = "Forty-eight synthetic orders of a print shop, with known ground truth"
    licence = "Apache-2.0"
    source = "local-bench"
    shipped = Path(__file__).with_name("orders.jsonl")
    has_ground_truth = True

    def ground_truth(self, task: Task, images: "Mapping[int, NDArray[np.uint8]]") -> dict[int, GroundTruth]:
        from local_bench.suites.printshop.shop import truths

        return truths(task, images)
