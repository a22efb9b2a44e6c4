"""`settle --people FILE --explain`: the analyses of payment, read from a run and reported."""

import json
import shutil
from pathlib import Path

import pytest

from local_bench.analysis.payment import explained_alike, payment
from local_bench.analysis.sampling import labelling
from local_bench.annotation.ratings import UNEQUAL, load_annotations
from local_bench.cli.labels import LabelOptions
from local_bench.core.errors import UserError
from local_bench.core.types import Score
from local_bench.runs.rundir import RunDir
from local_bench.settle.predictors.models import loads
from tests.analysis.simulated import config, draw, judged
from tests.cli.test_labels import MODEL, N, labels_of, line, run, truth  # noqa: F401
from tests.suites.benchmarks import layouts


@pytest.fixture
def people(run: Path, tmp_path: Path) -> Path:  # noqa: F811
    """Labels on the first hundred orders."""
    return labels_of(run, tmp_path / "people.jsonl", 100)


def test_payment_is_explained_and_predicted(run, people):  # noqa: F811
    with RunDir.open(run) as open_run:
        found = payment(open_run, people)
    rows = {row.name: row for row in found.explained}
    assert list(rows) == ["brf", "veq", "cns", "composite"]
    assert rows["brf"].auc > 0.85
    assert rows["brf"].auc_low < rows["brf"].auc < rows["brf"].auc_high
    assert rows["veq"].auc == 0.5, "all alike: every pair is a tie"
    assert (rows["cns"].n, rows["cns"].n_not_applicable) == (0, 100)
    assert sum(b.n for b in found.by_composite) == 100
    assert found.failures.n_rejected == sum(not ok for ok in list(truth(run).values())[:100])
    assert [row.name for row in found.failures.rows] == ["brf", "cns"], "of table 12's, those that there are"
    assert found.failures.rows[0].cohens_d > 1
    assert set(found.predictors) == {"rule", "logistic"}
    for name, fitted in found.predictors.items():
        assert fitted.quality.n == 100
        assert fitted.n_unlabelled == N - 1 - 100
        assert fitted.quality.accuracy > max(fitted.quality.base_rate, 1 - fitted.quality.base_rate)
        expected = found.expected[name][MODEL]
        assert (expected.n, expected.n_unscored) == (N - 2, 1)


def test_metrics_are_compared_on_the_same_images_and_in_their_direction(run, people, tmp_path):  # noqa: F811
    """`falls` is 5 less BRF and unscored on one image in ten; `rare` was computed for some images alone."""
    path = tmp_path / "copy"
    shutil.copytree(run, path)
    with RunDir.open(path) as opened:
        brf = {row.work_id: row.score.value for row in opened.store.scores() if row.score.name == "brf"}
        falls = [
            (work_id, Score("falls", None, "it failed") if i % 10 == 0 or value is None else Score("falls", 5 - value))
            for i, (work_id, value) in enumerate(sorted(brf.items()))
        ]
        opened.store.enter_scores("metric", [*falls, (falls[0][0], Score("rare", 1.0))])
        opened.store.set_meta("metric:falls", json.dumps({"higher_is_better": False}))
        rows, left_out = explained_alike(opened, people)
        whole = payment(opened, people).explained
    found = {row.name: row for row in rows}
    assert list(found) == ["brf", "veq", "composite", "falls"]
    assert left_out == ["cns", "rare"]
    assert 80 < found["falls"].n < 100
    assert {row.n for row in rows} == {found["falls"].n}
    assert found["brf"].auc > 0.8
    assert found["falls"].auc == pytest.approx(found["brf"].auc)
    assert found["falls"].spearman.value == pytest.approx(found["brf"].spearman.value)
    assert found["falls"].pr_auc == pytest.approx(found["brf"].pr_auc)
    assert {row.name: row.n for row in whole}["brf"] == 100


def test_the_text_and_the_json(run, people, tmp_path):  # noqa: F811
    with RunDir.open(run) as open_run:
        text, values = LabelOptions(people, None, None, explain=True).output(open_run)
    for expected in (
        "PR-AUC",
        "rejected for",
        "Hedges' g",
        "if calibrated",
        "not of the predictor's fit",
        "logistic",
        "held-out tasks",
        "0 ties were assigned to the first",
    ):
        assert expected in text
    output = json.loads(json.dumps(values, allow_nan=False))["payment"]
    assert {row["name"] for row in output["explained"]} == {"brf", "veq", "cns", "composite"}
    for predictor in output["predictors"].values():
        assert loads(predictor["predictor"])
        assert set(predictor["expected_revenue"]) == {MODEL}
        expected = predictor["expected_revenue"][MODEL]
        assert expected["ci95_low_usd"] < expected["expected_usd"] < expected["ci95_high_usd"]
        assert predictor["quality"]["ece_if_calibrated"] > 0
    assert output["notes"] == []


