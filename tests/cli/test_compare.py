"""`compare`: two runs written by hand, whose every figure can be reckoned."""

import json

import pytest

from local_bench.analysis.compare import compare
from local_bench.runs.config import AcceptanceConfig, JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from tests.report.conftest import GAMMA, Writer, order

YES, NO, OPEN, ABSENT = True, False, None, "absent"
ORDERS = {"t1": (35_000_000, 1), "t2": (100_000_000, 2), "t3": (10_000_000, 1)}


@pytest.fixture
def make(tmp_path):
    """A run of models -> order -> decisions; an image's brf is 4, 2, or unscored, as it is decided. An image that is
    ABSENT was not made and has no scores; `cns` has the values of others by model and order, "n/a" if it does not
    apply."""

    def run(name, decisions_of, prices=None, judge=GAMMA, cns=None, **config):
        path = tmp_path / name
        models = [ModelConfig(card=model) for model in decisions_of]
        settings = RunConfig(name=name, models=models, judge=JudgeConfig(card="gamma"), metrics=[], **config)
        with RunDir.begin(path, settings) as made, made.store.transaction():
            to = Writer(made)
            to.judges({judge: "gamma"})
            given = ORDERS | (prices or {})
            orders = {
                t: order(t, "Digital", *given[t]) for t in dict.fromkeys(t for of in decisions_of.values() for t in of)
            }
            for position, task in enumerate(orders.values()):
                to.task(task, position)
            for model, of in decisions_of.items():
                for task_id, decisions in of.items():
                    for i, decision in enumerate(decisions, 1):
                        if decision is ABSENT:
                            to.candidate(orders[task_id], i, model, "unscored", "no file")
                            continue
                        work_id = to.candidate(orders[task_id], i, model)
                        to.decision(work_id, decision, "cut off" if decision is None else None)
                        value = None if decision is None else 4.0 if decision else 2.0
                        to.score(work_id, "brf", value, "cut off" if decision is None else None)
                        if cns and task_id in cns:
                            to.score(work_id, "cns", None if cns[task_id] == "n/a" else cns[task_id])
        return path

    return run


def compared(a, b, **how):
    with RunDir.open(a) as first, RunDir.open(b) as second:
        return compare(first, second, **how)


def test_every_figure_by_hand(cli, make):
    a = make("a", {"m": {"t1": [YES], "t2": [YES, OPEN], "t3": [YES]}})
    b = make("b", {"m": {"t1": [NO], "t2": [YES, YES], "t3": [NO]}})
    ended = cli("compare", a, b, "--json")
    assert ended.returncode == 0, ended.stderr
    output = json.loads(ended.stdout)
    assert (output["n_tasks"], output["n_tasks_only_a"], output["n_tasks_only_b"], output["notes"]) == (3, 0, 0, [])
    rows = {row["figure"]: row for row in output["comparisons"]}
    assert list(rows) == ["revenue_usd", "task_acceptance", "deliverable_acceptance", "brf"]
    money = rows["revenue_usd"]
    assert (money["a_value"], money["b_value"], money["difference"]) == (95, 100, -5)
    assert (money["at_least"], money["at_most"], money["n_unscored"]) == (-5, 45, 1)
    assert (money["n"], money["n_tasks"], money["n_tasks_differ"]) == (4, 3, 3)
    assert money["p"] == 1, "35 + 10 - 50: of the eight flips all are as large"
    assert money["low"] <= -5 <= money["high"]
    orders = rows["task_acceptance"]
    assert (orders["a_value"], orders["b_value"]) == pytest.approx((2 / 3, 1 / 3))
    assert (orders["at_least"], orders["at_most"]) == pytest.approx((1 / 3, 2 / 3))
    assert (orders["n"], orders["n_unscored"]) == (3, 1)
    images = rows["deliverable_acceptance"]
    assert (images["a_value"], images["b_value"], images["at_most"]) == (0.75, 0.5, 0.5)
    brf = rows["brf"]
    assert (brf["a_value"], brf["b_value"], brf["n"], brf["n_unscored"]) == (4, pytest.approx(8 / 3), 3, 1)
    assert (brf["at_least"], brf["at_most"]) == (3 - 3, 4.25 - 3)


def scores_of(a, b, **how):
    return {row.figure: row for row in compared(a, b, **how).rows[3:]}


