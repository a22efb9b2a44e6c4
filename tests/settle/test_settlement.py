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
    """V_t = sum_i S_ti p_t / Q_t, to the micro-dollar."""
    (s,) = settle(lines(a=(100, [YES, NO, YES]), b=(50, [YES]), c=(10, [NO, NO])), {"m": 7})
    assert s.total.revenue_micro_usd == 34 + 33 + 50
    assert s.total.value_micro_usd == 160
    assert s.total.share == 117 / 160
    assert (s.total.n_tasks, s.total.n_tasks_accepted) == (3, 1)
    assert (s.total.n, s.total.n_accepted, s.total.n_unscored) == (6, 3, 0)
    assert s.profit_micro_usd == 110


def test_a_fully_accepted_order_pays_its_full_price():
    (s,) = settle(lines(a=(100, [YES, YES, YES])), {})
    assert s.total.revenue_micro_usd == 100
    assert s.profit_micro_usd is None


def test_open_images_are_counted_unpaid_and_lower_the_coverage():
    (s,) = settle(lines(a=(100, [YES, OPEN]), b=(100, [OPEN])), {})
    assert s.total.revenue_micro_usd == 50
    assert s.total.open_micro_usd == 150
    assert s.total.coverage == 0.25
    assert (s.total.n, s.total.n_unscored, s.total.n_tasks_unscored) == (1, 2, 2)
    assert s.total.deliverable_acceptance == 1 / 3


def test_categories_add_up_and_models_are_ordered_by_revenue():
    a = [Line("low", "t1", "Digital", 10, 1, 1, NO), Line("low", "t2", "Product", 30, 1, 1, YES)]
    b = [Line("high", "t1", "Digital", 10, 1, 1, YES), Line("high", "t2", "Product", 30, 1, 1, YES)]
    first, second = settle(frame([*a, *b]), {})
    assert (first.model, second.model) == ("high", "low")
    for s in (first, second):
        assert sum(t.revenue_micro_usd for t in s.by_category.values()) == s.total.revenue_micro_usd
        assert sum(t.value_micro_usd for t in s.by_category.values()) == s.total.value_micro_usd


def test_the_rule():
    rule = {"brf": 3.0, "veq": 3.0}
    assert by_threshold([Score("brf", 3.0), Score("veq", 5.0)], rule) == YES
    assert by_threshold([Score("brf", 2.9), Score("veq", 5.0)], rule) == NO
    assert by_threshold([Score("brf", 5.0), Score("veq", None, applies=False)], rule) == YES
    assert by_threshold([Score("brf", 1.0), Score("veq", None, "cut off")], rule) == NO
    assert by_threshold([Score("brf", 5.0), Score("veq", None, "cut off")], rule) == Decision(None, "veq: cut off")
    assert by_threshold([Score("brf", 5.0)], rule) == Decision(None, "veq was not scored")
