"""Paths that lead to no ordinary file or folder."""

import os
import socket
import stat
from pathlib import Path

LONG = "n" * 300


def places(folder: Path) -> dict[str, str]:
    """Make every kind of unusual path in `folder`; (name -> path). None of them is a readable regular file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text("text")
    (folder / "dir").mkdir()
    os.mkfifo(folder / "fifo")
    os.symlink(folder / "fifo", folder / "link-to-fifo")
    os.symlink("loop", folder / "loop")
    os.symlink("nowhere", folder / "dangling")
    os.symlink("/dev/zero", folder / "zero")
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(folder)  # the path of a socket is at most 107 bytes long
    try:
        server.bind("socket")
    finally:
        os.chdir(here)
        server.close()
    return {
        "missing": str(folder / "missing"),
        "folder": str(folder / "dir"),
        "below a file": str(folder / "file" / "x"),
        "fifo": str(folder / "fifo"),
        "link to a fifo": str(folder / "link-to-fifo"),
        "socket": str(folder / "socket"),
        "link loop": str(folder / "loop"),
        "below a loop": str(folder / "loop" / "x"),
        "dangling": str(folder / "dangling"),
        "link to zeros": str(folder / "zero"),
        "/dev/zero": "/dev/zero",
        "/dev/full": "/dev/full",
        "/dev/null": "/dev/null",
        "/dev/random": "/dev/urandom",
        "/dev/tty": "/dev/tty",
        "procfs": "/proc/self/mem",
        "procfs text": "/proc/self/environ",
        "nul": "a\0b",
        "surrogate": "a\udcffb",
        "lone surrogate": "a\ud800b",
        "long name": str(folder / LONG),
        "long path": "/".join(["d" * 200] * 30),
        "empty": "",
        "blank": " ",
        "dot": ".",
        "parent": "..",
        "root": "/",
        "control": "\x1b[31m\u202ex",
        "newline": "a\nb",
        "option": "--",
        "no home": "~nobody-here/x",
        "url": "http://user:secret@host/x",
    }


def is_special(path: Path) -> bool:
    mode = os.lstat(path).st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
