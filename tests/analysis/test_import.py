"""Files of others in a benchmark's layout are imported: images as a model's, results as labels."""

import csv
import json
import shutil

import pytest

from local_bench.analysis.official import export
from local_bench.annotation.ratings import load_annotations
from local_bench.cli.main import main
from local_bench.runs.rundir import RunDir
from local_bench.suites.idea_bench.results import HEADER
from tests.analysis.simulated import LAYOUTS, config, draw, judged
from tests.stages import run_stages
from tests.suites.benchmarks import layouts


@pytest.fixture(scope="module", params=list(LAYOUTS))
def exported(request, tmp_path_factory):
    """(layout, its tasks, the run, what was exported of it, the result files)"""
    name = request.param
    folder = tmp_path_factory.mktemp("in")
    path = getattr(layouts, LAYOUTS[name])(folder / "data")
    attempts = 2 if name == "hype-edit-1" else 1
    settings = config(name, path, {"theirs": draw(name, path, folder / "theirs", 5, attempts)}, attempts)
    judged(folder / "run", settings, 5)
    with RunDir.open(folder / "run") as run:
        files = export(run, name, folder / "out")
    return name, path, folder / "run", folder / "out", files


def pixels(run_dir):
    with RunDir.open(run_dir) as run:
        rows = run.store.rows("SELECT * FROM candidates")
    return {(r["task_id"], r["deliverable"], r["attempt"]): r["pixels_sha256"] for r in rows}


