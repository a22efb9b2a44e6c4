"""ServImage's tables and figures from runs, against arithmetic on the ledgers' rows."""

import csv
import io
import json
import shutil
from fractions import Fraction as F
from statistics import fmean

import pytest

from local_bench.analysis.official import export
from local_bench.analysis.payment import predicted
from local_bench.runs.rundir import RunDir
from tests.cli.test_labels import N, labels_of
from tests.cli.test_labels import run as labelled  # noqa: F401
from tests.report.conftest import GAMMA, make_run  # noqa: F401

PRICES = {"digital-001": (F("100.01"), 2), "portrait-010": (F("5.42"), 1)}


@pytest.fixture(scope="module")
def decided(runs):
    """(model, task) -> (images made, images accepted), by SQL."""
    found = {}
    for path in runs["servimage"]:
        with RunDir.open(path) as run:
            rows = run.store.rows(
                """SELECT c.model, c.task_id, sum(c.state = 'done') AS made,
                   sum(c.state = 'done' AND coalesce(d.accepted, 0)) AS accepted
                   FROM candidates c LEFT JOIN decisions d USING (work_id) GROUP BY 1, 2"""
            )
        found |= {(r["model"], r["task_id"]): (r["made"], r["accepted"]) for r in rows}
    return found


def test_tables_1_8_and_6_count_orders_split_table_2_and_have_the_cost_of_an_image(runs, reproduce):
    assert reproduce("servimage", "t1", runs["servimage"][0])["rows"] == [
        {"category": "Portrait", "tasks": 1, "deliverables": 1, "value_usd_k": 0.00542, "price_usd": 5.42},
        {"category": "Digital", "tasks": 1, "deliverables": 2, "value_usd_k": 0.10001, "price_usd": 100.01},
        {"category": "All", "tasks": 2, "deliverables": 3, "value_usd_k": 0.10543, "price_usd": 52.715},
    ]
    by_category = reproduce("servimage", "table-8", runs["servimage"][0])["rows"]
    total = {row["model"]: row for row in reproduce("servimage", "table-2", runs["servimage"][0])["rows"]}
    assert [(row["model"], row["category"]) for row in by_category][:2] == [("one", "Portrait"), ("one", "Digital")]
    for row in by_category:
        assert row["revenue_usd_k"] == total[row["model"]][f"{row['category'].lower()}_revenue_usd_k"]
    assumed = {row["model"]: row["usd_per_image"] for row in reproduce("servimage", "table-6")["rows"]}
    assert assumed["gpt-image-1"] == 0.137406021
    rows = reproduce("servimage", "table-6", runs["servimage"][0])["rows"]
    assert [(row["model"], row["usd_per_image"]) for row in rows] == [("one", 0.04), ("two", 0.07)]


def test_table_2_has_the_models_of_both_runs(runs, reproduce, decided):
    result = reproduce("servimage", "table-2", *runs["servimage"])
    assert [row["model"] for row in result["rows"]] == ["one", "two", "three"]
    for row in result["rows"]:
        made = {t: decided[row["model"], t] for t in PRICES}  # (decided images, accepted images)
        earned = {t: p if made[t][1] == q else F(0) for t, (p, q) in PRICES.items()}
        complete = [t for t, (_, q) in PRICES.items() if made[t][1] == q]
        accepted, n = sum(k for _, k in made.values()), sum(n for n, _ in made.values())
        assert row["total_revenue_usd_k"] == pytest.approx(float(sum(earned.values())) / 1000)
        assert row["total_share_pct"] == pytest.approx(float(100 * sum(earned.values()) / F("105.43")))
        n_tasks = sum(n > 0 for n, _ in made.values())
        assert row["total_task_acceptance_pct"] == (pytest.approx(100 * len(complete) / n_tasks) if n_tasks else None)
        assert row["total_deliverable_acceptance_pct"] == (pytest.approx(100 * accepted / n) if n else None)
        assert row["portrait_revenue_usd_k"] == pytest.approx(float(earned["portrait-010"]) / 1000)
        assert row["digital_share_pct"] == pytest.approx(float(100 * earned["digital-001"] / F("100.01")))


