"""Time of the metric phase of a plan: measured for metrics without a network, modelled for the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from local_bench.core import strictjson
from local_bench.core.errors import ConfigError
from local_bench.core.files import is_file
from local_bench.core.paths import configs_dir
from local_bench.judges.metrics.registry import metric_card
from local_bench.models.gpus import Gpu

TOKENS = 577
"""Tokens of an image in a network: those of ViT-L/14 at 336 pixels, the largest usual one."""
NETWORK_SLOWER = 10.0
"""Upper end: a network takes up to this times its operations at the GPU's rate, because most run with batch size 1."""
_PIXELS_PER_MP = 1e6


@dataclass(frozen=True)
class MetricTime:
    """Seconds of the metric phase in all, before they are divided among workers."""

    low_s: float
    high_s: float
    host_s: float
    """Core-seconds of reading images and of metrics without a network, from measured times."""
    unknown: tuple[str, ...]
    """Metrics whose time is not known and not included."""


@cache
def measured_seconds() -> dict[str, float]:
    """Core-seconds per megapixel of each metric without a network, and of `read`, from `configs/metric_times.json`
    (`scripts/bench_metric_times.py`); empty if the config folder has no such file."""
    path = configs_dir() / "metric_times.json"
    if not is_file(path):
        return {}
    found = strictjson.read(path, ConfigError, missing="restore it, or remove it to plan without measured times")
    megapixels = found["side"] ** 2 / _PIXELS_PER_MP
    return {name: seconds / megapixels for name, seconds in found["seconds"].items()}


def metric_time(names: Sequence[str], n_images: int, megapixels: float, gpu: Gpu | None, io_workers: int) -> MetricTime:
    """Time of all metrics in `names` for `n_images` images of `megapixels` in all, on one GPU with `io_workers`
    threads.

    Host metrics overlap with networks, so the low end is the longer of the two; the high end is their sum, networks at
    a tenth of the GPU's rate.
    """
    seconds = measured_seconds()
    host_s, flop, unknown = (seconds.get("read", 0.0) * megapixels if names else 0.0), 0.0, []
    for name in names:
        described = metric_card(name)
        if described is None and name in seconds:
            host_s += seconds[name] * megapixels
        elif described is not None and described.parameters_b and gpu is not None:
            flop += 2 * described.parameters_b * 1e9 * TOKENS * n_images
        else:
            unknown.append(name)
    network_s = flop / (gpu.tflops(compiled=False) * 1e12) if gpu is not None else 0.0
    own_s = host_s / io_workers
    return MetricTime(max(own_s, network_s), own_s + NETWORK_SLOWER * network_s, host_s, tuple(unknown))
