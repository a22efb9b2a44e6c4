"""Crowdsourcing competition: every task is open to all models, the best submission is paid (ServImage, sec. 5.3).

The winner of a task has the most accepted images; a tie goes to the highest sum of BRF, VEQ and CNS over the task's
images; a remaining tie is shared equally. The winner takes the task's full price, even with nothing accepted,
because the paper's table 3 adds up to the whole budget. `require_success` pays only for tasks accepted in full.

A model without an image for a task does not compete for it. A leading model with an unscored image cannot be ranked
among the tied leaders: it shares with the best ranked one (invariant 5: a missing score is not 0), and the task is
counted as open.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from local_bench.settle.table import Ints, Mask, OutcomeTable, Tasks


@dataclass(frozen=True)
class Ranking:
    """Result of one model."""

    revenue_usd: Fraction
    revenue_low_usd: Fraction
    """With every open image decided against this model and for its competitors."""
    revenue_high_usd: Fraction
    rank: int
    """1 + the number of models that earn strictly more."""
    n_won: int
    """Tasks won alone."""
    n_shared: int
    """Tasks shared with others."""


@dataclass(frozen=True)
class Competition:
    placed: dict[str, Ranking]
    """By model, in table order."""
    n_open: int
    """Tasks that an open image or a missing score could give to other models."""


def compete(table: OutcomeTable, require_success: bool = False) -> Competition:
    """Settle every task among all models of the table."""
    tasks = table.tasks
    here = table.made > 0
    wins = _winners(table, here)
    paid = wins.sum(axis=0) > 0
    if require_success:
        paid &= np.where(here, table.accepted, -1).max(axis=0, initial=-1) == tasks.deliverables
    wins &= paid
    shares = wins.sum(axis=0)
    revenue = [_revenue(tasks, np.where(won, shares, 0)) for won in wins]
    low, high = (_end(table, here, require_success, at_best) for at_best in (False, True))
    placed = {
        model: Ranking(
            revenue_usd=revenue[m],
            revenue_low_usd=_revenue(tasks, low[m]),
            revenue_high_usd=_revenue(tasks, high[m]),
            rank=1 + sum(other > revenue[m] for other in revenue),
            n_won=int((wins[m] & (shares == 1)).sum()),
            n_shared=int((wins[m] & (shares > 1)).sum()),
        )
        for m, model in enumerate(table.models)
    }
    return Competition(placed, int((low != high).any(axis=0).sum()))


def _winners(table: OutcomeTable, here: Mask) -> Mask:
    """(M, T) winners, alone or tied."""
    most = np.where(here, table.accepted, -1).max(axis=0, initial=-1)
    leads: Mask = here & (table.accepted == most)
    if table.score is None or table.rated is None:
        return leads
    unrated = leads & (table.rated < table.made)
    rated = leads & ~unrated
    best = np.where(rated, table.score, -1).max(axis=0, initial=-1)
    wins: Mask = unrated | (rated & (table.score == best))
    return wins


def _revenue(tasks: Tasks, shares: Ints) -> Fraction:
    """Sum of the prices of T tasks, each divided by its `shares`; 0 is no share."""
    sums = ((int(k), int(tasks.price[shares == k].sum())) for k in np.unique(shares[shares > 0]))
    return sum((Fraction(total, k * tasks.units_per_usd) for k, total in sums), Fraction(0))


def _end(table: OutcomeTable, here: Mask, require_success: bool, at_best: bool) -> Ints:
    """(M, T) number of models that share the price, 0 where the model gets nothing, with everything open decided for
    the model of the row and against the others (`at_best`), or the reverse.

    Among models with equal counts, one whose images do not all have scores is above all others, or below.
    """
    rank, top = np.zeros_like(table.accepted), 0
    if table.score is not None and table.rated is not None:
        values, ranks = np.unique(table.score, return_inverse=True)
        rank, top = 1 + ranks.reshape(rank.shape), len(values) + 1
        unknown = table.rated < table.tasks.deliverables
        low, high = np.where(unknown, 0, rank), np.where(unknown, top, rank)
    else:
        low = high = rank
    worst = np.where(here, table.accepted, -1) * (top + 1) + low
    best = table.at_best * (top + 1) + high
    own, others = (best, worst) if at_best else (worst, best)
    shares = np.zeros_like(table.accepted)
    for m in range(len(own)):
        rivals = np.delete(others, m, axis=0)
        first = rivals.max(axis=0, initial=-1)
        equal = 1 + (rivals == first).sum(axis=0)
        shares[m] = np.where(own[m] > first, 1, np.where(own[m] == first, equal, 0))
    least = table.tasks.deliverables if require_success else 0
    return np.where(own // (top + 1) >= least, shares, 0)