def test_tables_say_of_how_many_orders_and_images_they_are_and_have_their_own_notes_alone(runs, reproduce):
    with RunDir.open(runs["servimage"][0]) as run:
        rows = run.store.rows(
            """SELECT model, count(DISTINCT task_id) AS orders, count(*) AS images FROM candidates
               JOIN decisions USING (work_id) WHERE accepted IS NOT NULL GROUP BY 1"""
        )
    n = {row["model"]: (row["orders"], row["images"]) for row in rows}
    for number in (2, 3, 7):
        notes = reproduce("servimage", f"table-{number}", runs["servimage"][0])["notes"]
        for model in ("one", "two"):
            orders, images = n.get(model, (0, 0))
            assert f"decided for {model}: {orders} of 2 orders and {images} of 3 images" in notes
    notes = reproduce("servimage", "table-8", runs["servimage"][0])["notes"]
    assert any(note.startswith("decided for one: Portrait ") and "; Digital " in note for note in notes)
    notes = {n: " ".join(reproduce("servimage", f"table-{n}", *runs["servimage"])["notes"]) for n in (2, 3, 7, 8)}
    assert {number for number, of in notes.items() if "no cost for three" in of} == {7}
    assert {number for number, of in notes.items() if "of the competition" in of} <= {3}
    assert not [number for number, of in notes.items() if "_high" in of]


def test_table_3_is_one_competition_of_all_models(runs, reproduce, decided):
    rows = reproduce("servimage", "3", *runs["servimage"])["rows"]
    assert sum(row["revenue_usd_k"] for row in rows) <= 0.10543 + 1e-12, "every order is paid once at most"
    for model in ("one", "two", "three"):
        row = next(r for r in rows if r["model"] == model)
        sure = sum(
            p
            for t, (p, _) in PRICES.items()
            if decided[model, t][1] > max(decided[m, t][1] for m in ("one", "two", "three") if m != model)
        )
        assert row["revenue_usd_k"] >= float(sure) / 1000 - 1e-12
        assert row["rank"] == 1 + sum(r["revenue_usd_k"] > row["revenue_usd_k"] for r in rows)


def test_table_7_is_eqs_6_to_8(runs, reproduce, decided):
    for row in reproduce("servimage", "table-7", runs["servimage"][0])["rows"]:
        model = row["model"]
        cost = F({"one": "0.04", "two": "0.07"}[model]) * sum(decided[model, t][0] for t in PRICES)
        done = sum(p for t, (p, q) in PRICES.items() if decided[model, t][1] == q)
        budget = F("105.43")
        assert row["cost_savings_pct"] == pytest.approx(float(100 * (1 - cost / budget - (budget - done) / budget)))
        assert row["model_contribution_pct"] == pytest.approx(float(100 * done / budget))
        assert row["contribution_ratio"] == pytest.approx(float(done / (cost + budget - done)))


def test_result_files_give_the_tables_of_their_run(runs, reproduce, tmp_path):
    path = runs["servimage"][0]
    with RunDir.open(path) as run:
        files = export(run, "servimage", tmp_path / "out")
    more = ("--tasks", tmp_path / "out/tasks.jsonl", "--scores", tmp_path / "out/scores.jsonl")
    more += ("--costs", tmp_path / "out/costs.json")
    for number in (1, 2, 3, 7, 8):
        of_files = reproduce("servimage", f"t{number}", *files, *more)
        assert of_files["rows"] == reproduce("servimage", f"t{number}", path)["rows"]


def test_figure_2_draws_the_prices_and_prints_their_medians(runs, reproduce, tmp_path):
    result = reproduce("servimage", "figure-2", runs["servimage"][0])
    assert [(row["category"], row["median_usd"]) for row in result["rows"]] == [("Portrait", 5.42), ("Digital", 100.01)]
    drawn = []
    for name in ("a.svg", "b.svg", "a.pdf", "b.pdf", "a.png", "b.png"):
        assert reproduce("servimage", "figure-2", runs["servimage"][0], "--out", tmp_path / name, form="text") == ""
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[::2] == drawn[1::2], "the same figure gives the same bytes"
    svg, pdf, png = drawn[::2]
    assert b"<svg" in svg
    assert pdf.startswith(b"%PDF")
    assert png.startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def labels(runs, tmp_path_factory):
    """A person rejects every image of `one` and accepts every other."""
    path = tmp_path_factory.mktemp("labels") / "people.jsonl"
    with RunDir.open(runs["servimage"][0]) as run:
        rows = run.store.rows("SELECT model, task_id, deliverable FROM candidates WHERE state = 'done'")
    path.write_text("".join(json.dumps(dict(r) | {"overall": r["model"] != "one"}) + "\n" for r in rows))
    return path


