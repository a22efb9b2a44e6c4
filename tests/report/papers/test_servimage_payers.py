"""ServImage's tables 4 and 9 and figure 4 from trained predictors."""

import pytest

from local_bench.cli.main import main
from tests.analysis.annotated_runs import annotated_run
from tests.report.conftest import DELTA


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr("local_bench.settle.predictors.evaluation.RESAMPLES", 1000)  # of intervals; a tenth


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A predictor of one run, and another run with its annotations and predictor."""
    folder = tmp_path_factory.mktemp("payers")
    a, labels = annotated_run(folder / "a", range(120), 0, models=("tiny-flux",))
    train = ["train", str(a), "--annotations", str(labels), "--out", str(folder / "logistic")]
    assert main(["predictor", *train]) == 0
    b, b_labels = annotated_run(folder / "b", range(120, 180), 1)
    train = ["train", str(b), "--annotations", str(b_labels), "--out", str(folder / "other")]
    assert main(["predictor", *train]) == 0
    return folder, b, b_labels


def test_table_4_and_figure_4_have_every_predictor_and_baseline(given, reproduce, tmp_path, capsys):
    folder, run, labels = given
    predictors = ["--predictor", folder / "logistic"]
    rows = reproduce("servimage", "table-4", run, "--people", labels, *predictors)["rows"]
    names = ["majority", "rule of the training run", "tuned rule", "predictor (logistic)"]
    assert [row["predictor"] for row in rows] == names
    assert {row["images"] for row in rows} == {120}
    assert rows[3]["accuracy_low_pct"] < rows[3]["accuracy_pct"] < rows[3]["accuracy_high_pct"]
    assert rows[3]["accuracy_pct"] > rows[0]["accuracy_pct"]
    answers = tmp_path / "answers.jsonl"
    assert main(["predictor", "apply", str(run), "--predictor", str(folder / "other"), "--out", str(answers)]) == 0
    capsys.readouterr()
    answers.write_text(answers.read_text().replace("predictor (logistic)", "a judge"))
    rows = reproduce("servimage", "figure-4", run, "--people", labels, *predictors, "--predictions", answers)["rows"]
    assert [row["predictor"] for row in rows] == [*names[:3], "a judge", *names[3:]]
    assert {"portrait_pct", "product_pct", "digital_pct"} < set(rows[0])
    out = tmp_path / "figure.svg"
    arguments = ["--people", str(labels), *map(str, predictors), "--out", str(out)]
    assert main(["reproduce", "servimage", "figure-4", str(run), *arguments]) == 0
    assert "(b) payment decisions" in out.read_text()


def test_table_9_by_a_predictor_of_another_run(given, reproduce):
    folder, run, labels = given
    found = reproduce("servimage", "table-9", run, "--predictor", folder / "logistic")
    assert not any("calibrated the predictor" in note for note in found["notes"])
    of_training = reproduce("servimage", "table-9", folder / "a", "--predictor", folder / "logistic")
    assert any("of the run's 120 tasks trained or calibrated the predictor" in note for note in of_training["notes"])
    assert len(found["rows"]) == 2
    assert any("trained on a" in note for note in found["notes"])
    assert sum("expected revenue of" in note for note in found["notes"]) == 2
    own = reproduce("servimage", "table-9", run, "--people", labels)
    assert own["rows"] != found["rows"]


def test_a_predictor_trained_with_another_judge_is_refused_or_named(given, reproduce, tmp_path):
    folder, _, _ = given
    other, labels = annotated_run(tmp_path / "c", range(180, 240), 2, judge=DELTA)
    for arguments in (["table-4", other, "--people", labels], ["table-9", other]):
        command = ("servimage", *arguments, "--predictor", folder / "logistic")
        assert "--allow-unlike" in reproduce(*command, status=2)
        found = reproduce(*command, "--allow-unlike")
        assert found["rows"]
        named = "* not comparable: the predictor (logistic) was trained with other judges or rubrics than those of c"
        assert named in found["notes"]


def test_incomparable_runs_are_refused(given, reproduce):
    folder, run, labels = given
    for arguments, message in (
        (["table-9", run], "--predictor DIR"),
        (["table-9", run, "--people", labels, "--predictor", folder / "logistic"], "give either"),
        (["table-4", run, "--people", labels], "needs --predictor DIR"),
        (["table-4", run, "--people", labels, "--predictor", folder / "logistic", "--predictor", folder / "other"],
         "trained on different annotations"),
        (["table-4", run, "--people", labels, "--predictor", folder / "logistic", "--predictor", folder / "logistic"],
         "a second predictor of kind logistic"),
    ):  # fmt: skip
        assert message in reproduce("servimage", *arguments, status=2)
