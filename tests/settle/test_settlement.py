from local_bench.core.types import Decision, Score
from local_bench.settle.acceptance import by_threshold
from local_bench.settle.settlement import settle
from tests.lines import Line, frame

YES, NO, OPEN = Decision(True), Decision(False), Decision(None, "no answer")


def lines(model="m", **orders):
    """`orders`: id -> (price in micro-USD, decisions)."""
    return frame(
        Line(model, task, "Digital", price, i, len(decisions), decision)
        for task, (price, decisions) in orders.items()
        for i, decision in enumerate(decisions, 1)
    )


def test_equation_one():
    """V_t = sum_i S_ti p_t / Q_t, to the micro-dollar; a fully accepted order pays its full price."""
    orders = {"a": (100, [YES, NO, YES]), "b": (50, [YES]), "c": (10, [NO, NO]), "whole": (100, [YES, YES, YES])}
    (s,) = settle(lines(**orders), {"m": 7})
    assert (s.total.revenue_micro_usd, s.total.value_micro_usd) == (34 + 33 + 50 + 100, 260)
    assert (s.total.share, s.profit_micro_usd) == (217 / 260, 210)
    assert (s.total.n_tasks, s.total.n_tasks_accepted) == (4, 2)
    assert (s.total.n, s.total.n_accepted, s.total.n_unscored) == (9, 6, 0)


def test_open_images_are_counted_unpaid_and_lower_the_coverage():
    (s,) = settle(lines(a=(100, [YES, OPEN]), b=(100, [OPEN])), {})
    assert (s.total.revenue_micro_usd, s.total.open_micro_usd, s.profit_micro_usd) == (50, 150, None)
    assert (s.total.n, s.total.n_unscored, s.total.n_tasks_unscored) == (1, 2, 2)
    assert (s.total.coverage, s.total.deliverable_acceptance) == (0.25, 1 / 3)


def test_categories_add_up_and_models_are_ordered_by_revenue():
    rows = [("low", "t1", NO), ("low", "t2", YES), ("high", "t1", YES), ("high", "t2", YES)]
    of_task = {"t1": ("Digital", 10), "t2": ("Product", 30)}
    first, second = settle(frame(Line(model, task, *of_task[task], 1, 1, word) for model, task, word in rows), {})
    assert (first.model, second.model) == ("high", "low")
    for s in (first, second):
        assert sum(t.revenue_micro_usd for t in s.by_category.values()) == s.total.revenue_micro_usd
        assert sum(t.value_micro_usd for t in s.by_category.values()) == s.total.value_micro_usd


def test_the_rule():
    for brf, veq, decision in (
        (3.0, [Score("veq", 5.0)], YES),
        (2.9, [Score("veq", 5.0)], NO),
        (5.0, [Score("veq", None, applies=False)], YES),
        (1.0, [Score("veq", None, "cut off")], NO),
        (5.0, [Score("veq", None, "cut off")], Decision(None, "veq: cut off")),
        (5.0, [], Decision(None, "veq was not scored")),
    ):
        assert by_threshold([Score("brf", brf), *veq], {"brf": 3.0, "veq": 3.0}) == decision