def test_table_10_is_the_share_of_equal_decisions(runs, reproduce, labels):
    (row,) = reproduce("servimage", "table-10", runs["servimage"][0], "--people", labels)["rows"]
    with RunDir.open(runs["servimage"][0]) as run:
        rows = run.store.rows(
            """SELECT c.model, d.accepted FROM candidates c JOIN decisions d USING (work_id)
               WHERE c.state = 'done' AND d.accepted IS NOT NULL"""
        )
    same = [bool(r["accepted"]) == (r["model"] != "one") for r in rows]
    notes = reproduce("servimage", "table-10", runs["servimage"][0], "--people", labels)["notes"]
    assert f"labelled images that dice judged: BRF 0, VEQ 0, CNS 0, Overall {len(rows)}" in notes
    assert row["overall_vs_human"] == pytest.approx(sum(same) / len(same))


def test_tables_12_and_13_have_the_lowest_score_of_rejected_images(runs, reproduce, labels):
    with RunDir.open(runs["servimage"][0]) as run:
        rows = run.store.rows(
            """SELECT work_id, s.name, s.value FROM scores s JOIN candidates USING (work_id)
               WHERE model = 'one' AND state = 'done' AND applies AND kind = 'judge'"""
        )
    names = ("brf", "veq_clarity", "veq_realism", "veq_aesthetic", "veq_text", "cns")
    scores = {}
    for row in rows:
        if row["name"] in names:
            scores.setdefault(row["work_id"], {})[row["name"]] = row["value"]
    complete = [of for of in scores.values() if None not in of.values()]
    lowest = [min(sorted(of, key=names.index), key=lambda name: of[name]) for of in complete]
    result = reproduce("servimage", "table-12", runs["servimage"][0], "--people", labels)
    shares = {row["dimension"]: row["overall_pct"] for row in result["rows"]}
    label = {"brf": "BRF", "cns": "CNS"} | {n: f"VEQ: {n[4:].capitalize()}" for n in names[1:5]}
    assert shares == pytest.approx({label[n]: 100 * lowest.count(n) / len(complete) for n in names})
    examples = reproduce("servimage", "table-13", runs["servimage"][0], "--people", labels)["rows"]
    assert {row["dimension"]: row["dominant_score"] for row in examples} == {
        label[n]: min(of[n] for of, low in zip(complete, lowest, strict=True) if low == n) for n in set(lowest)
    }
    assert all(row["model"] == "one" for row in examples)


def test_figures_3_and_5_have_the_labelled_images(runs, reproduce, labels, tmp_path):
    run = runs["servimage"][0]
    bins = reproduce("servimage", "figure-3", run, "--people", labels)["rows"]
    metrics = reproduce("servimage", "figure-5", run, "--people", labels)["rows"]
    composite = next(row for row in metrics if row["metric"] == "ServImageScore")
    assert sum(row["images"] for row in bins) == composite["images"] > 0
    reproduce("servimage", "figure-5", run, "--people", labels, "--out", tmp_path / "f.svg", form="text")
    assert (tmp_path / "f.svg").stat().st_size > 1000


def test_formats(runs, reproduce):
    result = reproduce("servimage", "table-2", runs["servimage"][0])
    lines = list(csv.reader(io.StringIO(reproduce("servimage", "table-2", runs["servimage"][0], form="csv"))))
    assert lines[0][:3] == ["Model", "Total Rev ($k)", "Total Share (%)"]
    assert [float(cell) for cell in lines[1][1:]] == list(result["rows"][0].values())[1:]
    latex = reproduce("servimage", "table-2", runs["servimage"][0], form="latex")
    assert r"& \multicolumn{4}{c}{Total} & \multicolumn{2}{c}{Portrait} & \multicolumn{2}{c}{Digital} \\" in latex
    assert r"\cmidrule(lr){2-5} \cmidrule(lr){6-7} \cmidrule(lr){8-9}" in latex
    assert r"Rev (\$k) & Share (\%) & Task Acc. (\%)" in latex
    text = reproduce("servimage", "table-2", runs["servimage"][0], form="text")
    assert text.startswith("ServImage, table 2: standard settlement\n\nModel")


def test_a_model_in_two_runs_and_one_judge_alone_are_an_error(runs, reproduce):
    first = runs["servimage"][0]
    message = reproduce("servimage", "table-2", first, first, status=2)
    assert message.startswith(f"local-bench: the model 'one' is in both {first} and {first}")
    assert "has one judge" in reproduce("servimage", "table-11", first, status=2)


