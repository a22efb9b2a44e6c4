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
    """rows: (model, task, decision), one an image; `score`: an integer a row, None where there is none."""
    of = orders([f"t{i}" for i in range(len(q))], ["c"] * len(q), [Decimal(p) for p in prices], list(q))
    models = sorted({m for m, _, _ in rows})
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    if score is None:
        return outcome_table(of, [f"m{m}" for m in models], *columns)
    amounts = np.array([s or 0 for s in score], dtype=np.int64)
    return outcome_table(of, [f"m{m}" for m in models], *columns, amounts, np.array([s is not None for s in score]))


def test_a_model_without_images_of_an_order_has_no_share():
    found = compete(cells([(0, 0, REJECTED), (1, 1, REJECTED), (1, 1, REJECTED)]))
    assert [p.revenue_usd for p in found.placed.values()] == [10, 20]


def test_an_order_without_images_is_not_paid():
    found = compete(cells([(0, 0, ACCEPTED), (1, 0, REJECTED)]))
    assert [p.revenue_usd for p in found.placed.values()] == [10, 0]
    assert [p.revenue_high_usd for p in found.placed.values()] == [30, 20]


def test_revenues_add_up_to_the_budget():
    rng = random.Random(0)
    rows = [(m, t, rng.choice([ACCEPTED, REJECTED])) for m in range(5) for t in range(2) for _ in range(t + 1)]
    assert sum(p.revenue_usd for p in compete(cells(rows, ("0.01", "0.02"))).placed.values()) == F(3, 100)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("required", [False, True])
def test_bounds_contain_every_completion(seed, required):
    """All completions of a small table: an unscored image is decided, a missing one is absent or accepted."""
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
    seen = []
    for completion in product(*options):
        seen.append(settled(decided | dict(zip(is_open, completion, strict=True))))
    for model, placed in found.placed.items():
        revenues = [completed.placed[model].revenue_usd for completed in seen]
        assert placed.revenue_low_usd <= min(revenues)
        assert max(revenues) <= placed.revenue_high_usd
        assert placed.revenue_low_usd <= placed.revenue_usd <= placed.revenue_high_usd
    if not is_open:
        assert found.n_open == 0
        assert all(p.revenue_low_usd == p.revenue_usd == p.revenue_high_usd for p in found.placed.values())
