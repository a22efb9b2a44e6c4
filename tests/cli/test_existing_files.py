"""No command destroys a file that it did not write, and a path that cannot be written to is one sentence."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from local_bench.cli.main import main
from local_bench.runs.config import load_config
from local_bench.suites.servimage.suite import ServImage
from tests.orders import order, write_orders

CONFIG = """
name: t
suite: {name: servimage, path: orders.jsonl}
models:
  - {card: imported, name: theirs, imported: {images: images}}
metrics: []
engine: {device: cpu}
"""


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A settled run of one order with one image."""
    path = tmp_path_factory.mktemp("settled")
    (path / "images" / "t0").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path / "images" / "t0" / "1.png")
    write_orders(path / "orders.jsonl", [order("t0")])
    (path / "run.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(["generate", "run.yaml", "--run-dir", "run"]) == 0
        assert main(["settle", "run"]) == 0
    return path


@pytest.fixture
def run_dir(settled, tmp_path, monkeypatch):
    shutil.copytree(settled, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


FOREIGN = (
    *(b"years of work", b"line one\nline two, never ended", b"\xff\xfe\x00\n\x01"),
    *(b'{"metrics": {}}\n{"half": ', b'{"metrics'),
)


def test_measure_leaves_a_foreign_out_file_unchanged_and_continues_its_own(run_dir, tmp_path, capsys):
    for content in FOREIGN:
        (tmp_path / "t.txt").write_bytes(content)
        assert main(["measure", "images", "--metrics", "entropy", "--out", "t.txt"]) == 2
        assert "t.txt" in capsys.readouterr().err
        assert (tmp_path / "t.txt").read_bytes() == content
    arguments = ["measure", "images", "--metrics", "entropy", "--out", "t.jsonl"]
    assert main(arguments) == 0
    complete = (tmp_path / "t.jsonl").read_bytes()
    (tmp_path / "t.jsonl").write_bytes(complete[:-10])
    assert main(arguments) == 0
    assert (tmp_path / "t.jsonl").read_bytes() == complete


def annotations(path, accepted):
    line = {"model": "theirs", "task_id": "t0", "category": "C", "annotations": {"subtask_1": accepted}}
    path.write_text(json.dumps(line) + "\n")


def test_import_never_replaces_labels_but_can_be_repeated(run_dir, tmp_path, capsys):
    source, labels = tmp_path / "theirs_annotations.jsonl", tmp_path / "labels.jsonl"
    annotations(source, True)
    arguments = ["import", "servimage", str(source), "--run", "run", "--labels"]
    assert main([*arguments, str(labels)]) == 0
    said = capsys.readouterr().out
    assert ("1 annotation in" in said, "1 of them new" in said) == (True, True)
    before = labels.read_bytes()
    assert main([*arguments, str(labels)]) == 0
    assert "0 of them new" in capsys.readouterr().out
    annotations(source, False)
    assert main([*arguments, str(labels)]) == 2
    assert "exists and its content differs from these labels" in capsys.readouterr().err
    assert labels.read_bytes() == before
    read = source.read_bytes()
    assert main([*arguments, f"run/../{source.name}"]) == 2
    assert "is one of the input files" in capsys.readouterr().err
    assert source.read_bytes() == read


def test_the_models_that_import_prints_can_be_loaded(run_dir, tmp_path, capsys):
    """Names that are no text in YAML, a folder with its special characters."""
    folder, names = Path("a, b: #c}"), ["007", "1e3", "2024-05-01", "null", "theirs", "true"]
    for name in names:
        shutil.copytree("images/t0", folder / name / "t0")
    assert main(["import", "servimage", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "name: theirs, attempts: 1, imported: {" in printed
    Path("run.yaml").write_text(re.sub("(?ms)^models:.*?(?=^metrics)", lambda _: printed, CONFIG))
    models = load_config(Path("run.yaml")).models
    assert [model.name for model in models] == names
    assert all(Path(model.imported.images) == folder / f"{model.name}.manifest.jsonl" for model in models)


def test_import_never_replaces_a_manifest_that_somebody_edited(run_dir, tmp_path, capsys):
    (tmp_path / "out" / "theirs").mkdir(parents=True)
    (tmp_path / "images" / "t0").rename(tmp_path / "out" / "theirs" / "t0")
    assert main(["import", "servimage", "out"]) == 0
    assert main(["import", "servimage", "out"]) == 0
    manifest = tmp_path / "out" / "theirs.manifest.jsonl"
    edited = manifest.read_text().replace("}", ', "cost_usd": 0.04}')
    manifest.write_text(edited)
    assert main(["import", "servimage", "out"]) == 2
    assert manifest.read_text() == edited


def test_export_never_writes_into_a_foreign_folder(run_dir, tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    (data / "tasks.jsonl").write_text("the benchmark's own")
    arguments = ["export", "run", "--format", "servimage", "--out"]
    assert main([*arguments, str(data)]) == 2
    assert "has files that are not from an export" in capsys.readouterr().err
    assert [p.name for p in data.iterdir()] == ["tasks.jsonl"]
    assert (data / "tasks.jsonl").read_text() == "the benchmark's own"
    for _ in range(2):
        assert main([*arguments, str(tmp_path / "new")]) == 0
        assert main(arguments[:-1]) == 0


def test_export_prints_the_command_that_scores_its_files(run_dir, tmp_path, capsys, monkeypatch):
    arguments = ["export", "run", "--format", "servimage", "--out", str(tmp_path / "new")]
    assert main(arguments) == 0
    (command,) = capsys.readouterr().out.splitlines()
    assert main(shlex.split(command)[1:]) == 0
    assert "theirs" in capsys.readouterr().out
    monkeypatch.setattr(ServImage, "score_options", None)  # as of a benchmark that has no `score`
    assert main(arguments) == 0
    assert [Path(line).is_file() for line in capsys.readouterr().out.splitlines()] == [True]


LONG = "x" * 300


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("export run --format servimage --out F", "F"),
        ("export run --format servimage --out F/x", "F"),
        (f"export run --format servimage --out {LONG}", None),
        ("generate run.yaml --run-dir F/x", "F"),
        (f"generate run.yaml --run-dir {LONG}", None),
        ("report run", "run/report"),
        ("report run", "run/exports"),
        ("measure images --metrics entropy --out F/x", "F"),
        ("measure images --metrics entropy --out images", None),
        ("measure images --metrics entropy --out nowhere/x", None),
        (f"measure images --metrics entropy --out {LONG}", None),
        (f"settle run --plan-labels 0.5 --questions {LONG}", None),
    ],
)
def test_an_unwritable_path_is_an_error(run_dir, tmp_path, command, file, capsys):
    if file is not None:
        if (tmp_path / file).is_dir():
            (tmp_path / file).rename(tmp_path / f"{file}.away")
        (tmp_path / file).write_text("a file")
    assert main(command.split()) == 2
    stderr = capsys.readouterr().err
    assert stderr.splitlines()[-1].startswith("local-bench: ")
    assert "Traceback" not in stderr
    assert file is None or (tmp_path / file).read_text() == "a file"


def test_a_cache_that_is_a_file_is_an_error(run_dir, tmp_path, monkeypatch, capsys):
    (tmp_path / "F").write_text("a file")
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "F"))
    (tmp_path / "flux.yaml").write_text("name: x\nmodels: [{card: tiny-flux}]\n")
    assert main(["generate", "flux.yaml", "--run-dir", "other"]) == 2
    assert f"cannot write {tmp_path / 'F'}" in capsys.readouterr().err
