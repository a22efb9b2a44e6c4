"""Generates one image with compiled code in a separate process: `python -m local_bench.runs.gpu_check.child FAMILY
DEVICE SIDE` prints a line of JSON with its digests and the compile time in seconds."""

import hashlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from local_bench.core.quiet import quiet_libraries
from local_bench.generators.batches import warm_up
from local_bench.generators.numerics import choose_device, set_determinism
from local_bench.runs.gpu_check.attention import attention_kernels
from local_bench.runs.gpu_check.checks import MEMORY_GB, Session
from local_bench.runs.gpu_check.models import ready, reduced_card, sampler_of


@dataclass(frozen=True)
class ChildResult:
    """The result of a child process."""

    latents_sha256: str
    pixels_sha256: str
    compile_s: float
    attention: str
    """The pinned backend."""
    kernels: dict[str, int]
    """Attention kernels that ran in the compiled transformer."""


def generate(name: str, device: torch.device, side: int) -> ChildResult:
    """Generate one image of `side` x `side` with the family's compiled model."""
    session = Session(device, Path(), minutes=10)
    of, _ = reduced_card(name, not session.on_gpu)
    with ready(session, of, sampler_of(of, not session.on_gpu, side), compiled=True) as (generator, items):
        begun = time.perf_counter()
        warm_up(generator, items[0], 1)
        compile_s = session.synchronize() - begun
        denoiser = getattr(generator.pipe, generator.denoiser)
        latents, kernels = attention_kernels(denoiser, lambda: generator.denoise(items[:1]))
        (image,) = generator.decode(latents, items[0].request.sampler)
        attention = generator.machine.attention
    return ChildResult(_sha256(_bytes(latents)), _sha256(image.tobytes()), compile_s, attention, kernels)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.float().cpu().contiguous().numpy().tobytes()  # numpy has no bfloat16; float32 holds it exactly


def limit_memory(device: torch.device) -> None:
    """Limit this process to `MEMORY_GB` of GPU memory."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY_GB * 1e9 / total), device)


def main(argv: list[str]) -> int:
    name, device_name, side = argv
    quiet_libraries()
    set_determinism(1)
    device = choose_device(device_name)
    limit_memory(device)
    print(json.dumps(asdict(generate(name, device, int(side)))), flush=True)  # noqa: T201  # the result
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
