"""Executes a run on the nodes of a Ray cluster. This process alone writes the store."""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from PIL import Image

from local_bench.core.errors import LocalBenchError, ServerError
from local_bench.core.storage import write_atomic
from local_bench.core.types import Question
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.replicas import Replicas
from local_bench.judges.vlm.transport import Transport
from local_bench.models.cards import card
from local_bench.runs.device import JudgeDevice
from local_bench.runs.executors.ray_actors import HELLO, Setting
from local_bench.runs.executors.ray_cluster import Cluster
from local_bench.runs.executors.ray_judges import RayReplica
from local_bench.runs.executors.ray_workers import Membership, RayWorkers
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import open_judge
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir

_KEPT = ("LOCAL_BENCH_CACHE", "HF_HOME", "VLLM_USE_V2_MODEL_RUNNER")
"""Variables that nodes take over from this process."""


class RayExecutor:
    """The cluster of `engine.ray`, for the open run `run`. ConfigError if it cannot be used."""

    def __init__(self, run: RunDir, progress: Progress) -> None:
        self._run = run
        self._progress = progress
        self._session = secrets.token_hex(16)
        write_atomic(run.path / HELLO, self._session.encode())
        self._cluster = Cluster(run.config.engine)
        self._nodes = Membership(run, self._cluster, progress)
        self._workers: RayWorkers | None = None
        self._replicas: list[RayReplica] = []

    def _setting(self, workers: int) -> Setting:
        return Setting(
            run_dir=self._run.path.absolute(),
            working_dir=Path.cwd(),
            session=self._session,
            environ={name: os.environ[name] for name in _KEPT if name in os.environ},
            threads=self._run.config.engine.threads,
            on_gpu=self._cluster.on_gpu,
            workers=workers,
        )

    @contextmanager
    def workers(self) -> Iterator[RayWorkers]:
        """The workers, which continue for the next stage; `open_judge` ends them."""
        self._workers = self._workers or RayWorkers(self._nodes, self._setting)
        yield self._workers

    def _end_workers(self, status: str) -> None:
        if self._workers is not None:
            self._workers.end(status)
            self._workers = None

    @property
    def judge_devices(self) -> Sequence[JudgeDevice]:
        if self._nodes.facts is None:
            with self.workers() as workers:
                workers.call(_nothing)
        facts = self._nodes.facts
        assert facts is not None
        if not self._cluster.on_gpu:
            return [JudgeDevice(facts.device, None)]
        return [JudgeDevice(facts.device, i, facts.capability) for i in range(max(1, self._cluster.most_gpus()))]

    @contextmanager
    def open_judge(
        self,
        config: JudgeConfig,
        spec: JudgeSpec,
        questions: Sequence[Question],
        load: Callable[[str], Image.Image],
        log: Path,
        progress: Progress,
    ) -> Iterator[Transport]:
        """Open one replica on every free slot of the cluster; nodes that join get one too. This process queries an
        external server itself."""
        if config.base_url is not None:
            with open_judge(config, spec, self.judge_devices, questions, load, log, progress) as transport:
                yield transport
            return
        self._end_workers("done")  # the judge needs their devices
        described = card(config.card, "judge")
        gpus = min(described.tensor_parallel_size, self._cluster.most_gpus()) if self._cluster.on_gpu else 0
        shared = self._cluster.put(list(questions))
        numbers = iter(range(1_000_000))

        def joining() -> list[RayReplica]:
            taken = [replica.slot for replica in self._replicas if replica.slot.node_id not in self._nodes.refused]
            most = self._run.config.engine.workers or len(taken) + 1_000
            joined = []
            for slot in self._nodes.free(taken, max(1, gpus))[: max(0, most - len(taken))]:
                name = f"{log.stem}-{next(numbers)}{log.suffix}"
                setting = self._setting(slot.workers)
                joined.append(RayReplica(self._nodes, slot, setting, config, spec, shared, load, name))
            self._replicas += joined
            return joined

        try:
            with Replicas(_opened(joining(), progress), progress.note, joining) as replicas:
                yield replicas
        finally:
            for replica in self._replicas:
                replica.end_session("done")
            self._replicas.clear()

    def charge(self, phase: str, n_items: int = 0) -> None:
        counted = False
        for replica in self._replicas:
            counted |= replica.charge(phase, 0 if counted else n_items)

    def end(self, status: str) -> None:
        self._end_workers(status)
        self._cluster.close()
        with suppress(OSError):
            (self._run.path / HELLO).unlink()


def _opened(replicas: Sequence[RayReplica], progress: Progress) -> list[RayReplica]:
    """The replicas that could be opened. Raises the first error if there is none."""

    def opened(replica: RayReplica) -> LocalBenchError | None:
        try:
            replica.__enter__()
        except LocalBenchError as e:
            return e
        return None

    with ThreadPoolExecutor(max(1, len(replicas))) as pool:
        errors = list(pool.map(opened, replicas))
    usable = [replica for replica, error in zip(replicas, errors, strict=True) if error is None]
    if not usable:
        no_node = ServerError("the Ray cluster has no node for the judge: start one and run the same command again")
        raise next((error for error in errors if error), no_node)
    for note in dict.fromkeys(str(error) for error in errors if error):
        progress.note(note)
    for note in usable[0].notes:
        progress.note(note)
    return usable


def _nothing(_: object) -> None:
    """Called on a worker to learn about its node."""
