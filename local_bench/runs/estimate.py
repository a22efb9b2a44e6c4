"""Estimates the memory, time, cost and energy of a run from its plan and counted operations, before anything is
loaded."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from local_bench.core.money import NS_PER_HOUR, held_cost, usd_number
from local_bench.models.cards import ModelCard, card
from local_bench.models.gpus import Gpu, gpu, gpu_of, gpus
from local_bench.runs.budget import Devices, budget
from local_bench.runs.config import RunConfig
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import transport_of
from local_bench.runs.plan import ModelPlan, RunPlan
from local_bench.runs.prices import Price, price_of
from local_bench.runs.progress import Progress, Quiet
from local_bench.suites.questions_from import all_questions

if TYPE_CHECKING:
    from local_bench.generators.memory import MemoryPlan

IMPORTED_MP = 1.0
"""Megapixels assumed for an imported image, whose size is not known before it is read."""


@dataclass(frozen=True)
class Target:
    """The device of the estimate."""

    name: str
    gpu: Gpu | None
    """None for a CPU and for an unknown GPU."""
    capacity_gb: float | None
    host_gb: float | None
    """None if it is another machine."""
    price: Price | None


def estimate(
    config: RunConfig,
    plan: RunPlan,
    gpu_name: str | None = None,
    gpus_per_node: int | None = None,
    nodes: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Items, batches, memory, GPU-hours, cost and energy as plain data; unknown values are None.

    The estimate is for the GPU `gpu_name`, else for `settlement.gpu`, else for this machine's device. ConfigError for
    an unknown name.
    """
    progress = progress or Quiet()
    workable = [t for t in plan.tasks if not t.unscored]
    target = _target(config, gpu_name)
    progress.begin("count operations", len(plan.models))
    models = []
    for m in plan.models:
        models.append(_model(m, plan, config, target))
        progress.advance()
    questions = n_questions(plan, config.order_swap, config.suite.questions_from, progress, config.judges)
    devices = Devices(target.gpu, gpus_per_node or config.engine.workers or 1, nodes, target.price)
    return {
        "suite": plan.suite.name,
        "n_tasks": len(plan.tasks),
        "n_tasks_unscored": len(plan.tasks) - len(workable),
        "n_deliverables": sum(len(t.deliverables) for t in plan.tasks),
        "value_usd": usd_number(sum(t.price_micro_usd for t in plan.tasks)),
        "models": models,
        "judge": config.judge
        and {
            "card": config.judge.card,
            "protocol": config.judge.protocol,
            "transport": transport_of(config.judge),
            "panel": [judge.card for judge in config.panel],
            "n_questions": questions[0] * len(config.judges),
            "vram_gb": card(config.judge.card, "judge").vram_gb,
        },
        "judges": [_judge(judge, questions[0], target, devices.gpus_per_node) for judge in config.judges],
        "budget": budget(config, models, questions, devices),
        "disk_gb": _disk_gb(plan, config),
        "device": target.name,
        "gpu": target.gpu.name if target.gpu else None,
        "capacity_gb": target.capacity_gb,
        "basis": _basis(target),
    }


def _target(config: RunConfig, gpu_name: str | None) -> Target:
    name = gpu_name or (config.settlement.gpu if config.settlement.gpu in gpus() else None)
    if name is not None:
        chosen = gpu(name)
        settled = config.settlement.model_copy(update={"gpu": chosen.name})
        return Target(chosen.title, chosen, chosen.memory_gb, None, price_of(settled, chosen.title))
    from local_bench.generators.capacity import device_memory_gb, host_memory_gb, may_have_gpu

    if config.engine.device in ("auto", "cpu") and not may_have_gpu():
        return Target("cpu", None, None, host_memory_gb(), price_of(config.settlement, "cpu"))
    from local_bench.generators.numerics import choose_device, device_name

    device = choose_device(config.engine.device)
    name = device_name(device)
    price = price_of(config.settlement, name)
    return Target(name, gpu_of(name), device_memory_gb(device), host_memory_gb(), price)


def _disk_gb(plan: RunPlan, config: RunConfig) -> dict[str, float]:
    """Upper bounds: an RGB8 PNG is hardly larger than its pixels, and a model's encodings are removed before the next
    model's are computed."""
    samplers = [
        p.candidate.work["sampler"] for p in plan.planned if p.unscored is None and "sampler" in p.candidate.work
    ]
    return {
        "images": sum(3 * sampler["height"] * sampler["width"] for sampler in samplers) / 1e9,
        "encodings": config.engine.encodings_gb if samplers else 0.0,
    }


def _basis(target: Target) -> str:
    if target.gpu is None:
        return f"planned for {target.name}: its speed is unknown, and so are hours and cost"
    power = f"{target.gpu.board_w:g} W, the board's power limit"
    return (
        f"planned for {target.name}; hours are counted operations at its sustained rate, energy at {power}; "
        "loading, compilation, metrics and judging are in the whole run's hours alone"
    )


