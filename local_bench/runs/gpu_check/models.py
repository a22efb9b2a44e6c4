"""The models of the checks: one real architecture per family, with full width, fewer blocks and random weights; small
models on a CPU. Their images are made by the worker of a run, with its own settings for this device; torch's profiler
tells which attention kernels ran."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch.profiler import ProfilerActivity, profile, record_function

from local_bench.core.errors import LocalBenchError, is_failure
from local_bench.core.images import store_image
from local_bench.core.types import Message, PhaseStarted, TimeCharged, canonical_json
from local_bench.generators.architecture import piece, with_config
from local_bench.generators.base import gradient, half_mask
from local_bench.generators.operations import usual_input_images
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Staged
from local_bench.models.cards import ModelCard, cards
from local_bench.runs.config import EngineConfig, ModelConfig
from local_bench.runs.gpu_check.checks import Session
from local_bench.runs.store import Candidate
from local_bench.runs.work import BatchSizeChosen, ImagesFinished, ModelPlan, WorkOrder
from local_bench.runs.worker import Worker, order_on

OPERATIONS = {
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash (CPU)",
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
}
"""ATen operations of `scaled_dot_product_attention`."""
PINNED = {
    "_native_cudnn": "cudnn",
    "_native_flash": "flash",
    "_native_efficient": "efficient",
    "_native_math": "math",
}
"""Kernel by diffusers' backend name; with `native` torch chooses."""
_MARK = "local_bench::denoiser"


class KernelCounter:
    """Counts the attention kernels that run inside denoisers loaded in this context, from `start` to `stop`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Runs by kernel, once stopped."""
        self._load = Staged.load_denoiser
        self._profile: profile | None = None

    def __enter__(self) -> Self:
        load = self._load

        def load_marked(generator: Staged) -> None:
            load(generator)
            mark(getattr(generator.pipe, generator.denoiser))

        Staged.load_denoiser = load_marked  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Staged.load_denoiser = self._load  # type: ignore[method-assign]
        self.stop()

    def start(self) -> None:
        """Begin, unless this counter has begun before."""
        if self._profile is None:
            self._profile = profile(activities=[ProfilerActivity.CPU], acc_events=True)
            self._profile.start()

    def stop(self) -> None:
        if self._profile is None or self.counts:
            return
        self._profile.stop()
        events: list[Any] = list(self._profile.events())  # type: ignore[no-untyped-call]
        spans = [event.time_range for event in events if event.name == _MARK]
        self.counts = dict(
            Counter(
                OPERATIONS[event.name]
                for event in events
                if event.name in OPERATIONS
                and any(span.start <= event.time_range.start and event.time_range.end <= span.end for span in spans)
            )
        )


