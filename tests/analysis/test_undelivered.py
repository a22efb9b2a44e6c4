"""One model delivers nothing, and images cost: the run's own numbers and those of `score` on its export."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest

from local_bench.analysis.compare import compare
from local_bench.analysis.economics import economics
from local_bench.analysis.official import export, export_notes, official
from local_bench.analysis.settlement import accounting
from local_bench.cli.main import main
from local_bench.cli.tables import outcome_json
from local_bench.report import judging
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import Outcome
from local_bench.runs.store.rows import Counts
from local_bench.settle.attempts import expected_attempts_unbiased, pass_at_k_unbiased
from tests.analysis.simulated import LAYOUTS, config, draw, judged
from tests.analysis.test_round_trip import scored
from tests.suites.benchmarks import layouts

USD = {"one": "0.04", "two": "0.07", "idle": "5"}


@pytest.fixture(scope="module", params=["servimage", "hype-edit-1"])
def run(request, tmp_path_factory):
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    path = {"servimage": layouts.servimage, "hype-edit-1": layouts.hype}[name](folder / "data")
    attempts = 3 if name == "hype-edit-1" else 1
    made = {label: draw(name, path, folder / label, seed, attempts) for seed, label in enumerate(("one", "two"))}
    (folder / "idle").mkdir()
    judged(folder / "run", config(name, path, made | {"idle": folder / "idle"}, attempts, USD), 5)
    with RunDir.open(folder / "run") as opened:
        yield name, opened, export(opened, name, folder / "out"), folder / "out"


def test_score_of_the_export_equals_the_run_and_one_without_a_known_cost_removes_its_file(run, monkeypatch):
    name, opened, files, out = run
    more = {"servimage": ["--tasks", out / "tasks.jsonl", "--scores", out / "scores.jsonl"]}
    given = more.get(name, ["--scores", out / "ratings.jsonl"])
    own = official(opened)["all"].data
    output = scored(name, *files, *given, "--costs", out / "costs.json")
    assert flat(output) == pytest.approx(flat(json.loads(json.dumps(own))), rel=1e-9)
    outcome = outcome_json(opened, Outcome(Counts(0, 0, 0, 0, 0)), opened.path / "report")
    assert outcome["benchmark"]["all"] == own
    before = (out / "costs.json").read_bytes()
    monkeypatch.setattr("local_bench.analysis.official.usd_per_image", lambda *_: {})
    export(opened, name, out)
    assert not (out / "costs.json").exists()
    (out / "costs.json").write_bytes(before)


@pytest.mark.parametrize("name", ["hype-edit-1", "idea-bench", "ice-bench"])
def test_comparisons_of_a_benchmark_s_own_figures_count_and_bound_what_is_open(tmp_path, name):
    path = getattr(layouts, LAYOUTS[name])(tmp_path / "data")
    made = draw(name, path, tmp_path / "images", 9, 5, left_out=0.6)
    judged(tmp_path / "run", config(name, path, {"x": made, "y": made}, 5), 9)
    with RunDir.open(tmp_path / "run") as opened:
        rows = {row.figure: row for row in compare(opened, opened, every_pair=True).rows}
        n_tasks, accepted = len(opened.store.tasks()), {}
        for row in opened.store.outcomes():
            accepted.setdefault((row.candidate.model, row.candidate.task_id), []).append(row.accepted)
    if name != "hype-edit-1":
        row = rows["overall score"]
        assert (row.n + row.n_unscored, row.difference.at_least) == (n_tasks, None)
        return
    for figure, estimator in (("pass@4", pass_at_k_unbiased), ("expected attempts", expected_attempts_unbiased)):
        x, y = (
            [
                sum(estimator(5, count(of), 4) for (m, _), of in accepted.items() if m == model) / n_tasks
                for count in ENDS
            ]
            for model in "xy"
        )
        row, ends = rows[figure], sorted((x[0] - y[1], x[1] - y[0]))
        assert (row.a, row.b) == pytest.approx((float(x[0]), float(y[0])))
        assert (row.difference.at_least, row.difference.at_most) == pytest.approx(tuple(map(float, ends)))
        assert (ends[0] < 0 < ends[1], row.difference.p, row.n) == (True, 1, n_tasks)
        assert row.n_unscored == len({task_id for (_, task_id), of in accepted.items() if None in of}) > 0


ENDS = (lambda of: of.count(True)), (lambda of: len(of) - of.count(False))
"""An attempt's decisions -> its passes, with the open ones refused, or accepted."""


def flat(value, at=""):
    """Every number by its place."""
    if not isinstance(value, dict | list):
        return {at: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for name, inner in pairs for k, v in flat(inner, f"{at}/{name}").items()}