# ---- one model


@dataclass(frozen=True)
class _Group:
    """Images of the same size and number of input images."""

    n_images: int
    n_batches: int
    megapixels: float
    """Of one image."""
    input_images: int
    memory: "MemoryPlan"


def _n_compiled(described: ModelCard, groups: list[_Group]) -> int:
    """How often a worker compiles: once for each size of its batches, for all image sizes."""
    from local_bench.generators.registry import traits

    more = traits(described.family).images_add_passes
    return len({(group.memory.batch_size, more and group.input_images > 0) for group in groups})


def _model(model: ModelPlan, plan: RunPlan, config: RunConfig, target: Target) -> dict[str, Any]:
    n = len(plan.scheduled(model.label))
    if model.card is None:
        costs = [p.cost_micro_usd for p in plan.planned if p.candidate.model == model.label and p.unscored is None]
        cost = None if None in costs else usd_number(sum(c for c in costs if c is not None))
        return {
            "model": model.label,
            "load": "imported",
            "n_images": n,
            "megapixels": n * IMPORTED_MP,
            "cost_usd": cost,
            "sentences": [],
        }
    from local_bench.generators.memory import OFFLOADABLE
    from local_bench.generators.registry import traits

    always = OFFLOADABLE if config.engine.offload == "always" else None
    groups = _groups(model, model.card, plan, config, target, always)
    largest = max((g.memory for g in groups), key=lambda memory: memory.peak_gb)
    sentences = list(dict.fromkeys(s for g in groups for s in g.memory.sentences))
    if any(g.memory.offload != largest.offload for g in groups):  # the largest image decides for all
        groups = _groups(model, model.card, plan, config, target, largest.offload)
    usual = max(groups, key=lambda g: g.n_images).memory
    refused = next((g.memory.refused for g in groups if g.memory.refused), None)
    compiled = target.name != "cpu" if config.engine.compile is None else config.engine.compile
    compiled = compiled and "denoise" not in largest.offload and "weights" not in model.config.lossy.settings
    compiled = compiled and traits(model.card.family).compiles
    seconds = None if target.gpu is None or refused else _weighted(groups, _seconds, target.gpu, compiled)
    counted = bool(model.card.architecture)
    if not counted and seconds is not None:
        sentences.append("its time is an estimate by parameters, tokens and steps: `plan --measure` measures it")
    bounded = counted and model.config.lossy.first_block_cache is None  # which skips some of the counted operations
    floor = _weighted(groups, _floor_seconds, target.gpu, compiled) if target.gpu is not None and bounded else None
    hours = None if seconds is None else n * seconds / 3600
    cost = None
    if hours is not None and target.price is not None:
        cost = usd_number(held_cost(int(hours * NS_PER_HOUR), target.price.micro_usd_per_hour))
    wh = None if seconds is None or target.gpu is None else seconds * target.gpu.board_w / 3600
    return {
        "model": model.label,
        "load": model.config.load,
        "n_images": n,
        "batch_size": usual.batch_size,
        "n_batches": sum(g.n_batches for g in groups),
        "n_compiled": _n_compiled(model.card, groups) if compiled and n else 0,
        "megapixels": sum(g.n_images * g.megapixels for g in groups),
        **model.sampler,
        "vram_gb": largest.peak_gb,
        "all_resident_gb": largest.all_resident_gb,
        "phases": {name: vars(phase) | {"total_gb": phase.total_gb} for name, phase in largest.phases.items()},
        "offload": list(largest.offload),
        "parked_gb": largest.parked_gb,
        "host_gb": largest.host_gb,
        "refused": refused,
        "pflop_per_image": sum(g.n_images * g.memory.operations.pflop for g in groups) / max(n, 1) if n else None,
        "floor_s_per_image": floor,
        "planned_s_per_image": seconds,
        "gpu_hours": hours,
        "cost_usd": cost,
        "wh_per_image": wh,
        "wh": None if wh is None else n * wh,
        "sentences": sentences,
    }


def _groups(
    model: ModelPlan,
    described: ModelCard,
    plan: RunPlan,
    config: RunConfig,
    target: Target,
    offload: tuple[str, ...] | None,
) -> list[_Group]:
    """A model's images by size and number of input images; one empty group if it has none."""
    from local_bench.generators.memory import plan_memory
    from local_bench.generators.operations import usual_size
    from local_bench.generators.registry import Sampler, traits

    alone = traits(described.family).exact_length
    kinds: dict[tuple[Sampler, int], Counter[str]] = {}
    for candidate in plan.scheduled(model.label):
        work = candidate.work
        kind = (usual_size(described, Sampler(**work["sampler"])), len(work["pictures"]))
        kinds.setdefault(kind, Counter())[work["prompt"] if alone else ""] += 1
    groups = []
    for (sampler, input_images), prompts in (kinds or {(Sampler(**model.sampler), 0): Counter()}).items():
        memory = plan_memory(
            described,
            sampler,
            batch_size=model.config.batch_size or config.engine.batch_size,
            capacity_gb=target.capacity_gb,
            host_gb=target.host_gb,
            input_images=input_images,
            attempts=model.config.attempts,
            lossy=model.config.lossy.settings,
            offload=offload,
        )
        batches = sum(math.ceil(n / memory.batch_size) for n in prompts.values())
        groups.append(_Group(prompts.total(), batches, sampler.height * sampler.width / 1e6, input_images, memory))
    return groups


