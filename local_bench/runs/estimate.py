"""Estimates the memory, time, cost and energy of a run from its plan and counted operations, before anything is loaded:
per model, and as hours, wall-clock time and cost of the whole run on given GPUs and nodes. Loading, compilation,
judging and networks of metrics are models with the constants below; metrics without a network have measured times.

Also the progress of the whole run: its phases, weighted by their modelled operations, with the time left. The weights
need not be right in seconds: the time left of a kind of phase (generation, metrics, judging) follows from the speed at
which this run has worked on it, and only for a kind that has not begun from the speed so far, if most of the run's
operations are of kinds whose speed is known; otherwise the time left is unknown.
"""

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from local_bench.core import strictjson
from local_bench.core.errors import ConfigError
from local_bench.core.files import configs_dir
from local_bench.core.money import NS_PER_HOUR, held_cost, usd_number
from local_bench.judges.metrics.registry import metric_card
from local_bench.models.cards import ModelCard, card
from local_bench.models.gpus import Gpu, gpu, gpu_of, gpus
from local_bench.runs.config import JudgeConfig, RunConfig
from local_bench.runs.judge_factory import transport_of
from local_bench.runs.plan import RunPlan
from local_bench.runs.prices import Price, price_of
from local_bench.runs.progress import Forwarding, Progress, Quiet
from local_bench.runs.rundir import RunDir
from local_bench.runs.work import ModelPlan
from local_bench.suites.questions_from import all_questions

if TYPE_CHECKING:
    from local_bench.generators.memory import MemoryPlan

# ---- the whole run

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


def budget(
    config: RunConfig,
    models: Sequence[Mapping[str, Any]],
    questions: tuple[int, Sequence[float]],
    gpu: Gpu | None,
    price: Price | None,
    gpus_per_node: int,
    nodes: int,
) -> dict[str, Any]:
    """`models` are the plan's entries, of which those without images are not loaded; `questions` are the number of
    questions per judge, without which none starts, and, by judge, the tokens of their images. None for unknown values.

    All nodes load all weights once and all GPUs compile for all batch sizes; generation and metrics are divided among
    all GPUs, judging among those of whole replicas. `wall_hours`, `gpu_hours` and `cost_usd` are at the low ends of the
    ranges, `_high` at the high ends.
    """
    models = [model for model in models if model.get("n_images") != 0]
    loading = sum(model.get("all_resident_gb", 0.0) for model in models) / READ_GB_PER_S
    denoising = [model.get("gpu_hours") for model in models if model.get("load") != "imported"]
    is_known = None not in denoising and gpu is not None
    n_gpus, (n, by_judge) = gpus_per_node * nodes, questions
    judging = [_judge_s(judge, n, tokens, gpu) for judge, tokens in zip(config.judges, by_judge, strict=True)]
    started = [card(judge.card, "judge") for judge in config.judges if judge.base_url is None and n]
    weights_gb = [2 * judge.parameters_b if judge.parameters_b else judge.vram_gb for judge in started]
    starts = [JUDGE_START_S + gb / READ_GB_PER_S for gb in weights_gb]
    judge_s = None if None in judging else sum(s for s in judging if s is not None)
    replica = [min(card(judge.card, "judge").tensor_parallel_size, gpus_per_node) for judge in config.judges]
    used = [nodes * (gpus_per_node - gpus_per_node % size) for size in replica]
    judge_wall_s = sum((s or 0.0) / n_used for s, n_used in zip(judging, used, strict=True))
    n_compiled = sum(model.get("n_compiled", 0) for model in models)
    metrics = metric_time(
        config.metrics,
        sum(model.get("n_images", 0) for model in models),
        sum(model.get("megapixels", 0.0) for model in models),
        gpu,
        config.engine.io_workers,
    )
    totals: dict[str, float | None] = {}
    for end, metric_s, compile_s in zip(("", "_high"), (metrics.low_s, metrics.high_s), COMPILE_S, strict=True):
        wall_s = gpu_hours = cost = None
        if is_known and judge_s is not None:
            work_s = 3600 * sum(hours for hours in denoising if hours is not None) + metric_s
            wall_s = work_s / n_gpus + judge_wall_s + (loading + sum(starts)) + n_compiled * compile_s
            gpu_hours = wall_s * n_gpus / 3600
            if price is not None:
                cost = usd_number(held_cost(int(gpu_hours * NS_PER_HOUR), price.micro_usd_per_hour))
        totals[f"wall_hours{end}"] = None if wall_s is None else wall_s / 3600
        totals |= {f"gpu_hours{end}": gpu_hours, f"cost_usd{end}": cost}
    return {
        "gpus_per_node": gpus_per_node,
        "nodes": nodes,
        "load_s": loading,
        "judge_start_s": sum(starts),
        "compile_s": [n_compiled * compile_s for compile_s in COMPILE_S],
        "metric_s": [metrics.low_s, metrics.high_s],
        "metric_host_s": metrics.host_s,
        "metrics_unknown": list(metrics.unknown),
        "judge_gpu_hours": None if judge_s is None else judge_s / 3600,
        **totals,
        "host_gb": max((model.get("host_gb") or 0.0 for model in models), default=0.0),
        "basis": (
            f"modelled: weights read at {READ_GB_PER_S:g} GB/s on each node; {COMPILE_S[0]:g} to {COMPILE_S[1]:g} s of "
            "compilation per model and batch size on each GPU (published for FLUX.1-dev on an H100); judges started in "
            f"{JUDGE_START_S:g} s; a question is {TEXT_TOKENS} tokens of text, its images at the judge's limits of "
            f"pixels, and {ANSWER_TOKENS} generated tokens; a metric's network {TOKENS} tokens per image at the GPU's "
            "rate to a tenth of it. Measured on one CPU core: reading images, and metrics without a network "
            "(configs/metric_times.json)"
        ),
    }


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
    if not os.path.isfile(path):
        return {}
    measured = strictjson.read(path, ConfigError, missing="restore it, or remove it to plan without measured times")
    return {name: s / (measured["side"] ** 2 / _PIXELS_PER_MP) for name, s in measured["seconds"].items()}


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


