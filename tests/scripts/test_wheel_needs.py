"""The CUDA libraries that the locked wheels are linked to, against the lock's CUDA release."""

import json
import re
import zipfile
from pathlib import Path

import pytest
import torch

from scripts.wheel_needs import LOCK, TABLE, locked, needed, wheel_needs

READ = json.loads(TABLE.read_text())
PINNED = {package.name: package.version for package in locked(LOCK.read_text(), READ["python"])}
CUDA = PINNED["nvidia-cuda-runtime"].split(".")[0]
RELEASED_WITH_CUDA = re.compile(
    r"lib(cudart|cublas|cublasLt|nvrtc|nvJitLink|nvblas|nvfatbin|cupti)\.so\.(\d+)(\.[\d.]+)?"
)
"""The libraries whose soname ends in the CUDA release; the others (cuDNN, NCCL, cuFFT, …) count on their own."""
OF_ONE_CUDA = (
    "cuda-bindings",
    "cuda-python",
    "cuda-toolkit",
    "nvidia-cuda-runtime",
    "nvidia-cuda-nvrtc",
    "nvidia-cublas",
)
"""Packages whose own version begins with the CUDA release."""


def test_every_locked_wheel_was_read():
    recorded = {name: row["version"] for name, row in READ["wheels"].items()}
    assert recorded == PINNED, "the lock has changed: run `python3 scripts/wheel_needs.py`"


def wrong(rows):
    """(package, soname, a file) of every need of another CUDA release than the lock's."""
    found = []
    for name, row in rows.items():
        for soname, files in row.get("needs", {}).items():
            match = RELEASED_WITH_CUDA.fullmatch(soname)
            if match and match[2] != CUDA:
                found.append((name, soname, files[0]))
    return found


def test_no_locked_wheel_is_linked_to_another_cuda_release():
    assert wrong(READ["wheels"]) == []
    linked = {name for name, row in READ["wheels"].items() if f"libcudart.so.{CUDA}" in row.get("needs", {})}
    assert {"torch", "torchvision", "vllm"} <= linked


def test_a_wheel_for_another_cuda_release_would_be_found():
    """xformers 0.0.35, which was locked once: its _C.so needs libcudart.so.12."""
    rows = {"xformers": {"version": "0.0.35", "needs": {"libcudart.so.12": ["xformers/_C.so"]}}}
    assert wrong(rows) == [("xformers", "libcudart.so.12", "xformers/_C.so")]


def test_only_wheels_without_a_build_for_linux_are_unread():
    assert {name for name, row in READ["wheels"].items() if "needs" not in row} == {
        "openai-clip"
    }  # pure Python, an sdist


@pytest.mark.parametrize("name", OF_ONE_CUDA)
def test_cuda_packages_are_of_one_release(name):
    """cuda-python before 12.8 installs its own cuda/bindings/*.so over those of cuda-bindings."""
    assert PINNED[name].split(".")[0] == CUDA


def test_a_lock_is_read_by_platform_and_python():
    lock = (
        "a==1.0 ; python_full_version < '3.12' \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
        "a==2.0 ; python_full_version >= '3.12' \\\n    --hash=sha256:22\n"
        "b==3.0 ; sys_platform == 'win32' \\\n    --hash=sha256:33\n"
        "c-d==4.0.post1 \\\n    --hash=sha256:44\n"
    )
    found = [(package.name, package.version, package.hashes) for package in locked(lock, "3.11")]
    assert found == [("a", "1.0", ("sha256:00", "sha256:11")), ("c-d", "4.0.post1", ("sha256:44",))]


def test_needed_reads_a_real_shared_object():
    """torch's libtorch_cpu.so needs libc10.so; a file that is no ELF file needs nothing."""
    data = (Path(torch.__file__).parent / "lib" / "libtorch_python.so").read_bytes()
    assert {"libtorch.so", "libc.so.6"} <= set(needed(data))
    assert needed(b"#!/bin/sh\n") == []
    assert needed(b"") == []


def test_wheel_needs_keeps_only_cuda_libraries(tmp_path, monkeypatch):
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/a.so", b"\x7fELF a")
        archive.writestr("x/b.so", b"\x7fELF b")
        archive.writestr("x/c.py", b"import x")
    sonames = {b"\x7fELF a": ["libc.so.6", "libcudart.so.13"], b"\x7fELF b": ["libcudart.so.13", "libcuda.so.1"]}
    monkeypatch.setattr("scripts.wheel_needs.needed", lambda data: sonames[data])
    assert wheel_needs(wheel) == {"libcudart.so.13": ["x/a.so", "x/b.so"], "libcuda.so.1": ["x/b.so"]}
