"""How long the check of a run's images takes: `python -m scripts.time_image_check [N] [IO_WORKERS]`."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from local_bench.core.images import store_image
from local_bench.runs.image_store import ImageStore

SIDE = 512


def main(n: int, io_workers: int) -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        shas = []
        for _ in range(n):
            coarse = Image.fromarray(rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8))
            shas.append(store_image(run / "images", coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC)))
        begun = time.perf_counter()
        assert not ImageStore(run).faulty(shas, io_workers)
        seconds = (time.perf_counter() - begun) * 1000 / n
    print(f"{seconds:.1f} s per 1,000 images of {SIDE}x{SIDE} with {io_workers} threads")


if __name__ == "__main__":
    given = [int(a) for a in sys.argv[1:]]
    main(*(given + [200, 2][len(given) :]))
