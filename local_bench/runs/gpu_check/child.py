"""Generates images with compiled code in a separate process: `python -m local_bench.runs.gpu_check.child FAMILY DEVICE
SIDE FOLDER` prints a line of JSON with their digests and the compile time in seconds."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from local_bench.core.quiet import quiet_libraries
from local_bench.generators.numerics import choose_device, set_determinism
from local_bench.runs.gpu_check.attention import KernelCounter
from local_bench.runs.gpu_check.checks import MEMORY_GB, Session
from local_bench.runs.gpu_check.models import narrower, reduced_card, sampler_of
from local_bench.runs.gpu_check.working import jobs_of, make, order_of


@dataclass(frozen=True)
class ChildResult:
    """The result of a child process."""

    pixels_sha256: list[str | None]
    compile_s: float
    attention: str
    """The pinned backend."""
    kernels: dict[str, int]
    """Attention kernels that ran in the compiled transformer."""


def generate(name: str, device: torch.device, side: int, folder: Path) -> ChildResult:
    """Generate an image of `side` x `side` and a narrower one with the family's compiled model."""
    session = Session(device, folder, minutes=10)
    of, _ = reduced_card(name, not session.on_gpu)
    sampler = sampler_of(of, not session.on_gpu, side)
    order = order_of(session, of, compiled=True)
    with KernelCounter() as counter:
        made = make(order, jobs_of(order, [sampler, narrower(sampler)]), counter)
    return ChildResult([*made.pixels.values()], made.seconds["warm-up"], order.attention, made.kernels)


def limit_memory(device: torch.device) -> None:
    """Limit this process to `MEMORY_GB` of GPU memory."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY_GB * 1e9 / total), device)


def main(argv: list[str]) -> int:
    name, device_name, side, folder = argv
    quiet_libraries()
    set_determinism(1)
    device = choose_device(device_name)
    limit_memory(device)
    print(json.dumps(asdict(generate(name, device, int(side), Path(folder)))), flush=True)  # noqa: T201  # the result
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
