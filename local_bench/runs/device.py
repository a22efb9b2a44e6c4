"""Where our own judge runs, and the one way to its device's memory."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from local_bench.core.errors import ServerError
from local_bench.judges.vlm.flags import vllm_version
from local_bench.judges.vlm.plugin import BUILT_IN, plugin_numerics
from local_bench.runs.progress import Progress

BATCH_INVARIANT_CAPABILITY = (8, 0)
GB = 1_000_000_000
_RETURN_S = 15.0
"""How long the driver may take to give a dead process's memory back."""
_SLACK_GB = 0.5
_CHILD_CONTEXT_GB = 1.5
"""What the judge's own process takes beside its share: a CUDA context (about 1.2) and kernels loaded later."""


@dataclass(frozen=True)
class Place:
    """One device."""

    device: str
    """What the device calls itself."""
    cuda_index: int | None

    @property
    def on_gpu(self) -> bool:
        return self.cuda_index is not None

    @property
    def batch_invariant(self) -> bool:
        """Whether vLLM can be told to give the same answer in any company."""
        if self.cuda_index is None:
            return False
        import torch

        return torch.cuda.get_device_capability(self.cuda_index) >= BATCH_INVARIANT_CAPABILITY

    def numerics(self, transport: str, external: bool, gpus: int) -> dict[str, Any]:
        """The signature of a judge that begins on this device and is split over `gpus`; of an external server only that
        it is one, the rest is not ours to know."""
        if external:
            return {"server": "external"}
        if transport == "local":
            from local_bench.core.packages import versions

            return {name: versions()[name] for name in ("torch", "transformers", "xgrammar")} | {"device": self.device}
        if transport not in BUILT_IN:
            return plugin_numerics(transport) | {"device": self.device}
        split = {"gpus": gpus} if gpus > 1 else {}
        return {"vllm": vllm_version(), "device": self.device, "batch_invariant": self.batch_invariant} | split


def memory_gb(cuda_index: int) -> tuple[float, float]:
    """(free, total) decimal GB of a GPU as the driver counts them for everybody."""
    import torch

    free, total = torch.cuda.mem_get_info(cuda_index)
    return free / GB, total / GB


@contextmanager
def room_for(name: str, vram_gb: float, places: Sequence[Place], progress: Progress) -> Iterator[float]:
    """The stage boundary on a shared GPU: what we hold is given back first, the block gets the part of the memory that
    vLLM may take, and afterwards it is looked whether the memory came back.

    ServerError where there is not room enough for `vram_gb` on each of `places`.
    """
    gpus = [place.cuda_index for place in places if place.cuda_index is not None]
    if not gpus:
        yield 1.0
        return
    import torch

    torch.cuda.empty_cache()
    before = {gpu: memory_gb(gpu) for gpu in gpus}
    for gpu, (free, total) in before.items():
        if free < vram_gb:
            raise ServerError(
                f"{name} needs about {vram_gb:.0f} GB and GPU {gpu} has {free:.1f} of {total:.0f} GB free: end what "
                "else runs there, or choose a smaller judge"
            )
    share = min((free - _CHILD_CONTEXT_GB) / total for free, total in before.values())
    try:
        yield min(share, 0.92)
    finally:
        deadline = time.monotonic() + _RETURN_S
        kept = dict(before)
        while kept and time.monotonic() < deadline:
            kept = {gpu: was for gpu, was in kept.items() if memory_gb(gpu)[0] < was[0] - _SLACK_GB}
            if kept:
                time.sleep(0.25)
        for gpu, (free, _) in kept.items():
            lost = free - memory_gb(gpu)[0]
            with suppress(BrokenPipeError):
                progress.note(
                    f"{lost:.1f} GB of GPU {gpu} did not come back when the judge ended: something else took it"
                )
