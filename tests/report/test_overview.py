"""The sentences at the top of the page."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from local_bench.analysis.settlement import Accounting
from local_bench.core.types import Decision
from local_bench.report.site.significance import Pair
from local_bench.report.site.summary import accounts_of, overview, summary
from local_bench.report.view import warnings
from local_bench.runs.rundir import RunDir
from local_bench.settle.costs import PhaseCost, phase_costs
from local_bench.settle.settlement import settle
from tests.lines import Line, frame


def accounts(accepted, price=10_000_000, costs=None, hour=0):
    """`accepted`: model -> whether each task's image is accepted."""
    lines = [
        Line(model, f"t{i}", "c", price, 1, 1, Decision(yes, None if yes is not None else "no answer"), True)
        for model, of in accepted.items()
        for i, yes in enumerate(of)
    ]
    device_costs = phase_costs([PhaseCost("denoise", "a", 90_000_000_000, 3, None)], hour)
    return Accounting(settle(frame(lines), costs or {}), device_costs, None)


def pair(a, b, p, difference=1.0):
    return Pair(a, b, difference, None, None, p, p, p, 2, 2, None)


def test_the_best_model_with_its_interval_and_cost_or_its_images():
    money = accounts({"a": [True] * 3 + [None], "b": [True, False, False, False]}, costs={"a": 1_500_000})
    sentences = overview(money, [pair("a", "b", 0.01)])
    assert sentences[0].startswith("a earned the most: $30.00 of $40.00 (75.0 %; 95 % interval $")
    assert sentences[0].endswith("Its images cost $1.50 to generate.")
    assert sentences[1] == (
        "Its lead over the other model is significant (paired test over tasks, corrected for all pairs of models)."
    )
    assert sentences[2] == (
        "1 image could not be decided, and could add up to $10.00 to a model's revenue; the least coverage is that of "
        "a, 75.0 % of the value."
    )
    assert sentences[3] == "The run held its devices for 1 min 30 s."
    money = accounts({"a": [True] * 3 + [None], "b": [True] * 4}, price=0)
    assert min(s.total.coverage for s in money.settlements) == 0.75
    assert overview(money, [])[-2] == (
        "1 image could not be decided; the least coverage is that of a, 75.0 % of its images."
    )


@pytest.mark.parametrize(
    ("p", "beginning"),
    [
        ({"b": 0.2, "c": 0.3}, "Its lead over b, c is not significant ("),
        ({"b": 0.2, "c": 0.01}, "Its lead is significant over 1 of 2 other models, but not over b ("),
        ({"b": 0.02, "c": 0.01}, "Its lead over all 2 other models is significant ("),
        ({"b": None, "c": 0.01}, "Its lead is significant over 1 of 2 other models, but not over b ("),
    ],
)
def test_differences_in_either_order_of_the_pair(p, beginning):
    money = accounts({"b": [True, False], "a": [True, True], "c": [False, False]})
    pairs = [pair("b", "a", p["b"], -1.0), pair("a", "c", p["c"]), pair("b", "c", 0.001)]
    sentences = overview(money, pairs)
    assert sentences[1].startswith(beginning)
    assert sentences[2] == "All 6 requested images were decided."


@pytest.mark.parametrize("tested", [pair("a", "b", 0.001, -1.0), pair("b", "a", 0.001), pair("a", "b", 0.001, None)])
def test_a_lead_is_not_significant_where_the_other_model_is_the_better_one_on_the_tasks_of_both(tested):
    money = accounts({"a": [True, True], "b": [True, False]})
    assert overview(money, [tested])[1].startswith("Its lead over b is not significant (")


def test_attempts_and_runs_are_counted(make_run, tmp_path):
    path = make_run(gap=False)
    with closing(sqlite3.connect(path / "ledger.sqlite")) as db, db:
        db.execute("UPDATE candidates SET model = 'alpha', attempt = 2 WHERE model = 'beta'")
    with RunDir.open(path) as one, RunDir.open(shutil.copytree(path, tmp_path / "other")) as two:
        for runs, decided, held in (
            ([one], "All 3", "The run held its devices for 1 min 20 s, which cost $0.040001."),
            ([one, two], "All 6", "The 2 runs held their devices for 2 min 40 s, which cost $0.080002."),
        ):
            money = accounts_of(runs)
            assert summary(runs, money).sentences(money)[-2:] == [
                f"{decided} requested first attempts were decided.",
                held,
            ]


def test_what_is_said_of_first_attempts_names_them(make_run):
    """Of the two attempts of `alpha` at three images without a price one first attempt is undecided."""
    path = make_run(gap=False)
    with closing(sqlite3.connect(path / "ledger.sqlite")) as db, db:
        db.execute("UPDATE candidates SET model = 'alpha', attempt = 2 WHERE model = 'beta'")
        db.execute("UPDATE tasks SET price_micro_usd = 0")
        undecided = "SELECT work_id FROM candidates WHERE attempt = 1 LIMIT 1"
        db.execute(f"UPDATE decisions SET accepted = NULL, unscored = 'x' WHERE work_id IN ({undecided})")
    with RunDir.open(path) as run:
        money = accounts_of([run])
        assert "alpha: 66.7 % of the first attempts could be decided, less than the required 98.0 %" in " ".join(
            warnings(run, money[0].settlements)
        )
    nothing = accounts({"a": [False], "b": [False]}, price=0)
    refused = overview(nothing, [], noun="first attempt")[0]
    assert refused == "No first attempt was accepted: each model has 1 first attempt."


def test_models_with_the_same_result_are_first_together():
    money = accounts({"c": [True, True, False], "b": [False] * 3, "a": [True, True, False]}, costs={"a": 1, "c": 2})
    sentences = overview(money, [pair("a", "c", 1.0), pair("a", "b", 0.01), pair("b", "c", 0.2)], money.settlements)
    assert sentences[0].startswith("a and c earned the most, equally: $20.00 of $30.00 (66.7 %; 95 % interval $")
    assert "cost" not in sentences[0]
    assert sentences[1].startswith("Their lead over b is not significant (")
    assert "all input images: a and c earned the most, equally" in sentences[2]
    both = accounts({"a": [True, False], "b": [True, False]}, price=0)
    assert overview(both, [pair("a", "b", 1.0)])[0].startswith(
        "a and b have the most images accepted, equally: 1 of 2 ("
    )
    assert overview(both, [pair("a", "b", 1.0)])[1] == "All 4 requested images were decided.", "no lead"


def test_tasks_without_a_price_and_models_that_earn_nothing():
    assert overview(accounts({"a": [True, False]}, price=0), [])[0].startswith(
        "a has the most images accepted: 1 of 2 (50.0 %; 95 % interval "
    )
    nothing = {"a": [False], "b": [False]}
    assert overview(accounts(nothing), [pair("a", "b", 1.0)])[:2] == [
        "No model earned anything of the $10.00 that the tasks are worth.",
        "All 2 requested images were decided.",  # no lead
    ]
    assert overview(accounts(nothing, price=0), [])[0] == "No image was accepted: each model has 1 image."
    refused = accounts({"a": [None, None], "b": [False, False]})  # a, first by name, was not decided
    assert overview(refused, [])[0] == "No model earned anything of the $20.00 that the tasks are worth."
    for price, beginning in ((10_000_000, "of the $10.00 that the tasks are worth."), (0, "of 1 image of each model.")):
        assert overview(accounts({"a": [None]}, price), [])[0] == f"Nothing was decided {beginning}"
    assert overview(accounts({}), []) == []
