"""The device of a managed judge, and the reservation of its memory."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_bench.core.errors import ServerError
from local_bench.judges.vlm.judge import plugin_numerics
from local_bench.judges.vlm.vllm_process import Attention, Wanted, model_runner, on_cpu, on_gpu, vllm_version
from local_bench.runs.progress import Progress

GB = 1_000_000_000
_RETURN_S = 15.0
"""Time allowed for the driver to release the memory of a process that ended."""
_SLACK_GB = 0.5
_CHILD_CONTEXT_GB = 1.5
"""Memory of the judge's process outside vLLM's share: the CUDA context (about 1.2 GB) and kernels loaded later."""


@dataclass(frozen=True)
class JudgeDevice:
    """A device on which a judge runs."""

    device: str
    """The device's name, as reported by its driver."""
    cuda_index: int | None
    capability: tuple[int, int] | None = None
    """The GPU's compute capability, if known; otherwise torch reports it."""

    @property
    def on_gpu(self) -> bool:
        return self.cuda_index is not None

    def attention(self, weights: Path, dtype: str, wanted: Wanted = "auto", backend: str | None = None) -> Attention:
        """How vLLM computes the layers of the judge in `weights` on this device. ConfigError if what `wanted` and
        `backend` require is impossible; ServerError if vLLM cannot serve the judge."""
        if self.cuda_index is None:
            return on_cpu(weights, wanted, backend)
        import torch

        capability = self.capability or torch.cuda.get_device_capability(self.cuda_index)
        return on_gpu(weights, dtype, capability, wanted, backend)

    def numerics(self, transport: str, attention: Attention | None, gpus: int) -> dict[str, Any]:
        """The numerics signature of a judge on this device, split over `gpus` GPUs; `attention` is that of a judge that
        vLLM runs. For an external server, `transport` is `external`: its software and hardware are unknown."""
        if transport == "external":
            return {"server": "external"}
        if transport == "local":
            from local_bench.core.packages import versions

            return {name: versions()[name] for name in ("torch", "transformers", "xgrammar")} | {"device": self.device}
        if attention is None:
            return plugin_numerics(transport) | {"device": self.device}
        signature: dict[str, Any] = {"vllm": vllm_version(), "device": self.device}
        signature["batch_invariant"] = attention.batch_invariant
        if self.on_gpu:
            signature |= {"attention_backend": attention.backend or "auto", "model_runner": model_runner()}
        return signature | ({"gpus": gpus} if gpus > 1 else {})


def memory_gb(cuda_index: int) -> tuple[float, float]:
    """(free, total) memory of a GPU in decimal GB, over all processes."""
    import torch

    free, total = torch.cuda.mem_get_info(cuda_index)
    return free / GB, total / GB


@contextmanager
def reserve_memory(
    name: str, vram_gb: float, judge_devices: Sequence[JudgeDevice], progress: Progress
) -> Iterator[float]:
    """Release this process's cached GPU memory, yield the fraction of memory that vLLM may use, and check at the end
    that the judge's memory was released.

    ServerError if `vram_gb` is not free on each of `judge_devices`.
    """
    gpus = [judge_device.cuda_index for judge_device in judge_devices if judge_device.cuda_index is not None]
    if not gpus:
        yield 1.0
        return
    import torch

    torch.cuda.empty_cache()
    before = {gpu: memory_gb(gpu) for gpu in gpus}
    for gpu, (free, total) in before.items():
        if free < vram_gb:
            raise ServerError(
                f"{name} needs about {vram_gb:.0f} GB, but GPU {gpu} has {free:.1f} of {total:.0f} GB free: end other "
                "processes on it, or choose a smaller judge"
            )
    share = min((free - _CHILD_CONTEXT_GB) / total for free, total in before.values())
    try:
        yield min(share, 0.92)
    finally:
        deadline = time.monotonic() + _RETURN_S
        unreleased = dict(before)
        while unreleased and time.monotonic() < deadline:
            unreleased = {gpu: was for gpu, was in unreleased.items() if memory_gb(gpu)[0] < was[0] - _SLACK_GB}
            if unreleased:
                time.sleep(0.25)
        for gpu, (free, _) in unreleased.items():
            lost = free - memory_gb(gpu)[0]
            with suppress(BrokenPipeError):
                progress.note(
                    f"{lost:.1f} GB of GPU {gpu} were not released when the judge ended: another process uses them"
                )
