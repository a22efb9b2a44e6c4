"""Seconds that a metric without a network takes for one image on one core, for the metric time in `plan`.

    python -m scripts.bench_metric_times [--side 1024] [--images 3] [--out configs/metric_times.json]

Each metric runs in one thread on images with a source, all of this side; the median of the images is kept. `read` is
the time to read and check one PNG file.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

from local_bench.core.images import load_verified, pixel_digest
from local_bench.judges.metrics.base import HostMetric, ImageFile, LoadedSubject, Subject
from local_bench.judges.metrics.registry import make_metric, metric_card, metric_names


def _image(side: int, seed: int) -> Image.Image:
    """Noise with the spectrum of a photograph, about."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(2))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name in metric_names() if metric_card(name) is None]
    metrics = {name: metric for name in names if isinstance(metric := make_metric(name), HostMetric)}
    times: dict[str, list[float]] = {"read": [], **{name: [] for name in metrics}}
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(args.images + 1):  # the first image is a warm-up
            made = [_image(args.side, 2 * i + k) for k in (0, 1)]
            files = [Path(scratch) / f"{i}-{k}.png" for k in (0, 1)]
            for image, file in zip(made, files, strict=True):
                image.save(file)
            seen = LoadedSubject(Subject("x", ImageFile(files[0]), ImageFile(files[1])))
            _ = seen.image, seen.source, seen.image_as_source
            taken = {"read": _seconds(lambda f=files[0], m=made[0]: load_verified(f, pixel_digest(m)))}
            taken |= {name: _seconds(lambda m=metric, s=seen: m.measure(s)) for name, metric in metrics.items()}
            for name, seconds in taken.items():
                times[name] += [seconds] if i else []
    result = {
        "command": "python -m scripts.bench_metric_times --out configs/metric_times.json",
        "machine": f"one core of a {platform.machine()} CPU",
        "side": args.side,
        "seconds": {name: round(statistics.median(own), 4) for name, own in times.items()},
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
