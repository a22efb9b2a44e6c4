import random
from decimal import Decimal
from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest

from local_bench.settle.competition import compete
from local_bench.settle.table import ACCEPTED, REJECTED, UNSCORED, orders, outcome_table

ABSENT = None


def cells(rows, prices=("10", "20"), q=(1, 2), score=None):
    """rows: (model, task, decision), one an image; `score`: a whole number a row, None where there is none."""
    of = orders([f"t{i}" for i in range(len(q))], ["c"] * len(q), [Decimal(p) for p in prices], list(q))
    models = sorted({m for m, _, _ in rows})
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    if score is None:
        return outcome_table(of, [f"m{m}" for m in models], *columns)
    amounts = np.array([s or 0 for s in score], dtype=np.int64)
    return outcome_table(of, [f"m{m}" for m in models], *columns, amounts, np.array([s is not None for s in score]))


def test_whoever_made_nothing_of_an_order_does_not_share_it():
    found = compete(cells([(0, 0, REJECTED), (1, 1, REJECTED), (1, 1, REJECTED)]))
    assert [p.revenue_usd for p in found.placed.values()] == [10, 20]


def test_nobody_is_paid_for_an_order_that_nobody_made():
    found = compete(cells([(0, 0, ACCEPTED), (1, 0, REJECTED)]))
    assert [p.revenue_usd for p in found.placed.values()] == [10, 0]
    assert [p.revenue_high_usd for p in found.placed.values()] == [30, 20]


def test_what_is_won_adds_up_to_what_there_is():
    rng = random.Random(0)
    rows = [(m, t, rng.choice([ACCEPTED, REJECTED])) for m in range(5) for t in range(2) for _ in range(t + 1)]
    assert sum(p.revenue_usd for p in compete(cells(rows, ("0.01", "0.02"))).placed.values()) == F(3, 100)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("required", [False, True])
def test_the_ends_hold_whatever_the_open_images_turn_out_to_be(seed, required):
    """All completions of a small table: an unscored image is decided, a missing one is not there or accepted."""
    rng = random.Random(seed)
    kinds = [ACCEPTED, REJECTED] * 3 + [UNSCORED, ABSENT]
    said = {(m, t, i): rng.choice(kinds) for m in range(3) for t in range(2) for i in range(t + 1)}
    for m in range(3):
        said[m, 0, 0] = REJECTED if said[m, 0, 0] is ABSENT else said[m, 0, 0]  # every model is on the table
    rated = {key: rng.choice([1, 2, 3]) for key in said}
    scored = seed % 2 == 0

    def settled(decisions):
        there = {key: d for key, d in decisions.items() if d is not ABSENT}
        rows = [(m, t, d) for (m, t, _), d in there.items()]
        return compete(cells(rows, score=[rated[key] for key in there] if scored else None), required)

    found = settled(said)
    is_open = [key for key, d in said.items() if d in (UNSCORED, ABSENT)]
    ways = [(ACCEPTED, REJECTED) if said[key] == UNSCORED else (ACCEPTED, ABSENT) for key in is_open]
    seen = []
    for completion in product(*ways):
        seen.append(settled(said | dict(zip(is_open, completion, strict=True))))
    for model, placed in found.placed.items():
        revenues = [completed.placed[model].revenue_usd for completed in seen]
        assert placed.revenue_low_usd <= min(revenues)
        assert max(revenues) <= placed.revenue_high_usd
        assert placed.revenue_low_usd <= placed.revenue_usd <= placed.revenue_high_usd
    if not is_open:
        assert found.n_open == 0
        assert all(p.revenue_low_usd == p.revenue_usd == p.revenue_high_usd for p in found.placed.values())
