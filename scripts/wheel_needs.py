"""Reads which CUDA libraries the wheels of requirements/cuda.lock are linked to, into tests/data/wheel_needs.json.

    python3 scripts/wheel_needs.py

Downloads each wheel for Linux x86-64 with pip (several GB in all, one at a time, hash-checked against the lock), reads
the DT_NEEDED entries of its ELF files, and deletes it. Run it after `scripts/lock`: tests/scripts/test_wheel_needs.py
fails while the table does not have the locked versions. Rows whose version has not changed are kept as they are.

Needs pip on the PATH and the package `packaging`. Libraries that a wheel opens with dlopen are not seen.
"""

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "cuda.lock"
TABLE = ROOT / "tests" / "data" / "wheel_needs.json"

CUDA_LIBRARY = re.compile(
    r"lib(cudart|cublas|cublasLt|nvrtc|nvrtc-builtins|nvJitLink|nvblas|nvptxcompiler|nvfatbin|cupti|cudnn\w*|nccl|cufft|"
    r"curand|cusolver|cusparse|cusparseLt|cufile|npp\w+|nvjpeg|nvshmem\w*|nvToolsExt|nvcuvid|nvidia-encode|cuda)\.so"
    r"(\.[\d.]+)?"
)
"""The sonames that are recorded; all other libraries are left out of the table."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB = 1, 5


@dataclass(frozen=True)
class Locked:
    """One package of a lock file."""

    name: str
    version: str
    hashes: tuple[str, ...]


def locked(text: str, python: str) -> list[Locked]:
    """The packages of a pip-compile lock that are installed on Linux x86-64 under that Python ("3.11")."""
    place = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found = []
    for entry in text.replace("\\\n", " ").splitlines():
        match = re.match(r"(?P<name>[\w.-]+)==(?P<version>[^\s;]+)\s*(;(?P<marker>.*?))?(?=\s--hash|$)", entry)
        if match and (not match["marker"] or Marker(match["marker"].strip()).evaluate(place)):
            hashes = tuple(re.findall(r"--hash=(\S+)", entry))
            found.append(Locked(match["name"], match["version"], hashes))
    return found


def needed(data: bytes) -> list[str]:
    """The DT_NEEDED sonames of a 64-bit little-endian ELF file, in its order; [] for any other file, and for one
    without a dynamic section. Format: System V ABI, chapters 4 and 5."""
    if not data.startswith(_ELF64_LITTLE):
        return []
    table, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    headers = [struct.unpack_from("<IIQQQQQQ", data, table + size * i) for i in range(count)]
    loads = [(address, offset, in_file) for kind, _, offset, address, _, in_file, *_ in headers if kind == _PT_LOAD]
    entries: list[tuple[int, int]] = []
    for kind, _, offset, _, _, in_file, *_ in headers:
        if kind == _PT_DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", data[offset : offset + in_file // 16 * 16]))
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        return []
    start = next(
        strings - address + offset for address, offset, in_file in loads if address <= strings < address + in_file
    )
    names = [start + value for tag, value in entries if tag == _DT_NEEDED]
    return [data[at : data.index(b"\0", at)].decode() for at in names]


def wheel_needs(wheel: Path) -> dict[str, list[str]]:
    """soname -> up to three of the wheel's files that need it, for the CUDA libraries alone."""
    found: dict[str, list[str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                if stream.read(4) != _ELF64_LITTLE[:4]:
                    continue
            for soname in needed(archive.read(member)):
                if CUDA_LIBRARY.fullmatch(soname):
                    found.setdefault(soname, []).append(member.filename)
    return {soname: sorted(files)[:3] for soname, files in sorted(found.items())}


def read(package: Locked, python: str, pip: list[str]) -> dict[str, Any]:
    """The package's row: its version and either the wheel and what it needs, or why there is none ("unread")."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "pinned.txt"
        hashes = " ".join(f"--hash={one}" for one in package.hashes)
        pinned.write_text(f"{package.name}=={package.version} {hashes}\n")
        tag = f"cp{python.replace('.', '')}"
        command = ["download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        command += f"--python-version {python} --implementation cp --abi {tag} --abi abi3 --abi none".split()
        command += [part for platform in PLATFORMS for part in ("--platform", platform)]
        done = subprocess.run(
            [*pip, *command, "--dest", folder, "--requirement", str(pinned)],
            capture_output=True,
            text=True,
            check=False,
        )
        wheels = list(Path(folder).glob("*.whl"))
        if not wheels:
            if "No matching distribution" in done.stderr:
                return {"version": package.version, "unread": "no wheel is published for Linux x86-64"}
            raise SystemExit(f"pip could not download {package.name}=={package.version}:\n{done.stderr}")
        return {"version": package.version, "wheel": wheels[0].name, "needs": wheel_needs(wheels[0])}


def rows(
    packages: list[Locked], old: dict[str, Any], python: str, pip: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and row of each package, read anew where the old table has another version."""
    for package in packages:
        kept = old.get(package.name)
        if kept is None or kept["version"] != package.version:
            kept = read(package, python, pip)
            print(package.name, package.version, *kept.get("needs", [kept.get("unread")]), file=sys.stderr)
        yield package.name, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.11", help="whose wheels to read (default 3.11)")
    parser.add_argument("--pip", default="pip", help="the pip to download with")
    given = parser.parse_args()
    old = json.loads(TABLE.read_text())["wheels"] if TABLE.exists() else {}
    found: dict[str, Any] = {}
    packages = locked(LOCK.read_text(), given.python)
    try:
        for name, row in rows(packages, old, given.python, [given.pip]):
            found[name] = row
    finally:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(json.dumps({"python": given.python, "wheels": found}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
