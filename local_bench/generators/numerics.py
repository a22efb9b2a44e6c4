"""Selects device, determinism, attention kernel and compilation, and describes them in the numerics signature."""

import hashlib
import importlib.metadata
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from local_bench.core.errors import ConfigError
from local_bench.generators.driver import unusable_gpu


def choose_device(wanted: str) -> torch.device:
    """Select the device; `auto` is the first CUDA device, or the CPU.

    Raises ConfigError if the requested device does not exist, and for `auto` if the machine has a GPU that torch cannot
    use (instead of silently running on the CPU).
    """
    if wanted == "auto":
        unusable = unusable_gpu()
        if unusable:
            raise ConfigError(f"engine.device: {unusable}")
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"engine.device: {wanted!r} is not a device: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            unusable = unusable_gpu() or f"{wanted!r} does not exist on this machine: use auto or cpu"
            raise ConfigError(f"engine.device: {unusable}")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ConfigError(f"engine.device: {wanted!r} is not supported: use auto, cpu, cuda or cuda:N")
    return device


def choose_devices(wanted: str, workers: int | None) -> list[torch.device]:
    """One device per worker: every GPU for `auto` and `cuda` if `workers` is None, else that many.

    Raises ConfigError if there are fewer GPUs than workers.
    """
    first = choose_device(wanted)
    if first.type == "cpu":
        return [first] * (workers or 1)
    if wanted not in ("auto", "cuda"):
        if (workers or 1) > 1:
            raise ConfigError(f"engine.workers: {wanted} is one GPU: set engine.device to cuda for {workers} workers")
        return [first]
    here = torch.cuda.device_count()
    if (workers or 1) > here:
        raise ConfigError(
            f"engine.workers: {workers} workers need {workers} GPUs, and this machine has {here}: lower it"
        )
    return [torch.device("cuda", i) for i in range(workers or here)]


def set_determinism(threads: int) -> None:
    """Make torch deterministic for fixed shapes. Call before CUDA is used.

    The settings of diffusers' `enable_full_determinism` except CUDA_LAUNCH_BLOCKING, which is slower and not needed. An
    operation without a deterministic kernel is an error, also inside `cudnn_attention_allowed`.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # filling every `empty` with NaN costs bandwidth
    warnings.filterwarnings("error", message=".*does not have a deterministic implementation")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_num_threads(threads)


@contextmanager
def cudnn_attention_allowed() -> Iterator[None]:
    """Allow torch's cuDNN attention kernel, which is disabled while deterministic algorithms are enforced.

    torch's check (`check_cudnn_deterministic` in ATen's sdp_utils.cpp) passes only with `warn_only`. The kernel's
    forward pass is deterministic; its backward pass, which is never run here, is not. The warning that `warn_only`
    gives for any other operation without a deterministic kernel is an error (`set_determinism`).
    """
    before = torch.is_deterministic_algorithms_warn_only_enabled()
    enforced = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(enforced, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enforced, warn_only=before)


def attention_backend(
    wanted: str, device: torch.device, dtype: str, own: Mapping[str, str] | None = None, masks: bool = False
) -> str:
    """Select the diffusers attention backend.

    `auto` is the card's `own` for this compute capability, else the memory-efficient kernel for a model that `masks`,
    cuDNN on Hopper and later, FlashAttention-2 on Ampere and Ada. Raises ConfigError for inexact backends (int8
    attention changes the model), for backends that do not support masks if the model `masks`, and for xformers, which
    has no build for this CUDA version (torch's kernels are equivalent).
    """
    if wanted.startswith(("sage", "_sage")):
        raise ConfigError(
            f"engine.attention_backend: {wanted!r} quantizes to int8, which changes the model: choose an exact one"
        )
    if wanted == "auto":
        if device.type != "cuda" or dtype == "float32":  # the fused kernels take half precision only
            return "native"
        major, minor = torch.cuda.get_device_capability(device)
        usual = "_native_cudnn" if major >= 9 else "_native_flash" if major == 8 else "native"
        return (own or {}).get(f"sm{major}{minor}") or ("_native_efficient" if masks else usual)
    if wanted == "xformers":
        raise ConfigError(
            "engine.attention_backend: xformers has no build for this release of torch and CUDA: use auto, which uses "
            "torch's own kernels"
        )
    if masks and wanted not in ("native", "_native_efficient", "_native_math"):
        raise ConfigError(
            f"engine.attention_backend: {wanted!r} does not support this model's attention mask: use auto"
        )
    return wanted


def compiles(
    wanted: bool | None, device: torch.device, offload: Sequence[str], lossy: Mapping[str, Any] | None = None
) -> bool:
    """Whether the transformer's blocks are compiled: by default on a GPU.

    Never with offloading, which would split the graphs, and so change the rounding; nor with weights stored in float8,
    whose hooks on every layer cannot be traced into one graph.
    """
    if "denoise" in offload or "weights" in (lossy or {}):
        return False
    return device.type == "cuda" if wanted is None else wanted


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@cache
def cpu_arithmetic() -> dict[str, str]:
    """Fingerprint of this CPU's float32 arithmetic: torch's capability, and a digest of some torch and OpenCV results.

    The capability alone does not determine the bytes: MKL and oneDNN also select kernels by vendor and model, and
    OpenCV by its own flags. CPUs with equal digests computed the same bits with these kernels.
    """
    import cv2

    generator = torch.Generator().manual_seed(0)
    x_1CHW = torch.randn(1, 8, 24, 40, generator=generator)
    kernels = torch.randn(16, 8, 3, 3, generator=generator)
    weights = torch.randn(96, 640, generator=generator)
    with torch.inference_mode():
        convolved = torch.nn.functional.conv2d(x_1CHW, kernels, padding=1)[0].flatten(1)
        linear = torch.nn.functional.linear(convolved[:, :640], weights)
        outputs = [
            convolved,
            torch.nn.functional.gelu(linear),
            torch.softmax(linear, 1),
            torch.nn.functional.layer_norm(linear, linear.shape[1:]),
        ]
    image_HW = x_1CHW[0, 0].numpy()
    resized = [cv2.resize(image_HW, (61, 37), interpolation=how) for how in (cv2.INTER_CUBIC, cv2.INTER_AREA)]
    data = b"".join(array.tobytes() for array in (*(tensor.numpy() for tensor in outputs), *resized))
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "float32": hashlib.sha256(data).hexdigest()[:16],
    }


def signature(device: torch.device, attention: str, dtype: str, compiled: bool = False) -> dict[str, Any]:
    """Everything except the work item and the batch size that determines the bytes: part of every image's identity."""
    common = {
        "torch": torch.__version__,
        "diffusers": importlib.metadata.version("diffusers"),
        "transformers": importlib.metadata.version("transformers"),
        "device": device_name(device),
        "attention": attention,
        "dtype": dtype,
        "compiled": compiled,
        "vae": "sliced",
        "deterministic": True,
    }
    if compiled:
        common["inductor"] = "deterministic"
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
