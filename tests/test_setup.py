"""`scripts/setup` on machines that cannot run what it would install: said before gigabytes are fetched."""

import os
import shutil
import subprocess
import sys

import pytest

from .conftest import ROOT

LOCKS = [f"requirements/{name}.lock" for name in ("light", "cpu", "cuda", "dev", "uv", "build")]
TOOLS = ("bash", "env", "dirname", "cat", "sha256sum", "cut", "head", "tr", "rm", "grep")


@pytest.fixture
def machine(tmp_path):
    """A checkout with `scripts/setup` alone, on a PATH of a few tools; what is added to it stands in `bin`."""
    for name in ("scripts/setup", "pyproject.toml", *LOCKS):
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


def setup(machine, *arguments, **variables):
    env = {"PATH": str(machine / "bin"), "HOME": str(machine), "LD_LIBRARY_PATH": str(machine / "compat")} | variables
    command = ["scripts/setup", *arguments]
    return subprocess.run(command, cwd=machine, env=env, capture_output=True, text=True, check=False)


def gpu(machine, version):
    """More GPUs than a pipe holds: a reader that ends at the first line would make nvidia-smi fail."""
    every = f'case $* in *-L*) echo "GPU $i: NVIDIA RTX A6000";; *) echo {version};; esac'
    script(machine / "bin/nvidia-smi", f"for i in {{1..9000}}; do {every}; done")


LIBCUDA = """
#include <string.h>
static int none(void) { return 100; }
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuGetProcAddress_v2(const char *name, void **f, int version, unsigned long long flags, void *status) {
  *f = !strcmp(name, "cuInit") ? (void *)cuInit : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
     : !strcmp(name, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2 : (void *)none;
  return 0;
}
"""
"""Enough of the CUDA library for its runtime to find the driver too old."""


def cuda_library(folder, version, init=0):
    """Build a `libcuda.so.1` of a driver in `folder`."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    folder.mkdir()
    build = [compiler, "-shared", "-fPIC", f"-DVERSION={version}", f"-DINIT={init}", "-x", "c", "-"]
    subprocess.run([*build, "-o", folder / "libcuda.so.1"], input=LIBCUDA, text=True, check=True)


def install(machine):
    """What is installed is listed in uv.log."""
    script(machine / "bin/uv", 'echo "$@" >> uv.log')
    script(machine / ".venv/bin/python", "true")
    script(machine / ".venv/bin/local-bench", "true")


OLD = "NVIDIA driver 535.183.01 is too old for CUDA 13: update it to 580 or later"


def test_an_old_driver_is_refused_before_anything_is_installed(machine):
    gpu(machine, "535.183.01")
    cuda_library(machine / "compat", 12020)
    ended = setup(machine, "cuda")
    assert (ended.returncode, ended.stderr) == (2, f"scripts/setup: {OLD}, or run scripts/setup cpu\n")
    assert not (machine / ".venv").exists()


@pytest.mark.parametrize(
    ("driver", "cuda", "why"),
    [
        ("535.183.01", None, f": {OLD} to use the GPU"),
        ("535.183.01", (12020,), f": {OLD} to use the GPU"),
        ("535.183.01", (13000, 804), f": {OLD} to use the GPU"),  # compatibility libraries refuse a GeForce
        (None, (13000,), ": no NVIDIA GPU found"),
        ("535.183.01", (13000,), None),
        ("580.95.05", None, None),
    ],
)
def test_without_an_argument_the_driver_decides(machine, driver, cuda, why):
    if driver:
        gpu(machine, driver)
    if cuda:
        cuda_library(machine / "compat", *cuda)
        script(machine / "bin/python3", f'exec {os.path.realpath(sys.executable)} "$@"')
    install(machine)
    ended = setup(machine)
    assert ended.returncode == 0, ended.stderr
    kind = "cpu" if why else "cuda"
    assert ended.stderr == f"scripts/setup: installing the {kind} environment into .venv (about 8 GB){why or ''}\n"
    assert f"requirements/{kind}.lock" in (machine / "uv.log").read_text()
    assert not setup(machine).stderr  # installed


def test_a_driver_that_does_not_answer_is_no_reason_to_end(machine):
    script(machine / "bin/nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    install(machine)
    assert setup(machine).stderr.endswith(": no NVIDIA GPU found\n")


def test_a_missing_library_that_only_the_judge_needs_is_told(machine):
    install(machine)
    script(machine / ".venv/bin/python", "case $* in *libnuma*) exit 1 ;; esac")
    ended = setup(machine, "cpu")
    assert (ended.returncode, "install libnuma1 (Debian, Ubuntu)" in ended.stderr) == (0, True), ended.stderr


@pytest.mark.parametrize("compiler", [False, True])
def test_triton_needs_a_compiler_and_headers(machine, compiler):
    script(machine / "bin/nvidia-smi", "echo 580.95.05")
    script(machine / "bin/uv", 'echo "$@" >> uv.log')
    (machine / "site").mkdir()
    (machine / "site/sitecustomize.py").write_text("import sysconfig; sysconfig.get_path = lambda name: '/nowhere'")
    script(machine / ".venv/bin/python", f'PYTHONPATH={machine}/site exec {os.path.realpath(sys.executable)} "$@"')
    if compiler:
        script(machine / "bin/gcc", "true")
    ended = setup(machine, "cuda")
    assert ended.returncode == 2
    assert ("a C compiler" in ended.stderr) == (not compiler)
    assert "Python.h missing, and Triton compiles with it" in ended.stderr
    assert not (machine / "uv.log").exists()


def test_the_python_that_is_named_is_the_one_that_is_used(machine):
    gpu(machine, "580.95.05")
    script(machine / "bin/python3.10", "case $* in --version) echo Python 3.10.1;; *) exit 1;; esac")
    ended = setup(machine, "light", PYTHON="python3.10")
    sentence = "scripts/setup: python3.10 is no Python 3.11 to 3.14: install one and run this again\n"
    assert (ended.returncode, ended.stderr) == (2, sentence)
    script(machine / ".venv/bin/python", "echo Python 3.12.1")
    ended = setup(machine, "light", PYTHON="python3.10")
    assert ended.returncode == 2
    assert ended.stderr.endswith(".venv has Python 3.12.1, not that of python3.10: remove .venv, or unset PYTHON\n")


def test_the_light_environment_needs_no_driver_and_has_no_development_packages(machine):
    gpu(machine, "470.1")
    install(machine)
    ended = setup(machine, "light")
    assert (ended.returncode, "light environment" in ended.stderr) == (0, True), ended.stderr
    log = (machine / "uv.log").read_text()
    assert "requirements/light.lock" in log
    assert "dev.lock" not in log
    assert log.count("--build-constraint requirements/build.lock") == 2
