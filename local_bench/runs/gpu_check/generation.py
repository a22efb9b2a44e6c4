"""Checks of generators: one image a family through the staged path, and whether batches change bytes."""

from collections.abc import Callable

import torch

from local_bench.generators.arithmetic import usual_pictures
from local_bench.generators.batches import batch_is_neutral
from local_bench.generators.memory import RESERVE_GB, plan_memory
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard
from local_bench.runs.gpu_check.attention import attention_kernels, in_words, not_as_pinned
from local_bench.runs.gpu_check.checks import CheckFailed, CheckSkipped, Found, Session
from local_bench.runs.gpu_check.models import described, ready, sampler_of

NEUTRAL = ("flux", "sd3", "pixart_sigma")
"""Families whose batches are probed: a kernel set by diffusers, one set by torch, and one that takes a mask."""
BATCH = 2


def check_family(name: str) -> Callable[[Session], Found]:
    """One image: encode, drop, load, denoise, decode; and which attention kernel ran."""

    def run(session: Session) -> Found:
        of, less = described(name, not session.on_gpu)
        sampler = sampler_of(of, not session.on_gpu)
        planned = planned_gb(of, sampler)
        if session.on_gpu:
            torch.cuda.reset_peak_memory_stats(session.device)
        with ready(session, of, sampler) as (generator, items):
            denoiser = getattr(generator.pipe, generator.denoiser)
            latents, kernels = attention_kernels(denoiser, lambda: generator.denoise(items[:1]))
            (image,) = generator.decode(latents, sampler)
            attention = generator.machine.attention
        peak = torch.cuda.max_memory_allocated(session.device) / 1e9 if session.on_gpu else None
        session.peaks[name] = (peak, planned)
        figures = {
            "card": of.name,
            "reduced": less,
            "size": [sampler.height, sampler.width],
            "steps": sampler.num_inference_steps,
            "attention": attention,
            "kernels": kernels,
            "peak_gb": None if peak is None else round(peak, 2),
            "planned_gb": round(planned, 2),
        }
        if not bool(latents.isfinite().all()):
            raise CheckFailed(f"{of.name}: the latents are not finite", figures)
        if (image.height, image.width) != (sampler.height, sampler.width):
            raise CheckFailed(f"{of.name}: the image is {image.width}x{image.height}", figures)
        wrong = not_as_pinned(attention, kernels)
        if wrong:
            raise CheckFailed(f"{of.name}: {wrong}", figures)
        ran = in_words(kernels)
        return Found(f"{of.name} {sampler.width}x{sampler.height}, {attention}: {ran}; {less or 'whole'}", figures)

    return run


def check_batch(name: str) -> Callable[[Session], Found]:
    """Whether an image's bytes depend on its neighbours in a batch."""

    def run(session: Session) -> Found:
        of, _ = described(name, not session.on_gpu)
        with ready(session, of, sampler_of(of, not session.on_gpu)) as (generator, items):
            neutral = batch_is_neutral(generator, items, BATCH)
            attention = generator.machine.attention
        figures = {"card": of.name, "attention": attention, "batch_size": BATCH, "neutral": neutral}
        if not neutral:
            raise CheckFailed(f"batches of {BATCH} change bytes ({attention}): runs make images one by one", figures)
        return Found(f"the same bytes in any slot of a batch of {BATCH} ({attention})", figures)

    return run


def check_memory(session: Session) -> Found:
    """Memory that the families allocated against what the planner counts."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU: torch counts no peak there")
    if not session.peaks:
        check_family("flux")(session)
    measured = {name: (peak, planned) for name, (peak, planned) in session.peaks.items() if peak is not None}
    figures = {name: {"peak_gb": round(p, 2), "planned_gb": round(q, 2)} for name, (p, q) in measured.items()}
    over = [name for name, (peak, planned) in measured.items() if peak > planned + RESERVE_GB]
    worst = max(measured, key=lambda name: measured[name][0] - measured[name][1])
    peak, planned = measured[worst]
    words = f"{worst} took {peak:.2f} GB, {planned:.2f} GB were planned and {RESERVE_GB} GB are kept free"
    if over:
        raise CheckFailed(f"more than planned by {', '.join(over)}: {words}", figures)
    return Found(f"no family took more than planned; closest: {words}", figures)


def planned_gb(of: ModelCard, sampler: Sampler) -> float:
    """What the planner counts for one image of this card, as it is, decimal GB."""
    return plan_memory(of, sampler, batch_size=1, pictures=usual_pictures(of)).peak_gb
