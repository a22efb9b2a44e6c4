"""Runs the annotation server until it is interrupted."""

import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from local_bench.core.errors import LedgerError, UserError
from local_bench.core.storage import storage_errors
from local_bench.judges.people.app import create_app
from local_bench.judges.people.session import Session

LOCK = ".annotations.lock"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address; port 0 selects a free one. UserError if that is not possible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as e:
        raise UserError(f"cannot listen on {host} port {port} ({e.strerror}): give another --host or --port") from None
    return bound


def lock_annotations(folder: Path) -> int:
    """Lock the annotations in `folder` against a second server; closing the descriptor releases the lock. LedgerError
    if a server has it."""
    with storage_errors(folder):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise LedgerError(f"an annotation server is running for {folder}: stop it first (Ctrl-C)") from None
    return lock


def serve(session: Session, bound: socket.socket, host: str, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called before the first request."""
    import uvicorn

    bound_to = ip_address(bound.getsockname()[0])
    names = {*LOOPBACK, "[::1]"} if bound_to.is_loopback else {host, f"[{host}]"}
    hosts = frozenset() if bound_to.is_unspecified else frozenset(names)
    config = uvicorn.Config(
        create_app(session, hosts), log_level="warning", access_log=False, server_header=False, lifespan="off",
        timeout_keep_alive=30, timeout_graceful_shutdown=3,
    )  # fmt: skip
    ready()
    with suppress(KeyboardInterrupt):  # raised again by uvicorn after it has stopped
        uvicorn.Server(config).run(sockets=[bound])
