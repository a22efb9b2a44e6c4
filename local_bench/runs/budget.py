"""Hours, wall-clock time and cost of a whole run on given GPUs and nodes, from the plan's estimate.

Generation is the plan's. Loading and judging are models with the constants below, not measurements; compilation and
metrics are not included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from local_bench.core.money import NS_PER_HOUR, held_cost, usd_number
from local_bench.models.cards import card
from local_bench.models.gpus import Gpu
from local_bench.runs.config import RunConfig
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.prices import Price

READ_GB_PER_S = 1.0
"""Rate at which weights are read from disk, per node: about that of a network file system or a SATA disk."""
JUDGE_START_S = 120.0
"""Time for vLLM to start, besides reading weights."""
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
    config: RunConfig, models: Sequence[Mapping[str, Any]], n_questions: int, n_question_images: int, devices: Devices
) -> dict[str, Any]:
    """`models` are the plan's entries; questions and their images are those of one judge. None for unknown values.

    All nodes load all weights; generation and judging are divided among all GPUs.
    """
    loading = sum(_load_s(model) for model in models)
    denoising = [model.get("gpu_hours") for model in models if model.get("load") != "imported"]
    known = None not in denoising and devices.gpu is not None
    judging = [_judge_s(judge, n_questions, n_question_images, devices.gpu) for judge in config.judges]
    starts = [JUDGE_START_S + _judge_gb(judge) / READ_GB_PER_S for judge in config.judges if judge.base_url is None]
    judge_s = None if None in judging else sum(s for s in judging if s is not None)
    wall_s = total_hours = cost = None
    if known and judge_s is not None:
        work_s = 3600 * sum(hours for hours in denoising if hours is not None) + judge_s
        wall_s = work_s / devices.n + loading + sum(starts)
        total_hours = wall_s * devices.n / 3600
        if devices.price is not None:
            cost = usd_number(held_cost(int(total_hours * NS_PER_HOUR), devices.price.micro_usd_per_hour))
    return {
        "gpus_per_node": devices.gpus_per_node,
        "nodes": devices.nodes,
        "load_s": loading,
        "judge_start_s": sum(starts),
        "judge_gpu_hours": None if judge_s is None else judge_s / 3600,
        "wall_hours": None if wall_s is None else wall_s / 3600,
        "gpu_hours": total_hours,
        "cost_usd": cost,
        "host_gb": max((model.get("host_gb") or 0.0 for model in models), default=0.0),
        "basis": (
            f"weights read at {READ_GB_PER_S:g} GB/s on each node, judges started in {JUDGE_START_S:g} s; a question "
            "is "
            f"{TEXT_TOKENS} tokens of text, its images, and {ANSWER_TOKENS} generated tokens; modelled, not measured, "
            "without compilation and metrics"
        ),
    }


def _load_s(model: Mapping[str, Any]) -> float:
    phases = model.get("phases") or {}
    return float(sum(phase["weights_gb"] for phase in phases.values())) / READ_GB_PER_S


def _judge_gb(judge: JudgeConfig) -> float:
    described = card(judge.card, "judge")
    return 2 * described.parameters_b if described.parameters_b else described.vram_gb


def _judge_s(judge: JudgeConfig, n: int, n_images: int, gpu: Gpu | None) -> float | None:
    """GPU-seconds of `n` questions with `n_images` images in all; 0 for an external server, None if unknown."""
    if judge.base_url is not None:
        return 0.0
    described = card(judge.card, "judge")
    parameters_b = described.active_parameters_b or described.parameters_b
    if gpu is None or not parameters_b:
        return None
    image_tokens = (judge.max_pixels or described.judge_max_pixels) / described.patch**2
    tokens = n * (TEXT_TOKENS + DECODE_FACTOR * ANSWER_TOKENS) + n_images * image_tokens
    return tokens * 2 * parameters_b * 1e9 / (gpu.tflops(compiled=False) * 1e12)
