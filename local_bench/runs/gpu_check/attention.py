"""Detects which attention kernels run, with torch's profiler."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

T = TypeVar("T")
OPERATIONS = {
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash (CPU)",
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
}
"""ATen operations of `scaled_dot_product_attention`."""
PINNED = {
    "_native_cudnn": "cudnn",
    "_native_flash": "flash",
    "_native_efficient": "efficient",
    "_native_math": "math",
}
"""Kernel by diffusers' backend name; with `native` torch chooses."""
_MARK = "local_bench::denoiser"


def attention_kernels(denoiser: torch.nn.Module, call: Callable[[], T]) -> tuple[T, dict[str, int]]:
    """The result of `call`, and the number of runs of each attention kernel inside `denoiser`."""
    with _marked(denoiser), profile(activities=[ProfilerActivity.CPU]) as profiled:
        result = call()
    events = list(profiled.events())
    spans = [event.time_range for event in events if event.name == _MARK]
    counts = Counter(
        OPERATIONS[event.name]
        for event in events
        if event.name in OPERATIONS
        and any(span.start <= event.time_range.start and event.time_range.end <= span.end for span in spans)
    )
    return result, dict(counts)


def kernel_summary(kernels: Mapping[str, int]) -> str:
    return ", ".join(f"{kernel} {n}" for kernel, n in kernels.items()) or "none"


def pinning_fault(backend: str, kernels: Mapping[str, int]) -> str | None:
    """An error message if the kernel of the pinned backend did not run, else None."""
    expected = PINNED.get(backend)
    if kernels and (expected is None or expected in kernels):
        return None
    return f"{backend} is pinned, but the attention kernels that ran are: {kernel_summary(kernels)}"


@contextmanager
def _marked(module: torch.nn.Module) -> Iterator[None]:
    """Label the module's forward passes in the profile."""
    open_marks: list[Any] = []

    def begin(*_: Any) -> None:
        open_marks.append(record_function(_MARK))
        open_marks[-1].__enter__()

    def end(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    hooks = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
