"""Which models of comparable runs differ: paired tests over tasks (`settle.paired`), corrected for all pairs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from local_bench.analysis.settlement import attempts
from local_bench.core.money import MICRO
from local_bench.runs.rundir import RunDir
from local_bench.settle.paired import Statistics, differences
from local_bench.settle.table import parts_micro_usd

_SHOWN = ("low", "high", "p", "p_holm", "n_tasks", "n_differ", "too_few_differ", "detectable")
ALPHA = 0.05
"""Family-wise error rate below which a difference is called significant."""
Model = tuple[int, str]
"""(run, model)"""


def significance(runs: Sequence[RunDir], groups: Sequence[int]) -> list[dict[str, Any]]:
    """One entry per pair of models in each group of comparable runs, over the tasks of both.

    `a` and `b` are [run, model]; `difference`, `low`, `high` are a - b with the 95 % interval of this pair alone, in US
    dollars of revenue, or fractions of images accepted where the tasks have no price, of first attempts as ranked;
    `p` and `p_holm` are the p-values without and with correction, in which models with the same images are one;
    `detectable` is the difference that would have been found with a power of 80 %. In `difference` unscored images earn
    nothing and count as not accepted; p-values and interval hold whatever is decided on them.
    """
    differing = []
    for group in dict.fromkeys(groups):
        members = [i for i, other in enumerate(groups) if other == group]
        if len(members) == 1:
            differing += runs[members[0]].store.once(("significance", members[0]), partial(_pairs, runs, members))
        else:
            differing += _pairs(runs, members)
    return differing


def _by_task(run: RunDir) -> dict[str, dict[str, tuple[int, ...]]]:
    """Model -> task -> (revenue, price, and revenue with all unscored images accepted, in micro-USD; images accepted,
    requested, and accepted with all unscored ones), of first attempts."""
    rows = attempts(run.store).query("attempt == 1")
    accepted = rows["accepted"].fillna(0) == 1
    at_best = accepted | rows["accepted"].isna()
    part = pd.Series(parts_micro_usd(rows), index=rows.index)
    sums = (
        rows.assign(earned=part.where(accepted, 0), payable=part, earnable=part.where(at_best, 0))
        .assign(passed=accepted.astype(int), n=1, passable=at_best.astype(int))
        .groupby(["model", "task_id"])[["earned", "payable", "earnable", "passed", "n", "passable"]]
        .sum()
    )
    by_model: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for (model, task_id), of_task in sums.iterrows():
        by_model[model][task_id] = tuple(map(int, of_task))
    return by_model


def _pairs(runs: Sequence[RunDir], members: Sequence[int]) -> list[dict[str, Any]]:
    images = {(i, model): sha for i in members for model, sha in runs[i].store.outcomes_by_model().items()}
    models = {(i, model): by_task for i in members for model, by_task in _by_task(runs[i]).items()}
    names = list(models)
    tasks = sorted(set.intersection(*(set(by_task) for by_task in models.values()))) if len(names) > 1 else []
    if not tasks:
        return []
    sums = np.array([[models[name][task_id] for name in names] for task_id in tasks], dtype=np.float64)
    money = bool(sums[..., 1].any())
    above, below, best = np.moveaxis(sums[..., :3] if money else sums[..., 3:], 2, 0)
    (pairs,) = differences(
        [
            Statistics(
                [str(i) for i in range(len(names))],
                above,
                below,
                best=best,
                unit=float(below[:, 0].sum()) / MICRO if money else 1.0,
                alike=[images.get(name, str(name)) for name in names],
            )
        ]
    )
    return [
        {
            "a": list(names[int(pair.a)]),
            "b": list(names[int(pair.b)]),
            "unit": "usd" if money else "fraction",
            "difference": pair.estimate if pair.estimate is None or not money else round(pair.estimate, 6),
        }
        | {name: getattr(pair, name) for name in _SHOWN}
        for pair in pairs
    ]


def letters(names: Sequence[Model], pairs: Sequence[Mapping[str, Any]]) -> dict[Model, str]:
    """Compact letter display: models that share a letter do not differ significantly. `names` in the table's order;
    empty without pairs."""
    import networkx as nx

    same = nx.Graph()
    same.add_nodes_from({tuple(pair[end]) for pair in pairs for end in ("a", "b")})
    same.add_edges_from(
        (tuple(pair["a"]), tuple(pair["b"])) for pair in pairs if pair["p_holm"] is None or pair["p_holm"] >= ALPHA
    )
    index = {name: i for i, name in enumerate(names)}
    cliques = sorted(sorted(index[name] for name in clique) for clique in nx.find_cliques(same))
    by_model: dict[Model, str] = defaultdict(str)
    for i, clique in enumerate(cliques):
        letter = "abcdefghijklmnopqrstuvwxyz"[i] if len(cliques) <= 26 else f"{'' if i == 0 else ' '}{i + 1}"
        for k in clique:
            by_model[names[k]] += letter
    return dict(by_model)
