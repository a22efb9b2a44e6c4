"""Checks of the machine: driver, compiler, disk, memory, MIG."""

from pathlib import Path

import pynvml
import torch

from local_bench.core.environment import free_disk, toolchain
from local_bench.generators.capacity import device_memory_gb, driver, host_memory_gb, unusable_gpu
from local_bench.runs.gpu_check.checks import CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.meter import nvml_handle

_MEMINFO = Path("/proc/meminfo")
_LEAST_FREE = 0.5
"""Minimum free fraction of device memory; less means that another process uses the GPU."""


def check_driver(session: Session) -> CheckPassed:
    """The NVIDIA driver, and whether torch can use its GPUs."""
    unusable = unusable_gpu()
    if unusable:
        raise CheckFailed(unusable)
    here = driver()
    if here is None:
        if session.on_gpu:
            raise CheckFailed("torch finds a GPU but NVML does not: energy and MIG mode cannot be read")
        raise CheckSkipped("there is no NVIDIA GPU")
    figures = {"driver": here.version, "gpus": list(here.gpus), "cuda": torch.version.cuda}
    return CheckPassed(f"driver {here.version}, {', '.join(here.gpus)}, torch for CUDA {torch.version.cuda}", figures)


def check_compiler(session: Session) -> CheckPassed:
    """A C compiler and Python's headers, for Triton and inductor."""
    return _result_of(toolchain())


def check_disk(session: Session) -> CheckPassed:
    """Free disk in the working folder."""
    return _result_of(free_disk(Path.cwd()))


def check_host_memory(session: Session) -> CheckPassed:
    """Host memory: the machine's, or the control group's limit."""
    limit = host_memory_gb()
    figures = {"usable_gb": round(limit, 2)}
    available = next(
        (int(line.split()[1]) for line in _lines(_MEMINFO) if line.startswith("MemAvailable:")), None
    )  # kB, which is 1024 bytes there
    if available is not None:
        figures["available_gb"] = round(available * 1024 / 1e9, 2)
    device = 0.0 if not session.on_gpu else torch.cuda.mem_get_info(session.device)[1] / 1e9
    text = f"{limit:.0f} GB may be used" + (f", {figures['available_gb']:.0f} GB free" if available else "")
    if session.on_gpu and limit < min(device / 2, 64):
        raise CheckFailed(f"{text}: too little to load large models, whose weights pass through host memory", figures)
    return CheckPassed(text, figures)


def check_device_memory(session: Session) -> CheckPassed:
    """Free and total device memory."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU")
    free, total = (n / 1e9 for n in torch.cuda.mem_get_info(session.device))
    usable = device_memory_gb(session.device)
    assert usable is not None
    figures = {"free_gb": round(free, 2), "total_gb": round(total, 2), "planned_with_gb": round(usable, 2)}
    text = f"{free:.1f} of {total:.1f} GB free, {usable:.1f} GB usable for planning"
    if free < _LEAST_FREE * total:
        raise CheckFailed(f"{text}: another process uses this GPU", figures)
    return CheckPassed(text, figures)


def check_mig(session: Session) -> CheckPassed:
    """Whether the GPU is partitioned (MIG); then its name does not determine its speed and memory."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU")
    handle = nvml_handle(session.device.index)
    if handle is None:
        raise CheckSkipped("NVML does not find this device by its UUID")
    try:
        now, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:
        return CheckPassed("this GPU does not support MIG", {"mig": False})
    if now == pynvml.NVML_DEVICE_MIG_ENABLE:
        properties = torch.cuda.get_device_properties(session.device)
        figures = {"mig": True, "sm_count": properties.multi_processor_count}
        return CheckPassed(f"on: an instance with {properties.multi_processor_count} multiprocessors", figures)
    return CheckPassed("off", {"mig": False})


def _result_of(checked: tuple[bool, str]) -> CheckPassed:
    passed, text = checked
    if not passed:
        raise CheckFailed(text)
    return CheckPassed(text)


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines() if file.is_file() else []
