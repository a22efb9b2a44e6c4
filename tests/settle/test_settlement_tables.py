import random
from decimal import Decimal
from fractions import Fraction as F

import numpy as np
import pytest

from local_bench.core.types import Decision
from local_bench.settle.settlement import by_category, earnings, settle
from local_bench.settle.table import ACCEPTED, amounts, outcome_table, table_of, tasks_of, whole
from tests.lines import Line, frame


def test_units_are_fine_enough_for_every_amount_and_no_finer():
    assert whole([Decimal("1.5"), Decimal("2")]) == (10, [15, 20])
    assert whole([Decimal("1.5")], at_least=1_000_000) == (1_000_000, [1_500_000])
    assert whole([Decimal("0.0000001"), Decimal("1E+2")]) == (10_000_000, [1, 1_000_000_000])
    assert whole([]) == (1, [])


@pytest.mark.parametrize("price", ["123456789.123456789123456789", "999999999"])
def test_sums_stay_exact_where_int64_would_not_do(price):
    of = tasks_of(["a", "b"], ["c", "c"], [Decimal(price)] * 2, [3, 7])
    model, task = np.zeros(2, dtype=np.int64), np.array([0, 1])
    (found,) = earnings(outcome_table(of, ["m"], model, task, np.array([ACCEPTED, ACCEPTED])))
    assert found.revenue_usd == F(price) / 3 + F(price) / 7
    assert found.value_usd == 2 * F(price)


def test_scores_that_int64_cannot_hold_are_summed_all_the_same():
    wide = amounts([Decimal("1." + "1" * 25), Decimal("2")])
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
        assert (exact.n_tasks, exact.n_tasks_accepted) == (total.n_tasks, total.n_tasks_accepted)
        assert (exact.n_accepted, exact.n_unscored, exact.n_missing) == (total.n_accepted, total.n_unscored, 0)
        assert float(exact.share or 0) == pytest.approx(total.share, abs=1e-6)
    for category, parts in by_category(table).items():
        for model, exact in zip(table.models, parts, strict=True):
            total = paid[model].by_category[category]
            assert abs(exact.revenue_usd * 10**6 - total.revenue_micro_usd) < len(ordered)
