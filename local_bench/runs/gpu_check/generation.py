"""Checks of generators: one image per family through the staged pipeline, and batch invariance."""

from collections.abc import Callable

import torch

from local_bench.generators.arithmetic import usual_input_images
from local_bench.generators.batches import batch_is_neutral
from local_bench.generators.memory import RESERVE_GB, plan_memory
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard
from local_bench.runs.gpu_check.attention import attention_kernels, kernel_summary, pinning_fault
from local_bench.runs.gpu_check.checks import CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import ready, reduced_card, sampler_of

NEUTRAL = ("flux", "sd3", "pixart_sigma")
"""Families whose batch invariance is checked: an attention kernel set by diffusers, one set by torch, and one with a
mask."""
BATCH = 2


def check_family(name: str) -> Callable[[Session], CheckPassed]:
    """Generate one image through all stages, and detect its attention kernels."""

    def run(session: Session) -> CheckPassed:
        of, less = reduced_card(name, not session.on_gpu)
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
        wrong = pinning_fault(attention, kernels)
        if wrong:
            raise CheckFailed(f"{of.name}: {wrong}", figures)
        ran = f"{attention}: {kernel_summary(kernels)}; {less or 'full depth'}"
        return CheckPassed(f"{of.name} {sampler.width}x{sampler.height}, {ran}", figures)

    return run


def check_batch(name: str) -> Callable[[Session], CheckPassed]:
    """Check whether an image's bytes depend on the other images of its batch."""

    def run(session: Session) -> CheckPassed:
        of, _ = reduced_card(name, not session.on_gpu)
        with ready(session, of, sampler_of(of, not session.on_gpu)) as (generator, items):
            neutral = batch_is_neutral(generator, items, BATCH)
            attention = generator.machine.attention
        figures = {"card": of.name, "attention": attention, "batch_size": BATCH, "neutral": neutral}
        if not neutral:
            raise CheckFailed(
                f"batches of {BATCH} change output bytes ({attention}): runs will use batch size 1", figures
            )
        return CheckPassed(f"equal bytes in any slot of a batch of {BATCH} ({attention})", figures)

    return run


def check_memory(session: Session) -> CheckPassed:
    """Compare the families' peak memory with the planner's estimate."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU: torch counts no peak there")
    if not session.peaks:
        check_family("flux")(session)
    measured = {name: (peak, planned) for name, (peak, planned) in session.peaks.items() if peak is not None}
    figures = {name: {"peak_gb": round(p, 2), "planned_gb": round(q, 2)} for name, (p, q) in measured.items()}
    over = [name for name, (peak, planned) in measured.items() if peak > planned + RESERVE_GB]
    worst = max(measured, key=lambda name: measured[name][0] - measured[name][1])
    peak, planned = measured[worst]
    text = f"{worst} allocated {peak:.2f} GB, {planned:.2f} GB were planned and {RESERVE_GB} GB are reserved"
    if over:
        raise CheckFailed(f"more than planned by {', '.join(over)}: {text}", figures)
    return CheckPassed(f"no family exceeded its estimate; closest: {text}", figures)


def planned_gb(of: ModelCard, sampler: Sampler) -> float:
    """The planner's estimate for one image of this card, in decimal GB."""
    return plan_memory(of, sampler, batch_size=1, input_images=usual_input_images(of)).peak_gb
