"""Calls that use a device's memory, and what remains of those for which it was too small."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

import torch

from local_bench.core.collector import collect
from local_bench.core.memory_errors import is_out_of_memory
from local_bench.generators.capacity import failed_allocations

T = TypeVar("T")


class OutOfDeviceMemory(Exception):
    """Memory ran out in a call, whose tensors have been released since."""


class DeviceCalls:
    """Calls on one device.

    OutOfDeviceMemory if memory runs out in a call. That includes failures that it does not see: if the workspace of a
    convolution does not fit, torch tries cuDNN's other algorithms, whose results differ in the last bits, and keeps the
    one that fits for all later convolutions of that shape in the same thread (`benchmark_cache` in ATen's Conv_v8.cpp;
    seen on an H100). After a failure, calls therefore run in a new thread, in the context of the first one: torch's
    settings of compilation are context variables.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread: ThreadPoolExecutor | None = None
        self._context: Context | None = None

    def __call__(self, call: Callable[..., T], *arguments: Any) -> T:
        before, failure = failed_allocations(self._device), ""
        try:
            if self._thread is None or self._context is None:
                result = call(*arguments)
            else:
                result = self._thread.submit(self._context.run, call, *arguments).result()
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            failure = (str(e).splitlines() or [type(e).__name__])[0][:200]
        if not failure:
            if failed_allocations(self._device) == before:
                return result
            del result
            failure = "the workspace of a convolution did not fit"
        # outside of `except`, where the exception still holds the frames of the failed call and their tensors
        on_gpu = self._device.type == "cuda"
        use_device = partial(torch.cuda.set_device, self._device) if on_gpu else None
        self._thread = ThreadPoolExecutor(1, initializer=use_device)
        self._context = self._context or copy_context()
        collect()
        if on_gpu:
            torch.cuda.empty_cache()
        raise OutOfDeviceMemory(failure)
