"""What a run will take, from its plan and the model cards, before anything is loaded."""

import math
from typing import Any

from local_bench.core.cards import card
from local_bench.core.money import NS_PER_HOUR, held_cost, usd_number
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import ModelPlan, RunPlan
from local_bench.runs.settlement import price_of

ACHIEVED_TFLOPS = {"a6000": 95.0, "a100-40": 190.0, "a100-80": 190.0, "h100": 400.0, "h200": 400.0}
"""Sustained bf16 rates to plan with: about 60 % of dense peak on Ampere, compiled FLUX as published on Hopper."""


def estimate(config: RunConfig, plan: RunPlan) -> dict[str, Any]:
    """Items, batches, memory, GPU-hours and cost as plain data; None where there is nothing to go by."""
    workable = [t for t in plan.tasks if not t.unscored]
    device = _device_name(config)
    return {
        "suite": plan.suite.name,
        "n_tasks": len(plan.tasks),
        "n_tasks_unscored": len(plan.tasks) - len(workable),
        "n_deliverables": sum(len(t.deliverables) for t in plan.tasks),
        "value_usd": usd_number(sum(t.price_micro_usd for t in plan.tasks)),
        "models": [_model(m, plan, config, device) for m in plan.models],
        "judge": {
            "card": config.judge.card,
            "n_questions": _n_questions(plan),
            "vram_gb": card(config.judge.card, "judge").vram_gb,
        },
        "device": device,
        "basis": f"planned for {config.settlement.gpu or device}; GPU-hours from counted operations at the rate that "
        "such a device sustains, loading and judging not included",
    }


def _model(model: ModelPlan, plan: RunPlan, config: RunConfig, device: str) -> dict[str, Any]:
    unscored = {t.task_id for t in plan.tasks if t.unscored}
    n = sum(c.model == model.label and c.deliverable.task_id not in unscored for c in plan.candidates)
    hours, cost = _hours(model, n, config, device), None
    price = price_of(config.settlement, device)
    if hours is not None and price is not None:
        cost = usd_number(held_cost(int(hours * NS_PER_HOUR), price.micro_usd_per_hour))
    return {
        "model": model.label,
        "n_images": n,
        "batch_size": model.batch_size,
        "n_batches": math.ceil(n / model.batch_size),
        **model.sampler,
        "vram_gb": model.card.vram_gb,
        "gpu_hours": hours,
        "cost_usd": cost,
    }


def _hours(model: ModelPlan, n: int, config: RunConfig, device: str) -> float | None:
    price = price_of(config.settlement, device)
    rate = ACHIEVED_TFLOPS.get(price.gpu) if price else None
    if rate is None or model.card.pflop_per_image is None:
        return None
    default = model.card.sampler
    pixels = model.sampler["height"] * model.sampler["width"] / (default.height * default.width)
    steps = model.sampler["num_inference_steps"] / default.num_inference_steps
    return n * model.card.pflop_per_image * pixels * steps * 1000 / rate / 3600


def _n_questions(plan: RunPlan) -> int:
    asked = plan.suite.load()
    per_task = {
        t.task_id: sum(1 for _ in asked.questions(t, dict.fromkeys(range(1, len(t.deliverables) + 1), "")))
        for t in plan.tasks
        if not t.unscored
    }
    return sum(per_task.values()) * sum(m.attempts for m in plan.models)


def _device_name(config: RunConfig) -> str:
    from local_bench.generators.numerics import choose_device, device_name

    return device_name(choose_device(config.engine.device))
