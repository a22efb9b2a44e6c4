"""The one place that decides how numbers come about on this machine, and the signature that says so."""

import importlib.metadata
import os
from typing import Any

import torch

from local_bench.core.errors import ConfigError


def choose_device(wanted: str) -> torch.device:
    """`auto` is the first CUDA device, or the CPU. ConfigError where the one asked for is not there."""
    if wanted == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"engine.device: {wanted!r} is no device: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"engine.device: {wanted!r} is not on this machine: use auto or cpu")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ConfigError(f"engine.device: {wanted!r} is not supported: use auto, cpu, cuda or cuda:N")
    return device


def set_determinism(threads: int) -> None:
    """Makes torch repeatable for fixed shapes; call before CUDA is used.

    The lines of diffusers' `enable_full_determinism` but for CUDA_LAUNCH_BLOCKING, which would cost speed for nothing.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_num_threads(threads)


def attention_backend(wanted: str, device: torch.device, dtype: str) -> str:
    """The diffusers attention backend to pin: `auto` is cuDNN on Hopper and later, FlashAttention-2 on Ampere and Ada.

    ConfigError for one that cannot be exact (int8 attention is another model) or not run here.
    """
    if wanted.startswith(("sage", "_sage")):
        raise ConfigError(
            f"engine.attention_backend: {wanted!r} rounds to int8 and so is another model: choose an exact one"
        )
    if wanted == "auto":
        if device.type != "cuda" or dtype == "float32":  # the fused kernels take half precision only
            return "native"
        major, _ = torch.cuda.get_device_capability(device)
        return "_native_cudnn" if major >= 9 else "_native_flash" if major == 8 else "native"
    if wanted == "xformers" and device.type != "cuda":
        raise ConfigError("engine.attention_backend: xformers runs on CUDA only: use auto")
    return wanted


def device_name(device: torch.device) -> str:
    """`cpu`, or what the GPU calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def signature(device: torch.device, attention: str, dtype: str, batch_size: int) -> dict[str, Any]:
    """What besides the work itself decides the bytes: part of every image's identity."""
    common = {
        "torch": torch.__version__,
        "diffusers": importlib.metadata.version("diffusers"),
        "transformers": importlib.metadata.version("transformers"),
        "device": device_name(device),
        "attention": attention,
        "dtype": dtype,
        "batch_size": batch_size,
        "vae": "sliced",
        "deterministic": True,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return common | {
            "sm_count": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return common | {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