def test_exported_images_are_imported_unchanged(exported, tmp_path, capsys):
    name, path, run_dir, out, _ = exported
    assert main(["import", name, str(out), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["manifests"]
    assert found["method"] == "theirs"
    before = pixels(run_dir)
    assert found["n"] == sum(sha is not None for sha in before.values())
    settings = config(name, path, {"theirs": found["manifest"]}, found["attempts"])
    run_stages(settings, tmp_path / "again", ("generate",))
    after = pixels(tmp_path / "again")
    if name == "idea-bench":  # its JPEG loses a little
        assert {key for key, sha in after.items() if sha} == {key for key, sha in before.items() if sha}
    else:
        assert after == before


def test_results_are_imported_as_labels(exported, tmp_path, capsys):
    name, _, run_dir, _, files = exported
    labels = tmp_path / "labels.jsonl"
    status = main(["import", name, *map(str, files), "--run", str(run_dir), "--labels", str(labels), "--json"])
    output = json.loads(capsys.readouterr().out)
    assert status == 0
    assert output["n"] == len(labels.read_text().splitlines()) > 0
    with RunDir.open(run_dir) as run:
        word = load_annotations(labels, run, {}).consensus
        decided = {r["work_id"]: r["accepted"] for r in run.store.rows("SELECT * FROM decisions")}
        scores = {(r["work_id"], r["name"]): r["value"] for r in run.store.rows("SELECT * FROM scores")}
    if name in ("hype-edit-1", "servimage"):
        assert {work_id: rating.decision for work_id, rating in word["overall"].items()} == {
            work_id: bool(accepted) for work_id, accepted in decided.items() if accepted is not None
        }
    else:
        names = [key for key in word if key != "overall"]
        rated = {(work_id, key): rating.number for key in names for work_id, rating in word[key].items()}
        known = {key: value for key, value in scores.items() if key in rated and value is not None}
        assert known
        assert {key: rated[key] for key in known} == pytest.approx(known)


def test_a_line_without_a_label_that_does_not_belong_is_refused_too(exported, tmp_path, capsys):
    name, _, run_dir, _, files = exported
    unlabelled = {
        "servimage": (
            '{"model": "theirs", "task_id": "x9", "annotations": {}}',
            "the run has no 'x9': remove its lines",
        ),
        "ice-bench": ("x9#;#Face Swap#;#{}", "the run has no image 1 of 'x9'"),
        "hype-edit-1": None,
        "idea-bench": None,
    }[name]
    if unlabelled is None:
        pytest.skip("in its files every line has a verdict, or says that it has none")
    (tmp_path / "theirs").mkdir()
    source, labels = tmp_path / "theirs" / files[0].name, tmp_path / "labels.jsonl"
    arguments = ["import", name, str(source), "--run", str(run_dir), "--labels", str(labels)]
    source.write_text(f"{files[0].read_text()}{unlabelled[0]}\n")
    assert main(arguments) == 2
    assert unlabelled[1] in capsys.readouterr().err
    assert not labels.exists()
    source.write_text(files[0].read_text())
    assert main(arguments) == 0
    if name == "servimage":
        first = json.loads(files[0].read_text().splitlines()[0])
        source.write_text(f"{files[0].read_text()}{json.dumps(first | {'model': 'x9', 'annotations': {}})}\n")
        assert main(arguments) == 2
        assert unlabelled[1] in capsys.readouterr().err


def test_what_does_not_belong_is_refused(exported, tmp_path, capsys):
    name, _, run_dir, out, files = exported
    other = next(layout for layout in LAYOUTS if layout != name)
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = [
        ((name, empty), "has no images"),
        ((name, tmp_path / "nowhere"), "is not a folder"),
        ((name, out, out), "from one folder at a time"),
        ((name, files[0], "--run", run_dir), "both --run RUN and --labels"),
        ((other, files[0], "--run", run_dir, "--labels", tmp_path / "l"), "do not describe"),
        (("icebench", out), "unknown layout"),
    ]
    for arguments, message in wrong:
        assert main(["import", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err


def test_labels_are_of_one_model_of_the_run_and_given_once(exported, tmp_path, capsys):
    """A model in two files, and in the two layouts that name it by a file, a file with another name."""
    name, _, run_dir, _, files = exported
    copy, labels = tmp_path / "copy" / files[0].parent.name / files[0].name, tmp_path / "labels.jsonl"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(files[0].read_bytes())
    options = ["--run", str(run_dir), "--labels", str(labels)]
    for twice in (copy, files[0]):
        assert main(["import", name, str(files[0]), str(twice), *options]) == 2
        found = capsys.readouterr().err
        assert any(text in found for text in ("is in two of the files: keep one", "duplicate", "is judged in"))
        assert not labels.exists()
    if name in ("ice-bench", "idea-bench"):
        other = tmp_path / "other" / f"gemini_results{copy.suffix}"
        other.parent.mkdir()
        other.write_bytes(copy.read_bytes())
        assert main(["import", name, str(other), *options]) == 2
        wrong = "'other': name the file's folder" if name == "ice-bench" else "'gemini_results': name the file"
        assert f"the run has no model {wrong} after its model" in capsys.readouterr().err
        assert not labels.exists()


def test_an_ice_bench_file_is_of_the_runs_own_tasks(exported, tmp_path, capsys, monkeypatch):
    """`vllmqa` null is no label; a bare file name in the model's folder is enough."""
    name, _, run_dir, _, _ = exported
    if name != "ice-bench":
        pytest.skip("other layouts have no task names with their results")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.chdir(theirs)
    rows = [
        ("i2", "Color Editing", {"vllmqa": 1}),
        ("i3", "Local Subject Removal", {"vllmqa": None}),
        ("i1", "Text2Image", {}),
    ]

    def labels(rows):
        text = "".join(f"{item}#;#{task}#;#{json.dumps(metrics)}\n" for item, task, metrics in rows)
        (theirs / "eval_result.txt").write_text(text)
        return main(["import", name, "eval_result.txt", "--run", str(run_dir), "--labels", "labels.jsonl", "--json"])

    assert labels(rows) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["n"], output["n_without_verdict"]) == (1, 1)
    (line,) = map(json.loads, (theirs / "labels.jsonl").read_text().splitlines())
    assert (line["task_id"], line["vllmqa"]) == ("i2", 1)
    assert labels([("i2", "Inpainting", {"vllmqa": 1})]) == 2
    assert "'i2' is of Inpainting, but in the run of Color Editing" in capsys.readouterr().err


def test_ice_bench_images_are_found_from_any_folder_that_has_them(exported, tmp_path, capsys, monkeypatch):
    """The paths in gen_info.json start at the folder that has `results`."""
    name, _, _, out, _ = exported
    if name != "ice-bench":
        pytest.skip("other layouts have no paths in a file")
    files = {}
    for folder in ("", "results", "results/theirs"):
        copy = shutil.copytree(out, tmp_path / (folder or "top").replace("/", "_")) / folder
        monkeypatch.chdir(copy)
        assert main(["import", name, ".", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["manifests"]
        assert found["method"] == "theirs"
        lines = map(json.loads, (copy / "theirs.manifest.jsonl").read_text().splitlines())
        files[folder] = {line["task_id"]: (copy / line["file"]).read_bytes() for line in lines}
    assert len(files[""]) > 2
    assert files[""] == files["results"] == files["results/theirs"]
    monkeypatch.chdir(tmp_path / "results_theirs/results/theirs/images")
    (tmp_path / "results_theirs/results/theirs/images/gen_info.json").write_text('{"i1": "labels.txt"}')
    (tmp_path / "results_theirs/results/theirs/labels.txt").write_text("outside of the folder")
    assert main(["import", name, "."]) == 2
    assert "labels.txt does not exist" in capsys.readouterr().err


def test_answers_about_a_case_are_on_an_image_that_was_made(tmp_path, capsys):
    """IDEA-Bench's second image alone: `reproduce --people` has the numbers of `score`."""
    path = layouts.idea(tmp_path / "data")
    theirs = draw("idea-bench", path, tmp_path / "theirs", 3, left_out=0)
    (theirs / "pair_0001_1_1.png").unlink()
    run_dir, labels = tmp_path / "run", tmp_path / "labels.jsonl"
    judged(run_dir, config("idea-bench", path, {"theirs": theirs}), 3)
    file = tmp_path / "theirs.csv"
    with file.open("w", newline="") as written:
        lines = csv.writer(written)
        lines.writerow(HEADER)
        for uid, yes in (("0024", 6), ("0063", 2), ("0014", 4)):
            for k in range(1, 7):
                lines.writerow(["n", uid, "0001", k, "?", "x.jpg", *["", int(k <= yes), ""] * 3])
    assert main(["import", "idea-bench", str(file), "--run", str(run_dir), "--labels", str(labels)]) == 0
    on = {line["task_id"]: line["deliverable"] for line in map(json.loads, labels.read_text().splitlines())}
    assert on == {"pair_0001": 2, "plain_0001": 1, "relight_0001": 1}
    capsys.readouterr()
    assert main(["reproduce", "idea-bench", "table-2", str(run_dir), "--people", str(labels), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    scores = {"T2I": 100, "I2I": pytest.approx(100 / 3), "Is2I": None, "T2Is": pytest.approx(200 / 3), "I(s)2Is": None}
    assert row == {"method": "theirs", "parameters_b": None, **scores, "average": pytest.approx(40)}
    assert main(["score", "idea-bench", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"] == row["average"]
