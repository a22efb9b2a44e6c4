"""Detects which attention kernels run, with torch's profiler."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from local_bench.generators.staged import Staged

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


class KernelCounter:
    """Counts the attention kernels that run inside denoisers loaded in this context, from `start` to `stop`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Runs by kernel, once stopped."""
        self._load = Staged.load_denoiser
        self._profile: profile | None = None

    def __enter__(self) -> Self:
        load = self._load

        def load_marked(generator: Staged) -> None:
            load(generator)
            mark(getattr(generator.pipe, generator.denoiser))

        Staged.load_denoiser = load_marked  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Staged.load_denoiser = self._load  # type: ignore[method-assign]
        self.stop()

    def start(self) -> None:
        """Begin, unless this counter has begun before."""
        if self._profile is None:
            self._profile = profile(activities=[ProfilerActivity.CPU], acc_events=True)
            self._profile.start()

    def stop(self) -> None:
        if self._profile is None or self.counts:
            return
        self._profile.stop()
        events: list[Any] = list(self._profile.events())  # type: ignore[no-untyped-call]
        spans = [event.time_range for event in events if event.name == _MARK]
        self.counts = dict(
            Counter(
                OPERATIONS[event.name]
                for event in events
                if event.name in OPERATIONS
                and any(span.start <= event.time_range.start and event.time_range.end <= span.end for span in spans)
            )
        )


def mark(denoiser: torch.nn.Module) -> None:
    """Label the module's forward passes in profiles."""
    open_marks: list[Any] = []

    def begin(*_: Any) -> None:
        open_marks.append(record_function(_MARK))
        open_marks[-1].__enter__()

    def end(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    denoiser.register_forward_pre_hook(begin)
    denoiser.register_forward_hook(end)


def kernel_summary(kernels: Mapping[str, int]) -> str:
    return ", ".join(f"{kernel} {n}" for kernel, n in kernels.items()) or "none"


def pinning_fault(backend: str, kernels: Mapping[str, int]) -> str | None:
    """An error message if the kernel of the pinned backend did not run, else None."""
    expected = PINNED.get(backend)
    if kernels and (expected is None or expected in kernels):
        return None
    return f"{backend} is pinned, but the attention kernels that ran are: {kernel_summary(kernels)}"
