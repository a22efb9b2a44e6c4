"""The zero-shot question to a small judge, and its answers as a row of an evaluation."""

import json
import shutil
from pathlib import Path

import pytest

from local_bench.cli.main import main
from local_bench.core.errors import FAILED
from local_bench.core.types import Score
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.runs.payment import payment_question, read_predictions, write_predictions
from tests.analysis.annotated_runs import annotated_run
from tests.report.conftest import order


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return annotated_run(tmp_path_factory.mktemp("zero") / "run", range(4), models=("tiny-flux",))


def zero_shot(run, out, *more):
    local = ("--set", "judge.transport=local", "--set", "judge.max_pixels=16384", "--set", "engine.device=cpu")
    return main(["predictor", "zero-shot", str(run), "--out", str(out), "--json", *local, *more])


def test_both_protocols_with_and_without_scores_become_rows(run, tmp_path, capsys):
    path, labels = run
    files = {}
    for protocol, extra in (("logit", ()), ("logit", ("--with-scores",)), ("json", ())):
        files[protocol, *extra] = tmp_path / f"{protocol}{len(extra)}.jsonl"
        arguments = ["--judge", "tiny-qwen2-vl", "--protocol", protocol, *extra]
        assert zero_shot(path, files[protocol, *extra], *arguments) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (len(printed["predictions"]), printed["n_there"]) == (4, 0)
        for line in printed["predictions"]:
            assert line["unscored"] is None
            assert (line["probability"] in (0, 1)) == (protocol == "json")
            assert line["accepted"] == (line["probability"] >= 0.5)
    plain, scored = (list(read_predictions(files[k]).values()) for k in list(files)[:2])
    assert [line.probability for line in plain] != [line.probability for line in scored], "the scores are in the prompt"
    assert {line.source for line in scored} == {"tiny-qwen2-vl-logit, zero-shot, logit, with scores"}
    trained, trained_labels = annotated_run(tmp_path / "trained", range(100, 200), 1)
    out = str(tmp_path / "p")
    assert main(["predictor", "train", str(trained), "--annotations", str(trained_labels), "--out", out]) == 0
    capsys.readouterr()
    given = [argument for file in files.values() for argument in ("--predictions", str(file))]
    assert main(["predictor", "evaluate", out, str(path), "--annotations", str(labels), *given, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["tiny-qwen2-vl-logit, zero-shot, logit, with scores"]["n"] == 4
    assert "tuned rule" in rows


def test_another_judge_uses_the_runs_protocol(run, tmp_path):
    path = Path(shutil.copytree(run[0], tmp_path / "run"))
    config = path / "run.yaml"
    text = config.read_text().replace("protocol: json", "protocol: logit")
    config.write_text(text.replace("panel: []", "panel: [{card: tiny-qwen2-vl}]"))  # has no part in it
    for protocol, more in (("logit", ()), ("json", ("--set", "judge.protocol=json"))):
        out = tmp_path / f"{protocol}.jsonl"
        assert zero_shot(path, out, "--judge", "tiny-qwen2-vl", *more) == 0
        assert {line.source.split(", ")[-1] for line in read_predictions(out).values()} == {protocol}


def test_a_file_is_continued_and_answers_to_another_question_are_refused(run, tmp_path, capsys):
    path, _ = run
    out = tmp_path / "out.jsonl"
    assert zero_shot(path, out, "--protocol", "logit") == 0
    complete = out.read_bytes()
    lines = list(read_predictions(out).values())
    write_predictions(lines[1:3], out)
    capsys.readouterr()
    assert zero_shot(path, out, "--protocol", "logit") == 0
    assert json.loads(capsys.readouterr().out)["n_there"] == 2
    assert out.read_bytes() == complete
    failed = lines[1].model_copy(
        update={"probability": None, "accepted": None, "unscored": f"{FAILED}judging (no memory)"}
    )
    write_predictions([lines[0], failed], out)
    assert zero_shot(path, out, "--protocol", "logit") == 0
    assert json.loads(capsys.readouterr().out)["n_there"] == 1
    assert out.read_bytes() == complete
    for other in (("--protocol", "json"), ("--protocol", "logit", "--with-scores")):
        assert zero_shot(path, out, *other) == 2
        assert "another judge, question" in capsys.readouterr().err
    assert out.read_bytes() == complete
    assert zero_shot(tmp_path, out) == 2
    assert zero_shot(path, out, "--judge", "flux1-dev") == 2


def test_the_question_has_the_price_the_roles_and_the_scores():
    task = order("o1", "a", 12_500_000, 2, source_sha256="s" * 64, reference_sha256=("r" * 64, "q" * 64))
    scores = {"brf": Score("brf", 3.14159), "veq": None, "cns": Score("cns", None, applies=False)}
    question = payment_question(task, 2, "i" * 64, scores)
    (request,) = JudgeSpec("x", "0" * 64, "float32", 10**6, 16, 0).requests(question)
    price = "$12.50 for the whole order of 2 images"
    for fragment in (price, "Image 2 of 2", "brf: 3.14", "veq: unknown", "does not apply"):
        assert fragment in request.text
    assert question.roles == ("delivered", "source", "reference", "reference")
    assert len(request.shown) == 4
    without = payment_question(task, 2, "i" * 64, None)
    assert without.rubric == "payment"
    assert "scores" not in dict(without.slots)