def test_table_11_has_no_rank_correlation_of_two_models(make_run, reproduce):  # noqa: F811
    path = make_run(panel=True)
    with RunDir.open(path) as run:  # gamma now finds that beta meets nothing, as delta does of its second points
        run.store.write(
            """UPDATE verdicts SET answer = '{"met": 0}' WHERE rubric = 'brf' AND judge = ? AND answer IS NOT NULL
               AND work_id IN (SELECT work_id FROM candidates WHERE model = 'beta')""",
            GAMMA,
        )
    result = reproduce("servimage", "table-11", path)
    (row,) = result["rows"]
    assert row["judges"] == "gamma vs delta"
    assert any(note.startswith("models that gamma and delta rank: BRF 2, ") for note in result["notes"])
    assert row["rho_brf"] is None, "two models have no rank correlation"


def test_table_9_settles_what_the_predictor_expects(labelled, reproduce, tmp_path):  # noqa: F811
    people = labels_of(labelled, tmp_path / "people.jsonl", 100)
    (row,) = reproduce("servimage", "table-9", labelled, "--people", people)["rows"]
    with RunDir.open(labelled) as run:
        of_work = {
            r["work_id"]: r
            for r in run.store.rows(
                """SELECT work_id, price_micro_usd, value FROM candidates JOIN tasks USING (task_id)
                   JOIN scores USING (work_id) WHERE name = 'brf'"""
            )
        }
        predictions = predicted(run, people)
    accepted, rejected = ([of_work[w] for w, ok in predictions.items() if ok is side] for side in (True, False))
    assert len(accepted) + len(rejected) == N - 2, "one image was not made, one has no score"
    assert fmean(r["value"] for r in accepted) > 1 + fmean(r["value"] for r in rejected)
    assert row["total_revenue_usd_k"] == pytest.approx(sum(r["price_micro_usd"] for r in accepted) / 1e9)
    decided = len(accepted) + len(rejected)
    assert row["total_deliverable_acceptance_pct"] == pytest.approx(100 * len(accepted) / decided)


def test_table_2_by_people_uses_their_decisions(runs, reproduce, labels, decided):
    path, other = runs["servimage"]
    rows = {row["model"]: row for row in reproduce("servimage", "table-2", path, "--people", labels)["rows"]}
    assert rows["one"]["total_revenue_usd_k"] == 0
    earned = sum(decided["two", t][0] * p / q for t, (p, q) in PRICES.items())  # every image that was made
    assert rows["two"]["total_revenue_usd_k"] == pytest.approx(float(earned) / 1000)
    message = reproduce("servimage", "table-2", path, other, "--people", labels, status=2)
    assert "2 runs and 1 file of labels are given: give --people once for each run" in message


def test_costs_replace_those_of_the_run(runs, reproduce, tmp_path, decided):
    (tmp_path / "costs.json").write_text('{"one": 1.5}')
    given = ("servimage", "table-6", runs["servimage"][0], "--costs", tmp_path / "costs.json")
    assert [row["usd_per_image"] for row in reproduce(*given)["rows"]] == [1.5, 0.07]


UNLIKE = {
    "the judges": "UPDATE meta SET value = '{\"other\": \"other\"}' WHERE key = 'judges'",
    "the rubrics": "UPDATE verdicts SET rubric_sha256 = replace(rubric_sha256, substr(rubric_sha256, 1, 1), 'f')",
    "the tasks' prices": "UPDATE tasks SET content = json_set(content, '$.price_micro_usd', 1), price_micro_usd = 1",
}


@pytest.mark.parametrize(
    ("what", "table"),
    [
        *((what, "table-2") for what in (*UNLIKE, "the acceptance rule")),
        *(("the judges", "table-3"), ("the rubrics", "figure-2"), ("the tasks' prices", "figure-2")),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_or_marked(what, table, runs, reproduce, tmp_path):
    first, other = runs["servimage"]
    copy = shutil.copytree(other, tmp_path / "other")
    if what in UNLIKE:
        with RunDir.open(copy) as run:
            run.store.write(UNLIKE[what])
    else:
        text = (copy / "run.yaml").read_text()
        (copy / "run.yaml").write_text(text.replace("brf: ", "brf: 1  # ", 1))
    message = reproduce("servimage", table, first, copy, status=1)
    assert message.startswith(f"local-bench: other and {first.name} differ in {what}")
    assert "their models cannot be compared in one table, give like runs, or --allow-unlike" in message
    if what == "the tasks' prices":
        return  # one table needs one set of prices
    made = reproduce("servimage", table, first, copy, "--allow-unlike")
    assert made["notes"][0].startswith(f"* not comparable: other and {first.name} differ in {what}")
    if table != "figure-2":
        assert {row["model"] for row in made["rows"]} == {"one", "two", "three *"}
    reproduce("servimage", table, first, other)
