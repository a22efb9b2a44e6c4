import random
from decimal import Decimal
from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest

from local_bench.core.types import Decision, Score
from local_bench.settle.acceptance import by_threshold
from local_bench.settle.settlement import by_category, compete, earnings, settle
from local_bench.settle.table import ACCEPTED, REJECTED, UNSCORED, outcome_table, table_of, tasks_of, whole
from local_bench.settle.table import exact as integers
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


def test_units_are_fine_enough_for_every_amount_and_no_finer():
    assert whole([Decimal("1.5"), Decimal("2")]) == (10, [15, 20])
    assert whole([Decimal("1.5")], at_least=1_000_000) == (1_000_000, [1_500_000])
    assert whole([Decimal("0.0000001"), Decimal("1E+2")]) == (10_000_000, [1, 1_000_000_000])
    assert whole([]) == (1, [])


@pytest.mark.parametrize("price", ["123456789.123456789123456789", "999999999"])
def test_sums_stay_exact_where_int64_would_not_do(price):
    of = tasks_of(["a", "b"], ["c", "c"], [Decimal(price)] * 2, [3, 7])
    (found,) = earnings(outcome_table(of, ["m"], ["m", "m"], ["a", "b"], np.array([ACCEPTED, ACCEPTED])))
    assert found.revenue_usd == F(price) / 3 + F(price) / 7
    assert found.value_usd == 2 * F(price)


def test_scores_that_int64_cannot_hold_are_summed_all_the_same():
    wide = integers(whole([Decimal("1." + "1" * 25), Decimal("2")])[1])
    assert list(wide) == [int("1" + "1" * 25), 2 * 10**25]


@pytest.mark.parametrize("seed", range(6))
def test_a_run_s_settlement_equals_the_table_in_integer_micro_dollars(seed):
    """Equal but for less than a micro-dollar an order that is accepted in part; the same counts."""
    rng = random.Random(seed)
    ordered = {f"t{i}": (rng.choice("AB"), rng.randint(1, 10**9), rng.randint(1, 7)) for i in range(25)}
    rows = [
        (m, task, i, rng.choice([True, False, None]))
        for m in "xy"
        for task in ordered
        for i in range(1, ordered[task][2] + 1)
    ]
    lines = [
        Line(m, task, category, price, i, n, Decision(d, None if d is not None else "open"))
        for m, task, i, d in rows
        for category, price, n in [ordered[task]]
    ]
    paid = {s.model: s for s in settle(frame(lines), {})}
    table = table_of(frame(lines))
    for model, exact in zip(table.models, earnings(table), strict=True):
        total = paid[model].total
        assert abs(exact.revenue_usd * 10**6 - total.revenue_micro_usd) < len(ordered)
        assert abs((exact.revenue_high_usd - exact.revenue_usd) * 10**6 - total.open_micro_usd) < len(ordered)
        assert exact.value_usd * 10**6 == total.value_micro_usd
        assert (exact.n_tasks, exact.n_tasks * exact.task_acceptance) == (total.n_tasks, total.n_tasks_accepted)
        assert (exact.n_accepted, exact.n_unscored, exact.n_missing) == (total.n_accepted, total.n_unscored, 0)
        assert float(exact.share or 0) == pytest.approx(total.share, abs=1e-6)
    for category, parts in by_category(table).items():
        for model, exact in zip(table.models, parts, strict=True):
            total = paid[model].by_category[category]
            assert abs(exact.revenue_usd * 10**6 - total.revenue_micro_usd) < len(ordered)


ABSENT = None


def cells(rows, score=None):
    """rows: (model, task, decision), one an image; `score`: an integer a row."""
    both = tasks_of(["t0", "t1"], ["c", "c"], [Decimal(10), Decimal(20)], [1, 2])
    models = sorted({f"m{m}" for m, _, _ in rows})
    images, decisions = [(f"m{m}", f"t{t}") for m, t, _ in rows], np.array([d for *_, d in rows], dtype=np.int64)
    scores = None if score is None else list(map(Decimal, score))
    return outcome_table(both, models, *zip(*images, strict=True), decisions, scores)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("required", [False, True])
def test_bounds_contain_every_completion(seed, required):
    """All completions of a small table: an unscored image is decided, a missing one is absent or accepted. The bounds
    are reached unless a missing image has scores to come."""
    rng = random.Random(seed)
    kinds = [ACCEPTED, REJECTED] * 3 + [UNSCORED, ABSENT]
    decided = {(m, t, i): rng.choice(kinds) for m in range(3) for t in range(2) for i in range(t + 1)}
    for m in range(3):
        decided[m, 0, 0] = REJECTED if decided[m, 0, 0] is ABSENT else decided[m, 0, 0]  # every model is on the table
    rated = {key: rng.choice([1, 2, 3]) for key in decided}
    scored = seed % 2 == 0

    def settled(decisions):
        delivered = {key: d for key, d in decisions.items() if d is not ABSENT}
        rows = [(m, t, d) for (m, t, _), d in delivered.items()]
        return compete(cells(rows, score=[rated[key] for key in delivered] if scored else None), required)

    found = settled(decided)
    is_open = [key for key, d in decided.items() if d in (UNSCORED, ABSENT)]
    options = [(ACCEPTED, REJECTED) if decided[key] == UNSCORED else (ACCEPTED, ABSENT) for key in is_open]
    seen = [settled(decided | dict(zip(is_open, completion, strict=True))) for completion in product(*options)]
    tight = not scored or ABSENT not in decided.values()
    for model, placed in found.placed.items():
        revenues = [completed.placed[model].revenue_usd for completed in seen]
        if tight:
            assert (placed.revenue_low_usd, placed.revenue_high_usd) == (min(revenues), max(revenues))
        assert placed.revenue_low_usd <= min(revenues)
        assert max(revenues) <= placed.revenue_high_usd
        assert placed.revenue_low_usd <= placed.revenue_usd <= placed.revenue_high_usd
    if tight:
        changed = [
            {value.revenue_usd for value in results} for results in zip(*(c.placed.values() for c in seen), strict=True)
        ]
        assert (found.n_open > 0) == any(len(values) > 1 for values in changed)
    if not is_open:
        assert found.n_open == 0
        assert all(p.revenue_low_usd == p.revenue_usd == p.revenue_high_usd for p in found.placed.values())


def test_a_tie_is_decided_by_complete_scores():
    """m0 wins the task of $10; on that of $20 it is level with m1, and m2 at best draws level."""
    rows = [(0, 0, ACCEPTED), (1, 0, REJECTED), (2, 0, REJECTED)]
    rows += [
        (m, 1, decision) for m, first in enumerate([ACCEPTED, ACCEPTED, UNSCORED]) for decision in (first, REJECTED)
    ]

    def bounds(score):
        result = compete(cells(rows, score=[1, 1, 1, *score]))
        return result.n_open, [(p.revenue_low_usd, p.revenue_high_usd) for p in result.placed.values()]

    assert bounds([3, 3, 3, 2, 2, 1]) == (0, [(30, 30), (0, 0), (0, 0)])
    assert bounds([3, 3, 3, 2, 3, 3]) == (1, [(20, 30), (0, 0), (0, 10)])  # m2 could share
