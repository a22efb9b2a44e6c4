from decimal import Decimal

import pytest

from local_bench.core.money import allocate, held_cost, micro_usd, split, usd, usd_fine


@pytest.mark.parametrize(
    ("amount", "micro"), [("69.44", 69_440_000), (0.1, 100_000), (3, 3_000_000), (Decimal("1e-6"), 1)]
)
def test_dollars_become_integer_micro_dollars(amount, micro):
    assert micro_usd(amount) == micro


@pytest.mark.parametrize("amount", ["0.0000001", "nan", "inf", "ten"])
def test_inexact_amounts_are_refused(amount):
    with pytest.raises(ValueError, match=r"micro-dollars|amount of money"):
        micro_usd(amount)


@pytest.mark.parametrize(("micro", "parts"), [(69_440_000, 4), (100, 3), (2, 5), (0, 2)])
def test_a_split_adds_up_and_is_even(micro, parts):
    shares = split(micro, parts)
    assert sum(shares) == micro
    assert max(shares) - min(shares) <= 1


def test_an_allocation_adds_up_and_follows_its_weights():
    assert allocate(100, [1, 1, 1]) == (34, 33, 33)
    assert allocate(10, [0, 3, 7]) == (0, 3, 7)
    assert sum(allocate(999_999, [7, 11, 13, 17])) == 999_999
    assert held_cost(3_600_000_000_000, 1_790_000) == 1_790_000  # an hour costs its price
    assert held_cost(1_800_000_000_000, 1_790_001) == 895_000  # half-even


def test_formatted_amounts():
    amounts = {347_220_000: "$347.22", -1_500_000: "-$1.50", -1: "$0.00"}
    assert {amount: usd(amount) for amount in amounts} == amounts
    assert usd_fine(189) == "$0.000189"
