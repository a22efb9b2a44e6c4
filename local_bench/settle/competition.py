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
    """Tasks whose winner an open image or a missing score could change."""


def compete(table: OutcomeTable, require_success: bool = False) -> Competition:
    """Settle every task among all models of the table."""
    tasks = table.tasks
    here = table.made > 0
    wins, undecided = _winners(table, here)
    paid = wins.sum(axis=0) > 0
    if require_success:
        paid &= np.where(here, table.accepted, -1).max(axis=0, initial=-1) == tasks.deliverables
    wins &= paid
    shares = wins.sum(axis=0)
    revenue = _shared(tasks, wins, shares, np.ones(len(paid), dtype=np.bool_))
    low, high, n_open = _ends(table, wins, shares, undecided, require_success)
    placed = {
        model: Ranking(
            revenue_usd=revenue[m],
            revenue_low_usd=low[m],
            revenue_high_usd=high[m],
            rank=1 + sum(other > revenue[m] for other in revenue),
            n_won=int((wins[m] & (shares == 1)).sum()),
            n_shared=int((wins[m] & (shares > 1)).sum()),
        )
        for m, model in enumerate(table.models)
    }
    return Competition(placed, n_open)


def _winners(table: OutcomeTable, here: Mask) -> tuple[Mask, Mask]:
    """((M, T) winners, alone or tied; (T,) tasks whose tie a missing score leaves undecided)."""
    most = np.where(here, table.accepted, -1).max(axis=0, initial=-1)
    leads: Mask = here & (table.accepted == most)
    nobody = np.zeros(leads.shape[1], dtype=np.bool_)
    if table.score is None or table.rated is None:
        return leads, nobody
    unrated = leads & (table.rated < table.made)
    rated = leads & ~unrated
    best = np.where(rated, table.score, -1).max(axis=0, initial=-1)
    wins: Mask = unrated | (rated & (table.score == best))
    return wins, unrated.any(axis=0) & (leads.sum(axis=0) > 1)


def _shared(tasks: Tasks, wins: Mask, shares: Ints, mask: Mask) -> list[Fraction]:
    """Share of each row in the prices of the tasks in `mask`."""
    totals = [Fraction(0)] * len(wins)
    for k in np.unique(shares[mask & (shares > 0)]):
        those = mask & (shares == k)
        sums = wins[:, those].astype(np.int64) @ tasks.price[those]
        totals = [t + Fraction(int(s), int(k) * tasks.units_per_usd) for t, s in zip(totals, sums, strict=True)]
    return totals


def _ends(
    table: OutcomeTable, wins: Mask, shares: Ints, undecided: Mask, require_success: bool
) -> tuple[list[Fraction], list[Fraction], int]:
    """(lower ends, upper ends, number of tasks without a certain winner)."""
    tasks = table.tasks
    is_open = undecided | (table.at_best > table.accepted).any(axis=0)
    worst, best = table.accepted[:, is_open], table.at_best[:, is_open]
    surely = (worst > _rivals(best)) & (table.made[:, is_open] > 0)
    perhaps = best >= _rivals(worst)
    if require_success:
        surely &= worst == tasks.deliverables[is_open]
        perhaps &= best == tasks.deliverables[is_open]
    settled = _shared(tasks, wins, shares, ~is_open)

    def ends(open_wins: Mask) -> list[Fraction]:
        sums = open_wins.astype(np.int64) @ tasks.price[is_open]
        return [s + Fraction(int(o), tasks.units_per_usd) for s, o in zip(settled, sums, strict=True)]

    unsettled = (perhaps.sum(axis=0) > 0) & (surely.sum(axis=0) == 0)
    return ends(surely), ends(perhaps), int(unsettled.sum())


def _rivals(counts: Ints) -> Ints:
    """(M, T) highest count among the other models; -1 without other models."""
    if len(counts) < 2:
        return np.full_like(counts, -1)
    top = np.sort(counts, axis=0)[-2:]
    return np.where((counts == top[1]) & ((counts == top[1]).sum(axis=0) == 1), top[0], top[1])
