"""How much memory there is here, in decimal GB."""

import os

import torch

from local_bench.core.gpus import gpu_of


def device_memory_gb(device: torch.device) -> float | None:
    """Of a GPU, what of it can be used where we know that; None for the CPU."""
    if device.type == "cpu":
        return None
    properties = torch.cuda.get_device_properties(device)
    known = gpu_of(properties.name)
    there: float = properties.total_memory / 1e9
    return there if known is None else min(there, known.memory_gb)


def host_memory_gb() -> float:
    """Of this machine, all of it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
