"""HYPE-EDIT-1's tables and charts from runs, against arithmetic on the ledgers' rows and the printed results."""

import json
import shutil
from fractions import Fraction as F
from statistics import fmean

import pytest

from local_bench.analysis.official import export, official
from local_bench.annotation.database import FILE, AnnotationDatabase
from local_bench.cli.labels import LabelOptions
from local_bench.cli.main import main
from local_bench.core.types import digest
from local_bench.report.papers.hype_edit_1 import figure_1
from local_bench.report.papers.inputs import Options, opened
from local_bench.runs.rundir import RunDir
from tests.annotation.conftest import answer_all

TASKS = ("mug-1", "two-1", "list-1")


@pytest.fixture(scope="module")
def passes(runs):
    """(model, task) -> which of the ten attempts passed, by SQL."""
    found = {}
    for path in runs["hype-edit-1"]:
        with RunDir.open(path) as run:
            rows = run.store.rows(
                "SELECT model, task_id, attempt, state, accepted FROM candidates LEFT JOIN decisions USING (work_id)"
            )
        for r in rows:
            of = found.setdefault((r["model"], r["task_id"]), [False] * 10)
            of[r["attempt"] - 1] = r["state"] == "done" and bool(r["accepted"])
    return found


def by_hand(passes, model, tasks, usd):
    rates = [F(sum(passes[model, t]), 10) for t in tasks]
    tries = fmean((1 - (1 - p) ** 4) / p if p else 4 for p in rates)
    within = fmean(1 - (1 - p) ** 4 for p in rates)
    return {
        "pass_rate": float(100 * sum(rates) / len(tasks)),
        "pass_at_4": float(100 * within),
        "pass_at_10": 100 * fmean(any(passes[model, t]) for t in tasks),
        "expected_attempts": float(tries),
        "effective_cost_usd": float(tries * (F(usd) + F(50, 180)) / within) if within else None,
        "hype_gap": 100 * fmean(any(passes[model, t]) - passes[model, t][0] for t in tasks),
    }


def test_table_4_is_eqs_1_to_6(runs, reproduce, passes):
    result = reproduce("hype-edit-1", "table-4", *runs["hype-edit-1"])
    assert [row["model"] for row in result["rows"]] == ["one", "two", "three"]
    for row in result["rows"][:2]:
        expected = by_hand(passes, row["model"], TASKS, {"one": "0.04", "two": "0.07"}[row["model"]])
        keys = ("pass_rate", "pass_at_4", "expected_attempts", "effective_cost_usd")
        assert {key: row[key] for key in keys} == pytest.approx({key: expected[key] for key in keys})
    assert result["rows"][2]["effective_cost_usd"] is None, "the cost of an image of `three` is not known"


def test_table_4_and_the_charts_say_of_how_many_attempts_they_are(runs, reproduce):
    path = runs["hype-edit-1"][0]
    with RunDir.open(path) as run:
        rows = run.store.rows(
            """SELECT model, sum(c.state = 'done' AND accepted IS NOT NULL) AS n FROM candidates c
               LEFT JOIN decisions d USING (work_id) GROUP BY 1"""
        )
    n = {row["model"]: row["n"] for row in rows}
    note = f"attempts with a verdict: one {n['one']} of 30, two {n['two']} of 30"
    assert note in reproduce("hype-edit-1", "table-4", path)["notes"]
    assert note in reproduce("hype-edit-1", "figure-3", path)["notes"]


def test_table_4_by_type_counts_a_task_in_each_of_its_types(runs, reproduce, passes):
    result = reproduce("hype-edit-1", "table-4", runs["hype-edit-1"][0], "--by-type")
    rows = {(row["model"], row["type"]): row for row in result["rows"]}
    kinds = {"change": ["mug-1"], "restructure": ["two-1"], "remove": ["list-1"], "enhance": ["list-1"]}
    assert list(rows) == [(model, kind) for model in ("one", "two") for kind in kinds]
    for (model, kind), row in rows.items():
        expected = by_hand(passes, model, kinds[kind], {"one": "0.04", "two": "0.07"}[model])
        assert {key: row[key] for key in expected} == pytest.approx(expected)
        assert row["tasks"] == 1


