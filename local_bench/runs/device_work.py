"""Calls that use a device's memory, and what remains of those for which it was too small."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image

from local_bench.core.images import store_image
from local_bench.core.item_errors import is_out_of_memory
from local_bench.core.process import collect
from local_bench.generators.base import GenerationRequest, pasted_back
from local_bench.generators.capacity import failed_allocations
from local_bench.runs.work import Job

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


@dataclass(frozen=True)
class Mark:
    """A position in a device's command stream."""

    event: Any
    """torch.cuda.Event on a GPU, else None."""
    recorded_ns: int
    """When it was recorded, by the monotonic clock; on a CPU this is when the preceding work ended."""


class DeviceClock:
    """Records marks in the current stream and returns when they were reached (in ns of `time.monotonic_ns`).

    On a GPU it uses CUDA events relative to a moment at which the device was idle. Use one clock for minutes of work at
    most: `elapsed_time` is a 32-bit number of milliseconds.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._zero = self._set()
        if self._zero is not None:
            self._zero.synchronize()
        self._zero_ns = time.monotonic_ns()

    def mark(self) -> Mark:
        return Mark(self._set(), time.monotonic_ns())

    def reached_ns(self, mark: Mark) -> int:
        """Wait until the work before `mark` is done; return when that was."""
        if mark.event is None:
            return mark.recorded_ns
        mark.event.synchronize()
        return self._zero_ns + int(self._zero.elapsed_time(mark.event) * 1e6)

    def _set(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


@dataclass
class LaunchedBatch:
    """A launched batch."""

    jobs: Sequence[Job]
    requests: Sequence[GenerationRequest]
    """One per slot of the batch: those of `jobs`, repeated to fill the batch."""
    pixels: torch.Tensor
    """uint8 (slots, height, width, 3) on the host; valid once `decoded` is reached."""
    finite: torch.Tensor
    """bool (slots,), valid once `decoded` is reached."""
    denoised: Mark
    decoded: Mark
    clock: DeviceClock
    files: list[Future[str | None]] = field(default_factory=list)

    def store(self, images: Path, i: int) -> str | None:
        """Write an image in a pool thread; return its pixel digest, or None if the output was not finite."""
        self.clock.reached_ns(self.decoded)
        if not self.finite[i]:
            return None
        image, request = Image.fromarray(self.pixels[i].numpy()), self.requests[i]
        return store_image(images, pasted_back(image, request) if request.sampler.paste_back else image)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy to the host, from a GPU asynchronously into pinned memory."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
