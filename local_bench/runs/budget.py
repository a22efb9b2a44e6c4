"""Hours, wall-clock time and cost of a whole run on given GPUs and nodes, from the plan's estimate.

Generation is the plan's. Loading, compilation, judging and networks of metrics are models with the constants below;
metrics without a network have measured times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ConfigError
from local_bench.core.files import configs_dir, is_file
from local_bench.core.money import NS_PER_HOUR, held_cost, usd_number
from local_bench.judges.metrics.registry import metric_card
from local_bench.models.cards import card
from local_bench.models.gpus import Gpu
from local_bench.runs.config import RunConfig
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.prices import Price

READ_GB_PER_S = 1.0
"""Rate at which weights are read from disk, per node: about that of a network file system or a SATA disk."""
JUDGE_START_S = 120.0
"""Time for vLLM to start, besides reading weights."""
COMPILE_S = (9.6, 67.4)
"""Time to compile a model for one batch size: published for FLUX.1-dev on an H100, repeated blocks alone and the whole
transformer (PyTorch developer log, 2026-05-11). Here the blocks are compiled."""
TEXT_TOKENS = 600
"""Tokens of a question's text: rubric, brief and point."""
ANSWER_TOKENS = 100
DECODE_FACTOR = 3.0
"""Time of a generated token relative to a token of the prompt, in large batches."""


@dataclass(frozen=True)
class Devices:
    """GPUs of one kind on nodes of one kind."""

    gpu: Gpu | None
    gpus_per_node: int
    nodes: int
    price: Price | None

    @property
    def n(self) -> int:
        return self.gpus_per_node * self.nodes


def budget(
    config: RunConfig, models: Sequence[Mapping[str, Any]], questions: tuple[int, Sequence[float]], devices: Devices
) -> dict[str, Any]:
    """`models` are the plan's entries, of which those without images are not loaded; `questions` are the number of
    questions per judge and, by judge, the tokens of their images. None for unknown values.

    All nodes load all weights and all GPUs compile for all batch sizes; generation, metrics and judging are divided
    among all GPUs. `wall_hours`, `gpu_hours` and `cost_usd` are at the low ends of the ranges, `_high` at the high
    ends.
    """
    models = [model for model in models if model.get("n_images") != 0]
    loading = sum(_load_s(model) for model in models)
    denoising = [model.get("gpu_hours") for model in models if model.get("load") != "imported"]
    is_known = None not in denoising and devices.gpu is not None
    n, by_judge = questions
    judging = [_judge_s(judge, n, tokens, devices.gpu) for judge, tokens in zip(config.judges, by_judge, strict=True)]
    starts = [JUDGE_START_S + _judge_gb(judge) / READ_GB_PER_S for judge in config.judges if judge.base_url is None]
    judge_s = None if None in judging else sum(s for s in judging if s is not None)
    n_compiled = sum(model.get("n_compiled", 0) for model in models)
    metrics = metric_time(
        config.metrics,
        sum(model.get("n_images", 0) for model in models),
        sum(model.get("megapixels", 0.0) for model in models),
        devices.gpu,
        config.engine.io_workers,
    )
    low, high = _Sums(), _Sums()
    if is_known and judge_s is not None:
        work_s = 3600 * sum(hours for hours in denoising if hours is not None) + judge_s
        fixed_s = loading + sum(starts)
        low, high = (
            _sums((work_s + metric_s) / devices.n + fixed_s + n_compiled * compile_s, devices)
            for metric_s, compile_s in zip((metrics.low_s, metrics.high_s), COMPILE_S, strict=True)
        )
    return {
        "gpus_per_node": devices.gpus_per_node,
        "nodes": devices.nodes,
        "load_s": loading,
        "judge_start_s": sum(starts),
        "compile_s": [n_compiled * compile_s for compile_s in COMPILE_S],
        "metric_s": [metrics.low_s, metrics.high_s],
        "metric_host_s": metrics.host_s,
        "metrics_unknown": list(metrics.unknown),
        "judge_gpu_hours": None if judge_s is None else judge_s / 3600,
        "wall_hours": low.wall_hours,
        "gpu_hours": low.gpu_hours,
        "cost_usd": low.cost_usd,
        "wall_hours_high": high.wall_hours,
        "gpu_hours_high": high.gpu_hours,
        "cost_usd_high": high.cost_usd,
        "host_gb": max((model.get("host_gb") or 0.0 for model in models), default=0.0),
        "basis": (
            f"modelled: weights read at {READ_GB_PER_S:g} GB/s on each node; {COMPILE_S[0]:g} to {COMPILE_S[1]:g} s of "
            "compilation per model and batch size on each GPU (published for FLUX.1-dev on an H100); judges started in "
            f"{JUDGE_START_S:g} s; a question is {TEXT_TOKENS} tokens of text, its images at the judge's limits of "
            f"pixels, and {ANSWER_TOKENS} generated tokens; a metric's network {TOKENS} tokens per image at the GPU's "
            "rate to a tenth of it. "
            "Measured on one CPU core: reading images, and metrics without a network (configs/metric_times.json)"
        ),
    }


@dataclass(frozen=True)
class _Sums:
    wall_hours: float | None = None
    gpu_hours: float | None = None
    cost_usd: float | None = None


def _sums(wall_s: float, devices: Devices) -> _Sums:
    gpu_hours, price = wall_s * devices.n / 3600, devices.price
    cost = None if price is None else held_cost(int(gpu_hours * NS_PER_HOUR), price.micro_usd_per_hour)
    return _Sums(wall_s / 3600, gpu_hours, None if cost is None else usd_number(cost))


def _load_s(model: Mapping[str, Any]) -> float:
    phases = model.get("phases") or {}
    return float(sum(phase["weights_gb"] for phase in phases.values())) / READ_GB_PER_S


def _judge_gb(judge: JudgeConfig) -> float:
    described = card(judge.card, "judge")
    return 2 * described.parameters_b if described.parameters_b else described.vram_gb


def _judge_s(judge: JudgeConfig, n: int, image_tokens: float, gpu: Gpu | None) -> float | None:
    """GPU-seconds of `n` questions with `image_tokens` in all; 0 for an external server, None if unknown."""
    if judge.base_url is not None:
        return 0.0
    described = card(judge.card, "judge")
    parameters_b = described.active_parameters_b or described.parameters_b
    if gpu is None or not parameters_b:
        return None
    answer_tokens = ANSWER_TOKENS + (described.thinking.budget_tokens if described.thinking else 0)
    tokens = n * (TEXT_TOKENS + DECODE_FACTOR * answer_tokens) + image_tokens
    return tokens * 2 * parameters_b * 1e9 / (gpu.tflops(compiled=False) * 1e12)


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
    measured = strictjson.read(path, ConfigError, missing="restore it, or remove it to plan without measured times")
    megapixels = measured["side"] ** 2 / _PIXELS_PER_MP
    return {name: seconds / megapixels for name, seconds in measured["seconds"].items()}


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