# ---- the plan

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
    questions = n_questions(plan, config, progress, config.judges)
    gpus_per_node = gpus_per_node or config.engine.workers or 1
    works = (strictjson.stored_object(row.work_json) for row in plan.candidates if row.unscored is None)
    samplers = [work["sampler"] for work in works if "sampler" in work]
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
            "transport": transport_of(config.judge, target.capacity_gb is not None),
            "panel": [judge.card for judge in config.panel],
            "n_questions": questions[0] * len(config.judges),
            "vram_gb": card(config.judge.card, "judge").vram_gb,
        },
        "judges": [_judge(judge, questions[0], target, gpus_per_node) for judge in config.judges],
        "budget": budget(config, models, questions, target.gpu, target.price, gpus_per_node, nodes),
        "disk_gb": {
            # upper bounds: an RGB8 PNG is hardly larger than its pixels, and a model's encodings are removed before the
            # next model's are computed
            "images": sum(3 * sampler["height"] * sampler["width"] for sampler in samplers) / 1e9,
            "encodings": config.engine.encodings_gb if samplers else 0.0,
        },
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
    return Target(name, gpu_of(name), device_memory_gb(device), host_memory_gb(), price_of(config.settlement, name))


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


def _model(model: ModelPlan, plan: RunPlan, config: RunConfig, target: Target) -> dict[str, Any]:
    scheduled = plan.scheduled(model.label)
    n = len(scheduled)
    if model.card is None:
        costs = [row.cost_micro_usd for row in scheduled]
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
    of_family = traits(model.card.family)
    compiled = compiled and of_family.compiles
    # a worker compiles once for each size of its batches, for all image sizes
    batches = {(group.memory.batch_size, of_family.images_add_passes and group.input_images > 0) for group in groups}
    on = target.gpu
    seconds = None if on is None or refused else _mean(groups, lambda memory: _seconds(memory, on, compiled))
    counted = bool(model.card.architecture)
    if not counted and on is not None and n and not refused:
        unknown = "its time is unknown, and so is the whole run's: give `pflop_per_image` in its card"
        sentences.append("its time is an estimate by parameters, tokens and steps" if seconds else unknown)
    bounded = counted and model.config.lossy.first_block_cache is None  # which skips some of the counted operations
    floor = None
    if on is not None and bounded:  # the operations at the device's peak rate
        floor = _mean(groups, lambda memory: memory.operations.total_flop / (on.peak_tflops * 1e12))
    hours = None if seconds is None else n * seconds / 3600
    cost = None
    if hours is not None and target.price is not None:
        cost = usd_number(held_cost(int(hours * NS_PER_HOUR), target.price.micro_usd_per_hour))
    wh = None if seconds is None or on is None else seconds * on.board_w / 3600
    return {
        "model": model.label,
        "load": model.config.load,
        "n_images": n,
        "batch_size": usual.batch_size,
        "n_batches": sum(g.n_batches for g in groups),
        "n_compiled": len(batches) if compiled and n else 0,
        "megapixels": sum(g.n_images * g.megapixels for g in groups),
        **model.sampler,
        "vram_gb": largest.peak_gb,
        "all_resident_gb": largest.all_resident_gb,
        "phases": {name: vars(phase) | {"total_gb": phase.total_gb} for name, phase in largest.phases.items()},
        "offload": list(largest.offload),
        "parked_gb": largest.parked_gb,
        "host_gb": largest.host_gb,
        "refused": refused,
        "pflop_per_image": sum(g.n_images * g.memory.operations.pflop for g in groups) / max(n, 1) or None,
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
    from local_bench.generators.operations import usual_size
    from local_bench.generators.registry import Sampler, traits

    alone = traits(described.family).exact_length
    kinds: dict[tuple[Sampler, int], Counter[str]] = {}
    for candidate in plan.scheduled(model.label):
        work = strictjson.stored_object(candidate.work_json)  # `work` would keep it
        kind = (usual_size(described, Sampler(**work["sampler"])), len(work["pictures"]))
        kinds.setdefault(kind, Counter())[work["prompt"] if alone else ""] += 1
    groups = []
    for (sampler, input_images), prompts in (kinds or {(Sampler(**model.sampler), 0): Counter()}).items():
        on_target = {"capacity_gb": target.capacity_gb, "host_gb": target.host_gb, "offload": offload}
        memory = model.memory(config.engine, sampler, input_images, **on_target)
        batches = sum(math.ceil(n / memory.batch_size) for n in prompts.values())
        groups.append(_Group(prompts.total(), batches, sampler.height * sampler.width / 1e6, input_images, memory))
    return groups


def _mean(groups: Iterable[_Group], seconds: Callable[["MemoryPlan"], float]) -> float | None:
    """The mean over all images; None if there are none or their operations are unknown."""
    parts = [(g.n_images, seconds(g.memory)) for g in groups]
    total = sum(n for n, _ in parts)
    return (sum(n * s for n, s in parts) / total or None) if total else None


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
        "transport": transport_of(judge, target.capacity_gb is not None),
        "n_questions": n,
        "vram_gb": described.vram_gb if own else None,
        "tensor_parallel_size": wanted if own else None,
        "sentences": sentences,
    }