def test_images_that_were_not_made_are_unscored_where_a_score_applies(make):
    """brf applies to every image, cns to those of t2 alone."""
    of_order = {"t1": "n/a", "t2": 1.0}
    whole = {"t1": [YES], "t2": [YES, NO]}
    a = make("a", {"m": {"t1": [ABSENT], "t2": [YES, ABSENT]}}, cns=of_order)
    b = make("b", {"m": whole}, cns=of_order)
    found = scores_of(a, b)
    brf, cns = found["brf"], found["cns"]
    assert (brf.a, brf.b, brf.n, brf.n_unscored) == (4, 4, 1, 2)
    assert brf.difference.estimate == 0
    ends = (brf.difference.at_least, brf.difference.at_most)
    assert ends == pytest.approx(((0 + 4 + 0) / 3 - (4 + 4 + 2) / 3, (5 + 4 + 5) / 3 - (4 + 4 + 2) / 3))
    assert (cns.a, cns.b, cns.n, cns.n_unscored) == (1, 1, 1, 1), "it does not apply to t1"
    assert (cns.difference.at_least, cns.difference.at_most) == ((1 + 0) / 2 - 1, (1 + 5) / 2 - 1)
    mirrored = scores_of(b, a)["brf"].difference
    assert (mirrored.at_least, mirrored.at_most) == (-ends[1], -ends[0])


def test_images_that_no_model_made_are_unscored_and_a_model_without_any_has_bounds_alone(make):
    of_order = {"t1": "n/a", "t2": 1.0}
    a, b = (make(name, {"m": {"t1": [YES], "t2": [YES, YES], "t3": [ABSENT]}}, cns=of_order) for name in "ab")
    found = scores_of(a, b)
    brf, cns = found["brf"], found["cns"]
    assert (brf.n, brf.n_unscored, brf.difference.at_least, brf.difference.at_most) == (3, 1, -1.25, 1.25)
    assert (cns.n, cns.n_unscored, cns.difference.at_least) == (2, 0, 0), "nothing says that it applies to t3"
    whole = {"t1": [YES], "t2": [YES, NO]}
    a = make("none", {"m": whole, "none": {"t1": [ABSENT], "t2": [ABSENT, ABSENT]}})
    brf = scores_of(a, a, every_pair=True)["brf"]
    assert (brf.a, brf.b, brf.difference.estimate, brf.n, brf.n_unscored) == (None, None, None, 0, 3)
    assert (brf.difference.at_least, brf.difference.at_most) == pytest.approx((10 / 3 - 5, 10 / 3))


def test_runs_without_a_decision_are_compared_by_their_scores_alone(make):
    """No revenue between two models of which nothing is decided."""
    a, b = (make(f"a{t1}", {"m": {"t1": [OPEN], "t3": [OPEN]}}, cns={"t1": t1, "t3": 3.0}) for t1 in (3.0, 4.0))
    result = compared(a, b)
    assert [(row.figure, row.a, row.b) for row in result.rows] == [("brf", None, None), ("cns", 3.0, 3.5)]
    a, b = (make(name, {"m": {"t1": [ABSENT]}}) for name in ("c", "d"))
    result = compared(a, b)
    assert (result.rows, result.notes[-1]) == ([], "the runs have no decision and no common score")


def test_tasks_without_a_price_have_no_revenue_to_compare(cli, make):
    """As those of ICE-Bench, IDEA-Bench and HYPE-EDIT-1."""
    free = {task: (0, n) for task, (_, n) in ORDERS.items()}
    a, b = (make(name, {"m": {"t1": [YES], "t2": [YES, first]}}, free) for name, first in (("a", YES), ("b", NO)))
    expected = ["task_acceptance", "deliverable_acceptance", "brf"]
    assert [row["figure"] for row in json.loads(cli("compare", a, b, "--json").stdout)["comparisons"]] == expected
    assert "revenue" not in cli("compare", a, b).stdout
    partly = free | {"t1": (1, 1)}
    a, b = (make(name, {"m": {"t1": [YES], "t2": [YES, first]}}, partly) for name, first in (("c", YES), ("d", NO)))
    assert [row.figure for row in compared(a, b).rows] == ["revenue", "tasks accepted", "images accepted", "brf"]


def test_a_run_does_not_differ_from_itself(cli, make):
    a = make("a", {"m": {"t1": [YES], "t2": [YES, NO]}})
    ended = cli("compare", a, a)
    assert ended.returncode == 0, ended.stderr
    assert "of first attempts" not in ended.stdout
    assert ["m", "m", "revenue", "$85.00", "$85.00", "$0.00"] in [
        line.split()[:6] for line in ended.stdout.splitlines()
    ]
    for row in compared(a, a).rows:
        d = row.difference
        assert (d.estimate, d.low, d.high, d.p, d.n_differ) == (0, None, None, 1, 0)


