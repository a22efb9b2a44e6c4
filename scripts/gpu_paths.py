"""Measures on a GPU what the design of generation relies on, with random weights of full width; nothing is fetched.

python scripts/gpu_paths.py        needs torch, diffusers, transformers, pydantic, PyYAML and nvidia-ml-py

thread    cuDNN's algorithm under memory pressure, afterwards in the same thread, and in a new one (digests)
parking   Qwen-Image with and without blocks that leave the device while an image is decoded
graphs    time of a step, eager, compiled for one size, and compiled for all sizes
"""

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("LOCAL_BENCH_CACHE", (CACHE := tempfile.TemporaryDirectory(prefix="gpu-paths-")).name)

from local_bench.core.process import quiet_libraries
from local_bench.generators import device as placement
from local_bench.generators import numerics
from local_bench.generators.architecture import components
from local_bench.generators.base import GenerationRequest, Item, Machine
from local_bench.generators.batches import warm_up
from local_bench.generators.capacity import failed_allocations
from local_bench.generators.families import family
from local_bench.generators.sampler import Sampler
from local_bench.generators.staged import Staged
from local_bench.models.cards import ModelCard
from local_bench.runs.gpu_check.models import PROMPTS, reduced_card, sampler_of

GPU = torch.device("cuda", 0)


@contextmanager
def loaded(of: ModelCard, sampler: Sampler, compiled: bool, parked_gb: float = 0.0) -> Iterator[tuple[Staged, Item]]:
    attention = numerics.attention_backend("auto", GPU, of.dtype, of.attention, family(of.family).masks)
    machine = Machine(GPU, getattr(torch, of.dtype), attention, compiled, parked_gb=parked_gb)
    generator = family(of.family)(of, None, machine)
    request = GenerationRequest(PROMPTS[0], sampler)
    generator.load_encoder()
    text = generator.encode_text(request)
    generator.drop_encoder()
    generator.load_denoiser()
    item = Item(request, text, (), 3)
    warm_up(generator, item, 1)
    yield generator, item
    generator.drop_denoiser()


def seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def digest(pixels: torch.Tensor) -> str:
    return hashlib.sha256(pixels.float().cpu().numpy().tobytes()).hexdigest()[:10]


def thread() -> None:
    of, _ = reduced_card("flux", False)
    vae = components(of, GPU, torch.bfloat16, tuple(name for name in of.architecture if name != "vae"))["vae"]
    latents = torch.randn(1, 16, 128, 128, generator=torch.Generator().manual_seed(0)).to(GPU, torch.bfloat16)
    total, base = torch.cuda.mem_get_info(GPU)[1], torch.cuda.memory_allocated()
    found: list[object] = []

    def decode() -> None:
        with torch.inference_mode():
            found.append(digest(vae.decode(latents, return_dict=False)[0]))

    def under_pressure() -> None:
        before = failed_allocations(GPU)
        torch.cuda.set_per_process_memory_fraction((base + 2.2e9) / total, GPU)
        decode()
        found.append(failed_allocations(GPU) - before)
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
        torch.cuda.empty_cache()
        decode()

    for work in (under_pressure, decode):
        started = threading.Thread(target=work)
        started.start()
        started.join()
    decode()
    names = ("under pressure", "failed allocations", "afterwards, same thread", "new thread", "main thread")
    print("thread", dict(zip(names, found, strict=True)), flush=True)


def parking() -> None:
    of, _ = reduced_card("qwen_image", False)
    sampler = sampler_of(of, False)
    for parked_gb in (0.0, 1.5):
        with loaded(of, sampler, True, parked_gb) as (generator, item):
            latents = generator.denoise([item])
            torch.cuda.reset_peak_memory_stats()
            pixels: list[torch.Tensor] = []
            time_s = seconds(lambda: pixels.append(generator.pixels(latents, sampler)))  # noqa: B023
            peak = torch.cuda.max_memory_allocated() / 1e9
            again = torch.equal(latents, generator.denoise([item]))
        print(
            f"parking {parked_gb} GB: {time_s:.3f} s to decode, peak {peak:.2f} GB, pixels {digest(pixels[0])}, "
            f"equal latents afterwards {again}",
            flush=True,
        )


def graphs() -> None:
    marked = placement._dynamic
    for name in ("flux", "qwen_image"):
        of, less = reduced_card(name, False)
        sampler = replace(sampler_of(of, False), height=1024, width=1024, num_inference_steps=4)
        for how in ("eager", "one size", "all sizes"):
            torch.compiler.reset()
            placement._dynamic = marked if how == "all sizes" else lambda _, value: value
            with loaded(of, sampler, how != "eager") as (generator, item):
                generator.denoise([item])
                times = sorted(seconds(lambda: generator.denoise([item])) for _ in range(9))
            print(f"graphs {name} ({less}), {how}: {1000 * times[4] / 4:.2f} ms per step", flush=True)
    placement._dynamic = marked


if __name__ == "__main__":
    quiet_libraries()
    numerics.set_determinism(1)
    print(torch.cuda.get_device_name(GPU), torch.__version__, torch.backends.cudnn.version(), flush=True)
    for part in (thread, parking, graphs):
        part()