def n_questions(
    plan: RunPlan, config: RunConfig, progress: Progress, judges: Sequence[JudgeConfig]
) -> tuple[int, list[float]]:
    """Number of questions per judge, and for each of `judges` the most tokens of the images in them, if all planned
    images are generated."""
    tasks = {t.task_id: t for t in plan.tasks if not t.unscored}
    described = [card(judge.card, "judge") for judge in judges]
    specs = [judge.spec(of, "", of.dtype) for judge, of in zip(judges, described, strict=True)]
    images: dict[tuple[str, str, int], list[int]] = {}
    for row in plan.candidates:
        if row.unscored is None and row.task_id in tasks:
            images.setdefault((row.model, row.task_id, row.attempt), []).append(row.deliverable)
    alike = Counter((task_id, tuple(sorted(numbers))) for (_, task_id, _), numbers in images.items())
    total, tokens = 0, [0.0] * len(specs)
    progress.begin("count questions", len(alike))
    for (task_id, numbers), n in alike.items():
        settings = config.suite.questions_from, tasks[task_id], dict.fromkeys(numbers, ""), config.order_swap
        for _, question in all_questions(plan.suite, *settings):
            total += n
            for i, (of, spec) in enumerate(zip(described, specs, strict=True)):
                tokens[i] += n * sum(of.tokens_of_image(image.max_pixels) for image in spec.requests(question)[0].shown)
        progress.advance()
    return total, tokens


