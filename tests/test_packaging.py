"""The package as users install it: metadata, licences, and a core installation of the wheel."""

import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from local_bench.core.environment import DISTRIBUTION, EXTRAS
from scripts.third_party import LOCKS, NOTICE, reached, refusal, rows
from scripts.wheel_needs import locked
from tests.analysis.simulated import LAYOUTS, config, draw, judged
from tests.suites.benchmarks import layouts

from .conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRED = {"core": PROJECT["project"]["dependencies"], **PROJECT["project"]["optional-dependencies"]}
MODULES = {"opencv-python-headless": "cv2", "scikit-image": "skimage", "scikit-learn": "sklearn"}
NEVER_IMPORTED = {"protobuf", "cuda-python", "setuptools"}
ALONE = """
import contextlib, io, json, sys
from local_bench.cli.main import main
found = {}
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(line.split())
    found[line] = [status, out.getvalue(), err.getvalue()]
json.dump(found, sys.__stdout__)
"""


def installed(requirements):
    """The installed distributions that the requirements bring, by name."""
    known = {}
    for one in distributions():  # the first on the path is what is imported: setuptools adds its own, older copies
        known.setdefault(canonicalize_name(one.metadata["Name"]), one)
    metadata = {name: {"requires_dist": one.requires or ()} for name, one in known.items()}
    return {name: known[name] for name in reached(requirements, metadata) - {DISTRIBUTION}}


def test_every_extra_is_described():
    assert PROJECT["project"]["name"] == DISTRIBUTION
    assert set(REQUIRED) == {"core", *EXTRAS}
    for name, extra in EXTRAS.items():
        brought = {canonicalize_name(Requirement(line).name) for line in REQUIRED[name]} - NEVER_IMPORTED
        modules = {MODULES.get(one, one.replace("-torch", "").replace("-", "_")) for one in brought - {DISTRIBUTION}}
        shared = {"huggingface_hub"} if name == "generate" else set()
        assert modules - shared == set(extra.modules)


@pytest.mark.parametrize("name", [name for name in EXTRAS if name != "cuda"])
def test_sizes_are_those_of_this_environment(name):
    core = installed(REQUIRED["core"])
    added = [distribution for key, distribution in installed(REQUIRED[name]).items() if key not in core]
    gb = sum(file.size or 0 for distribution in added for file in distribution.files or ()) / 1e9
    assert gb == pytest.approx(EXTRAS[name].gb, rel=0.1, abs=0.01)


def test_licences_are_of_what_is_locked():
    written = {(name, version) for name, version, _, _ in rows(NOTICE.read_text())}
    texts = [(ROOT / f"requirements/{lock}.lock").read_text() for lock in LOCKS]
    known = {(one.name, one.version) for text in texts for one in locked(text, "3.12")}
    assert written <= known
    assert dict(written).keys() == dict(known).keys()
    for name, _, licence, extra in rows(NOTICE.read_text()):
        assert refusal(name, licence, extra) is None


def test_a_restrictive_licence_would_be_found():
    assert refusal("krippendorff", "GPL-3.0-or-later", "core")
    assert refusal("pyiqa", "PolyForm-Noncommercial-1.0.0", "metrics")
    assert refusal("some", "CC-BY-NC-SA-4.0", "generate")
    assert refusal("some", "Look in the file", "core")
    assert refusal("some", "AGPL-3.0 AND MIT", "pyiqa")


