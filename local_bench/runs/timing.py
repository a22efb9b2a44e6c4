"""`plan --measure`: times a model on the device at hand, with random weights where its files are not here.

Speed does not depend on what the weights say, so a real run's hours are known before its files are fetched.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image

from local_bench.core.identity import canonical_json, seed_of
from local_bench.core.money import held_cost, usd_number
from local_bench.core.quiet import quiet_libraries
from local_bench.generators import numerics
from local_bench.generators.arithmetic import count
from local_bench.generators.base import GenerationRequest, Item, Machine, Picture
from local_bench.generators.batches import warm_up
from local_bench.generators.families import family
from local_bench.generators.masked import half_mask
from local_bench.generators.sampler import Sampler
from local_bench.models.gpus import gpu_of
from local_bench.runs.config import EngineConfig, RunConfig
from local_bench.runs.plan import ModelPlan, RunPlan
from local_bench.runs.prices import price_of

_FEW, _MORE = 2, 4
"""Steps of the two timed runs: their difference is the price of a step."""


@dataclass(frozen=True)
class TimingResult:
    """Seconds of one model at one size on this device."""

    device: str
    sampler: Sampler
    batch_size: int
    compiled: bool
    random_weights: bool
    load_s: float
    """Encoders and transformer; from random numbers it is no measure of reading files."""
    encode_s: float
    """One prompt with its pictures."""
    warm_up_s: float
    step_s: float
    """One step of a whole batch."""
    call_s: float
    """What a call costs beside its steps."""
    decode_s: float
    """One image."""
    flop_per_image: int

    @property
    def image_s(self) -> float:
        """One image at all its steps, its share of a full batch."""
        return (self.sampler.num_inference_steps * self.step_s + self.call_s) / self.batch_size + self.decode_s


def try_model(
    model: ModelPlan,
    sampler: Sampler,
    n_pictures: int,
    batch_size: int,
    engine: EngineConfig,
    offload: Sequence[str] = (),
) -> TimingResult:
    """Times `model` at `sampler`'s size, what does not fit streaming in (`offload`); nothing is kept."""
    card = model.card
    assert card is not None
    device = numerics.choose_devices(engine.device, 1)[0]
    kind = family(card.family)
    offload = ("encode", "denoise") if engine.offload == "always" else tuple(offload)
    compiled = numerics.compiles(engine.compile, device, offload, model.config.lossy.settings)
    machine = Machine(
        device,
        getattr(torch, card.dtype),
        numerics.attention_backend(engine.attention_backend, device, card.dtype, card.attention, kind.masks),
        compiled,
        offload,
        model.config.lossy.settings,
    )
    generator = kind(card, model.weights, machine, model.parts)
    clock = _Clock(device)
    brief = GenerationRequest(
        "A red boot on a white table by a window, three birds above it. " * 4,
        sampler,
        _pictures(sampler, n_pictures),
        half_mask(sampler) if card.takes.mask else None,
    )
    generator.load_encoder()
    load_s = clock.lap()
    text = generator.encode_text(brief)
    pictures = brief.pictures if generator.traits.encodes_pictures else ()
    seen = tuple(generator.encode_picture(p, sampler) for p in pictures)
    clock.lap()  # the first time chooses kernels
    generator.encode_text(brief)
    for picture in pictures:
        generator.encode_picture(picture, sampler)
    encode_s = clock.lap()
    generator.drop_encoder()
    clock.lap()
    generator.load_denoiser()
    load_s += clock.lap()
    item = Item(brief, text, seen, seed_of("trial"))
    warm_up(generator, item, batch_size)
    warm_up_s = clock.lap()
    times = {}
    for steps in (_FEW, _MORE):
        short = replace(item, brief=replace(brief, sampler=replace(sampler, num_inference_steps=steps)))
        latents = generator.denoise([short] * batch_size)
        times[steps] = clock.lap()
    generator.decode(latents, sampler)
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
        flop_per_image=count(card, sampler, n_pictures).total_flop,
    )


def _pictures(sampler: Sampler, n: int) -> tuple[Picture, ...]:

    drawn = []
    for i in range(n):
        bands = [Image.linear_gradient("L").rotate(90 * (i + k)) for k in range(3)]
        drawn.append(Picture(f"trial-{i}", Image.merge("RGB", bands).resize((sampler.width, sampler.height))))
    return tuple(drawn)


class _Clock:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last call, all work on the device done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now, last = time.monotonic(), self._last
        self._last = now
        return now - last


def add_trials(config: RunConfig, plan: RunPlan, planned: dict[str, Any]) -> None:
    """Times every model of `plan` that fits on the device at hand, at its most frequent size, and adds `measured` to
    its entry of `planned` (an `estimate` for this device): seconds an image, GPU-hours and cost of the whole run.

    Images of other sizes count by their operations. Loading random weights says nothing of reading files: left out.
    """
    quiet_libraries()
    numerics.set_determinism(config.engine.threads)
    for model, entry in zip(plan.models, planned["models"], strict=True):
        work = [p.candidate.work for p in plan.planned if p.candidate.model == model.label and p.unscored is None]
        if model.card is None or not work or entry["refused"]:
            entry["measured"] = None
            continue
        kinds = Counter((canonical_json(w["sampler"]), len(w["pictures"])) for w in work)
        (sampler, n_pictures), _ = kinds.most_common(1)[0]
        size = Sampler(**json.loads(sampler))
        trial = try_model(model, size, n_pictures, entry["batch_size"], config.engine, entry["offload"])
        texts = len({(w["prompt"], *w["pictures"]) for w in work})
        image_s = trial.image_s * entry["pflop_per_image"] * 1e15 / trial.flop_per_image
        held_s = trial.warm_up_s * len(kinds) + texts * trial.encode_s + len(work) * image_s
        price = price_of(config.settlement, trial.device)
        peak = gpu_of(trial.device)
        entry["measured"] = {
            "device": trial.device,
            "height": trial.sampler.height,
            "width": trial.sampler.width,
            "batch_size": trial.batch_size,
            "compiled": trial.compiled,
            "random_weights": trial.random_weights,
            "load_s": trial.load_s,
            "warm_up_s": trial.warm_up_s,
            "encode_s_per_prompt": trial.encode_s,
            "step_s": trial.step_s,
            "decode_s_per_image": trial.decode_s,
            "s_per_image": image_s,
            "gpu_hours": held_s / 3600,
            "cost_usd": price and usd_number(held_cost(int(held_s * 1e9), price.micro_usd_per_hour)),
            "mfu": peak and trial.flop_per_image / (trial.image_s * peak.peak_tflops * 1e12),
        }
