from decimal import Decimal
from fractions import Fraction as F

from local_bench.settle.sensitivity import Flip, Point, flips, revenues
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
    lowest = [Decimal(4), Decimal("2.5"), None]
    grid = revenues(of, ["m"], ["m"] * 3, ["t"] * 3, lowest, [F(1), F(3), F(4), F("4.5")])
    assert [p.values["m"] for p in grid] == [20, 10, 10, 0]
    assert grid[1].setting == (("acceptance_threshold", F(3)),)
    profits = [{"slow": F(10), "quick": F(9)}, {"slow": F(6), "quick": F(7)}]  # at 0 and 2 an hour, of 2 h and 1 h
    grid = [Point((("gpu_usd_per_hour", price),), values) for price, values in zip((F(0), F(2)), profits, strict=True)]
    (flip,) = flips(grid[0].values, grid, lower_is_better=False)
    assert (flip.ahead, flip.behind, flip.settings) == ("slow", "quick", (grid[1].setting,))
