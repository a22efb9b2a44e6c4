"""Shared fixtures: a cache for the tests, one thread, one real judge server per session."""

import gc
import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # `doctor --gpu` tests a GPU
os.environ["HF_HUB_OFFLINE"] = "1"

import multiprocessing
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_bench.core.environment import collect_rarely, paused, toolchain, variables
from local_bench.judges.vlm.client import ManagedServer
from local_bench.judges.vlm.vllm_process import Engine, unusable_vllm
from local_bench.runs.executors import processes

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
JUDGE_CARD = "tiny-qwen3-vl"

_tests_of: Counter[Path] = Counter()
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.hookimpl(tryfirst=True)  # before the plugin looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run side by side (`-n 2 --dist loadgroup`), one process has the judge's servers and their core, and a
    module's own fixtures are made once: its tests stay together."""
    for item in items:
        if item.get_closest_marker("server"):
            item.add_marker(pytest.mark.xdist_group("server"))
        elif _shares_a_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    if items and hasattr(items[0].config, "workerinput"):
        items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Where tests run side by side, groups are given out in the order of their first tests (`--no-loadscope-reorder`):
    those that take long come first, so that no process is left with one at the end."""
    if item.get_closest_marker("server"):
        return 0
    if item.get_closest_marker("slow"):
        return 1
    return 2 if item.get_closest_marker("xdist_group") else 3


def _shares_a_module_fixture(item: pytest.Item) -> bool:
    found = getattr(item, "_fixtureinfo", None)
    return found is not None and any(
        defined.scope == "module" for definitions in found.name2fixturedefs.values() for defined in definitions
    )


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine lacks a system's package for, as the program itself says it."""
    if item.get_closest_marker("server") and (fault := unusable_vllm(on_gpu=False)):
        pytest.skip(fault)
    compiles, fault = toolchain()
    if item.get_closest_marker("compiler") and not compiles:
        pytest.skip(fault)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Collecting imports the tests and the libraries that they use."""
    with paused():
        return (yield)


def pytest_collection_finish() -> None:
    _freeze()
    collect_rarely()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Libraries that a module's first tests import join the others that the garbage collector leaves out."""
    _tests_of[item.path] += 1
    if _tests_of[item.path] in (1, 4, 16):
        _freeze()


def _freeze() -> None:
    """What the libraries made at import is never garbage, and each collection (one per model that is dropped) would go
    through its millions of objects: a tenth of the time of the tests that build models."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small models are built once, in a folder of the tests that all processes of a session share."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    path.mkdir(exist_ok=True)
    os.environ["LOCAL_BENCH_CACHE"] = str(path)
    return path


@pytest.fixture(scope="session", autouse=True)
def _workers_from_a_fork_server(cache: Path) -> None:
    """Worker processes are forked from one that has imported torch and diffusers, instead of importing them each."""
    processes.CONTEXT = multiprocessing.get_context("forkserver")
    processes.CONTEXT.set_forkserver_preload(["tests.forked"])


@pytest.fixture(scope="session")
def judge_weights(cache: Path) -> Path:
    from local_bench.models.cards import card
    from local_bench.models.weights import resolve

    return resolve(card(JUDGE_CARD, "judge"))


DESCRIBE = """
from vllm.model_executor.models import registry
registry._run_in_subprocess = lambda describe: describe()
for name in ("Qwen2VL", "Qwen3VL", "Qwen3_5", "Gemma4"):
    registry.ModelRegistry.models[f"{name}ForConditionalGeneration"].inspect_model_cls()
"""


@pytest.fixture(scope="session")
def described_classes(cache: Path) -> None:
    """vLLM starts a process of its own to describe a class that its cache lacks, ten seconds for each class of judge:
    here one process describes them all."""
    subprocess.run([sys.executable, "-c", DESCRIBE], env=os.environ | variables(), check=True, capture_output=True)


@pytest.fixture(scope="session")
def judge_server(
    described_classes: None, judge_weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManagedServer]:
    """A real vLLM server with the small Qwen3-VL, for all tests that need one."""
    engine = Engine(
        judge_weights, "float32", max_model_len=24576, images=8, mm_processor_kwargs={"max_pixels": 8 * 16384}
    )
    server = ManagedServer(tmp_path_factory.mktemp("judge") / "server.log", engine, start_timeout_s=600)
    with server:
        yield server


@pytest.fixture(scope="session")
def flux_weights(cache: Path) -> Path:
    from local_bench.models.cards import card
    from local_bench.models.weights import resolve

    return resolve(card("tiny-flux", "generator"))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `local-bench` in this process, in an empty folder."""
    from local_bench.cli.main import main

    def run(*arguments: object, **env: str) -> "subprocess.CompletedProcess[str]":
        monkeypatch.chdir(tmp_path)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        status = main([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run


@pytest.fixture
def cli_process(tmp_path: Path) -> Run:
    """Runs `local-bench` in a process of its own, in an empty folder."""

    def run(*arguments: object, **env: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "local_bench", *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=600, check=False
        )

    return run


@pytest.fixture(scope="session")
def shared() -> Path:
    """The papers' data; tests that need it are skipped if `../shared` does not exist."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with the benchmarks' own data is not beside this checkout")
    return SHARED