def test_too_few_labels_are_an_error(run, tmp_path):  # noqa: F811
    path = tmp_path / "one.jsonl"
    path.write_text(line(overall=True))
    with RunDir.open(run) as open_run:
        found = payment(open_run, path)
        text, _ = LabelOptions(path, None, None, explain=True).output(open_run)
    assert (found.predictors, found.expected) == ({}, {})
    assert "annotate more images" in found.not_fitted
    assert "no predictor: the labels have 1 accepted and 0 rejected images with all scores to train on" in text


@pytest.mark.parametrize("other", [0.5, 0.25])
def test_figures_without_the_sampling_probabilities_are_noted(run, tmp_path, capsys, other):  # noqa: F811
    """They describe the sampled images where the probabilities differ; the estimates use them."""
    path = tmp_path / "sampled.jsonl"
    lines = [
        line(task_id=t, overall=ok, probability=(0.5, other)[i % 2]) for i, (t, ok) in enumerate(truth(run).items())
    ]
    path.write_text("".join(lines[:60]))
    with RunDir.open(run) as open_run:
        LabelOptions(path, None, None).output(open_run)
        assert UNEQUAL not in capsys.readouterr().err
        values = LabelOptions(path, None, None, explain=True).output(open_run)[1]
        notes = load_annotations(path, open_run, {}).sampling_notes
    assert (UNEQUAL in capsys.readouterr().err) == (other != 0.5)
    assert values["payment"]["notes"] == notes == ([UNEQUAL] if other != 0.5 else [])


def test_explaining_requires_labels():
    with pytest.raises(UserError, match="give them with --people FILE"):
        LabelOptions(None, None, None, explain=True).check()


def test_a_tie_of_two_raters_is_open(run, tmp_path):  # noqa: F811
    path = tmp_path / "people.jsonl"
    ratings = [
        ("o000", "x", True),
        ("o000", "y", False),
        ("o001", "x", True),
        ("o001", "y", True),
        ("o002", "x", False),
    ]
    path.write_text("".join(line(task_id=t, rater=r, overall=ok, brf=ok) for t, r, ok in ratings))
    with RunDir.open(run) as opened:
        found = payment(opened, path).realised[MODEL]
        notes = labelling(opened, None, path).notes
    assert (found.n, found.n_unscored) == (2, N - 1 - 2)
    assert sum("1 image is tied in overall" in note and f"{MODEL}/o000/1" in note for note in notes) == 1


def test_labels_of_every_attempt_count_under_a_protocol_of_several(tmp_path):
    path = layouts.hype(tmp_path / "data")
    images = draw("hype-edit-1", path, tmp_path / "one", 1, 3, left_out=0)
    judged(tmp_path / "run", config("hype-edit-1", path, {"one": images}, 3), 1)
    with RunDir.open(tmp_path / "run") as opened:
        rows = opened.store.rows("SELECT * FROM candidates WHERE state = 'done'")
        labels = [{n: r[n] for n in ("model", "task_id", "deliverable", "attempt")} | {"overall": True} for r in rows]
        (tmp_path / "people.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
        found = payment(opened, tmp_path / "people.jsonl").realised["one"]
    assert (found.n, found.n_unscored) == (len(rows), 0)
    assert len(rows) == 3 * len({row["task_id"] for row in rows})


def test_expected_revenue_is_close_to_that_of_people(run, people):  # noqa: F811
    true_decisions = truth(run)
    with RunDir.open(run) as open_run:
        rows = open_run.store.rows("SELECT task_id, price_micro_usd FROM tasks")
        found = payment(open_run, people)
        judged = open_run.store.rows(
            """SELECT sum(price_micro_usd) AS paid
               FROM tasks JOIN candidates USING (task_id) JOIN scores USING (work_id)
               WHERE name = 'brf' AND value >= 3"""
        )[0]["paid"]
    paid = sum(row["price_micro_usd"] for row in rows if true_decisions.get(row["task_id"]))
    for name in ("rule", "logistic"):
        assert found.expected[name][MODEL].expected_micro_usd == pytest.approx(paid, rel=0.12)
    assert judged > 1.15 * paid
