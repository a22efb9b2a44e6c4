"""`plan --measure`: times a model on this machine's device, with random weights.

Speed does not depend on the values of the weights, so a run's hours are known before its files are downloaded.
"""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from local_bench.core.environment import quiet_libraries
from local_bench.core.money import held_cost, usd_number
from local_bench.core.types import NOT_FINITE, seed_of
from local_bench.generators import numerics
from local_bench.generators.base import GenerationRequest, InputImage, Item, gradient, half_mask
from local_bench.generators.memory import OFFLOADABLE
from local_bench.generators.operations import count
from local_bench.generators.staged import warm_up
from local_bench.models.cards import SHIPPED
from local_bench.models.gpus import gpu_of
from local_bench.models.weights import resolve
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import RunPlan
from local_bench.runs.prices import price_of
from local_bench.runs.store import Candidate
from local_bench.runs.work import ModelPlan
from local_bench.runs.worker import generator_of, order_on

_FEW, _MORE = 2, 4
"""Numbers of steps of the two timed runs; their difference gives the time of a step."""


def add_timings(config: RunConfig, plan: RunPlan, planned: dict[str, Any]) -> None:
    """Time every model of `plan` that fits on this machine's device, at its most frequent size, and add `measured` to
    its entry of `planned` (an `estimate` for this device): seconds per image, GPU-hours and cost of the run.

    Images of other sizes are scaled by their operations. The time to load weights is not included.
    """
    quiet_libraries()
    numerics.set_determinism(config.engine.threads)
    for model, entry in zip(plan.models, planned["models"], strict=True):
        rows = plan.scheduled(model.label)
        applies = model.card is not None and rows and not entry["refused"]
        if applies and model.card and not model.card.architecture:
            applies = False
            entry["sentences"].append("not timed: its card has no architecture, which random weights need")
        entry["measured"] = _measured(config, model, rows, entry) if applies else None


def _measured(config: RunConfig, model: ModelPlan, rows: list[Candidate], entry: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a model's stages in batches of the planned size, with the planned offloading; images are discarded.
    `load_s` of random weights excludes the time to read files."""
    engine, batch_size = config.engine, entry["batch_size"]
    if model.card and model.card.source.build == SHIPPED:  # its tokenizers are files
        model = replace(model, weights=resolve(model.card))
    (sampler, n_images), _ = Counter((row.sampler, len(row.input_images)) for row in rows).most_common(1)[0]
    device = numerics.choose_devices(engine.device, 1)[0]
    offload = OFFLOADABLE if engine.offload == "always" else tuple(entry["offload"])
    order = order_on(device, model, engine, offload, folder=Path(), parked_gb=entry["parked_gb"])
    card, generator = order.card, generator_of(order)
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
    outside_steps_s = max(0.0, times[_FEW] - _FEW * step_s)
    image_s = (sampler.num_inference_steps * step_s + outside_steps_s) / batch_size + decode_s
    image_flop = count(card, sampler, n_images).total_flop
    usual_s = image_s * entry["pflop_per_image"] * 1e15 / image_flop
    n_prompts = len({(row.prompt, *row.input_images) for row in rows})
    held_s = warm_up_s * max(1, entry["n_compiled"]) + n_prompts * encode_s + len(rows) * usual_s
    finite = generator.finite is None or bool(generator.finite.all())
    if not finite:
        entry["sentences"].append(f"timed images are unscored: {NOT_FINITE}")
    name = numerics.device_name(device)
    price, peak = price_of(config.settlement, name), gpu_of(name)
    return {
        "device": name,
        "height": sampler.height,
        "width": sampler.width,
        "batch_size": batch_size,
        "compiled": order.compile,
        "random_weights": model.weights is None,
        "finite": finite,
        "load_s": load_s,
        "warm_up_s": warm_up_s,
        "encode_s_per_prompt": encode_s,
        "step_s": step_s,
        "decode_s_per_image": decode_s,
        "s_per_image": usual_s,
        "gpu_hours": held_s / 3600,
        "cost_usd": price and usd_number(held_cost(int(held_s * 1e9), price.micro_usd_per_hour)),
        "mfu": peak and image_flop / (image_s * peak.peak_tflops * 1e12),
    }


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
