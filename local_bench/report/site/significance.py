"""Which models of comparable runs differ: paired tests over tasks (`settle.paired`), corrected for all pairs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from local_bench.analysis.settlement import deliverables
from local_bench.core.money import MICRO
from local_bench.runs.rundir import RunDir
from local_bench.settle.paired import Difference, Statistics, differences
from local_bench.settle.table import parts_micro_usd

ALPHA = 0.05
"""Family-wise error rate below which a difference is called significant."""


@dataclass(frozen=True)
class Pair(Difference):
    """The difference of two models, by their labels, of first attempts as ranked: in US dollars of revenue, or where
    the tasks have no price in fractions of images accepted. In `estimate` unscored images earn nothing and count as not
    accepted; p-values and interval hold whatever is decided on them."""

    in_usd: bool = False


def label(run: RunDir, model: str, several: bool) -> str:
    """A model's name, with that of its run if there are several runs."""
    return f"{model} ({run.name})" if several else model


def significance(runs: Sequence[RunDir], groups: Sequence[int]) -> list[Pair]:
    """One entry per pair of models in each group of comparable runs, over the tasks of both; in `p_holm`, models with
    the same images are one."""
    differing, several = [], len(runs) > 1
    for group in dict.fromkeys(groups):
        members = [run for run, other in zip(runs, groups, strict=True) if other == group]
        compared = partial(_pairs, members, several)
        differing += members[0].store.once(("significance", several), compared) if len(members) == 1 else compared()
    return differing


def _by_task(run: RunDir) -> dict[str, dict[str, tuple[int, ...]]]:
    """Model -> task -> (revenue, price, and revenue with all unscored images accepted, in micro-USD; images accepted,
    requested, and accepted with all unscored ones), of first attempts."""
    rows = deliverables(run.store)
    accepted = rows["accepted"].fillna(0) == 1
    at_best = accepted | rows["accepted"].isna()
    part = pd.Series(parts_micro_usd(rows), index=rows.index)
    money = {"earned": part.where(accepted, 0), "payable": part, "earnable": part.where(at_best, 0)}
    counts = {"passed": accepted.astype(int), "n": 1, "passable": at_best.astype(int)}
    sums = rows.assign(**money, **counts).groupby(["model", "task_id"])[[*money, *counts]].sum()
    by_model: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for (model, task_id), of_task in sums.iterrows():
        by_model[model][task_id] = tuple(map(int, of_task))
    return by_model


def _pairs(runs: Sequence[RunDir], several: bool) -> list[Pair]:
    images = {label(run, name, several): sha for run in runs for name, sha in run.store.outcomes_by_model().items()}
    models = {label(run, name, several): by_task for run in runs for name, by_task in _by_task(run).items()}
    names = list(models)
    tasks = sorted(set.intersection(*(set(by_task) for by_task in models.values()))) if len(names) > 1 else []
    if not tasks:
        return []
    sums = np.array([[models[name][task_id] for name in names] for task_id in tasks], dtype=np.float64)
    money = bool(sums[..., 1].any())
    above, below, best = np.moveaxis(sums[..., :3] if money else sums[..., 3:], 2, 0)
    unit = float(below[:, 0].sum()) / MICRO if money else 1.0
    alike = [images.get(name, name) for name in names]
    (pairs,) = differences([Statistics(names, above, below, best=best, unit=unit, alike=alike)])
    found = [Pair(**vars(pair), in_usd=money) for pair in pairs]
    return [replace(pair, estimate=round(pair.estimate, 6)) if money and pair.estimate else pair for pair in found]


def letters(names: Sequence[str], pairs: Sequence[Pair]) -> dict[str, str]:
    """Compact letter display: models that share a letter do not differ significantly. `names` in the table's order;
    empty without pairs."""
    import networkx as nx

    same = nx.Graph()
    same.add_nodes_from(name for pair in pairs for name in (pair.a, pair.b))
    same.add_edges_from((pair.a, pair.b) for pair in pairs if pair.p_holm is None or pair.p_holm >= ALPHA)
    index = {name: i for i, name in enumerate(names)}
    cliques = sorted(sorted(index[name] for name in clique) for clique in nx.find_cliques(same))
    by_model: dict[str, str] = defaultdict(str)
    for i, clique in enumerate(cliques):
        letter = "abcdefghijklmnopqrstuvwxyz"[i] if len(cliques) <= 26 else f"{'' if i == 0 else ' '}{i + 1}"
        for k in clique:
            by_model[names[k]] += letter
    return dict(by_model)
