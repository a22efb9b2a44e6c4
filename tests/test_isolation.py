"""Nothing is sent and nothing from the working folder runs: a whole run with its real child processes, watched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from local_bench.core import environment as module
from local_bench.judges.vlm.vllm_process import Child, Engine
from local_bench.judges.vlm.vllm_process import environment as engine_environment
from local_bench.models.convert import convert

NAMESPACE = Path(__file__).with_name("namespace.py")
SHADOWING = ("signal", "socket", "json", "subprocess", "torch", "vllm", "sitecustomize", "PIL", "tqdm")
CONFIG = """
name: watched
suite: {name: printshop, limit: 2}
models:
  - {card: tiny-flux, height: 64, width: 64, num_inference_steps: 1, batch_size: 1}
judge: {card: tiny-qwen3-vl, rubrics: paper, transport: embedded}
metrics: [entropy, "musiq:mini-musiq"]
engine: {device: cpu, workers: 2}
"""
AUDIT = """
import os, sys
ADDRESSED = {"socket.connect": 1, "socket.sendto": 1, "socket.getaddrinfo": 0, "socket.gethostbyname": 0}

def hook(event, arguments):
    if event in ADDRESSED:
        address = arguments[ADDRESSED[event]]
        host = address[0] if isinstance(address, tuple) else address
        if isinstance(address, str) and event == "socket.connect":
            return  # a socket in the file system
        if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0"):
            write(f"{event} {address!r}")
    elif event == "import" and arguments[0] == "onnxruntime":
        write("import onnxruntime")

def write(line):
    with open(os.environ["AUDIT_LOG"], "a") as file:
        file.write(f"{line} in {sys.orig_argv}\\n")

sys.addaudithook(hook)
"""


@pytest.fixture
def hostile(tmp_path):
    """A working folder whose modules shadow others and write their names down when they are imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in SHADOWING:
        (folder / f"{name}.py").write_text(
            f"import os, sys\nopen({str(tmp_path / 'marker')!r}, 'a').write({name + chr(10)!r})\n"
            f"raise ImportError({'the working folder is on sys.path'!r})\n"
        )
    return folder


def isolated_network():
    """The command that runs another in a network namespace with nothing but its loopback, or a skip."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed: a network namespace cannot be made")
    command = ["unshare", "--net", "--mount", *(() if os.getuid() == 0 else ("--map-root-user",))]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"network namespaces are not permitted here: {tried.stderr.strip()}")
    return command


@pytest.fixture
def process(monkeypatch):
    """The environment and `sys.path` of this process, to be isolated and restored."""
    for name in module.variables():
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return monkeypatch


@pytest.mark.server
def test_a_whole_run_sends_nothing_writes_nothing_to_home_and_runs_nothing_from_the_working_folder(tmp_path, hostile):
    """Also without graphical libraries and a C compiler (tests/namespace.py)."""
    home, audit, queries, log = (tmp_path / name for name in ("home", "audit", "queries", "audit.log"))
    home.mkdir()
    audit.mkdir()
    (audit / "sitecustomize.py").write_text(AUDIT)
    (hostile / "run.yaml").write_text(CONFIG)
    env = {name: value for name, value in os.environ.items() if name not in module.variables()}
    env |= {"HOME": str(home), "LOCAL_BENCH_CACHE": os.environ["LOCAL_BENCH_CACHE"]}
    env |= {"PYTHONPATH": str(audit), "AUDIT_LOG": str(log)}
    command = [sys.executable, "-m", "local_bench", "run", "run.yaml", "--run-dir", str(tmp_path / "run"), "--json"]
    ended = subprocess.run(
        [*isolated_network(), sys.executable, str(NAMESPACE), str(queries), *command],
        cwd=hostile,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    outcome = json.loads(ended.stdout)
    assert outcome["candidates"]["n_done"] > 0, outcome
    assert outcome["verdicts"]["n"] > 0
    assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()
    assert not queries.exists(), queries.read_bytes()
    assert not log.exists(), log.read_text()
    assert list(home.rglob("*")) == []


def test_every_kind_of_child_leaves_the_working_folder_out(tmp_path, hostile, process):
    """A guarded command, a spawned worker and the conversion of a checkpoint."""
    process.chdir(hostile)
    sys.path[:0] = ["", str(hostile)]
    module.isolate()
    child = Child(tmp_path / "child.log")
    engine = Engine(tmp_path, "float32", max_model_len=8192, images=1)
    spawning = "import multiprocessing as m; m.get_context('spawn').Process(target=print, args=('spawned',)).start()"
    child.start([sys.executable, "-c", spawning], engine_environment(engine))
    assert child._process is not None
    child._process.wait(60)
    child.stop()
    assert "spawned" in child.log.read_text()
    torch.save({"w": torch.zeros(2)}, tmp_path / "w.pth")
    convert(tmp_path / "w.pth", tmp_path / "w.safetensors", "w")
    assert not (tmp_path / "marker").exists(), (tmp_path / "marker").read_text()


@pytest.mark.parametrize(
    ("named", "kept"), [("", False), (os.pathsep, False), ("/elsewhere" + os.pathsep, False), ("{here}", True)]
)
def test_the_working_folder_is_searched_only_where_pythonpath_names_it(tmp_path, process, named, kept):
    process.chdir(tmp_path)
    process.setenv("PYTHONPATH", named.format(here=tmp_path))
    sys.path[:0] = [str(tmp_path), ""]
    module.isolate()
    assert (str(tmp_path) in sys.path) == kept
    assert "" not in sys.path
    assert "" not in os.environ.get("PYTHONPATH", "x").split(os.pathsep)


def test_a_checkout_that_is_not_installed_still_reaches_its_children(tmp_path, process):
    process.setenv("PYTHONPATH", "")
    process.chdir(tmp_path)
    root = Path(module.__file__).resolve().parent.parent.parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != root]
    module.isolate()
    assert str(root) in sys.path
    assert os.environ["PYTHONPATH"] == str(root)


def test_caches_of_libraries_are_below_ours_and_the_hub_stays_where_it_is(tmp_path, monkeypatch):
    for name in ("CUDA_DEVICE_ORDER", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))
    variables = module.variables()
    assert variables["HF_HOME"] == str(tmp_path / "home" / ".cache" / "huggingface")
    below = str(tmp_path / "cache")
    paths = {name: value for name, value in variables.items() if os.sep in value and name != "HF_HOME"}
    assert len(paths) > 10
    assert all(value.startswith(below) for value in paths.values()), paths
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert module.variables()["HF_HOME"] == str(tmp_path / "xdg" / "huggingface")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert module.variables()["HF_HOME"] == str(tmp_path / "hf")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert module.variables() == variables  # a child's are its parent's
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # NVML's order, which vLLM uses
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert module.variables()["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
