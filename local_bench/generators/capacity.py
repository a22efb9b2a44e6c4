"""Memory of the device and the host, in decimal GB."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.models.gpus import gpu_of

if TYPE_CHECKING:
    import torch

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
    known = gpu_of(torch.cuda.get_device_properties(device).name)
    return total if known is None else min(total, known.memory_gb)


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


def cgroup_limit(root: Path, own: str) -> int | None:
    """The smallest memory limit in bytes of a process's control group and its parents up to `root`; None if unlimited.

    `own` is the text of /proc/self/cgroup: `0::/a/b` for version 2, `4:memory:/a/b` for version 1.
    """
    limits = []
    for line in own.splitlines():
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
