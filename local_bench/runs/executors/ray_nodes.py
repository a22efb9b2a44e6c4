"""The nodes of a Ray cluster that a run may use: nodes join and leave, and must compute the same bytes."""

import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from local_bench.core.errors import LocalBenchError
from local_bench.core.files import write_atomic
from local_bench.runs.executors.ray_actors import HELLO, NodeFacts, Setting
from local_bench.runs.executors.ray_cluster import Cluster, Slot
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir

_KEPT = ("LOCAL_BENCH_CACHE", "HF_HOME", "VLLM_USE_V2_MODEL_RUNNER")
"""Variables that nodes take over from this process."""
_REST_S = 10.0


class Nodes:
    """The nodes that a run may use, and what was learnt about them; shared by all stages of a session."""

    def __init__(self, run: RunDir, cluster: Cluster, progress: Progress) -> None:
        self.run = run
        self.cluster = cluster
        self.progress = progress
        self.settings = run.config.engine.ray
        self.refused: set[str] = set()
        """Ids of nodes that cannot be used."""
        self.facts: NodeFacts | None = None
        """Of the first node; all others must have equal numerics."""
        self._session = secrets.token_hex(16)
        write_atomic(run.path / HELLO, self._session.encode())
        self._resting: dict[str, float] = {}
        """When workers may be started again on nodes where a start has failed."""
        self._losses = 0
        self._last_usable = time.monotonic()

    def close(self) -> None:
        """End the connection to the cluster."""
        self.cluster.close()
        with suppress(OSError):
            (self.run.path / HELLO).unlink()

    def start(self, kind: type, slot: Slot, threads: int = 1) -> Any:
        """Start an actor of class `kind` on a slot; returns its handle at once. Ray does not restart it if it is lost:
        its node may have left, and the run counts its losses."""
        setting = Setting(
            run_dir=self.run.path.absolute(),
            working_dir=Path.cwd(),
            session=self._session,
            environ={name: os.environ[name] for name in _KEPT if name in os.environ},
            threads=self.run.config.engine.threads,
            on_gpu=self.cluster.on_gpu,
            workers=slot.workers,
        )
        options = {"num_gpus": slot.gpus, "max_concurrency": threads, "max_restarts": 0, "max_task_retries": 0}
        actor_class = self.cluster.ray.remote(kind)
        return actor_class.options(**options, **self.cluster.pinned(slot.node_id, 1)).remote(setting)

    def get(self, reference: Any, worker: str, slot: Slot) -> Any:
        """The value of `reference`, computed by the `worker` on a slot. Raises as `Cluster.get`, and for a fault a
        LocalBenchError that names the file with its traceback."""
        try:
            return self.cluster.get(reference)
        except self.cluster.ray.exceptions.RayTaskError as e:
            log = self.run.logs / f"worker-{slot.host}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(log, re.sub(r"\x1b\[\d+m", "", str(e)).encode())
            fault = f"{repr(e.cause)[:300]}, see {log}"
            raise LocalBenchError(f"{worker} on {slot.host} failed ({fault}): finished work is kept") from None

    def accept(self, slot: Slot, facts: NodeFacts | LocalBenchError) -> bool:
        """Whether a node with these facts, or this error instead of facts, can be used; notes why not."""
        if isinstance(facts, LocalBenchError):
            why = str(facts)
        elif not facts.sees_run:
            why = f"cannot access {self.run.path}: put the run directory on a file system that all nodes share"
        elif self.facts is not None and (changed := _difference(self.facts.numerics, facts.numerics)):
            why = f"would compute other bytes ({changed}): choose nodes of one type with engine.ray.gpu_type"
        else:
            self.facts = self.facts or facts
            self.usable()
            return True
        self.refused.add(slot.node_id)
        self.progress.note(f"the node {slot.host} is not used: it {why}")
        return False

    def free(self, taken: Sequence[Slot], gpus: int = 1) -> list[Slot]:
        """Free slots on nodes on which a worker may be started now."""
        now = time.monotonic()
        resting = {node_id for node_id, until in self._resting.items() if now < until}
        return self.cluster.free(taken, self.refused | resting, gpus)

    def not_started(self, slot: Slot, why: object) -> None:
        """Note that a worker could not be started: its node may have left, or lack something."""
        if slot.node_id not in self._resting:
            self.progress.note(
                f"nothing could be started on the node {slot.host} ({why}): trying again every {_REST_S:.0f} s"
            )
        self._resting[slot.node_id] = time.monotonic() + _REST_S

    def usable(self) -> None:
        """Note that a node can be used now."""
        self._last_usable = time.monotonic()

    def check_alone(self) -> None:
        """LocalBenchError if there has been no usable node for too long."""
        limit_s = self.settings.wait_s
        if time.monotonic() - self._last_usable > limit_s:
            why = "; the messages above say why others are not used" if self.refused else ""
            raise LocalBenchError(
                f"the Ray cluster has had no usable node for {limit_s:.0f} s (engine.ray.wait_s{why}): finished work "
                "is kept, run the same command again when it has one"
            )

    def lose(self, what: str, why: object) -> None:
        """Count a loss. LocalBenchError after too many."""
        self._losses += 1
        if self._losses > self.settings.max_losses:
            raise LocalBenchError(
                f"{self._losses} workers of the Ray cluster were lost (engine.ray.max_losses; the last: {what}, {why}"
                "): finished work is kept, run the same command again"
            )
        self.progress.note(f"{what} was lost ({why}): its work goes to the others")


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str | None:
    key = next((k for k in sorted({*first, *other}) if first.get(k) != other.get(k)), None)
    return None if key is None else f"{key}: {other.get(key)} instead of {first.get(key)}"
