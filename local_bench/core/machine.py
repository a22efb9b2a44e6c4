"""Checks of the machine: free disk space, C compiler, Python headers. Imports no torch."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

NEEDED_GB = 5


def toolchain() -> tuple[bool, str]:
    """Whether Triton can compile, and a message. Triton compiles a small C program against Python's headers when its
    first kernel runs."""
    missing = [what for what, present in (("a C compiler", has_compiler()), ("Python.h", has_headers())) if not present]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if missing:
        return False, f"{' and '.join(missing)} missing: install gcc and python{version}-dev (Debian's names)"
    return True, "a C compiler and Python.h, for Triton"


def has_compiler() -> bool:
    chosen = os.environ.get("CC")
    return any(shutil.which(name) for name in ([chosen] if chosen else ["gcc", "clang", "cc"]))


def has_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def free_disk(folder: Path) -> tuple[bool, str]:
    """Whether `folder` has `NEEDED_GB` decimal GB free, and a message."""
    free = shutil.disk_usage(folder).free / 1e9
    return free >= NEEDED_GB, f"{free:.0f} GB free here, {NEEDED_GB} GB needed"
