"""`local-bench predictor` and `settle --predictor` end to end, and hostile predictor files."""

import json
import shutil

import pytest

from local_bench.annotation.ratings import UNEQUAL
from local_bench.cli.main import main
from local_bench.core.types import digest
from tests.analysis.annotated_runs import annotated_run
from tests.report.conftest import DELTA


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("predictor")


@pytest.fixture(scope="module")
def first(folder):
    return annotated_run(folder / "a", range(160), 0)


@pytest.fixture(scope="module")
def second(folder):
    return annotated_run(folder / "b", range(160, 230), 1, silent="tiny-sd3")


@pytest.fixture
def run(capsys):
    """Runs a command line and returns (status, parsed stdout or None, stderr)."""

    def run(*arguments):
        status = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, json.loads(out) if out and "--json" in arguments else out, err

    return run


@pytest.fixture(scope="module")
def trained(folder, first):
    a, labels = first
    train = ["predictor", "train", str(a), "--annotations", str(labels), "--kind", "logistic"]
    assert main([*train, "--out", str(folder / "p")]) == 0
    return folder / "p"


@pytest.mark.parametrize("kind", ["rule", "logistic"])
def test_every_kind_from_one_run_to_the_revenue_of_another(kind, run, first, second, tmp_path):
    (a, a_labels), (b, b_labels) = first, second
    out = tmp_path / "p"
    status, card, _ = run("predictor", "train", a, "--annotations", a_labels, "--out", out, "--kind", kind, "--json")
    assert status == 0
    assert (card["kind"], card["inputs"]["scores"]) == (kind, ["brf", "veq", "cns"])
    assert sum(card["trained_on"]["n_tasks"].values()) == 160
    status, found, _ = run("predictor", "evaluate", out, a, b, "--annotations", a_labels,
                           "--annotations", b_labels, "--json")  # fmt: skip
    assert status == 0
    names = [row["name"] for row in found["rows"]]
    assert names[:3] == ["majority", "rule of the training run", "tuned rule"]
    assert names[3:] == ([] if kind == "rule" else [f"predictor ({kind})"])
    best = found["rows"][-1]
    assert best["accuracy"]["value"] > 0.8
    assert best["accuracy"]["low"] < best["accuracy"]["value"] < best["accuracy"]["high"]
    assert found["n"] == card["trained_on"]["n_images"]["test"] + 70
    file = tmp_path / "predictions.jsonl"
    status, applied, _ = run("predictor", "apply", b, "--predictor", out, "--out", file, "--json")
    assert status == 0
    assert applied["n_tasks_used_in_training"] == 0
    assert len(applied["predictions"]) == len(file.read_text().splitlines()) == 140
    assert sum(line["probability"] is None for line in applied["predictions"]) == 70
    assert run("predictor", "apply", b, "--predictor", out, "--out", file)[0] == 2, "the file exists"
    status, settled, _ = run("settle", b, "--predictor", out, "--json")
    assert status == 0
    by = settled["predictor"]
    accepted = [line for line in applied["predictions"] if line["accepted"]]
    assert by["models"]["tiny-flux"]["n_accepted"] == len(accepted) > 0
    assert by["models"]["tiny-sd3"]["revenue_usd"] == 0
    expected = by["expected_revenue"]["tiny-flux"]
    assert expected["expected_usd"] != by["models"]["tiny-flux"]["revenue_usd"]
    assert expected["ci95_low_usd"] < expected["expected_usd"] < expected["ci95_high_usd"]
    silent, open_usd = by["expected_revenue"]["tiny-sd3"], by["models"]["tiny-sd3"]["revenue_bound_high_usd"]
    assert (silent["n"], silent["n_unscored"], silent["expected_usd"]) == (0, 70, 0)  # no image was made
    assert silent["at_most_expected_usd"] == open_usd > 0
    status, text, _ = run("settle", b, "--predictor", out)
    assert (status, "expected revenue" in text, "bounds" in text) == (0, True, True)


