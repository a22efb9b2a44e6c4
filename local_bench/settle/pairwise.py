"""Ranks models from comparisons of two results each.

Bradley and Terry, "Rank analysis of incomplete block designs" (Biometrika, 1952); a tie is half a win for each side.
The maximum of the likelihood is found with the iteration of Hunter, "MM algorithms for generalized Bradley-Terry
models" (Annals of Statistics, 2004).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from scipy.sparse.csgraph import connected_components

from local_bench.settle.intervals import Floats, rate_interval

_PRIOR = 0.1
"""Each compared pair of models gets this many additional ties, so that a model that never won has a finite strength."""
_STEPS = 10_000


@dataclass(frozen=True)
class Comparison:
    """One comparison of two models."""

    first: str
    second: str
    won: float
    """1 if `first` is preferred, 0 if `second` is, 0.5 for a tie."""
    task_id: str


@dataclass(frozen=True)
class RankedModel:
    """One model's comparisons with all others."""

    model: str
    wins: int
    ties: int
    losses: int
    win_rate: float
    """Wins plus half of the ties, as a fraction of the comparisons."""
    low: float
    """95 % interval of the win rate over tasks, in which a tie counts as half a win; 0 to 1 for one task."""
    high: float
    strength: float | None
    """Natural logarithm of the Bradley-Terry strength; the mean over the models is 0. None if there are several groups:
    the likelihood says nothing about the distance of two groups."""
    group: int
    """From 0; the same for models that comparisons connect, directly or through others."""


def rank(comparisons: Sequence[Comparison]) -> list[RankedModel]:
    """The compared models, the strongest first; without strengths by win rate."""
    models = sorted({name for row in comparisons for name in (row.first, row.second)})
    if not models:
        return []
    index = {name: i for i, name in enumerate(models)}
    wins = np.zeros((len(models), len(models)))  # [i, j]: how often i was preferred to j
    counts = np.zeros((len(models), 3), dtype=int)  # wins, ties, losses
    tasks = {task_id: i for i, task_id in enumerate(sorted({row.task_id for row in comparisons}))}
    by_task = np.zeros((2, len(models), len(tasks)))  # won, compared
    for comparison in comparisons:
        i, j = index[comparison.first], index[comparison.second]
        wins[i, j] += comparison.won
        wins[j, i] += 1 - comparison.won
        counts[i, round(2 - 2 * comparison.won)] += 1
        counts[j, round(2 * comparison.won)] += 1
        by_task[:, [i, j], tasks[comparison.task_id]] += [[comparison.won, 1 - comparison.won], [1.0, 1.0]]
    n_groups, groups = connected_components(wins + wins.T, directed=False)
    strengths = _strengths(wins) if n_groups == 1 else [None] * len(models)
    ranked = []
    for name, i in index.items():
        n, won = int(counts[i].sum()), float(wins[i].sum())
        low, high = rate_interval(*by_task[:, i]) or (0.0, 1.0)
        won_n, tied, lost = map(int, counts[i])
        ranked.append(RankedModel(name, won_n, tied, lost, won / n, low, high, strengths[i], int(groups[i])))
    return sorted(ranked, key=lambda m: (-(m.win_rate if m.strength is None else m.strength), m.model))


def notes(ranked: Sequence[RankedModel]) -> list[str]:
    """Why the models have no strengths; empty if they have."""
    groups = [", ".join(m.model for m in ranked if m.group == group) for group in sorted({m.group for m in ranked})]
    why = f"no Bradley-Terry strengths: these groups of models were never compared with each other: {'; '.join(groups)}"
    return [why] if len(groups) > 1 else []


def _strengths(wins: Floats) -> list[float]:
    """Logarithms of the strengths of connected models, with mean 0."""
    wins = wins + _PRIOR / 2 * (wins + wins.T > 0)
    n, strength = wins + wins.T, np.ones(len(wins))
    for _ in range(_STEPS):
        new = wins.sum(axis=1) / (n / (strength[:, None] + strength[None, :])).sum(axis=1)
        new /= new.mean()
        if np.abs(new / strength - 1).max() < 1e-10:
            break
        strength = new
    logarithms = np.array([log(value) for value in new])  # numpy's depend on the processor
    return list(map(float, logarithms - logarithms.mean()))
