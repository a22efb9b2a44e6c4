from decimal import Decimal
from fractions import Fraction as F

import numpy as np

from local_bench.settle.sensitivity import Flip, Point, flips, profits, revenues
from local_bench.settle.table import tasks_of


def test_rank_changes_are_reported_with_their_setting():
    base = {"a": F(1), "b": F(2), "c": F(3), "d": None}
    grid = [
        Point((("x", F(1)),), {"a": F(1), "b": F(2), "c": F(3), "d": F(0)}),
        Point((("x", F(2)),), {"a": F(3), "b": F(2), "c": F(2)}),
        Point((("x", F(3)),), {"a": F(4), "b": F(4), "c": None}),
    ]
    at_2 = ((("x", F(2)),),)
    assert flips(base, grid, lower_is_better=True) == [Flip("a", "b", at_2), Flip("a", "c", at_2)]
    turned = flips({"a": F(2), "b": F(1)}, [Point((("x", F(2)),), {"a": F(1), "b": F(2)})], lower_is_better=False)
    assert turned == [Flip("a", "b", at_2)]


def test_revenue_falls_as_the_threshold_rises_and_profit_with_the_price_of_an_hour():
    of = tasks_of(["t"], ["c"], [Decimal(30)], [3])
    columns = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    lowest, scored = np.array([40, 25, 50]), np.array([True, True, False])
    thresholds = [(F(1), 10), (F(3), 30), (F(4), 40), (F("4.5"), 45)]
    grid = revenues(of, ["m"], *columns, lowest, scored, thresholds)
    assert [p.values["m"] for p in grid] == [20, 10, 10, 0]
    assert grid[1].setting == (("acceptance_threshold", F(3)),)
    grid = profits({"slow": F(10), "quick": F(9), "untimed": F(1)}, {"slow": F(7200), "quick": F(3600)}, [F(0), F(2)])
    assert [p.values for p in grid] == [{"slow": 10, "quick": 9}, {"slow": 6, "quick": 7}]
    (flip,) = flips(grid[0].values, grid, lower_is_better=False)
    assert (flip.ahead, flip.behind, flip.settings) == ("slow", "quick", (grid[1].setting,))
