"""Runs a command in a network of its own: the loopback alone, and a name server on it that writes down every query.

`unshare --net --mount [--map-root-user] python namespace.py QUERIES COMMAND…`; ends with the command's exit status.
"""

import fcntl
import socket
import struct
import subprocess
import sys
import tempfile
import threading

SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41


def main(queries: str, command: list[str]) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP_RUNNING, b""))
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as resolver:
        resolver.write("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        resolver.flush()
        subprocess.run(["mount", "--bind", resolver.name, "/etc/resolv.conf"], check=True)
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 53))
        threading.Thread(target=_write_down, args=(server, queries), daemon=True).start()
        return subprocess.run(command, check=False).returncode


def _write_down(server: socket.socket, queries: str) -> None:
    while True:
        packet, _ = server.recvfrom(4096)
        with open(queries, "ab") as file:
            file.write(packet[12:].partition(b"\0")[0] + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
