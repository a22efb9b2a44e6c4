"""Selects device, determinism, attention kernel and compilation, and describes them in the numerics signature."""

import hashlib
import importlib
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

from local_bench.core.environment import versions
from local_bench.core.errors import ConfigError
from local_bench.generators.capacity import unusable_gpu

_EQUAL_MEMORY = 0.01
"""GPUs of one model differ by less than this fraction of their memory, and by more if ECC is on in one of them."""


def choose_device(wanted: str) -> torch.device:
    """Select the device; `auto` and `cuda` are the first CUDA device with the most memory, or for `auto` the CPU.

    Raises ConfigError if the requested device does not exist, and for `auto` if the machine has a GPU that torch cannot
    use (instead of silently running on the CPU).
    """
    if wanted == "auto":
        unusable = unusable_gpu()
        if unusable:
            raise ConfigError(f"engine.device: {unusable}")
        return _largest_gpu() if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"engine.device: {wanted!r} is not a device: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            unusable = unusable_gpu() or f"{wanted!r} does not exist on this machine: use auto or cpu"
            raise ConfigError(f"engine.device: {unusable}")
        return _largest_gpu() if device.index is None else device
    if device.type != "cpu":
        raise ConfigError(f"engine.device: {wanted!r} is not supported: use auto, cpu, cuda or cuda:N")
    return device


def choose_devices(
    wanted: str, workers: int | None, note: Callable[[str], None] = lambda sentence: None
) -> list[torch.device]:
    """One device per worker. For `auto` and `cuda` these are `workers` of the GPUs like the first one, or all of them
    if it is None; `note` then receives a sentence that names the others.

    A run has one plan of memory, batch sizes and compilation, and one numerics signature, for all its workers. Raises
    ConfigError if there are fewer such GPUs than workers.
    """
    first = choose_device(wanted)
    if first.type == "cpu":
        return [first] * (workers or 1)
    if wanted not in ("auto", "cuda"):
        if (workers or 1) > 1:
            raise ConfigError(f"engine.workers: {wanted} is one GPU: set engine.device to cuda for {workers} workers")
        return [first]
    alike = like_gpus(first)
    others = [gpu for gpu in _gpus() if gpu not in alike]
    if (workers or 1) > len(alike):
        here = f"this machine has {_named(alike)}" + (f" and, unlike them, {_named(others)}" if others else "")
        raise ConfigError(f"engine.workers: {workers} workers need {workers} GPUs of one model, and {here}: lower it")
    if others and workers is None:
        note(f"engine.device: {_named(others)} left out, because all workers use GPUs like {_named(alike)}")
    return alike[:workers]


def like_gpus(gpu: torch.device) -> list[torch.device]:
    """The GPUs of this machine with the name and memory of `gpu`, itself included; for the CPU, itself."""
    if gpu.type == "cpu":
        return [gpu]
    name, memory = device_name(gpu), _memory(gpu)
    return [
        other
        for other in _gpus()
        if device_name(other) == name and abs(_memory(other) - memory) <= _EQUAL_MEMORY * memory
    ]


def _largest_gpu() -> torch.device:
    """The first GPU of the model with the most memory, which is not the small one of a display."""
    return like_gpus(max(_gpus(), key=_memory))[0]


def _gpus() -> list[torch.device]:
    return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]


def _memory(gpu: torch.device) -> int:
    """Bytes; 0 if the GPU cannot be read, which is then not preferred."""
    try:
        return torch.cuda.get_device_properties(gpu).total_memory
    except RuntimeError:
        return 0


def _named(gpus: Sequence[torch.device]) -> str:
    return ", ".join(f"{gpu} ({device_name(gpu)})" for gpu in gpus)


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
    if folder := os.environ.get("XDG_CACHE_HOME"):  # torch does not create it, and then keeps no kernels in it
        with suppress(OSError):
            os.makedirs(folder, exist_ok=True)


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
    wanted: str,
    device: torch.device,
    dtype: str,
    by_gpu: Mapping[str, str] | None = None,
    masks: bool = False,
    of_family: str | None = None,
) -> str:
    """Select the diffusers attention backend.

    `auto` is the card's `by_gpu` for this compute capability, else `of_family`, else the memory-efficient kernel for a
    model that `masks`, cuDNN on Hopper and later, FlashAttention-2 on Ampere and Ada. Raises ConfigError for
    inexact backends (int8 attention changes the model), for backends that do not support masks if the model
    `masks`, and for a backend that cannot compute a small attention on the device, such as xformers where it is not
    installed.
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
        return (by_gpu or {}).get(f"sm{major}{minor}") or of_family or ("_native_efficient" if masks else usual)
    if masks and wanted not in ("native", "_native_efficient", "_native_math", "xformers"):
        raise ConfigError(
            f"engine.attention_backend: {wanted!r} does not support this model's attention mask: use auto"
        )
    _check_runs(wanted, device, dtype)
    return wanted


def _check_runs(backend: str, device: torch.device, dtype: str) -> None:
    """ConfigError unless the attention backend is installed and computes on the device."""
    from diffusers.models import attention_dispatch

    x_BLHD = torch.ones(1, 64, 2, 64, device=device, dtype=getattr(torch, dtype))
    try:
        if backend == "xformers":
            importlib.import_module("xformers.ops")  # diffusers says of any error here that the package is missing
        with cudnn_attention_allowed(), attention_dispatch.attention_backend(backend), torch.inference_mode():
            attention_dispatch.dispatch_attention_fn(x_BLHD, x_BLHD, x_BLHD)
    except (ImportError, OSError, RuntimeError, ValueError) as e:
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0].rstrip(".:")
        raise ConfigError(
            f"engine.attention_backend: {backend!r} does not run on {device_name(device)} in {dtype} ({reason}): use "
            "auto, or install what is missing"
        ) from e


def compiles(
    wanted: bool | None,
    device: torch.device,
    offload: Sequence[str],
    lossy: Mapping[str, Any] | None = None,
    possible: bool = True,
) -> bool:
    """Whether the transformer's blocks are compiled: by default on a GPU, if it is `possible` for the family.

    Never with an offloaded transformer, whose copies would split the graphs; nor with weights stored in float8,
    whose hooks on every layer cannot be traced into one graph.
    """
    if not possible or "denoise" in offload or "weights" in (lossy or {}):
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
    return {"capability": torch.backends.cpu.get_cpu_capability(), "float32": hashlib.sha256(data).hexdigest()[:16]}


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
    if attention == "xformers":
        common["xformers"] = versions().get("xformers")
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return common | {
            "sm_count": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return common | {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
