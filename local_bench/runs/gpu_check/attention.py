"""Which attention kernels really run, by torch's profiler."""

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
"""ATen's operations behind `scaled_dot_product_attention`."""
PINNED = {
    "_native_cudnn": "cudnn",
    "_native_flash": "flash",
    "_native_efficient": "efficient",
    "_native_math": "math",
}
"""By diffusers' name of a backend; `native` is torch's own choice."""
_MARK = "local_bench::denoiser"


def attention_kernels(denoiser: torch.nn.Module, call: Callable[[], T]) -> tuple[T, dict[str, int]]:
    """What `call` returns, and how often each attention kernel ran inside `denoiser` meanwhile."""
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


def in_words(kernels: Mapping[str, int]) -> str:
    return ", ".join(f"{kernel} {n}" for kernel, n in kernels.items()) or "none"


def not_as_pinned(backend: str, kernels: Mapping[str, int]) -> str | None:
    """What is wrong, where the kernel of a pinned backend is not among those that ran."""
    wanted = PINNED.get(backend)
    if kernels and (wanted is None or wanted in kernels):
        return None
    return f"{backend} is pinned, and the attention kernels that ran are: {in_words(kernels)}"


@contextmanager
def _marked(module: torch.nn.Module) -> Iterator[None]:
    """Names the module's forward passes in the profile."""
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
