"""A Ray cluster of processes on this machine whose nodes can be added and killed; for tests and trials."""

import os
import secrets
from pathlib import Path
from typing import Any, Self

from local_bench.runs.executors.ray_cluster import SETTINGS, TOKEN_PATH, require_ray

_STORE_BYTES = 80 * 1024 * 1024
_QUICK = {"RAY_health_check_period_ms": "500", "RAY_prestart_worker_first_driver": "0", "RAY_worker_niceness": "0"}
"""A killed node is noticed in 3 s instead of 15, no process is started before it is needed, and workers do not wait
for all other processes of the machine."""


class LocalNodes:
    """A head node without slots for workers, and `n` nodes with four CPUs each; a context manager."""

    def __init__(self, folder: Path, n: int) -> None:
        """The cluster's token is written to `folder`."""
        self._before = {name: os.environ.get(name) for name in (*SETTINGS, *_QUICK, TOKEN_PATH)}
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        require_ray()
        os.environ |= _QUICK | {TOKEN_PATH: str(token)}
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        idle = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # nothing reads them
        self._cluster.add_node(num_cpus=0, object_store_memory=_STORE_BYTES, **idle)
        self._nodes: list[Any] = []
        self.set(n)

    @property
    def address(self) -> str:
        address: str = self._cluster.address
        return address

    @property
    def n(self) -> int:
        return len(self._nodes)

    def add(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=4, object_store_memory=_STORE_BYTES))

    def kill(self, i: int = 0) -> None:
        """Kill a node's processes at once, as a power failure would."""
        self._cluster.remove_node(self._nodes.pop(i), allow_graceful=False)

    def set(self, n: int) -> None:
        """Add or kill nodes until there are `n`."""
        while self.n < n:
            self.add()
        while self.n > n:
            self.kill()
        self._cluster.wait_for_nodes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()  # type: ignore[no-untyped-call]
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
