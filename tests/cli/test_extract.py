"""What a small judge writes about tasks before a run, and what becomes of it."""

import json

import pytest

from local_bench.cli.main import main
from local_bench.core.images import pixel_digest
from local_bench.core.types import Question, Verdict
from local_bench.runs.enrichment import _read
from local_bench.suites.registry import suite
from tests.orders import order, write_orders
from tests.suites.benchmarks import layouts


@pytest.mark.slow
@pytest.mark.parametrize(("name", "field"), [("hype-edit-1", "changes"), ("idea-bench", "prompts")])
def test_every_task_is_extracted_once(name, field, tmp_path, capsys):
    path = {"hype-edit-1": layouts.hype, "idea-bench": layouts.idea}[name](tmp_path / "data")
    config = {
        "name": "x",
        "suite": {"name": name, "path": str(path)},
        "models": [{"card": "tiny-flux"}],
        "judge": {"card": "tiny-qwen3-vl", "transport": "local", "max_tokens": 512},
        "engine": {"device": "cpu"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    out = tmp_path / "written.jsonl"
    parts, status = [], False
    for shard in ("1/2", "2/2"):
        command = ["extract", str(tmp_path / "run.yaml"), "--out", str(out), "--shard", shard, "--json"]
        status |= bool(main(command))
        parts.append(json.loads(capsys.readouterr().out))
    output = {"n": sum(part["n"] for part in parts), "refused": parts[0]["refused"] | parts[1]["refused"]}
    tasks = suite(name).tasks(str(path), pixel_digest)
    lacking = [task.task_id for task in tasks if suite(name).enrichment_question(task)]
    assert output["n"] + len(output["refused"]) == len(lacking) > 0
    assert output["n"] > 0
    assert status == bool(output["refused"])  # the answer of a random judge may be cut off: reported, not guessed
    written = {task.task_id: task for task in suite(name).tasks(str(path), pixel_digest, None, str(out))}
    done = [task_id for task_id in lacking if task_id not in output["refused"]]
    assert all(written[task_id].own[field] for task_id in done)
    before = out.read_bytes()
    main(["extract", str(tmp_path / "run.yaml"), "--out", str(out), "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["n_there"] == output["n"]
    assert out.read_bytes() == before


def test_a_suite_without_missing_content_is_refused(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(json.dumps({"name": "x", "models": [{"card": "tiny-flux"}]}))
    for more in ([], ["--rules"]):
        assert main(["extract", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "w"), *more]) == 2
        assert "need no enrichment" in capsys.readouterr().err


def test_a_file_that_adds_nothing_is_not_recommended(tmp_path, capsys):
    write_orders(tmp_path / "tasks.jsonl", [order("one")])
    config = {"name": "x", "suite": {"name": "servimage", "path": str(tmp_path / "tasks.jsonl")}}
    config |= {"models": [{"card": "tiny-flux"}], "judge": {"card": "tiny-qwen3-vl", "transport": "local"}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    out = tmp_path / "w.jsonl"
    extract = ["extract", str(tmp_path / "run.yaml"), "--out"]
    assert main([*extract, str(out)]) == 0
    assert capsys.readouterr().out.endswith("already had 0 of these: it adds nothing to a run\n")
    out.write_text(json.dumps({"task_id": "one", "rules": [{}], "judge": "somebody"}) + "\n")
    assert main([*extract, str(out)]) == 0  # no points are missing, and a run uses the rules
    assert f"run with --set suite.written={out}" in capsys.readouterr().out
    for place in (tmp_path, out / "x.jsonl"):  # a folder; below a file
        assert main([*extract, str(place)]) == 2
        assert f"cannot write {place}: " in capsys.readouterr().err


@pytest.mark.slow
def test_points_and_hard_rules_go_into_one_file(tmp_path, capsys):
    fields = {"brief": "A PNG of 64 x 64 pixels.", "evaluation_points": []}
    write_orders(tmp_path / "tasks.jsonl", (order(name, **fields) for name in ("one", "two", "three")))
    config = {"name": "x", "suite": {"name": "servimage", "path": str(tmp_path / "tasks.jsonl")}}
    config |= {"models": [{"card": "tiny-flux"}], "engine": {"device": "cpu"}}
    config |= {"judge": {"card": "tiny-qwen3-vl", "transport": "local", "max_tokens": 512}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    out = tmp_path / "written.jsonl"
    out.write_text(json.dumps({"task_id": "two", "points": ["It is a boot"], "judge": "somebody"}) + "\n")
    command = ["extract", str(tmp_path / "run.yaml"), "--out", str(out), "--rules", "--json"]
    main(command)
    output = json.loads(capsys.readouterr().out)
    assert output["n_there"] == 0  # the line of "two" has points, and no rules
    assert output["n"] + len(output["refused"]) == 3
    written = {line["task_id"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert written["two"]["points"] == ["It is a boot"]
    assert {name for name, line in written.items() if "rules" in line} == {"one", "two", "three"} - set(
        output["refused"]
    )
    assert suite("servimage").tasks(str(tmp_path / "tasks.jsonl"), pixel_digest, None, str(out))


def test_hard_rules_of_another_number_of_images_are_refused():
    entry = {"subtask": "boot", "rules": {"visual_specs": {"aspect_ratio": "16:9"}}, "evidence": []}
    verdict = Verdict({"output_quantity": 1, "deliverables": [entry]}, None, "")
    question = Question("deliverables", 0, (), ())
    assert _read(question, verdict, 1) == {"rules": [entry["rules"]]}
    assert _read(question, verdict, 2) == "the judge finds 1 images in the brief, but the task has 2"
