"""Checks of generators: images of each family by the worker of a run, and streamed weights."""

from collections.abc import Callable

import torch

from local_bench.core.images import image_path, load_verified
from local_bench.generators.arithmetic import usual_input_images
from local_bench.generators.capacity import failed_allocations
from local_bench.generators.memory import RESERVE_GB, MemoryPlan, plan_memory
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard
from local_bench.runs.gpu_check.attention import KernelCounter, kernel_summary, pinning_fault
from local_bench.runs.gpu_check.checks import CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import narrower, reduced_card, sampler_of
from local_bench.runs.gpu_check.working import jobs_of, make, order_of

BATCH = 2
COMPILED = ("flux", "flux_kontext", "sd3", "qwen_image", "qwen_image_edit_plus", "pixart_sigma")
"""Families that are compiled as a run does on a GPU, one of each kind of attention and of image sizes; compilation of
all would take longer than the other checks together."""
STREAMED = "flux"


def check_family(name: str) -> Callable[[Session], CheckPassed]:
    """Generate a batch of one size and an image of another, and detect the attention kernels."""

    def run(session: Session) -> CheckPassed:
        of, less = reduced_card(name, not session.on_gpu)
        sampler = sampler_of(of, not session.on_gpu)
        planned = plan(of, sampler)
        order = order_of(session, of, BATCH, None if name in COMPILED else False)
        jobs = jobs_of(order, [sampler] * BATCH + [narrower(sampler)])
        if session.on_gpu:
            torch.cuda.reset_peak_memory_stats(session.device)
        failed = failed_allocations(session.device)
        with KernelCounter() as counter:
            made = make(order, jobs, counter)
        failed = failed_allocations(session.device) - failed
        peak = torch.cuda.max_memory_allocated(session.device) / 1e9 if session.on_gpu else None
        session.peaks[name] = (peak, planned.peak_gb)
        figures = {
            "card": of.name,
            "reduced": less,
            "size": [sampler.height, sampler.width],
            "steps": sampler.num_inference_steps,
            "compiled": order.compile,
            "compile_s": round(made.seconds["warm-up"], 2),
            "attention": order.attention,
            "kernels": made.kernels,
            "batch_sizes": made.batch_sizes,
            "peak_gb": None if peak is None else round(peak, 2),
            "planned_gb": round(planned.peak_gb, 2),
            "failed_allocations": failed,
        }
        sizes = [load_verified(image_path(order.images, sha), sha).size for sha in made.pixels.values() if sha]
        expected = [(job.sampler["width"], job.sampler["height"]) for job in jobs]
        wrong = pinning_fault(order.attention, made.kernels)
        if len(sizes) < len(jobs):
            raise CheckFailed(f"{of.name}: {len(jobs) - len(sizes)} of {len(jobs)} outputs are not finite", figures)
        if sizes != expected:
            raise CheckFailed(f"{of.name}: the images are {sizes}, not {expected}", figures)
        if failed:
            raise CheckFailed(f"{of.name}: {failed} allocations failed, {'; '.join(made.notes)}", figures)
        if wrong:
            raise CheckFailed(f"{of.name}: {wrong}", figures)
        if set(made.batch_sizes) != {planned.batch_size}:
            raise CheckFailed("; ".join(made.notes), figures)
        how = f"{'compiled' if order.compile else 'eager'}, {order.attention}: {kernel_summary(made.kernels)}"
        return CheckPassed(f"{of.name} {sampler.width}x{sampler.height}, {how}; {less or 'full depth'}", figures)

    return run


def check_streamed(session: Session) -> CheckPassed:
    """Compare images of a transformer whose weights are streamed from host memory with those of a resident one."""
    of, less = reduced_card(STREAMED, not session.on_gpu)
    orders = [order_of(session, of, compiled=False, offload=offload) for offload in ((), ("denoise",))]
    jobs = jobs_of(orders[0], [sampler_of(of, not session.on_gpu)])
    resident, streamed = (make(order, jobs) for order in orders)
    times = [made.seconds["denoise"] for made in (resident, streamed)]
    figures = {"card": of.name, "reduced": less, "resident_s": round(times[0], 3), "streamed_s": round(times[1], 3)}
    if resident.pixels != streamed.pixels or None in resident.pixels.values():
        raise CheckFailed(f"{of.name}: streamed weights give other bytes than resident ones", figures)
    return CheckPassed(f"{of.name}: equal bytes; {times[0]:.2f} s resident, {times[1]:.2f} s streamed", figures)


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


def plan(of: ModelCard, sampler: Sampler) -> MemoryPlan:
    """The planner's estimate for the batches of `check_family`."""
    return plan_memory(of, sampler, batch_size=BATCH, attempts=BATCH, input_images=usual_input_images(of))
