"""Energy from the GPU's counter (NVML)."""

from contextlib import suppress
from typing import Any

import pynvml


class EnergyCounter:
    """The GPU's energy counter in millijoules; None, never 0, if the GPU has no counter."""

    def __init__(self, cuda_index: int | None) -> None:
        self._handle = None if cuda_index is None else nvml_handle(cuda_index)
        self._last = self._read()

    def since_last(self) -> int | None:
        """Millijoules since the previous call, or since the counter was created."""
        now, last = self._read(), self._last
        self._last = now
        return None if now is None or last is None else now - last

    def _read(self) -> int | None:
        if self._handle is None:
            return None
        try:
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except pynvml.NVMLError:
            return None


def nvml_handle(cuda_index: int) -> Any:
    """NVML's handle of the GPU with this torch index (their indices may differ); None if NVML does not list it."""
    import torch

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(cuda_index).uuid)
        return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    return None