def test_intervals_hold_the_unbiased_estimate(runs, reproduce):
    result = reproduce("hype-edit-1", "table-4", runs["hype-edit-1"][0], "--intervals")
    (row, _) = result["rows"]
    biased = ("pass_at_4", "expected_attempts", "effective_cost_usd")
    for key in ("pass_rate", "pass_at_10", "hype_gap", *biased):
        high = row[f"{key}_high"]
        shown = f"{key}_unbiased" if key in biased else key
        assert row[f"{key}_low"] <= row[shown] <= (row[shown] if high is None else high)
    with RunDir.open(runs["hype-edit-1"][0]) as run:
        of = official(run)["all"].data["models"]["one"]
    assert of["intervals"]["pass_rate"] == pytest.approx([row["pass_rate_low"] / 100, row["pass_rate_high"] / 100])
    ends = [row["effective_cost_usd_low"], row["effective_cost_usd_high"]]
    assert of["intervals"]["effective_cost_usd"] == ends
    assert [of[f"effective_cost_usd_unbiased_ci95_{end}"] for end in ("low", "high")] == ends
    assert "low and high: 95 %, for tasks like these, of the unbiased estimate" in " ".join(result["notes"])


def test_table_2_counts_the_tasks_and_table_3_has_the_paper_s_cost_or_the_run_s(runs, reproduce):
    rows = {row["statistic"]: row["value"] for row in reproduce("hype-edit-1", "t2", runs["hype-edit-1"][0])["rows"]}
    assert rows == {
        "Total tasks": "3",
        "Public tasks": "3",
        "Single-image tasks": "2",
        "Multi-image tasks": "1",
        "Task types (change/restructure/remove/enhance)": "1/1/1/1",
        "Resolution range (width x height)": "4096-4096 x 2048-2048",
        "Repeats per task": "10",
    }
    assumed = reproduce("hype-edit-1", "table-3")["rows"]
    assert {"model": "seedream-4.0", "usd_per_candidate": 0.03} in assumed
    rows = reproduce("hype-edit-1", "table-3", runs["hype-edit-1"][0])["rows"]
    assert [row["usd_per_candidate"] for row in rows] == [0.04, 0.07]


def test_figures_3_to_5_are_the_splits(runs, reproduce, passes, tmp_path):
    run = runs["hype-edit-1"][0]
    combined, public = (reproduce("hype-edit-1", f"figure-{n}", run)["rows"] for n in (3, 4))
    assert combined == public
    assert {k: v for k, v in combined[0].items() if k != "model"} == pytest.approx(
        by_hand(passes, "one", TASKS, "0.04")
    )
    assert "no source has the private split (existing: public)" in reproduce("hype-edit-1", "fig5", run, status=2)
    reproduce("hype-edit-1", "figure-3", run, "--intervals", "--out", tmp_path / "f.png", form="text")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_two_splits_of_one_model_are_one_row(runs, reproduce, tmp_path):
    with RunDir.open(runs["hype-edit-1"][0]) as run:
        (public,) = export(run, "hype-edit-1", tmp_path / "out")
    table = json.loads(public.read_text())
    table["dataset"] = "private"
    table["judgements"] = {f"p-{task}": of for task, of in table["judgements"].items()}
    private = tmp_path / "private.json"
    private.write_text(json.dumps(table))
    both = reproduce("hype-edit-1", "table-4", public, private, "--costs", tmp_path / "out/costs.json")
    assert both["rows"] == pytest.approx(reproduce("hype-edit-1", "table-4", runs["hype-edit-1"][0])["rows"])
    assert reproduce("hype-edit-1", "figure-5", private)["rows"][0]["pass_rate"] == both["rows"][0]["pass_rate"]
    message = reproduce("hype-edit-1", "table-4", runs["hype-edit-1"][0], "--raters", status=2)
    assert "--raters is for result files, and" in message
    message = reproduce("hype-edit-1", "table-4", public, public, status=2)
    assert f"the model 'one' is in both {public} and {public}" in message
    assert "result files do not have the types" in reproduce("hype-edit-1", "t4", public, "--by-type", status=2)