def test_quantities_of_first_and_of_all_attempts_are_named(cli, make):
    a = make("a", {"m": {"t1": [YES]}})
    path = a / "run.yaml"
    text = path.read_text()
    assert text.count("attempts: 1") == 1
    path.write_text(text.replace("attempts: 1", "attempts: 3"))
    assert "revenue and tasks accepted: of first attempts; images accepted and" in cli("compare", a, a).stdout


def test_models_of_one_name_all_with_all_or_a_run_s_own(make):
    decisions = {"t1": [YES]}
    a, b = make("a", {"m": decisions, "n": decisions}), make("b", {"m": decisions, "o": decisions})
    other = make("c", {"p": decisions, "q": decisions})

    def pairs(*runs, **how):
        return {(row.difference.a, row.difference.b) for row in compared(*runs, **how).rows}

    assert pairs(a, b) == {("m", "m")}
    assert len(pairs(a, b, every_pair=True)) == len(pairs(a, other)) == 4
    whole = make("d", {"m": decisions, "n": {"t1": [NO]}, "o": decisions})
    rows = compared(whole, whole, every_pair=True).rows  # each pair once
    assert [(r.difference.a, r.difference.b) for r in rows[:3]] == [("m", "n"), ("m", "o"), ("n", "o")]
    assert [r.difference.estimate for r in rows[:3]] == [35e6, 0, -35e6]


def test_holm_is_over_the_pairs_of_a_figure(make):
    orders = {f"o{i}": (1_000_000, 1) for i in range(8)}
    good, bad = {t: [YES] for t in orders}, {t: [NO] for t in orders}
    a = make("a", {"m": good, "n": bad | {"o1": [YES]}}, orders)
    b = make("b", {"m": bad, "n": bad}, orders)
    first, second = (r.difference for r in compared(a, b).rows if r.figure == "revenue")
    assert (first.p, first.p_holm, first.p_bh) == (2 / 256, 4 / 256, 4 / 256)
    assert (second.p, second.p_holm) == (1, 1)
    same = make("c", {"m": good, "n": bad}, orders)
    first, second = (r.difference for r in compared(same, b).rows if r.figure == "revenue")
    assert (first.p, first.p_holm) == (2 / 256, 2 / 256), "a model and itself are no hypothesis"
    assert (second.p, second.p_holm) == (1, 1)


def test_orders_of_only_one_run_are_counted_and_reported(cli, make):
    a = make("a", {"m": {"t1": [YES], "t3": [YES]}})
    b = make("b", {"m": {"t1": [NO], "t2": [YES, YES]}})
    ended = cli("compare", a, b, "--json")
    output = json.loads(ended.stdout)
    assert (output["n_tasks"], output["n_tasks_only_a"], output["n_tasks_only_b"]) == (1, 1, 1)
    assert output["comparisons"][0]["difference"] == 35
    assert (output["comparisons"][0]["low"], output["comparisons"][0]["high"]) == (-35, 35)  # one task
    assert output["comparisons"][0]["too_few_differ"]
    assert len(output["notes"]) == 1
    assert "the runs' tasks differ: 1 are only in" in ended.stderr


def test_other_judges_and_thresholds_are_reported(make):
    decisions = {"m": {"t1": [YES]}}
    a = make("a", decisions)
    assert "different judges" in compared(a, make("b", decisions, judge="0" * 64)).notes[0]
    lenient = make("c", decisions, acceptance=AcceptanceConfig(brf=1.0))
    assert "different acceptance thresholds" in compared(a, lenient).notes[0]
    assert compared(a, make("d", decisions, acceptance=AcceptanceConfig(brf=3.0))).notes == [], "the default, written"
    for path, rubric in ((a, "brf"), (make("e", decisions), "brf, other words")):
        with RunDir.open(path) as run, run.store.transaction():
            (row,) = run.store.outcomes()
            Writer(run).verdict(row.candidate.work_id, rubric, 0, {"met": 1})
    assert "different rubrics" in compared(a, path).notes[0]


@pytest.mark.parametrize(
    ("other", "message"),
    [({"t2": [YES, YES]}, "have no task in common: compare runs of one suite"), ({"t1": [YES]}, "the task 't1' of")],
)
def test_runs_of_other_orders_are_an_error(cli, make, other, message):
    ended = cli("compare", make("a", {"m": {"t1": [YES]}}), make("b", {"m": other}, {"t1": (36_000_000, 1)}))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert message in ended.stderr