def mark(denoiser: torch.nn.Module) -> None:
    """Label the module's forward passes in profiles."""
    open_marks: list[Any] = []

    def begin(*_: Any) -> None:
        open_marks.append(record_function(_MARK))
        open_marks[-1].__enter__()

    def end(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    denoiser.register_forward_pre_hook(begin)
    denoiser.register_forward_hook(end)


def kernel_summary(kernels: Mapping[str, int]) -> str:
    return ", ".join(f"{kernel} {n}" for kernel, n in kernels.items()) or "none"


def pinning_fault(backend: str, kernels: Mapping[str, int]) -> str | None:
    """An error message if the kernel of the pinned backend did not run, else None."""
    expected = PINNED.get(backend)
    if kernels and (expected is None or expected in kernels):
        return None
    return f"{backend} is pinned, but the attention kernels that ran are: {kernel_summary(kernels)}"


STEPS = 2
"""At least 2: Qwen-Image's schedule divides by zero with one step."""
SMALL_SIDE = 64
PROMPTS = (
    "A red boot on a white table by a window.",
    "Three blue birds above a sea under rain.",
)
"""Prompts of equal length, as Qwen-Image's batches need."""


def reduced_card(name: str, small: bool) -> tuple[ModelCard, str]:
    """The card to check a family with, and a text of what is reduced ("" if nothing)."""
    of_family = [known for known in cards().values() if known.family == name]
    if small:
        return next(known for known in of_family if known.source.random), "small model"
    usual, less = next(known for known in of_family if known.reduced is not None), []
    changes = usual.reduced or {}
    for component, values in changes.items():
        original = piece(str(usual.architecture[component])).config
        for key, value in values.items():
            before = reduce(getitem, key.split("."), original)
            less.append(f"{component} {key.rpartition('.')[2]} {value} of {before}")
    return with_config(usual, changes), ", ".join(less)


def sampler_of(described: ModelCard, small: bool, side: int | None = None, steps: int = STEPS) -> Sampler:
    """The card's settings with few steps, at its size or at `side` x `side` (small models: 64 x 64)."""
    settings = described.sampler.model_dump() | {"num_inference_steps": steps}
    if small or side:
        settings |= {"height": side or SMALL_SIDE, "width": side or SMALL_SIDE}
    return Sampler(**settings)


def narrower(sampler: Sampler) -> Sampler:
    """The same with three quarters of the width, a multiple of 16."""
    return replace(sampler, width=sampler.width * 3 // 64 * 16)


def noise(seed: int, side: int) -> Image.Image:
    """Smooth coloured noise, `side` x `side`."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)


@dataclass
class Made:
    """What a worker made, and how."""

    pixels: dict[str, str | None] = field(default_factory=dict)
    """Pixel digests by job; None if an output was not finite."""
    batch_sizes: list[int] = field(default_factory=list)
    """The batch sizes that were chosen, in order."""
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time by phase."""
    kernels: dict[str, int] = field(default_factory=dict)
    """Runs of each attention kernel in the transformer, for the first batch."""


def order_of(
    session: Session,
    described: ModelCard,
    batch_size: int = 1,
    compiled: bool | None = None,
    offload: tuple[str, ...] = (),
) -> WorkOrder:
    """A work order for this card with random weights, in the session's folder. As in a run, blocks are compiled on a
    GPU, and the attention kernel follows the device; on a CPU the precision is float32."""
    dtype = described.dtype if session.on_gpu else "float32"
    config = ModelConfig(card=described.name, batch_size=batch_size, attempts=batch_size)
    model = ModelPlan(config, described.model_copy(update={"dtype": dtype}), weights_sha256="random")
    return order_on(session.device, model, EngineConfig(compile=compiled), offload, folder=session.scratch)


def jobs_of(order: WorkOrder, samplers: Sequence[Sampler]) -> list[Candidate]:
    """One job per element of `samplers`, with input images for editing models."""
    jobs = []
    for i, sampler in enumerate(samplers):
        images = [gradient(k, sampler) for k in range(usual_input_images(order.card))]
        mask = store_image(order.inputs, half_mask(sampler).pixels) if order.card.takes.mask else None
        shas = [store_image(order.inputs, image) for image in images]
        work = canonical_json({"sampler": sampler.settings, "pictures": shas, "mask": mask})
        jobs.append(Candidate(f"{i}", i, "", 1, order.label, 1, PROMPTS[i % len(PROMPTS)], work, seed=i))
    return jobs


def make(
    order: WorkOrder,
    jobs: Sequence[Candidate],
    counter: KernelCounter | None = None,
    loaded: Callable[[], None] | None = None,
) -> Made:
    """Generate `jobs`. `counter` counts the kernels of the first batch, after compilation and the batch invariance
    probe; `loaded` is called once the transformer is on the device."""
    images, at_ns = Made(), time.monotonic_ns()
    for event in Worker(order).make(jobs):
        match event:
            case Message(sentence):
                images.notes.append(sentence)
            case PhaseStarted(what) if loaded and what.endswith(": make"):
                loaded()
            case TimeCharged(phase, _, now_ns):
                images.seconds[phase] += (now_ns - at_ns) / 1e9
                at_ns = now_ns
            case BatchSizeChosen(_, size):
                images.batch_sizes.append(size)
                if counter:
                    counter.start()
            case ImagesFinished(results):
                for result in results:
                    if result.unscored and is_failure(result.unscored):  # of a run's item; here of the check
                        raise LocalBenchError(result.unscored)
                images.pixels.update({result.work_id: result.pixels_sha256 for result in results})
                if counter:
                    counter.stop()
                    images.kernels = counter.counts
    return images
