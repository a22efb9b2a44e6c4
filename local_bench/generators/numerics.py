"""The one place that decides how numbers come about on this machine, and the signature that says so."""

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
    """`auto` is the first CUDA device, or the CPU. ConfigError where the one wanted is not there, and for `auto` where
    the machine has a GPU that torch cannot use: nobody wants hours on its CPU."""
    if wanted == "auto":
        unusable = unusable_gpu()
        if unusable:
            raise ConfigError(f"engine.device: {unusable}")
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"engine.device: {wanted!r} is no device: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            unusable = unusable_gpu() or f"{wanted!r} is not on this machine: use auto or cpu"
            raise ConfigError(f"engine.device: {unusable}")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ConfigError(f"engine.device: {wanted!r} is not supported: use auto, cpu, cuda or cuda:N")
    return device


def choose_devices(wanted: str, workers: int | None) -> list[torch.device]:
    """One device a worker: every GPU for `auto` and `cuda` where no number is given, else one. ConfigError where fewer
    GPUs are here than asked for."""
    first = choose_device(wanted)
    if first.type == "cpu":
        return [first] * (workers or 1)
    if wanted not in ("auto", "cuda"):
        if (workers or 1) > 1:
            raise ConfigError(f"engine.workers: {wanted} is one GPU: set engine.device to cuda for {workers} workers")
        return [first]
    here = torch.cuda.device_count()
    if (workers or 1) > here:
        raise ConfigError(f"engine.workers: {workers} are asked for and {here} GPUs are here: lower it")
    return [torch.device("cuda", i) for i in range(workers or here)]


def set_determinism(threads: int) -> None:
    """Makes torch repeatable for fixed shapes; call before CUDA is used.

    The lines of diffusers' `enable_full_determinism` except CUDA_LAUNCH_BLOCKING, which would cost speed for nothing.
    An operation without a deterministic kernel is an error, also inside `cudnn_attention_allowed`.
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
    """Lets torch choose its cuDNN attention kernel, which it refuses while deterministic algorithms are enforced.

    torch's check (`check_cudnn_deterministic` in ATen's sdp_utils.cpp) passes with `warn_only` alone. The forward pass
    of that kernel is deterministic, its backward pass, which is never run here, is not. The warning that `warn_only`
    gives for any other operation without a deterministic kernel is an error (`set_determinism`).
    """
    was = torch.is_deterministic_algorithms_warn_only_enabled()
    enforced = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(enforced, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enforced, warn_only=was)


def attention_backend(
    wanted: str, device: torch.device, dtype: str, own: Mapping[str, str] | None = None, masks: bool = False
) -> str:
    """The diffusers attention backend to pin: `auto` is the card's `own` for this GPU class, else cuDNN on Hopper and
    later, FlashAttention-2 on Ampere and Ada, the memory-efficient kernel for a model that `masks`.

    ConfigError for one that cannot be exact (int8 attention is another model; a mask is refused by the flash kernels)
    or not run here (xformers has no build for the CUDA of our torch; torch's own kernels do the same work).
    """
    if wanted.startswith(("sage", "_sage")):
        raise ConfigError(
            f"engine.attention_backend: {wanted!r} rounds to int8 and so is another model: choose an exact one"
        )
    if wanted == "auto":
        if device.type != "cuda" or dtype == "float32":  # the fused kernels take half precision only
            return "native"
        major, minor = torch.cuda.get_device_capability(device)
        usual = "_native_cudnn" if major >= 9 else "_native_flash" if major == 8 else "native"
        return (own or {}).get(f"sm{major}{minor}") or ("_native_efficient" if masks else usual)
    if wanted == "xformers":
        raise ConfigError(
            "engine.attention_backend: xformers has no build for this release of torch and CUDA: use auto, which takes "
            "torch's own kernels"
        )
    if masks and wanted not in ("native", "_native_efficient", "_native_math"):
        raise ConfigError(
            f"engine.attention_backend: {wanted!r} cannot read this model's attention mask rightly: use auto"
        )
    return wanted


def compiles(
    wanted: bool | None, device: torch.device, offload: Sequence[str], lossy: Mapping[str, Any] | None = None
) -> bool:
    """Whether the transformer's blocks are compiled: by default on a GPU.

    Never while weights stream in, which would cut the graphs, and so the rounding, at other places; nor with weights
    stored in float8, whose hooks on every layer cannot be traced into one graph.
    """
    if "denoise" in offload or "weights" in (lossy or {}):
        return False
    return device.type == "cuda" if wanted is None else wanted


def device_name(device: torch.device) -> str:
    """`cpu`, or what the GPU calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@cache
def cpu_arithmetic() -> dict[str, str]:
    """How this CPU computes float32: torch's capability, and a digest of what a few kernels of torch and OpenCV give.

    The capability alone does not decide bytes: MKL and oneDNN choose kernels by vendor and model too, and OpenCV by
    flags of its own. Two CPUs whose digests agree computed these kernels to the same bits.
    """
    import cv2

    generator = torch.Generator().manual_seed(0)
    x_1CHW = torch.randn(1, 8, 24, 40, generator=generator)
    kernels = torch.randn(16, 8, 3, 3, generator=generator)
    weights = torch.randn(96, 640, generator=generator)
    with torch.inference_mode():
        convolved = torch.nn.functional.conv2d(x_1CHW, kernels, padding=1)[0].flatten(1)
        linear = torch.nn.functional.linear(convolved[:, :640], weights)
        found = [
            convolved,
            torch.nn.functional.gelu(linear),
            torch.softmax(linear, 1),
            torch.nn.functional.layer_norm(linear, linear.shape[1:]),
        ]
    image_HW = x_1CHW[0, 0].numpy()
    resized = [cv2.resize(image_HW, (61, 37), interpolation=how) for how in (cv2.INTER_CUBIC, cv2.INTER_AREA)]
    data = b"".join(array.tobytes() for array in (*(tensor.numpy() for tensor in found), *resized))
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "float32": hashlib.sha256(data).hexdigest()[:16],
    }


def signature(device: torch.device, attention: str, dtype: str, compiled: bool = False) -> dict[str, Any]:
    """What besides the work itself and the batch size decides the bytes: part of every image's identity."""
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