# ---- the core alone


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """The Python of an environment with the wheel and what its core requires, of the installed versions; or the one in
    LOCAL_BENCH_CORE_PYTHON, where the wheel was installed from a package index."""
    if os.environ.get("LOCAL_BENCH_CORE_PYTHON"):
        return os.environ["LOCAL_BENCH_CORE_PYTHON"]
    folder = tmp_path_factory.mktemp("core")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", symlinks=True)
    (site,) = folder.glob("env/lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for found in installed(REQUIRED["core"]).values():
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(found.locate_file(name))
    return folder / "env/bin/python"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By benchmark, a run and the data that it is of."""
    found = {}
    for seed, (name, layout) in enumerate(LAYOUTS.items()):
        folder = tmp_path_factory.mktemp(layout)
        path = getattr(layouts, layout)(folder / "data")
        made = {label: draw(name, path, folder / label, seed + i) for i, label in enumerate(("one", "two"))}
        judged(folder / "run", config(name, path, made), seed)
        found[name] = folder / "run", path
    return found


def outputs(python, lines, folder):
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = [python, "-c", ALONE]
    given = json.dumps(lines)
    done = subprocess.run(run, input=given, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_core_gives_the_results_of_the_complete_installation(core, runs, tmp_path):
    lines = ["--help", "suites list", "suites show studio", "models list", "reproduce servimage", "ls"]
    lines += ["plan studio --gpu a6000", "plan demo --gpu h100", "slurm studio --nodes 2 --gpus-per-node 4"]
    for name, (run, data) in runs.items():
        lines += [f"settle {run} --json", f"settle {run}", f"digest {run} --json", f"verify {run}"]
        lines += [f"compare {run} {run} --json", f"export {run} --format {name} --out {name}"]
        config = "servimage-flux1-dev" if name == "servimage" else name
        lines += [f"plan {config} --gpu a6000 --set suite.path={data}"]
    full = assert_equal(core, lines, tmp_path)
    failed = {line for line, (status, _, _) in full.items() if status}
    assert failed <= {f"verify {runs['ice-bench'][0]}"}  # its dice are no metrics of the config
    results = {"ice-bench": "eval_result.txt", "idea-bench": "*.csv", "hype-edit-1": "judgements/*.json"}
    files = {name: next((tmp_path / "full" / name).rglob(pattern)) for name, pattern in results.items()}
    scores = [f"score {name} {file} --json" for name, file in files.items()]
    folder = tmp_path / "full/servimage"
    scores.append(f"score servimage {folder / 'one_annotations.jsonl'} --tasks {folder / 'tasks.jsonl'} --json")
    assert [status for status, _, _ in assert_equal(core, scores, tmp_path).values()] == [0] * 4


def assert_equal(core, lines, folder):
    """Both installations print the same; only the exports need the extra `tables`, which `settle` says. Returns it."""
    full, alone = outputs(sys.executable, lines, folder / "full"), outputs(core, lines, folder / "core")
    for line in lines:
        assert alone[line][:2] == full[line][:2], (line, alone[line][2])
        assert alone[line][2] == full[line][2] or line.startswith("settle"), line
    return full


def test_what_the_core_lacks_is_one_sentence(core, runs, tmp_path):
    run, _ = runs["ice-bench"]
    (tmp_path / "images").mkdir()
    measure = f"measure {tmp_path / 'images'} --metrics"
    wanted = dict.fromkeys(("generate studio", f"judge {run}", f"measure {run}", "doctor --gpu"), ("torch", "generate"))
    wanted |= {"run studio": ("cv2", "metrics"), "demo": ("pyiqa", "pyiqa"), f"{measure} ssim": ("cv2", "metrics")}
    wanted |= {f"{measure} pyiqa:nima": ("pyiqa", "pyiqa"), f"{measure} face_ref": ("insightface", "faces")}
    wanted |= {f"reproduce servimage figure-2 {runs['servimage'][0]} --out f.svg": ("matplotlib", "tables")}
    wanted |= {"models fetch studio": ("huggingface_hub", "fetch")}
    for line, (status, out, err) in outputs(core, list(wanted), tmp_path).items():
        module, extra = wanted[line]
        assert (status, out) == (2, ""), (line, err)
        assert err.startswith(f"local-bench: {module} is not installed: it is in the extra `{extra}`"), line
        assert err.endswith(f": pip install '{DISTRIBUTION}[{extra}]'\n"), line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images"]


def test_the_core_reports_without_exports_and_figures(core, runs, tmp_path):
    run, _ = runs["servimage"]
    (run / "exports").mkdir(exist_ok=True)
    for name in ("scores.csv", "scores.parquet", "own.csv", "notes.txt"):
        (run / "exports" / name).write_text("of another settlement")
    found = outputs(core, [f"report {run}", f"report {run} --out site", "doctor --json"], tmp_path)
    assert [status for status, _, _ in found.values()] == [0, 0, 0], found
    written, site, checks = found.values()
    assert "the run's data are not exported: pyarrow is not installed: it is in the extra `tables`" in written[2]
    assert sorted(path.name for path in (run / "exports").iterdir()) == ["notes.txt", "own.csv", "tables"]
    assert "figures are not drawn" in site[2]
    states = {row["check"]: row for row in json.loads(checks[1])["checks"]}
    assert states["extra generate"]["ok"] is None
    assert "pip install" in states["extra generate"]["detail"]