def test_figures_1_and_2_show_the_images_of_the_run(runs, reproduce, passes, tmp_path):
    run = runs["hype-edit-1"][0]
    result = reproduce("hype-edit-1", "figure-1", run, "--task", "two-1")
    assert len(result["rows"]) == 20
    for row in result["rows"]:
        assert (row["verdict"] == "PASS") == passes[row["model"], "two-1"][row["attempt"] - 1]
    for name in ("figure-1", "figure-2"):
        reproduce("hype-edit-1", name, run, "--out", tmp_path / f"{name}.png", form="text")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert [row["inputs"] for row in reproduce("hype-edit-1", "figure-2", run)["rows"]] == [1, 2, 1]
    assert "have no task 'nope'" in reproduce("hype-edit-1", "figure-1", run, "--task", "nope", status=2)
    with opened("hype-edit-1", [run], Options(task="two-1")) as request:
        panels = figure_1(request).panels[1:]
    pairs = [pair for panel in panels for pair in zip(panel.images, panel.captions, strict=True)]
    captions = [(image is None, text.split(": ")[1]) for image, text in pairs]
    assert {words for missing, words in captions if missing} == {"no image"}
    assert {words for missing, words in captions if not missing} == {"PASS", "FAIL", "no verdict"}


def test_settle_by_people_counts_all_attempts_like_table_4(runs, reproduce, passes, tmp_path):
    """A person passes the second half of all attempts."""
    path = runs["hype-edit-1"][0]
    with RunDir.open(path) as run:
        rows = run.store.rows("SELECT model, task_id, deliverable, attempt FROM candidates WHERE state = 'done'")
        people = tmp_path / "people.jsonl"
        people.write_text("".join(json.dumps(dict(r) | {"pass": r["attempt"] > 5}) + "\n" for r in rows))
        text, values = LabelOptions(people, None, None).output(run)
    table = reproduce("hype-edit-1", "table-4", path, "--people", people)["rows"]
    for row in table:
        passed = sum(r["model"] == row["model"] and r["attempt"] > 5 for r in rows)
        made = sum(r["model"] == row["model"] for r in rows)
        found = values["people"][row["model"]]
        assert found["n_accepted"] == passed
        assert 100 * found["deliverable_acceptance"] == pytest.approx(row["pass_rate"])
        assert values["labels"][row["model"]]["n_images"] == made > 10
        by_run = sum(map(sum, (passes[row["model"], task] for task in TASKS)))
        assert f"{by_run} of " in next(line for line in text.splitlines() if line.startswith(row["model"]))


def test_five_annotators_of_all_attempts_become_the_table(runs, reproduce, tmp_path, capsys):
    """Annotated here by `pass-fail`: the majority of all ten attempts, from the run and from exported files."""
    path = tmp_path / "run"
    shutil.copytree(runs["hype-edit-1"][0], path)

    def passed(rater, item, field, key):
        return int(digest([rater, item.images[0].pixels_sha256])[:2], 16) < 150

    raters = [f"r{i}" for i in range(5)]
    answer_all(path, "pass-fail", dict.fromkeys(raters, "annotator"), passed)
    with AnnotationDatabase(path / FILE) as database:  # another person saw half of the first one's images
        database.add_annotator("r5", "annotator", "")
        database._write("UPDATE answers SET annotator = 'r5' WHERE annotator = 'r0' AND number % 2")
    with RunDir.open(path) as run:
        rows = [row for row in run.store.candidates() if row.image]
    majority = {}
    for row in rows:
        votes = [int(digest([rater, row.image])[:2], 16) < 150 for rater in raters]
        majority.setdefault(row.model, []).append(sum(votes) >= 3)
    rates = {model: 100 * sum(of) / 30 for model, of in majority.items()}
    table = reproduce("hype-edit-1", "table-4", path, "--people", path)["rows"]
    assert {row["model"]: row["pass_rate"] for row in table} == pytest.approx(rates)
    out = tmp_path / "people"
    assert main(["annotate", "export", str(path), "--format", "hype-edit-1", "--out", str(out)]) == 0
    files = [str(next((out / rater).rglob("judgements/*.json"))) for rater in [*raters, "r5"]]
    capsys.readouterr()
    assert main(["score", "hype-edit-1", *files, "--raters", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)["models"]
    assert {model: 100 * of["pass_rate"] for model, of in scored.items()} == pytest.approx(rates)
    table = reproduce("hype-edit-1", "table-4", *files, "--raters")["rows"]
    assert {row["model"]: row["pass_rate"] for row in table} == pytest.approx(rates)
