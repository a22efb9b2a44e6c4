"""The connection to a Ray cluster, with settings that Ray's defaults leave open: token authentication, no dashboard, no
usage statistics, and a private folder for Ray's own files.

Ray's ports accept any code from whoever has the token, and its traffic is not encrypted: a cluster needs a private
network. Source: Ray 2.60, `ray._private.authentication`, `ray._private.worker.init`.

Its nodes run actors: a worker that generates and measures, and a replica of a judge. Both access the run directory and
the weights through the same paths as the main process, and check both before work.
"""

import itertools
import os
import queue
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.core import __version__
from local_bench.core.environment import collect_rarely, go_online, isolate, require, versions
from local_bench.core.errors import ConfigError, LocalBenchError
from local_bench.core.types import TimeCharged
from local_bench.judges.vlm.judge import Unreachable
from local_bench.models.cards import ModelCard
from local_bench.runs.config import EngineConfig, RayConfig
from local_bench.runs.executors.base import WorkerDevice
from local_bench.runs.executors.processes import Work
from local_bench.runs.progress import Quiet
from local_bench.runs.work import Event

SETTINGS = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
_ATTEMPTS = {"RAY_NUM_REDIS_GET_RETRIES": "5"}
"""Attempts to connect, one per second; Ray's default of 20 delays the message about a wrong token."""
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105  # a variable's name
_CONNECT_S = 10.0
_MOST_PATH = 40
"""Ray opens Unix sockets below its folder, whose paths must not exceed 107 bytes; it adds about 60."""


def require_ray() -> Any:
    """The module `ray`. MissingExtra if it is not installed."""
    require("ray")
    os.environ.update(SETTINGS | _ATTEMPTS)
    import ray
    from ray._private import worker
    from ray._raylet import Config  # type: ignore[attr-defined]

    Config.initialize("")  # another library may have imported ray before, which reads the variables at import
    # it prints lost workers to stdout, even with log_to_driver=False
    worker.print_to_stdstream = lambda *_, **__: None
    return ray


class Lost(Unreachable):
    """The process of an actor or a task has ended, or its node has left."""


@dataclass(frozen=True)
class Slot:
    """A slot for one worker or judge on a node."""

    node_id: str
    host: str
    gpus: int
    """Number of GPUs; 0 for a worker on the CPU."""
    workers: int
    """Number of slots for workers on the node."""


