"""Runs the annotation server until it is interrupted."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.core.errors import UserError

if TYPE_CHECKING:
    import uvicorn

    from local_bench.annotation.session import Session

LOCK = ".annotations.lock"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORT = {"http": ":80", "https": ":443"}


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address; port 0 selects a free one. UserError if that is not possible."""
    with ExitStack() as on_failure:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            bound = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
        except OSError as e:
            raise UserError(
                f"cannot listen on {host} port {port} ({e.strerror}): give another --host or --port"
            ) from None
        on_failure.pop_all()
    return bound


@dataclass(frozen=True)
class Address:
    """Where annotators reach the server."""

    base: str
    """Origin of their links, as browsers write it: `https://annotate.lab.org`."""
    hosts: frozenset[str]
    """Names that a Host header may have; empty: any."""


def address_of(bound: socket.socket, host: str, base: str | None) -> Address:
    """The address of a server on `bound`, listening on `host`; `base` if a proxy or a tunnel forwards it from there."""
    address, port = ip_address(bound.getsockname()[0]), bound.getsockname()[1]
    base = origin_of(base or f"http://{_bracketed(_reachable_name(bound) if address.is_unspecified else host)}:{port}")
    names = {_bracketed(name) for name in (LOOPBACK if address.is_loopback else (host.lower(), str(address)))}
    names.add(re.sub(r"^.*//|:\d+$", "", base))
    return Address(base, frozenset() if address.is_unspecified else frozenset(names))


def origin_of(base: str) -> str:
    """The origin of an address as browsers write it. UserError for anything but a scheme, a host and a port."""
    parts = re.fullmatch(r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?/?", base.lower())
    if parts is None:
        raise UserError(
            f"--base {base}: give http:// or https://, the host and if necessary the port, without a path, such as "
            "https://annotate.lab.org"
        )
    scheme, host, port = parts.groups("")
    return f"{scheme}://{host}{'' if port == _DEFAULT_PORT[scheme] else port}"


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _reachable_name(bound: socket.socket) -> str:
    """The address under which other machines reach this one: that of the route to the outside, else the host name.
    Nothing is sent."""
    outside = "192.0.2.1" if bound.family == socket.AF_INET else "2001:db8::1"
    with suppress(OSError), socket.socket(bound.family, socket.SOCK_DGRAM) as probe:
        probe.connect((outside, 9))
        return str(probe.getsockname()[0])
    return socket.gethostname()


@contextmanager
def lock_annotations(folder: Path) -> Iterator[None]:
    """Lock the annotations in `folder` against a second server during the block. LedgerError if a server has it."""
    from local_bench.runs.rundir import take_lock  # `view` needs the addresses of this module, and no run

    held = f"an annotation server is running for {folder}, or a merge into it: stop it first (Ctrl-C)"
    with os.fdopen(take_lock(folder, LOCK, held)):
        yield


def server_of(session: "Session", address: Address) -> "uvicorn.Server":
    import uvicorn

    from local_bench.annotation.app import create_app

    config = uvicorn.Config(
        create_app(session, address.hosts, address.base), log_level="warning", access_log=False, server_header=False,
        lifespan="off", timeout_keep_alive=30, timeout_graceful_shutdown=3,
        proxy_headers=False,  # any client can write X-Forwarded-For
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(session: "Session", bound: socket.socket, address: Address, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called before the first request."""
    server = server_of(session, address)
    bound.listen()  # the first request waits for the server
    ready()
    with suppress(KeyboardInterrupt):  # raised again by uvicorn after it has stopped
        server.run(sockets=[bound])