# ---- progress

PROGRESS_TEXT_TOKENS = 500
"""Tokens of a question besides its image."""
HOST_FLOP = 1e9
"""Nominal operations of a metric without a network, per image."""
_STARTING, _KNOWN_S = 0.5, 1.0
"""A phase's first progress, if less than this part of it, is its start-up and tells no speed; a speed is known after
this many seconds of work."""


def weights_of_phases(run: RunDir, plan: RunPlan, stages: tuple[str, ...]) -> dict[str, float]:
    """Modelled operations of the work that is left, by the name that a phase has in `Progress.begin`."""
    left = {row.model: row.n_planned for row in run.store.progress()}
    n_images = sum(row.unscored is None for row in plan.candidates)
    weights: dict[str, float] = {}
    if "generate" in stages:
        weights |= {
            f"{model.label}: make": left.get(model.label, 0) * 1e15 * (model.card.pflop_per_image or 0.0)
            for model in plan.models
            if model.card is not None
        }
    if "measure" in stages:
        networks = map(metric_card, run.config.metrics)
        weights["measure"] = n_images * sum(2e9 * m.parameters_b * TOKENS if m else HOST_FLOP for m in networks)
    if "judge" in stages:
        n, _ = n_questions(plan, run.config, Quiet(), ())
        for judge in run.config.judges:
            described = card(judge.card, "judge")
            tokens = described.tokens_of_image(described.judge_max_pixels) + PROGRESS_TEXT_TOKENS
            parameters_b = described.active_parameters_b or described.parameters_b
            weights[f"{judge.label}: judge"] = n * 2e9 * parameters_b * tokens
    return {name: flop for name, flop in weights.items() if flop}


class Overall(Forwarding):
    """Passes progress on, with the finished fraction of the run and the seconds left."""

    def __init__(
        self, shown: Progress, weights: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`weights` are those of `weights_of_phases`; phases that it lacks count as nothing."""
        super().__init__(shown)
        self._weights, self._clock = weights, clock
        self._done = dict.fromkeys(weights, 0.0)
        """Phase -> finished fraction."""
        self._seconds: dict[str, float] = defaultdict(float)
        """Kind -> seconds spent so far."""
        self._flop: dict[str, float] = defaultdict(float)
        """Kind -> modelled operations done in this process."""
        self._phase: str | None = None
        self._step, self._at, self._begun = 0.0, clock(), False

    def begin(self, phase: str, total: int) -> None:
        self._shown.begin(phase, total)
        self._phase = phase if phase in self._weights else None
        if self._phase is not None:  # phases are in order, and items of those before may have been stored already
            self._done |= dict.fromkeys(takewhile(phase.__ne__, self._weights), 1.0)
            self._step = (1.0 - self._done[self._phase]) / max(total, 1)
        self._at, self._begun = self._clock(), False

    def advance(self, n: int = 1) -> None:
        if self._phase is not None:
            kind, now, part = _kind(self._phase), self._clock(), n * self._step
            self._done[self._phase] = min(1.0, self._done[self._phase] + part)
            if self._begun or part >= _STARTING:
                self._flop[kind] += part * self._weights[self._phase]
                self._seconds[kind] += now - self._at
            self._at, self._begun = now, True
            done = sum(self._done[phase] * flop for phase, flop in self._weights.items())
            self._shown.overall(done / sum(self._weights.values()), self._seconds_left())
        self._shown.advance(n)

    def _seconds_left(self) -> float | None:
        left = {phase: (1.0 - self._done[phase]) * flop for phase, flop in self._weights.items()}
        known = {kind: s for kind, s in self._seconds.items() if s >= _KNOWN_S and self._flop[kind]}
        unknown = sum(n for phase, n in left.items() if _kind(phase) not in known)
        if not known or unknown > sum(self._weights.values()) / 2:
            return None
        so_far = sum(self._flop[kind] for kind in known) / sum(known.values())
        speeds = {kind: self._flop[kind] / s for kind, s in known.items()}
        return sum(n / speeds.get(_kind(phase), so_far) for phase, n in left.items())


def _kind(phase: str) -> str:
    return phase.rpartition(": ")[2]
