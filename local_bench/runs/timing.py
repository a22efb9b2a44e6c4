"""`plan --measure`: times a model on this machine's device, with random weights if its files are missing.

Speed does not depend on the values of the weights, so a run's hours are known before its files are downloaded.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from local_bench.core import strictjson
from local_bench.core.identity import canonical_json, seed_of
from local_bench.core.money import held_cost, usd_number
from local_bench.core.process import quiet_libraries
from local_bench.core.types import NOT_FINITE
from local_bench.generators import numerics
from local_bench.generators.base import GenerationRequest, InputImage, Item, Machine
from local_bench.generators.batches import warm_up
from local_bench.generators.families import family
from local_bench.generators.masked import gradient, half_mask
from local_bench.generators.operations import count
from local_bench.generators.registry import traits
from local_bench.generators.sampler import Sampler
from local_bench.models.gpus import gpu_of
from local_bench.runs.config import EngineConfig, RunConfig
from local_bench.runs.plan import ModelPlan, RunPlan
from local_bench.runs.prices import price_of

_FEW, _MORE = 2, 4
"""Numbers of steps of the two timed runs; their difference gives the time of a step."""


@dataclass(frozen=True)
class TimingResult:
    """Seconds of one model at one size on this device."""

    device: str
    sampler: Sampler
    batch_size: int
    compiled: bool
    random_weights: bool
    load_s: float
    """Encoders and transformer; with random weights it excludes the time to read files."""
    encode_s: float
    """One prompt with its input images."""
    warm_up_s: float
    step_s: float
    """One step of a whole batch."""
    call_s: float
    """Time of a call outside its steps."""
    decode_s: float
    """One image."""
    flop_per_image: int
    finite: bool
    """Whether all values of the images were finite."""

    @property
    def image_s(self) -> float:
        """Time of one image with all steps in a full batch."""
        return (self.sampler.num_inference_steps * self.step_s + self.call_s) / self.batch_size + self.decode_s


def time_model(
    model: ModelPlan,
    sampler: Sampler,
    n_images: int,
    batch_size: int,
    engine: EngineConfig,
    offload: Sequence[str] = (),
    parked_gb: float = 0.0,
) -> TimingResult:
    """Time `model` at `sampler`'s size, with the weights of the stages in `offload` in host memory and `parked_gb` of
    them while decoding; images are discarded."""
    card = model.card
    assert card is not None
    device = numerics.choose_devices(engine.device, 1)[0]
    kind = family(card.family)
    offload = ("encode", "denoise") if engine.offload == "always" else tuple(offload)
    possible = traits(card.family).compiles
    compiled = numerics.compiles(engine.compile, device, offload, model.config.lossy.settings, possible)
    machine = Machine(
        device,
        getattr(torch, card.dtype),
        numerics.attention_backend(
            engine.attention_backend, device, card.dtype, card.attention, kind.masks, kind.attention
        ),
        compiled,
        offload,
        parked_gb,
        model.config.lossy.settings,
    )
    generator = kind(card, model.weights, machine, model.parts)
    clock = _Clock(device)
    request = GenerationRequest(
        "A red boot on a white table by a window, three birds above it. " * 4,
        sampler,
        tuple(InputImage(f"trial-{i}", gradient(i, sampler)) for i in range(n_images)),
        half_mask(sampler) if card.takes.mask else None,
    )
    generator.load_encoder()
    load_s = clock.lap()
    text = generator.encode_text(request)
    input_images = request.input_images if generator.traits.encodes_images else ()
    seen = tuple(generator.encode_image(p, sampler) for p in input_images)
    clock.lap()  # the first call selects kernels
    generator.encode_text(request)
    for input_image in input_images:
        generator.encode_image(input_image, sampler)
    encode_s = clock.lap()
    generator.drop_encoder()
    clock.lap()
    generator.load_denoiser()
    load_s += clock.lap()
    item = Item(request, text, seen, seed_of("trial"))
    warm_up(generator, item, batch_size)
    warm_up_s = clock.lap()
    times = {}
    for steps in (_FEW, _MORE):
        short = replace(item, request=replace(request, sampler=replace(sampler, num_inference_steps=steps)))
        latents = generator.denoise([short] * batch_size)
        times[steps] = clock.lap()
    generator.pixels(latents, sampler)
    decode_s = clock.lap() / batch_size
    generator.drop_denoiser()
    step_s = max(0.0, times[_MORE] - times[_FEW]) / (_MORE - _FEW)
    return TimingResult(
        device=numerics.device_name(device),
        sampler=sampler,
        batch_size=batch_size,
        compiled=compiled,
        random_weights=model.weights is None,
        load_s=load_s,
        encode_s=encode_s,
        warm_up_s=warm_up_s,
        step_s=step_s,
        call_s=max(0.0, times[_FEW] - _FEW * step_s),
        decode_s=decode_s,
        flop_per_image=count(card, sampler, n_images).total_flop,
        finite=generator.finite is None or bool(generator.finite.all()),
    )


class _Clock:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the previous call, after synchronising the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now, last = time.monotonic(), self._last
        self._last = now
        return now - last


def add_timings(config: RunConfig, plan: RunPlan, planned: dict[str, Any]) -> None:
    """Time every model of `plan` that fits on this machine's device, at its most frequent size, and add `measured` to
    its entry of `planned` (an `estimate` for this device): seconds per image, GPU-hours and cost of the run.

    Images of other sizes are scaled by their operations. The time to load weights is not included.
    """
    quiet_libraries()
    numerics.set_determinism(config.engine.threads)
    for model, entry in zip(plan.models, planned["models"], strict=True):
        work = [p.candidate.work for p in plan.planned if p.candidate.model == model.label and p.unscored is None]
        if model.card is None or not work or entry["refused"]:
            entry["measured"] = None
            continue
        kinds = Counter((canonical_json(w["sampler"]), len(w["pictures"])) for w in work)
        (sampler, n_images), _ = kinds.most_common(1)[0]
        size = Sampler(**strictjson.stored(sampler))
        timing = time_model(
            model, size, n_images, entry["batch_size"], config.engine, entry["offload"], entry["parked_gb"]
        )
        texts = len({(w["prompt"], *w["pictures"]) for w in work})
        image_s = timing.image_s * entry["pflop_per_image"] * 1e15 / timing.flop_per_image
        held_s = timing.warm_up_s * max(1, entry["n_compiled"]) + texts * timing.encode_s + len(work) * image_s
        if not timing.finite:
            entry["sentences"].append(f"timed images are unscored: {NOT_FINITE}")
        price = price_of(config.settlement, timing.device)
        peak = gpu_of(timing.device)
        entry["measured"] = {
            "device": timing.device,
            "height": timing.sampler.height,
            "width": timing.sampler.width,
            "batch_size": timing.batch_size,
            "compiled": timing.compiled,
            "random_weights": timing.random_weights,
            "finite": timing.finite,
            "load_s": timing.load_s,
            "warm_up_s": timing.warm_up_s,
            "encode_s_per_prompt": timing.encode_s,
            "step_s": timing.step_s,
            "decode_s_per_image": timing.decode_s,
            "s_per_image": image_s,
            "gpu_hours": held_s / 3600,
            "cost_usd": price and usd_number(held_cost(int(held_s * 1e9), price.micro_usd_per_hour)),
            "mfu": peak and timing.flop_per_image / (timing.image_s * peak.peak_tflops * 1e12),
        }