def _weighted(groups: Iterable[_Group], seconds: Any, on: Gpu, compiled: bool) -> float | None:
    """The mean over all images; None if there are none or their operations are unknown."""
    parts = [(g.n_images, seconds(g.memory, on, compiled)) for g in groups]
    total = sum(n for n, _ in parts)
    return (sum(n * s for n, s in parts) / total or None) if total else None


def _floor_seconds(memory: "MemoryPlan", on: Gpu, compiled: bool) -> float:
    """Lower bound of the time of one image: its operations at the device's peak rate."""
    return memory.operations.total_flop / (on.peak_tflops * 1e12)


def _seconds(memory: "MemoryPlan", on: Gpu, compiled: bool) -> float:
    """Time of one image at the sustained rate; with streamed weights a pass takes at least the time of their
    transfer."""
    counted, size = memory.operations, memory.batch_size
    eager, denoising = on.tflops(False) * 1e12, on.tflops(compiled) * 1e12
    transfer_s = {name: gb / on.host_gb_per_s for name, gb in memory.streamed_gb.items()}
    passes, at_once = (1, counted.passes) if counted.together else (counted.passes, 1)
    one_pass = max(size * at_once * counted.forward_flop / denoising, transfer_s.get("denoise", 0.0))
    encode = max(counted.encode_flop / eager, transfer_s.get("encode", 0.0))
    return encode + (counted.picture_flop + counted.decode_flop) / eager + counted.steps * passes * one_pass / size


def _judge(judge: JudgeConfig, n: int, target: Target, gpus_per_node: int) -> dict[str, Any]:
    """One judge with its memory in all and the GPUs of a replica, both None for an external server."""
    described, own, sentences = card(judge.card, "judge"), judge.base_url is None, []
    wanted, capacity = described.tensor_parallel_size, target.capacity_gb
    each_gb = described.vram_gb / min(wanted, gpus_per_node)
    if own and capacity is not None and each_gb >= capacity:
        more = f"with --gpus {wanted}" if described.vram_gb / wanted < capacity else "for larger GPUs (--gpu)"
        sentences.append(
            f"it needs {wanted} GPU{'s' * (wanted > 1)} of 80 GB on a node, and the plan has {gpus_per_node} "
            f"{target.name}, where it takes {each_gb:.3g} GB of each: plan {more}, or choose a smaller judge"
        )
    return {
        "name": judge.label,
        "card": judge.card,
        "protocol": judge.protocol,
        "transport": transport_of(judge),
        "n_questions": n,
        "vram_gb": described.vram_gb if own else None,
        "tensor_parallel_size": wanted if own else None,
        "sentences": sentences,
    }


def n_questions(
    plan: RunPlan, order_swap: bool, questions_from: list[str], progress: Progress, judges: Sequence[JudgeConfig] = ()
) -> tuple[int, list[float]]:
    """Number of questions per judge, and for each of `judges` the most tokens of the images in them, if all planned
    images are generated."""
    entry = plan.suite
    tasks = {t.task_id: t for t in plan.tasks if not t.unscored}
    described = [card(judge.card, "judge") for judge in judges]
    specs = [judge.spec(of, "", of.dtype) for judge, of in zip(judges, described, strict=True)]
    images: dict[tuple[str, str, int], list[int]] = {}
    for planned in plan.planned:
        candidate = planned.candidate
        if planned.unscored is None and candidate.deliverable.task_id in tasks:
            key = (candidate.model, candidate.deliverable.task_id, candidate.attempt)
            images.setdefault(key, []).append(candidate.deliverable.index)
    alike = Counter((task_id, tuple(sorted(numbers))) for (_, task_id, _), numbers in images.items())
    total, tokens = 0, [0.0] * len(specs)
    progress.begin("count questions", len(alike))
    for (task_id, numbers), n in alike.items():
        keyed = all_questions(entry, questions_from, tasks[task_id], dict.fromkeys(numbers, ""), order_swap)
        for _, question in keyed:
            total += n
            for i, (of, spec) in enumerate(zip(described, specs, strict=True)):
                shown = spec.requests(question)[0].shown
                tokens[i] += n * sum(of.tokens_of_image(image.max_pixels) for image in shown)
        progress.advance()
    return total, tokens
