"""Which models of comparable runs differ: paired sign-flip tests over tasks, corrected for all pairs (Holm 1979)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from local_bench.analysis.settlement import line_table
from local_bench.core.money import MICRO
from local_bench.runs.rundir import RunDir
from local_bench.settle.paired import paired_differences
from local_bench.settle.table import ACCEPTED

ALPHA = 0.05
"""Family-wise error rate below which a difference is called significant."""
Model = tuple[int, str]
"""(run, model)"""


def significance(runs: Sequence[RunDir], groups: Sequence[int]) -> list[dict[str, Any]]:
    """One entry per pair of models in each group of comparable runs, first attempts only.

    `a` and `b` are [run, model]; `difference`, `low`, `high` are a - b with its 95 % cluster bootstrap interval, in
    US dollars of revenue, or fractions of images accepted where the tasks have no price; `p` and `p_holm` are the
    p-values without and with correction. Unscored images earn nothing and count as not accepted.
    """
    found = []
    for group in dict.fromkeys(groups):
        own = [i for i, other in enumerate(groups) if other == group]
        if len(own) == 1:
            found += runs[own[0]].store.once(("significance", own[0]), partial(_pairs_of, runs, own))
        else:
            found += _pairs_of(runs, own)
    return found


def _pairs_of(runs: Sequence[RunDir], own: Sequence[int]) -> list[dict[str, Any]]:
    return _pairs({(i, model): of for i in own for model, of in _by_task(runs[i]).items()})


def _by_task(run: RunDir) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Model -> task -> (revenue in micro-USD, accepted images, requested images)."""
    found: dict[str, dict[str, tuple[int, int, int]]] = defaultdict(dict)
    rows = line_table(run.store)
    accepted = rows.decision == ACCEPTED
    earned = np.where(accepted, rows.part_micro_usd, 0)
    for model, task, micro_usd, yes in zip(
        *map(np.ndarray.tolist, (rows.model, rows.task, earned, accepted)), strict=True
    ):
        of = found[rows.models[model]]
        paid, n_accepted, n = of.get(rows.task_ids[task], (0, 0, 0))
        of[rows.task_ids[task]] = (paid + micro_usd, n_accepted + yes, n + 1)
    return found


def _pairs(models: Mapping[Model, Mapping[str, tuple[int, int, int]]]) -> list[dict[str, Any]]:
    tasks = list(dict.fromkeys(task_id for of in models.values() for task_id in of))
    names = list(models)
    if len(names) < 2 or not tasks:
        return []
    sums = np.array([[models[name].get(task_id, (0, 0, 0)) for name in names] for task_id in tasks], dtype=np.float64)
    money = bool(sums[..., 0].any())
    above, below = (sums[..., 0] / MICRO, None) if money else (sums[..., 1], sums[..., 2])
    pairs = paired_differences([str(i) for i in range(len(names))], above, below)
    return [
        {
            "a": list(names[int(one.a)]),
            "b": list(names[int(one.b)]),
            "unit": "usd" if money else "fraction",
            "difference": one.estimate,
            "low": one.low,
            "high": one.high,
            "p": one.p,
            "p_holm": one.p_holm,
            "n_tasks": one.n_tasks,
            "n_differ": one.n_differ,
        }
        for one in pairs
    ]


def letters(names: Sequence[Model], pairs: Sequence[Mapping[str, Any]]) -> dict[Model, str]:
    """Compact letter display: models that share a letter do not differ significantly. `names` in the table's order;
    empty without pairs."""
    import networkx as nx

    same = nx.Graph()
    same.add_nodes_from({tuple(one[end]) for one in pairs for end in ("a", "b")})
    same.add_edges_from(
        (tuple(one["a"]), tuple(one["b"])) for one in pairs if one["p_holm"] is None or one["p_holm"] >= ALPHA
    )
    index = {name: i for i, name in enumerate(names)}
    cliques = sorted(sorted(index[name] for name in clique) for clique in nx.find_cliques(same))
    found: dict[Model, str] = defaultdict(str)
    for i, clique in enumerate(cliques):
        letter = "abcdefghijklmnopqrstuvwxyz"[i] if len(cliques) <= 26 else f"{'' if i == 0 else ' '}{i + 1}"
        for k in clique:
            found[names[k]] += letter
    return dict(found)
