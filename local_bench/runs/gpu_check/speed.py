"""Checks of speed, relative to the device's matrix-product rate and to a plain diffusers loop, and of energy."""

import time
from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention_dispatch import attention_backend

from local_bench.generators.architecture import components
from local_bench.generators.numerics import device_name
from local_bench.generators.operations import count, usual_input_images
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import family
from local_bench.models.cards import ModelCard
from local_bench.models.gpus import gpu_of
from local_bench.runs.gpu_check.checks import CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import PROMPTS, jobs_of, make, order_of, reduced_card, sampler_of
from local_bench.runs.meter import EnergyCounter

FAMILY = "flux"
STEPS = 4
_SIDE, _SMALL_SIDE = 8192, 512
"""Side of the square matrices."""
_REPEATS, _PER_REPEAT = 5, 10
_IMAGES, _SMALL_IMAGES = 8, 2
ALLOWED = 1.15
"""Clocks above the data sheet's: a higher rate is reported."""
_ENERGY_S = 3.0
"""NVML updates its counter about every 0.1 s."""


def check_speed(session: Session) -> CheckPassed:
    """Measure compile time, images per second, and the fraction of the measured matrix-product rate."""
    described, less = reduced_card(FAMILY, not session.on_gpu)
    sampler = sampler_of(described, not session.on_gpu, steps=STEPS)
    n = _IMAGES if session.on_gpu else _SMALL_IMAGES
    ceiling = matmul_flops(session)
    session.release()
    plain_s = _plain_s(session, described, sampler, n)
    session.release()
    order = order_of(session, described)
    images = make(order, jobs_of(order, [sampler] * n))
    compile_s, ours_s = images.seconds["warm-up"], images.seconds["denoise"] + images.seconds["decode"]
    counted = count(described, sampler, usual_input_images(described))
    mfu = n * (counted.denoise_flop + counted.decode_flop) / ours_s / ceiling
    figures = {
        "card": described.name,
        "reduced": less,
        "size": [sampler.height, sampler.width],
        "steps": STEPS,
        "images": n,
        "compiled": order.compile,
        "compile_s": round(compile_s, 2),
        "images_per_s": round(n / ours_s, 3),
        "plain_images_per_s": round(n / plain_s, 3),
        "times_faster_than_plain": round(plain_s / ours_s, 3),
        "matmul_tflops": round(ceiling / 1e12, 2),
        "mfu_of_matmul": round(mfu, 4),
    }
    text = (
        f"{n / ours_s:.2f} images/s of {STEPS} steps, {plain_s / ours_s:.2f} times a plain pipeline loop, "
        f"{100 * mfu:.0f} % of {ceiling / 1e12:.1f} TFLOPS of a matrix product; "
        f"{f'compiled in {compile_s:.1f} s' if order.compile else 'eager'}"
    )
    gpu = gpu_of(device_name(session.device))
    if gpu is not None and ceiling > ALLOWED * gpu.peak_tflops * 1e12:
        text += f"; warning: {gpu.peak_tflops:g} TFLOPS are the most expected of {gpu.title}"
    if mfu > 1:
        text += "; warning: faster than the matrix product"
    return CheckPassed(text, figures)


def check_energy(session: Session) -> CheckPassed:
    """Measure the energy of matrix products with NVML's counter."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU")
    counter = EnergyCounter(session.device.index)
    multiply, flop = _matmul(session)
    multiply()
    session.synchronize()
    counter.since_last()
    begun, n = time.perf_counter(), 0
    while time.perf_counter() - begun < _ENERGY_S:
        for _ in range(_PER_REPEAT):
            multiply()
        n += _PER_REPEAT
        seconds = session.synchronize() - begun
    used_mj = counter.since_last()
    if used_mj is None:
        raise CheckSkipped("this GPU has no energy counter")
    watts = used_mj / 1e3 / seconds
    figures = {"joules": used_mj / 1e3, "seconds": round(seconds, 3), "watts": round(watts, 1), "flop": n * flop}
    text = f"{used_mj / 1e3:.0f} J in {seconds:.1f} s, {watts:.0f} W"
    gpu = gpu_of(device_name(session.device))
    if watts <= 0 or (gpu is not None and watts > 1.5 * gpu.board_w):
        raise CheckFailed(f"{text}: outside this board's power range", figures)
    return CheckPassed(text, figures)


def matmul_flops(session: Session) -> float:
    """FLOP per second of a square matrix product, the best of several repeats: 8192 in bfloat16 on a GPU, timed with
    CUDA events; 512 in float32 on a CPU."""
    multiply, flop = _matmul(session)
    for _ in range(3):
        multiply()
    return flop * _PER_REPEAT / min(_repeat_s(session, multiply) for _ in range(_REPEATS))


def _matmul(session: Session) -> tuple[Callable[[], Any], int]:
    side, dtype = (_SIDE, torch.bfloat16) if session.on_gpu else (_SMALL_SIDE, torch.float32)
    a, b = (torch.randn(side, side, device=session.device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2 * side**3


def _repeat_s(session: Session, multiply: Callable[[], Any]) -> float:
    if not session.on_gpu:
        begun = time.perf_counter()
        for _ in range(_PER_REPEAT):
            multiply()
        return time.perf_counter() - begun
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream(session.device)
    start.record(stream)
    for _ in range(_PER_REPEAT):
        multiply()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _plain_s(session: Session, described: ModelCard, sampler: Sampler, n: int) -> float:
    """Seconds of `n` images with one plain pipeline call each: all components resident, eager mode."""
    kind = family(described.family)
    dtype = getattr(torch, described.dtype) if session.on_gpu else torch.float32
    pipe = kind.assemble(components(described, session.device, dtype))
    pipe.set_progress_bar_config(disable=True)

    def image(i: int) -> None:
        pipe(
            prompt=PROMPTS[i % len(PROMPTS)],
            height=sampler.height,
            width=sampler.width,
            num_inference_steps=sampler.num_inference_steps,
            guidance_scale=sampler.guidance_scale,
            max_sequence_length=sampler.max_sequence_length,
            generator=torch.Generator("cpu").manual_seed(i),
        )

    with attention_backend("native"):  # other models may have left theirs as diffusers' active one
        image(0)
        begun = session.synchronize()
        for i in range(n):
            image(i)
        return session.synchronize() - begun