def test_a_set_is_judged_without_the_images_that_were_not_made(tmp_path):
    path = layouts.servimage(tmp_path / "data")
    made = draw("servimage", path, tmp_path / "one", 3, left_out=0)
    judged(tmp_path / "before", config("servimage", path, {"one": made}), 5)
    with RunDir.open(tmp_path / "before") as opened:
        sets = {row.candidate.task_id for row in opened.store.outcomes(1) if row.candidate.deliverable == 2}
        assert export_notes(opened) == []
    for task_id in sets:
        (made / f"{task_id}_2_1.png").unlink()
    judged(tmp_path / "run", config("servimage", path, {"one": made}), 5)
    with RunDir.open(tmp_path / "run") as opened:
        reasons = [row.score.unscored for row in opened.store.scores() if row.score.unscored]
        assert not any("not reached" in reason for reason in reasons), reasons
        written = {row.work_id for row in opened.store.scores()}
        missing = {row.candidate.work_id for row in opened.store.outcomes(1) if not row.candidate.image}
        assert len(missing) == len(sets) > 0
        assert not written & missing
        [note] = export_notes(opened)
    assert "judged by the images that were made" in note


def test_the_cost_of_an_imported_image_keeps_its_digits(tmp_path, capsys):
    """The store has whole micro-USD; table 6 of the paper has nine decimals."""
    path = layouts.servimage(tmp_path / "data")
    made = draw("servimage", path, tmp_path / "one", 3)
    judged(tmp_path / "run", config("servimage", path, {"one": made}, usd={"one": "0.137406021"}), 5)
    with RunDir.open(tmp_path / "run") as opened:
        export(opened, "servimage", tmp_path / "out")
        cost = official(opened)["all"].data["models"]["one"]["cost_usd"]
    assert (tmp_path / "out/costs.json").read_text() == '{\n  "one": 0.137406021\n}\n'
    n = sum(len(json.loads(line)["annotations"]) for line in (tmp_path / "out/one_annotations.jsonl").open())
    assert main(["reproduce", "servimage", "table-6", str(tmp_path / "run"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"model": "one", "usd_per_image": 0.137406021}]
    assert cost == pytest.approx(n * 0.137406021, rel=1e-12)


def test_a_model_without_images_has_no_revenue_and_no_cost(run):
    name, opened, _, _ = run
    own = official(opened)["all"].data
    if name == "hype-edit-1":
        assert own["models"]["one"]["effective_cost_usd"] is not None
        idle = own["models"]["idle"]
        assert (idle["effective_cost_usd"], idle["n"], idle["n_unscored"], idle["n_missing"]) == (None, 0, 0, 9)
        assert {(w["n_images"], w["n_reviews"], w["n_passed_high"]) for w in idle["workflows"]} == {(0, 0, 3)}
        for model, n_made in opened.store.n_candidates(made=True).items():
            of_model = own["models"][model]
            assert of_model["n_missing"] == 9 - n_made
            assert next(w for w in of_model["workflows"] if w["way"] == "best of 3")["n_images"] == n_made
        return
    found = economics(opened.store, accounting(opened.store, opened.config.settlement), {"idle": Decimal(5)}, {})
    assert found.competition.placed["idle"].revenue_usd == 0
    placed = own["competition"]
    assert (placed["idle"]["n_won"], placed["idle"]["n_shared"], placed["idle"]["revenue_usd"]) == (0, 0, 0)
    at_api = dict(zip(found.table.models, found.by_api, strict=True))["idle"]
    assert at_api.cost_usd == 0
    here = dict(zip(found.table.models, found.by_ledger, strict=True))
    n = {model: int(found.table.made[m].sum()) for m, model in enumerate(found.table.models)}
    assert here["one"].cost_usd == Fraction("0.04") * n["one"]
    for model in ("one", "two"):
        figures = own["models"][model]
        for figure in ("cost_savings", "model_contribution", "contribution_ratio"):
            assert figures[figure] == pytest.approx(float(getattr(here[model], figure)))
    assert own["models"]["idle"]["n_missing"] == own["models"]["one"]["n_deliverables"]


def test_page_and_exports_charge_the_first_attempt(tmp_path):
    path = layouts.servimage(tmp_path / "data")
    images = draw("servimage", path, tmp_path / "one", 1, 2, left_out=0)
    judged(tmp_path / "run", config("servimage", path, {"one": images}, 2, USD), 5)
    with RunDir.open(tmp_path / "run") as opened:
        (here,) = economics(opened.store, accounting(opened.store, opened.config.settlement), {}, {}).by_ledger
        own = official(opened)["all"].data["models"]["one"]
        n_first = opened.store.rows("SELECT 1 FROM candidates WHERE state = 'done' AND attempt = 1")
    assert here.cost_usd == Fraction("0.04") * len(n_first)
    assert own["cost_usd"] == float(here.cost_usd)
    assert own["cost_savings"] == pytest.approx(float(here.cost_savings))


def test_the_page_explains_how_a_panel_decides_a_pass(tmp_path):
    settings = config("hype-edit-1", tmp_path, {"one": tmp_path})
    settings = settings.model_copy(update={"panel": [settings.judge]})
    assert "The score pass is 1 if more than half of the judges pass the image." in judging._word(settings)
