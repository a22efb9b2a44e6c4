"""A ServImage run whose images are also put to the other benchmarks' questions, by two judges."""

import csv
import json

import pytest

from local_bench import load_run
from local_bench.cli.main import main
from local_bench.runs.rundir import RunDir
from tests.suites.benchmarks import layouts

OTHERS = {"ice_vllmqa", "hype_pass", "hype_rating", "idea_met"}


def rows(path, query):
    with RunDir.open(path) as run:
        return [tuple(row) for row in run.store.rows(query)]


@pytest.mark.slow
def test_borrowed_scores_do_not_change_the_suite_s_own(tmp_path, capsys):
    path = layouts.servimage(tmp_path / "data")
    for task, n in (("digital-001", 2), ("portrait-010", 1)):
        for i in range(1, n + 1):
            layouts.write_image(tmp_path / "made" / task / f"{i}.png", i)
    judge = {"card": "tiny-qwen3-vl", "transport": "local", "canaries": False, "rubrics": "miniature"}  # short answers
    config = {
        "name": "borrowed",
        "suite": {"name": "servimage", "path": str(path)},
        "models": [{"card": "imported", "name": "theirs", "imported": {"images": str(tmp_path / "made")}}],
        "judge": judge,
        "panel": [judge | {"card": "tiny-qwen2-vl", "name": "second"}],
        "metrics": [],
        "engine": {"device": "cpu"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    plain, run = tmp_path / "plain", tmp_path / "run"
    assert main(["generate", str(tmp_path / "run.yaml"), "--run-dir", str(plain)]) == 0
    for stage in ("judge", "settle"):
        capsys.readouterr()
        assert main([stage, str(plain), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    more = ["--set", "suite.questions_from=[ice-bench, hype-edit-1, idea-bench]"]
    assert main(["plan", str(tmp_path / "run.yaml"), *more, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["judge"]["n_questions"]
    assert main(["run", str(tmp_path / "run.yaml"), "--run-dir", str(run), *more, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["verdicts"]["n"] == planned > own["verdicts"]["n"]
    assert (output["models"], output["benchmark"]) == (own["models"], own["benchmark"])
    verdicts = "SELECT work_id, judge, rubric, point, repeat, question_id, answer FROM verdicts ORDER BY 1, 2, 3, 4, 5"
    assert set(rows(plain, verdicts)) < set(rows(run, verdicts))
    scores = "SELECT work_id, name, value, unscored, applies FROM scores ORDER BY 1, 2"
    assert {row[1] for row in set(rows(run, scores)) - set(rows(plain, scores))} == OTHERS
    applies = {(row[1], row[4]) for row in rows(run, scores) if row[1] == "ice_vllmqa"}
    assert applies == {("ice_vllmqa", 0), ("ice_vllmqa", 1)}  # text alone, and an edit
    assert "hype_pass" in (run / "report" / "data" / "0-sections.js").read_text()
    with load_run(run) as loaded, load_run(plain) as without:
        frame = loaded.scores()
        assert set(without.scores()["kind"]) == {"judge"}
    composite = frame[frame["kind"] == "benchmark"].set_index(["task_id", "deliverable"])
    assert set(composite["name"]) == {"ice_composite"}
    assert composite["applies"].to_dict() == {
        ("digital-001", 1): False,
        ("digital-001", 2): False,
        ("portrait-010", 1): True,
    }
    assert composite["unscored"]["portrait-010", 1].startswith("aes_v2.5 was not computed")
    exported = csv.DictReader((run / "exports" / "scores.csv").open(newline=""))
    assert {(row["work_id"], row["name"]) for row in exported if row["kind"] == "benchmark"} == {
        (work_id, "ice_composite") for work_id in composite["work_id"]
    }
    labels = tmp_path / "labels.jsonl"
    images = [("digital-001", 1), ("digital-001", 2), ("portrait-010", 1)]
    lines = [{"model": "theirs", "task_id": t, "deliverable": d, "overall": d == 1} for t, d in images]
    labels.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["settle", str(run), "--people", str(labels), "--explain", "--json"]) == 0
    assert "idea_met" in capsys.readouterr().out  # how far each score goes along with payment
    assert main(["judge", str(plain), *more]) == 0  # added later
    assert rows(plain, verdicts) == rows(run, verdicts)


def test_an_unknown_name_is_an_error(tmp_path, capsys):
    config = {"name": "t", "suite": {"name": "studio"}, "models": [{"card": "tiny-flux"}]}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    assert main(["plan", str(tmp_path / "run.yaml"), "--set", "suite.questions_from=[hype]"]) == 2
    assert "suite.questions_from: unknown benchmark 'hype'" in capsys.readouterr().err
