"""Images of a run that are missing, damaged, altered or swapped: every command reports them, they are generated or
imported again where possible, and other images are processed as usual."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from local_bench.analysis.digest import digests
from local_bench.cli.main import main
from local_bench.core.images import png_bytes
from local_bench.runs.rundir import RunDir
from tests.orders import noise, order, write_orders

from . import rows
from .failing_server import FailingServer

CONFIG = """
name: t
suite: {name: servimage, path: orders.jsonl}
models:
  - {card: imported, name: theirs, imported: {images: theirs}, attempts: 2}
  - {card: imported, name: nothing, imported: {images: empty}}
metrics: [entropy, l1_raw]
judge: {card: tiny-qwen2-vl, canaries: false}
panel: [{card: tiny-qwen2-vl, name: second, protocol: logit, canaries: false}]
engine: {device: cpu}
"""
RUN = Path("run")
GENERATE = ["generate", "run.yaml", "--run-dir", "run"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Two orders of two images, each with a source image; two attempts of one model, none of another."""
    folder = tmp_path_factory.mktemp("finished")
    lines = []
    for i in range(2):
        noise(folder / f"source{i}.png", 100 + i, (40, 40))
        for k in (1, 2):
            for attempt in (1, 2):
                noise(folder / "theirs" / f"t{i}" / f"{k}_{attempt}.png", i * 10 + k * 3 + attempt * 37, (40, 40))
        rules = [{"visual_specs": {"width_px": 40}}, {}]
        lines.append(order(f"t{i}", ["front", "back"], source_image=f"source{i}.png", rules=rules))
    (folder / "empty").mkdir()
    write_orders(folder / "orders.jsonl", lines)
    (folder / "run.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(GENERATE) == 0
    return folder


@pytest.fixture
def copied_run(finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(finished_run, tmp_path / "f"))


@pytest.fixture(scope="module")
def judge():
    with FailingServer() as server:
        yield server


@pytest.fixture(scope="module")
def judged_run(finished_run, judge, tmp_path_factory):
    folder = shutil.copytree(finished_run, tmp_path_factory.mktemp("judged") / "f")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert served(judge, "judge", "run") == 0
        assert main(["measure", "run"]) == 0
    return folder


def served(judge, *arguments):
    urls = f"panel=[{{card: tiny-qwen2-vl, name: second, protocol: logit, canaries: false, base_url: '{judge.url}'}}]"
    return main([*arguments, "--set", f"judge.base_url={judge.url}", "--set", urls])


def empty(path, other):
    path.write_bytes(b"")


def missing(path, other):
    path.unlink()


def cut(path, other):
    path.write_bytes(path.read_bytes()[:-200])


def edited(path, other):
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[0, 0, 0] ^= 1
    path.write_bytes(png_bytes(Image.fromarray(pixels)))


def swapped(path, other):
    path.write_bytes(other.read_bytes())


FAULTS = {empty: "damaged", missing: "missing", cut: "damaged", edited: "altered", swapped: "altered"}


def damage_image(fault, where="images"):
    """Damages the first of the run's images, one of a first attempt; returns its path and its original bytes."""
    paths = sorted((RUN / where).rglob("*.png"))
    if where == "images":
        with RunDir.open(RUN) as run:
            query = "SELECT pixels_sha256 AS sha FROM candidates WHERE attempt = 1 AND state = 'done' ORDER BY position"
            paths = [run.image(row["sha"]) for row in run.store.rows(query)]
    first, second = paths[:2]
    before = first.read_bytes()
    fault(first, second)
    return first, before


def count(query, *values):
    return rows(RUN, f"SELECT count(*) AS n FROM {query}", *values)[0]["n"]


@pytest.mark.parametrize(
    ("where", "fault"), [*(("images", fault) for fault in FAULTS), ("inputs", missing), ("inputs", edited)]
)
def test_every_command_names_faulty_images_and_processes_the_others(
    judged_run, tmp_path, judge, fault, where, monkeypatch, capsys
):
    monkeypatch.chdir(shutil.copytree(judged_run, tmp_path / "f"))
    with RunDir.open(RUN) as run:
        before = digests(run)
    path, _ = damage_image(fault, where)
    name = path.relative_to(RUN).as_posix()
    commands = [["verify", "run"], ["measure", "run"]]
    if fault not in (cut, swapped):  # of which each command says the same as of `empty` and `edited`
        commands += [["digest", "run"], ["report", "run"], ["judge", "run"]]
        commands += [["export", "run", "--format", "servimage"]] if where == "images" else []
    commands += [["settle", "run"]] if fault in (empty, missing) else []  # which opens no images
    capsys.readouterr()
    for command in commands:
        status = served(judge, *command) if command[0] == "judge" else main([*command, "--json"])
        captured = capsys.readouterr()
        assert status == 1, (command, captured)
        assert f"(1 {FAULTS[fault]}; the first is {name})" in captured.err, command
        assert "Traceback" not in captured.err
        if command[0] != "judge":
            assert json.loads(captured.out)["image_faults"] == [{"file": name, "fault": FAULTS[fault]}]
    assert ["report", "run"] not in commands or name in (RUN / "report" / "index.html").read_text()
    with RunDir.open(RUN) as run:  # results from before the damage are retained
        after = digests(run)
    assert {key: after[key] for key in ("candidates", "verdicts")} == {k: before[k] for k in ("candidates", "verdicts")}


@pytest.mark.parametrize(("fault", "where"), [(empty, "images"), (edited, "inputs")])
@pytest.mark.usefixtures("copied_run")
def test_results_of_a_faulty_image_are_unscored_until_it_is_restored(judge, fault, where):
    path, before = damage_image(fault, where)
    assert main(["measure", "run"]) == 1
    assert served(judge, "judge", "run") == 1
    n = count("scores WHERE unscored LIKE ?", f"%picture of the run is {FAULTS[fault]}%")
    assert n == (2 if where == "images" else 4)  # two metrics; l1_raw of the four images with this source
    reasons = rows(RUN, "SELECT unscored FROM scores WHERE unscored LIKE '%picture of the run is%'")
    assert all(("not a readable" in row["unscored"]) == (fault is empty) for row in reasons)
    assert not any("/" in row["unscored"] for row in reasons)  # no path
    assert count("scores WHERE kind = 'metric' AND value IS NOT NULL") == 2 * 8 - n
    n_unscored = count("verdicts WHERE unscored LIKE ?", f"the picture % is {FAULTS[fault]}")
    assert 0 < n_unscored < count("verdicts")
    assert count("verdicts WHERE answer IS NOT NULL") == count("verdicts") - n_unscored
    path.write_bytes(before)
    n_answered = judge.answered.total()
    assert main(["measure", "run"]) == 0
    assert served(judge, "judge", "run") == 0
    assert judge.answered.total() - n_answered < count("verdicts") * 3
    assert count("scores WHERE unscored LIKE '%picture%'") == 0
    assert count("verdicts WHERE unscored IS NOT NULL") == 0
    assert main(["settle", "run"]) == 0
    assert main(["verify", "run"]) == 0


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("copied_run")
def test_imported_images_and_inputs_are_imported_again(fault):
    paths = [damage_image(fault, where) for where in ("images", "inputs")]
    assert main(GENERATE) == 0
    for path, before in paths:
        assert path.read_bytes() == before
    assert main(["verify", "run"]) == 0


@pytest.mark.usefixtures("copied_run")
def test_a_faulty_image_is_not_exported_and_without_its_original_stays_faulty(capsys):
    path, before = damage_image(edited)
    altered = path.read_bytes()
    export = ["export", "run", "--format", "servimage", "--out", "out"]
    assert main(export) == 1
    n_exported = len(list(Path("out").rglob("*.png")))
    Path("theirs").rename("elsewhere")
    Path("theirs").mkdir()
    capsys.readouterr()
    assert main(GENERATE) == 2
    assert "would change (work.pixels: " in capsys.readouterr().err
    assert path.read_bytes() == altered
    assert main(["verify", "run"]) == 1
    path.write_bytes(before)
    assert main(export) == 0
    assert n_exported == len(list(Path("out").rglob("*.png"))) - 1 == 3


@pytest.mark.slow
def test_a_faulty_image_is_generated_again_with_equal_bytes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = "{card: tiny-flux, height: 64, width: 64, num_inference_steps: 1}"
    Path("run.yaml").write_text(f"name: x\nsuite: {{name: studio, limit: 2}}\nmodels: [{model}]\nmetrics: []\n")
    command = [*GENERATE, "--set", "engine.device=cpu"]
    assert main(command) == 0
    for fault in (missing, empty, edited):
        path, before = damage_image(fault)
        capsys.readouterr()
        assert main(command) == 0
        assert "1 image is generated again" in capsys.readouterr().err
        assert path.read_bytes() == before
        assert main(["verify", "run"]) == 0
