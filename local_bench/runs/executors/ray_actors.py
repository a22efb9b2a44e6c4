"""The actors on a Ray cluster's nodes: a worker that generates and measures, and a replica of a judge.

Both access the run directory and the weights through the same paths as the main process, and check both before work.
"""

import itertools
import os
import queue
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.core import __version__
from local_bench.core.environment import isolate
from local_bench.core.errors import LocalBenchError
from local_bench.core.events import TimeCharged
from local_bench.core.packages import versions
from local_bench.core.process import collect_rarely
from local_bench.runs.executors.base import WorkerDevice
from local_bench.runs.progress import Quiet
from local_bench.runs.work import Event, MetricWorkOrder, WorkOrder
from local_bench.runs.worker_pool import Work

HELLO = ".ray-session"
"""A file in the run directory whose content a node must be able to read."""


@dataclass(frozen=True)
class NodeFacts:
    """What an actor reports about its node."""

    device: str
    """The device's name, as reported by its driver."""
    capability: tuple[int, int] | None
    numerics: dict[str, Any]
    """Everything about the node that can change output bytes."""
    now_ns: int
    """Its monotonic clock."""
    sees_run: bool


@dataclass(frozen=True)
class Setting:
    """What an actor needs to know about the run."""

    run_dir: Path
    working_dir: Path
    """The working folder of the run's process, which relative paths of work orders start from."""
    session: str
    """The content of `HELLO`."""
    environ: dict[str, str]
    threads: int
    on_gpu: bool
    workers: int
    """Number of workers on the node."""


class _Actor:
    """Prepares the process as a worker process of this machine is prepared."""

    def __init__(self, setting: Setting) -> None:
        os.environ.update(setting.environ)
        isolate()
        collect_rarely()
        with suppress(OSError):  # a node that does not have it cannot access a run below it either
            os.chdir(setting.working_dir)
        from local_bench.core.process import quiet_libraries
        from local_bench.generators.numerics import set_determinism

        set_determinism(setting.threads)
        quiet_libraries()
        self._setting = setting
        self._device = "cuda:0" if setting.on_gpu else "cpu"

    def facts(self) -> NodeFacts:
        """Facts about the node, at the start of the session."""
        import torch

        from local_bench.generators.numerics import cpu_arithmetic, device_name, signature
        from local_bench.judges.vlm.vllm_process import vllm_version

        device = torch.device(self._device)
        hello = self._setting.run_dir / HELLO
        numerics = signature(device, "native", "float32") | versions() | {"cpu": cpu_arithmetic()}
        return NodeFacts(
            device=device_name(device),
            capability=torch.cuda.get_device_capability(device) if self._setting.on_gpu else None,
            numerics=numerics | {"local-bench": __version__, "vLLM": vllm_version()},
            now_ns=time.monotonic_ns(),
            sees_run=hello.is_file() and hello.read_text("utf-8") == self._setting.session,
        )


class RayWorker(_Actor):
    """Generates images or computes metrics on one device."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function(worker_device, *arguments)`."""
        return function(WorkerDevice(self._device, self._setting.workers), *arguments)

    def work(self, work: Work, order: Any, share: list[Any]) -> Iterator[Event]:
        """Yield the events of a share of work, with the energy read here."""
        from local_bench.runs.meter import EnergyCounter

        energy = EnergyCounter(0 if self._setting.on_gpu else None)
        order = replace(order, device=self._device)
        _check(order)
        for event in work(order, share):
            yield replace(event, energy_mj=energy.since_last()) if isinstance(event, TimeCharged) else event


def _check(order: WorkOrder | MetricWorkOrder) -> None:
    """LocalBenchError if this node has other weights than the order's."""
    from local_bench.models.weights import weights_digest
    from local_bench.runs.measure import identity_of

    host = socket.gethostname()
    if isinstance(order, MetricWorkOrder):
        for name, identity in order.identities.items():
            if identity_of(name, order.device) != identity:
                raise LocalBenchError(
                    f"{name} has other weights or another CPU on the node {host}: fetch the same weights on every "
                    "node (`local-bench models fetch CONFIG --on-nodes ADDRESS`) and use nodes of one type"
                )
        return
    weights = order.weights
    if weights and (not weights.is_dir() or weights_digest(weights, order.parts) != order.weights_sha256):
        raise LocalBenchError(
            f"{order.label}: the weights in {weights} are missing or different on the node {host}: fetch them there "
            "(`local-bench models fetch CONFIG --on-nodes ADDRESS`) or use a shared folder"
        )


class RayJudge(_Actor):
    """A replica of a judge. `feed` and `replies` run in threads of their own."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._stack = ExitStack()
        self._sent: dict[str, Image.Image] = {}
        self._queues: dict[int, queue.SimpleQueue[Sequence[Any]]] = {}

    def open(self, config: Any, spec: Any, gpus: int, questions: list[Any], log: str) -> list[str]:
        """Open the judge on the actor's GPUs; returns its notes."""
        import torch

        from local_bench.generators.numerics import device_name
        from local_bench.runs.device import JudgeDevice
        from local_bench.runs.image_store import ImageStore
        from local_bench.runs.judge_factory import judge_spec, open_judge

        store = ImageStore(self._setting.run_dir)

        def load(sha256: str) -> Image.Image:
            return self._sent[sha256] if sha256 in self._sent else store.load_any(sha256)

        progress, notes = Quiet(), list[str]()
        progress.note = notes.append  # type: ignore[method-assign, assignment]
        devices = [JudgeDevice(device_name(torch.device("cuda", i)), i) for i in range(gpus)]
        devices = devices or [JudgeDevice("cpu", None)]
        if judge_spec(config, devices[0]).judge_id != spec.judge_id:
            raise LocalBenchError(
                f"{config.label}: the judge's weights are different on the node {socket.gethostname()}: fetch them "
                "there (`local-bench models fetch CONFIG --on-nodes ADDRESS`) or use a shared folder"
            )
        file = self._setting.run_dir / "logs" / log
        opened = open_judge(config, spec, devices, questions, load, file, progress)
        self._transport = self._stack.enter_context(opened)
        return notes

    def feed(self, call: int, requests: Sequence[Any], images: dict[str, Image.Image]) -> None:
        """Add requests to a call of `replies`, with the images that are not in the run directory; none after the
        last."""
        self._sent |= images
        self._queue(call).put(requests)

    def _queue(self, call: int) -> "queue.SimpleQueue[Sequence[Any]]":
        return self._queues.setdefault(call, queue.SimpleQueue())  # atomic

    def replies(self, call: int, at_once: int | None) -> Iterator[Any]:
        """Yield (key, reply) until all requests are answered. Raises as `Transport.complete`."""
        chunks = iter(self._queue(call).get, [])
        # `yield from` fails: Ray calls `send`, which an inner iterator may not have
        for answered in self._transport.complete(itertools.chain.from_iterable(chunks), at_once):  # noqa: UP028
            yield answered

    def counters(self) -> dict[str, float]:
        counts: dict[str, float] = self._transport.counters()
        return counts

    def close(self) -> None:
        """End the judge's processes."""
        self._stack.close()
