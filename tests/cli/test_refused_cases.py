"""Cases that cannot be read are omitted, counted and reported; what a plan says about the tasks that are read."""

import json

from local_bench.cli.main import main
from local_bench.runs.config import load_config
from local_bench.runs.plan import make_plan
from local_bench.runs.provenance import write_provenance
from local_bench.runs.rundir import RunDir
from tests.suites.benchmarks import layouts


def test_it_is_reported_by_suites_show_plan_and_provenance(tmp_path, capsys):
    data = layouts.idea(tmp_path / "data")
    (data / "pair_0001/instruction.txt").write_text(" ")
    message = "case pair_0001 is omitted: pair_0001/instruction.txt is empty"

    assert main(["suites", "show", "idea-bench", "--path", str(data), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["n_tasks"] == 2
    assert [sentence.startswith(message) for sentence in json.loads(captured.out)["refused"]] == [True]
    assert message in captured.err

    config = {"name": "r", "suite": {"name": "idea-bench", "path": str(data)}, "models": [{"card": "tiny-flux"}]}
    (tmp_path / "run.yaml").write_text(json.dumps(config | {"judge": {"card": "tiny-qwen3-vl"}, "metrics": []}))
    assert main(["plan", str(tmp_path / "run.yaml"), "--json"]) == 0
    planned = capsys.readouterr()
    assert message in planned.err
    assert json.loads(planned.out)["n_tasks"] == 2
    assert len(json.loads(planned.out)["refused_cases"]) == 1

    loaded = load_config(tmp_path / "run.yaml", ())
    with RunDir.begin(tmp_path / "run", loaded) as run:
        plan = make_plan(loaded, run.path)
        assert plan.notes[0] == "1 case cannot be read and is skipped:"
        write_provenance(run, plan, None)
    stored = json.loads((tmp_path / "run/provenance.json").read_text())["refused_cases"]
    assert stored["n"] == 1
    assert stored["cases"][0].startswith(message)
    assert str(tmp_path) not in stored["cases"][0]

    for name in ("plain", "relight"):
        (data / f"{name}_0001/meta.json").write_text("[]")
    assert main(["plan", str(tmp_path / "run.yaml")]) == 2
    assert "none of the 3 cases can be read" in capsys.readouterr().err


def planned(capsys, tmp_path, path):
    config = {"name": "r", "suite": {"name": "servimage", "path": str(path)}, "models": [{"card": "tiny-flux"}]}
    (tmp_path / "run.yaml").write_text(json.dumps(config | {"judge": {"card": "tiny-qwen3-vl"}, "metrics": []}))
    assert main(["plan", str(tmp_path / "run.yaml"), "--json"]) == 0
    of_json = capsys.readouterr()
    return json.loads(of_json.out), of_json.err


def test_plan_names_contradictions_and_counts_rules_and_input_images(tmp_path, capsys):
    data = layouts.servimage(tmp_path / "data")
    file = data / "C-Digital" / "Digital.json"
    [order] = json.loads(file.read_text())
    specs = {"dimensions": {"width": 2480, "height": 3508}, "aspect_ratio": "1:1", "resolution": {"min_dpi": 300}}
    order["hard_rules"]["deliverables"][1]["rules"] = {"visual_specs": specs, "file_type": ["PNG"]}
    file.write_text(json.dumps([order]))
    found, messages = planned(capsys, tmp_path, data)
    [note] = [note for note in found["notes"] if note.startswith("digital-001: ")]
    assert "Image 2: the aspect ratio 1:1 contradicts the size 2480 x 3508; the size has no unit" in note
    assert note in messages
    assert found["rules"] == {"aspect_ratio": 3, "file_type": 1, "min_dpi": 1}
    assert (found["n_tasks_with_source"], found["n_tasks_with_references"]) == (1, 1)
    assert main(["plan", str(tmp_path / "run.yaml")]) == 0
    text = capsys.readouterr().out
    assert "images with a hard rule: aspect_ratio 3, file_type 1, min_dpi 1" in text
    assert "tasks with a source image: 1, with reference images: 1" in text
