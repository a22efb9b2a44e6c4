import random
from decimal import Decimal
from itertools import product

import numpy as np
import pytest

from local_bench.settle.settlement import compete
from local_bench.settle.table import ACCEPTED, REJECTED, UNSCORED, outcome_table, tasks_of

ABSENT = None


def cells(rows, score=None):
    """rows: (model, task, decision), one an image; `score`: an integer a row."""
    both = tasks_of(["t0", "t1"], ["c", "c"], [Decimal(10), Decimal(20)], [1, 2])
    models = sorted({f"m{m}" for m, _, _ in rows})
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    if score is not None:
        columns += [np.array(score, dtype=np.int64), np.ones(len(score), dtype=bool)]
    return outcome_table(both, models, *columns)


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