def test_annotations_with_unequal_probabilities_are_noted(run, first, tmp_path):
    a, labels = first
    lines = [json.loads(line) for line in labels.read_text().splitlines()]
    sampled = tmp_path / "sampled.jsonl"
    sampled.write_text("".join(json.dumps(x | {"probability": 0.5 + i % 2 / 4}) + "\n" for i, x in enumerate(lines)))
    for annotations, noted in ((labels, False), (sampled, True)):
        out = tmp_path / f"{noted}"
        train = run("predictor", "train", a, "--annotations", annotations, "--out", out, "--kind", "rule")
        evaluated = run("predictor", "evaluate", out, a, "--annotations", annotations)
        for status, _, err in (train, evaluated):
            assert (status, UNEQUAL in err) == (0, noted)


def test_the_texts(run, first, second, trained, tmp_path):
    (a, a_labels), (b, b_labels) = first, second
    files = ["--annotations", a_labels, "--annotations", b_labels]
    for command, expected in (
        (
            ("predictor", "train", a, b, *files, "--out", tmp_path / "p", "--seed", "3"),
            ["logistic on brf, veq, cns", "tuned rule: brf >= ", "calibrated on: training, out of fold", "evaluate"],
        ),
        (
            ("predictor", "evaluate", trained, b, "--annotations", b_labels),
            ["majority", "tuned rule", "predictor (logistic)", "C-Portrait", "over tuned rule", "95 %"],
        ),
        (("predictor", "apply", b, "--predictor", trained), ["tiny-flux"]),
    ):
        status, text, _ = run(*command)
        assert (status, [words for words in expected if words not in text]) == (0, [])
    status, _, err = run("settle", a, "--predictor", trained, "--set", "acceptance.brf=2")
    assert (status, "of the run's 160 tasks trained or calibrated the predictor" in err) == (0, True)


def test_without_annotations_those_made_in_the_run_are_used(run, first, tmp_path):
    a, labels = first
    status, _, err = run("predictor", "train", a, "--out", tmp_path / "p")
    assert status == 2
    assert "has no annotations of its own" in err
    assert not (tmp_path / "p").exists()
    shutil.copytree(a, tmp_path / "run")
    assert run("annotate", "import", tmp_path / "run", labels, "--protocol", "accept")[0] == 0
    assert run("predictor", "train", tmp_path / "run", "--out", tmp_path / "p")[0] == 0
    assert run("predictor", "train", a, "--annotations", tmp_path / "run", "--out", tmp_path / "q")[0] == 0
    assert run("predictor", "train", a, "--annotations", labels, "--out", tmp_path / "r", "--json")[0] == 0
    cards = [json.loads((tmp_path / name / "predictor.json").read_text()) for name in "pqr"]
    assert cards[0]["predictor"] == cards[1]["predictor"] == cards[2]["predictor"]


def test_wrong_input_is_an_error_and_writes_nothing(run, first, second, trained, folder, tmp_path):
    (a, labels), (b, b_labels) = first, second
    other, other_labels = annotated_run(tmp_path / "c", range(20), judge=DELTA)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    out = tmp_path / "p"
    for arguments, message in (
        (("train", a, a, "--annotations", labels, "--annotations", labels, "--out", out), "is given twice"),
        (("train", a, b, "--annotations", labels, "--out", out), "2 runs and 1 file of annotations"),
        (("train", a, other, "--annotations", labels, "--annotations", other_labels, "--out", out), "judges of"),
        (("train", a, "--annotations", b_labels, "--out", out), "line 1"),
        (("train", a, "--annotations", labels, "--out", tmp_path / "full"), "not an empty folder"),
        (("train", a, "--annotations", labels, "--out", out, "--kind", "oracle"), "'oracle'"),
        (("evaluate", trained, other, "--annotations", other_labels), "--other-judge"),
        (("evaluate", trained, b, "--annotations", b_labels, "--predictions", b_labels), "work_id"),
        (("apply", other, "--predictor", trained), "--other-judge"),
        (("apply", b, "--predictor", tmp_path), "has no predictor.json"),
    ):
        status, _, err = run("predictor", *arguments)
        assert (status, message in err) == (2, True), err
        assert "Traceback" not in err
    assert not out.exists()
    assert run("settle", b, "--predictor", tmp_path / "none")[0] == 2
    assert "--other-judge is about a predictor" in run("settle", b, "--other-judge")[2]
    assert run("predictor", "apply", other, "--predictor", trained, "--other-judge")[0] == 0


