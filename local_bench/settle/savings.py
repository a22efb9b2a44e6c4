"""Client savings if people redo the tasks that the model fails (ServImage, sec. 5.4, eqs. 5 to 8; table 7).

B is the value of the tasks; a task succeeds if all its images are accepted:
S = 1 - cost/B - sum_t Price(t) (1 - Success(t)) / B, M = sum_t Price(t) Success(t) / B and
R = sum_t Price(t) Success(t) / (cost + sum_t Price(t) (1 - Success(t))), which is M / (1 - S).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from local_bench.settle.table import Ints, OutcomeTable


@dataclass(frozen=True)
class ClientSavings:
    """Eqs. 6 to 8 for one model, as fractions; None with an unknown cost or a denominator of 0. `_high`: with all open
    images accepted."""

    cost_usd: Fraction | None
    cost_savings: Fraction | None
    cost_savings_high: Fraction | None
    model_contribution: Fraction | None
    model_contribution_high: Fraction | None
    contribution_ratio: Fraction | None
    contribution_ratio_high: Fraction | None


def savings(table: OutcomeTable, usd_per_image: Mapping[str, Fraction]) -> list[ClientSavings]:
    """Savings of each model, in table order; `usd_per_image` by model. Every generated image is charged."""
    costs = [
        None if model not in usd_per_image else usd_per_image[model] * int(table.made[m].sum())
        for m, model in enumerate(table.models)
    ]
    done, at_best = _done_usd(table, table.accepted), _done_usd(table, table.at_best)
    return [
        _saved(table.tasks.value_usd, cost, low, high) for cost, low, high in zip(costs, done, at_best, strict=True)
    ]


def _done_usd(table: OutcomeTable, accepted: Ints) -> list[Fraction]:
    """sum_t Price(t) Success(t) for every model."""
    success = (accepted == table.tasks.deliverables).astype(np.int64)
    return [Fraction(int(s), table.tasks.units_per_usd) for s in success @ table.tasks.price]


def contribution_ratio(contribution: Fraction, savings: Fraction) -> Fraction | None:
    """R = M / (1 - S) (eqs. 6 to 8); None if nothing is spent."""
    return contribution / (1 - savings) if savings != 1 else None


def _saved(budget: Fraction, cost: Fraction | None, done: Fraction, at_best: Fraction) -> ClientSavings:
    if not budget:
        return ClientSavings(cost, None, None, None, None, None, None)
    m, m_high = done / budget, at_best / budget
    s = None if cost is None else m - cost / budget
    s_high = None if cost is None else m_high - cost / budget
    return ClientSavings(
        cost_usd=cost,
        cost_savings=s,
        cost_savings_high=s_high,
        model_contribution=m,
        model_contribution_high=m_high,
        contribution_ratio=None if s is None else contribution_ratio(m, s),
        contribution_ratio_high=None if s_high is None else contribution_ratio(m_high, s_high),
    )
