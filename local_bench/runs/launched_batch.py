"""A batch that was launched on a device: its images on the way to the host, and to files."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image

from local_bench.core.images import store_image
from local_bench.generators.base import GenerationRequest
from local_bench.generators.masked import pasted_back
from local_bench.runs.device_clock import DeviceClock, Mark
from local_bench.runs.work import Job


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