class Cluster:
    """A connection to the cluster of `engine.ray`; `close` ends it. ConfigError if it cannot be made."""

    def __init__(self, engine: EngineConfig) -> None:
        self.ray = require_ray()
        self._engine = engine
        if engine.device.startswith("cuda:"):
            raise ConfigError(
                f"engine.device: {engine.device} is one GPU of one machine: use auto, cuda or cpu with "
                "engine.executor=ray"
            )
        self._own = None
        if not engine.ray.address:  # a folder for this user only, with a short path
            parent = tempfile.gettempdir()
            parent = parent if len(parent) <= _MOST_PATH else "/tmp"  # noqa: S108
            self._own = Path(tempfile.mkdtemp(prefix=f"lb-ray-{os.getpid()}-", dir=parent))
        try:
            with _signal_handlers_kept():
                self._connect()
            self._head: str = self.ray.get_runtime_context().gcs_address
        except BaseException:
            self.close()
            raise
        self.on_gpu = engine.device == "cuda"
        if engine.device == "auto":
            self.on_gpu = any(node["Resources"].get("GPU", 0) >= 1 for node in self.nodes())

    def _connect(self) -> None:
        quiet = {"log_to_driver": False, "logging_level": "critical", "configure_logging": True}
        try:
            if self._own is None:
                host, colon, port = (self._engine.ray.address or "").rpartition(":")
                if colon and port.isdecimal():  # an OSError if nothing listens there; Ray would try for minutes
                    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
                self.ray.init(address=self._engine.ray.address, **quiet)
            else:
                token = self._own / "token"
                with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(secrets.token_hex(32))
                os.environ[TOKEN_PATH] = str(token)
                self.ray.init(
                    address="local",
                    include_dashboard=False,
                    _temp_dir=str(self._own),
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
        except self.ray.exceptions.AuthenticationError as e:
            raise ConfigError(
                "engine.ray.address: the cluster refuses this machine's token, or there is none: put the token of its "
                f"head node into the file that {TOKEN_PATH} names ({_first_line(e)})"
            ) from None
        except (ConnectionError, RuntimeError, ValueError, OSError, OverflowError) as e:
            where = self._engine.ray.address or "this machine"
            raise ConfigError(
                f"engine.ray.address: no Ray cluster can be used at {where} ({_first_line(e)}): start it with `ray "
                f"start --head` and {', '.join(f'{name}={value}' for name, value in SETTINGS.items())}"
            ) from None

    def reaches_head(self) -> bool:
        """Whether the head node answers. Ray ends this process when it has not for 60 s."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        except OSError:
            return False
        return True

    def nodes(self) -> list[dict[str, Any]]:
        """The usable nodes that are alive."""
        gpu_type = self._engine.ray.gpu_type
        return [
            node
            for node in self.ray.nodes()
            if node["Alive"] and (gpu_type is None or f"accelerator_type:{gpu_type}" in node["Resources"])
        ]

    def free(self, taken: Sequence[Slot], refused: set[str], gpus: int = 1) -> list[Slot]:
        """Slots for workers with `gpus` GPUs each that are not `taken`, on nodes that are not `refused`: the first of
        every node, then the second, in a fixed order.

        On CPUs a node has one slot, or `engine.workers` of them.
        """
        n_taken = Counter(slot.node_id for slot in taken)
        free = []
        for node in self.nodes():
            node_id, resources = node["NodeID"], node["Resources"]
            if self.on_gpu:
                n = int(resources.get("GPU", 0)) // gpus
            else:
                n = min(int(resources.get("CPU", 0)), self._engine.workers or 1)
            slot = Slot(node_id, node["NodeName"], gpus if self.on_gpu else 0, n)
            free += [(i, node_id, slot) for i in range(n_taken[node_id], n) if node_id not in refused]
        return [slot for *_, slot in sorted(free, key=lambda entry: entry[:2])]

    def most_gpus(self) -> int:
        """GPUs of the largest node; 0 on CPUs."""
        if not self.on_gpu:
            return 0
        return max((int(node["Resources"].get("GPU", 0)) for node in self.nodes()), default=0)

    @staticmethod
    def pinned(node_id: str, cpus: int = 0) -> dict[str, Any]:
        """Options of a task or actor that runs on one node only."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"num_cpus": cpus, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)}

    def get(self, reference: Any) -> Any:
        """The value of `reference`. Raises Lost, or the exception of the code on the node: a LocalBenchError or an
        Unreachable, else Ray's own RayTaskError, whose text is the traceback there."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as e:
            if isinstance(e.cause, LocalBenchError | Unreachable):
                raise e.cause from None
            raise
        except self.ray.exceptions.RayError as e:
            raise Lost(_loss(self.ray.exceptions, e)) from None

    def end(self, actor: Any) -> None:
        """End an actor's process now."""
        with suppress(Exception):  # it has ended, or the cluster has
            self.ray.kill(actor, no_restart=True)

    def close(self) -> None:
        with suppress(Exception):  # the cluster has ended
            self.ray.shutdown()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            os.environ.pop(TOKEN_PATH, None)


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM by one that exits; this restores the handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                with suppress(ValueError):  # not in the main thread
                    signal.signal(number, handler)


def _loss(errors: Any, error: Exception) -> str:
    """A short reason why an actor or a task was lost; `errors` is `ray.exceptions`."""
    reasons = {
        errors.ActorUnavailableError: "it cannot be reached",
        errors.ActorDiedError: "its process ended",
        errors.NodeDiedError: "its node left the cluster",
        errors.WorkerCrashedError: "its process ended",
    }
    return next((why for kind, why in reasons.items() if isinstance(error, kind)), _first_line(error))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


_OTHER_FILES = "its files differ from those of this machine: fetch the same commit on both"


@dataclass(frozen=True)
class NodeModel:
    """A model on a node."""

    node: str
    model: str
    weights_sha256: str | None
    error: str | None
    """Why the model cannot be used there."""


def fetch_on_nodes(
    address: str, cards: Sequence[ModelCard], revisions: Mapping[str, str], expected: Mapping[str, str | None]
) -> list[NodeModel]:
    """Fetch `cards` on every node of the cluster at `address`, each with its own network access and Hub login.

    `expected` are the weights' digests on this machine, by card; a node with others has an error. ConfigError if the
    cluster cannot be used.
    """
    cluster = Cluster(EngineConfig(device="cpu", executor="ray", ray=RayConfig(address=address)))
    try:
        remote = cluster.ray.remote(_fetch)
        environ = {name: os.environ[name] for name in ("LOCAL_BENCH_CACHE", "HF_HOME") if name in os.environ}
        started = [
            (node, remote.options(**cluster.pinned(node["NodeID"])).remote(node["NodeName"], cards, revisions, environ))
            for node in cluster.nodes()
        ]
        models: list[NodeModel] = []
        for node, reference in started:
            try:
                models += cluster.get(reference)
            except (Lost, cluster.ray.exceptions.RayTaskError) as e:
                models += [NodeModel(node["NodeName"], card.name, None, _first_line(e)) for card in cards]
        return [
            replace(model, error=_OTHER_FILES)
            if model.error is None and model.weights_sha256 != expected.get(model.model)
            else model
            for model in models
        ]
    finally:
        cluster.close()


def _fetch(
    node: str, cards: Sequence[ModelCard], revisions: Mapping[str, str], environ: Mapping[str, str]
) -> list[NodeModel]:
    """The models that were fetched, on a node."""
    os.environ.update(environ)
    isolate()
    go_online()
    from local_bench.models.fetch import fetch
    from local_bench.models.weights import resolve, resolve_parts, weights_digest

    models = []
    for card in cards:
        try:
            fetch(card, revisions)
            models.append(NodeModel(node, card.name, weights_digest(resolve(card), resolve_parts(card)), None))
        except LocalBenchError as e:
            models.append(NodeModel(node, card.name, None, str(e)))
    return models


# ---- the actors on its nodes

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
        from local_bench.core.environment import quiet_libraries
        from local_bench.generators.numerics import set_determinism

        set_determinism(setting.threads)
        quiet_libraries()
        self._setting = setting
        self._device = "cuda:0" if setting.on_gpu else "cpu"

    def facts(self) -> NodeFacts:
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
        for event in work(replace(order, device=self._device, on_node=True), share):
            yield replace(event, energy_mj=energy.since_last()) if isinstance(event, TimeCharged) else event


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
        from local_bench.runs.image_store import ImageStore
        from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, judge_spec, open_judge

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
        order = JudgeOrder(config, spec, questions, load, file, progress)
        self._transport = self._stack.enter_context(open_judge(order, devices))
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
