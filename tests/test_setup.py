"""`scripts/setup` on machines that cannot run what it would install: said before gigabytes are fetched."""

import os
import shutil
import subprocess
import sys

import pytest

from .conftest import ROOT

TOOLS = ("bash", "env", "dirname", "cat", "sha256sum", "cut", "head", "tr", "rm", "grep")


@pytest.fixture
def machine(tmp_path):
    """A checkout with `scripts/setup` alone, on a PATH of a few tools; what is added to it stands in `bin`."""
    for name in ("scripts/setup", "requirements/cuda.lock", "requirements/cpu.lock", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def setup(machine, *arguments):
    return subprocess.run(
        ["scripts/setup", *arguments],
        cwd=machine,
        env={"PATH": str(machine / "bin"), "HOME": str(machine)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", [(), ("cuda",)])
def test_an_old_driver_is_refused_before_anything_is_installed(machine, arguments):
    answers = 'case $* in *-L*) echo "GPU 0: NVIDIA RTX A6000";; *) echo 535.183.01;; esac'
    script(machine / "bin/nvidia-smi", answers)
    ended = setup(machine, *arguments)
    assert ended.returncode == 2
    assert "driver 535.183.01 is too old for CUDA 13: update it to 580 or later" in ended.stderr
    assert not (machine / ".venv").exists()


@pytest.mark.parametrize("compiler", [False, True])
def test_triton_needs_a_compiler_and_headers(machine, compiler):
    script(machine / "bin/nvidia-smi", "echo 580.95.05")
    script(machine / "bin/uv", 'echo "$@" >> uv.log')
    no_headers = "import sysconfig; sysconfig.get_path = lambda name: '/nowhere'"
    (machine / "site").mkdir()
    (machine / "site/sitecustomize.py").write_text(no_headers)
    script(machine / ".venv/bin/python", f'PYTHONPATH={machine}/site exec {os.path.realpath(sys.executable)} "$@"')
    if compiler:
        script(machine / "bin/gcc", "true")
    ended = setup(machine, "cuda")
    assert ended.returncode == 2
    assert ("a C compiler" in ended.stderr) == (not compiler)
    assert "Python.h missing, and Triton compiles with it" in ended.stderr
    assert not (machine / "uv.log").exists()
