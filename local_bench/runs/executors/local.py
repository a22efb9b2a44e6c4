"""Executes a run on this machine's devices: one worker process per device, or this process if there is one device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image

from local_bench.core.types import Question
from local_bench.generators.numerics import choose_devices, device_name
from local_bench.judges.vlm.judge import JudgeSpec, Transport
from local_bench.runs.config import EngineConfig
from local_bench.runs.device import JudgeDevice
from local_bench.runs.executors.base import WorkerDevice
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import open_judge
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.store import Store
from local_bench.runs.work import Event
from local_bench.runs.worker_pool import Work, WorkerPool

T = TypeVar("T")


def local_judge_devices(engine: EngineConfig) -> list[JudgeDevice]:
    """This machine's devices that `engine` selects, for judges."""
    return [_judge_device(device) for device in choose_devices(engine.device, engine.workers)]


def _judge_device(device: torch.device) -> JudgeDevice:
    return JudgeDevice(device_name(device), device.index if device.type == "cuda" else None)


class LocalExecutor:
    """The `devices` of this machine, metered in `store` from now on; logs of workers are written to `logs`."""

    def __init__(self, store: Store, devices: Sequence[torch.device], logs: Path) -> None:
        self._devices = devices
        self._pool = WorkerPool(len(devices), logs)
        self.n_workers = self.n_shares = len(devices)
        self.judge_devices: Sequence[JudgeDevice] = [_judge_device(device) for device in devices]
        self._meters = [Meter(store, judged.device, judged.cuda_index) for judged in self.judge_devices]

    def stage(self) -> AbstractContextManager[object]:
        return self._pool

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(WorkerDevice(str(self._devices[0]), self.n_workers), *arguments)

    def do(
        self,
        work: Work,
        order: Any,
        shares: Sequence[list[Any]],
        left: Callable[[list[Any]], list[Any]],  # a lost worker of this machine is an error
    ) -> Iterator[tuple[Meter, Event]]:
        orders = [replace(order, device=str(device)) for device in self._devices[: len(shares)]]
        if len(shares) == 1:
            for event in work(orders[0], shares[0]):
                yield self._meters[0], event
            return
        for worker, event in self._pool.do(work, orders, shares):
            yield self._meters[worker], event

    def open_judge(
        self,
        config: JudgeConfig,
        spec: JudgeSpec,
        questions: Sequence[Question],
        load: Callable[[str], Image.Image],
        log: Path,
        progress: Progress,
    ) -> AbstractContextManager[Transport]:
        return open_judge(config, spec, self.judge_devices, questions, load, log, progress)

    def charge(self, phase: str, n_items: int = 0) -> None:
        for i, meter in enumerate(self._meters):
            meter.charge(phase, 0 if i else n_items)

    def end(self, status: str) -> None:
        for meter in self._meters:
            meter.end(status)