def altered(**more):
    return lambda card: json.dumps(card | more)


def signed(**more):
    """With a digest that fits, as somebody who wants to be believed would write it."""

    def changed(card):
        values = {name: value for name, value in (card | more).items() if name != "sha256"}
        return json.dumps(values | {"sha256": digest(values)})

    return changed


def refitted(**more):
    """Signed, and of the fitted model other values."""
    return lambda card: signed(predictor=json.dumps(json.loads(card["predictor"]) | more))(card)


RULE = '{"kind": "rule", "thresholds": {"brf": %s}, "paid_if_rejected": %s, "paid_if_accepted": 0.5}'
LINEAR = {"kind": "linear", "intercept": 0.0, "coefficients": [1.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: "", "is not JSON"),
        (lambda card: "[]", "is not a predictor"),
        (lambda card: "[" * 200_000, "is not JSON"),
        (lambda card: json.dumps(card)[:-30], "is not JSON"),
        (lambda card: json.dumps(card).replace("logistic", "boo\ud800", 1), "is not UTF-8"),
        (altered(majority=0.9), "was altered"),
        (altered(majority=float("nan")), "NaN is not a JSON number"),
        (altered(extra=1), "extra"),
        (altered(format=9), "format 9"),
        (altered(seed="0" * 5000), "seed"),
        (lambda card: json.dumps({k: v for k, v in card.items() if k != "inputs"}), "inputs"),
        (signed(predictor="{}"), "not a predictor"),
        (signed(predictor=RULE % ("1e999", "0.1")), "not a predictor"),
        (signed(predictor=RULE % ("NaN", "0.1")), "not a predictor"),
        (signed(predictor=RULE % ("3", '"0.1"')), "not a predictor"),
        (signed(predictor=RULE.replace("brf", "other") % ("3", "0.1")), "'other', which is not among its inputs"),
        (signed(tuned_rule="[[["), "not a predictor"),
        (signed(kind="oracle"), "kind"),
        (refitted(kind="oracle"), "oracle"),
        (refitted(cut="0.5"), "cut"),
        (refitted(model={"kind": "trees", "baseline": 0.0, "trees": []}), "model"),
        (refitted(model=LINEAR), "reads 1 columns"),
    ],
)
def test_hostile_predictor_files_are_an_error(change, message, run, second, trained, tmp_path):
    card = json.loads((trained / "predictor.json").read_text())
    (tmp_path / "p").mkdir()
    (tmp_path / "p/predictor.json").write_bytes(change(card).encode("utf-8", "surrogatepass"))
    b, _ = second
    status, out, err = run("predictor", "apply", b, "--predictor", tmp_path / "p")
    assert (status, out, err.count("\n"), message in err) == (2, "", 1, True), err
    assert len(err) < 700


def test_missing_and_huge_files(run, second, trained, tmp_path, monkeypatch):
    b, _ = second
    monkeypatch.setattr("local_bench.judges.payment.data.MAX_BYTES", 1_000)
    status, _, err = run("predictor", "apply", b, "--predictor", trained)
    assert (status, "larger than" in err) == (2, True)
    (tmp_path / "p").mkdir()
    (tmp_path / "p/predictor.json").mkdir()
    assert run("predictor", "apply", b, "--predictor", tmp_path / "p")[0] == 2
    shutil.rmtree(tmp_path / "p")
    (tmp_path / "p").touch()
    assert run("settle", b, "--predictor", tmp_path / "p")[0] == 2
