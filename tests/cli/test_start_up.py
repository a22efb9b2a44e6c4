"""Commands that compute nothing on a device import neither torch nor what imports it: that alone takes seconds."""

import json
import shlex
import subprocess
import sys

import pytest

from local_bench.core.files import configs_dir
from local_bench.generators.capacity import may_have_gpu
from local_bench.judges.vlm.vllm_process import unusable_vllm
from local_bench.models.cards import cards
from tests.analysis.simulated import config, draw, judged
from tests.suites.benchmarks import layouts

NEEDS_TORCH = "doctor --gpu --device cpu --only driver"
HEAVY = ("torch", "diffusers", "transformers", "pyiqa", "vllm", "onnxruntime")
RUN_ALL = """
import io, json, shlex, sys
from contextlib import redirect_stdout
from local_bench.cli.main import main
from local_bench.core.environment import load_object
from local_bench.report.papers.contents import entries, papers
found = {{}}
for line in {lines!r}:
    with redirect_stdout(io.StringIO()) as said:
        found[line] = [main(shlex.split(line)), [name for name in {heavy!r} if name in sys.modules]]
found["said"] = said.getvalue()
for one in (one for paper in papers() for one in entries(paper) if one.build):
    load_object(one.where, one.name)
found["builders"] = [name for name in {heavy!r} if name in sys.modules]
found[{needs_torch!r}] = [main({needs_torch!r}.split()), [name for name in {heavy!r} if name in sys.modules]]
json.dump(found, open("found.json", "w"))
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start-up")
    path = layouts.servimage(folder / "data")
    made = {name: draw("servimage", path, folder / name, seed) for seed, name in enumerate(("one", "two"))}
    judged(folder / "run", config("servimage", path, made), 5)
    return folder / "run"


def test_heavy_libraries_are_imported_only_by_the_command_that_needs_them(run_dir, tmp_path):
    """Nor by a builder of a paper's table. In another folder than the run's: settling needs neither the weights nor the
    imported images. `doctor` finds the libraries all the same."""
    (tmp_path / "eval_result.txt").write_text("id0#;#Text2Image#;#{}\n")
    orders = run_dir.parent / "data"
    files = sorted((configs_dir() / "runs").glob("serv*.yaml"))
    shipped = [f"plan {shlex.quote(str(file))} --set suite.path={orders}" for file in files]
    lines = [
        "--help",
        "doctor --help",
        "score ice-bench eval_result.txt",
        *(f"{command} {run_dir}" for command in ("settle", "report", "digest", "verify")),
        f"settle {run_dir} --json",
        f"compare {run_dir} {run_dir} --json",
        f"export {run_dir} --format servimage --out {tmp_path / 'out'}",
        "reproduce servimage",
        *(f"reproduce servimage table-{n} {run_dir}" for n in (1, 2, 3, 6, 7, 8)),
        f"reproduce servimage figure-2 {run_dir} --out {tmp_path / 'figure.svg'}",
        "models list",
        "models show flux1-dev",
        "models show pyiqa:musiq",
        "suites list",
        "suites show studio",
        *shipped,
        *(f"{line} --gpu a6000" for line in shipped),
        "doctor --json",
    ]
    code = RUN_ALL.format(heavy=HEAVY, lines=lines, needs_torch=NEEDS_TORCH)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.pop(NEEDS_TORCH) == [0, ["torch", "diffusers", "transformers"]]
    assert found.pop("builders") == []
    checks = {check["check"]: check["ok"] for check in json.loads(found.pop("said"))["checks"]}
    assert checks["torch"] is checks["diffusers"] is True
    assert checks["vllm"] is (None if unusable_vllm(may_have_gpu()) else True)
    assert checks["flux1-dev"] is None
    assert found == {line: [0, []] for line in lines}


def test_cards_are_parsed_once(monkeypatch):
    from local_bench.core import yamlfile
    from local_bench.models import cards as module

    read, real = [], yamlfile.read_yaml
    monkeypatch.setattr(yamlfile, "read_yaml", lambda path: read.append(path) or real(path))
    module._parsed.cache_clear()
    for _ in range(3):
        for name, described in cards().items():
            assert module.card(name, described.role) == described
    assert len(read) == len(set(read)) == len(cards())


HELP = """
import sys
from local_bench.cli.main import cli, main
def walk(command, names):
    assert main([*names, "--help"]) == 0
    assert not {"numpy", "pandas", "torch", "pyarrow"} & sys.modules.keys(), names
    for name, inner in getattr(command, "commands", {}).items():
        walk(inner, [*names, name])
walk(cli, [])
"""


def test_no_help_imports_what_only_computing_needs(tmp_path):
    done = subprocess.run([sys.executable, "-c", HELP], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-600:]
    assert "suites list" in done.stdout
