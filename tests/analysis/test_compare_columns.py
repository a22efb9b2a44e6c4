"""`compare` computes by columns what the same statistics computed row by row give, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest

from local_bench.analysis.compare import FigureComparison, compare
from local_bench.analysis.settlement import lines
from local_bench.runs.acceptance import decide
from local_bench.settle.bootstrap import task_sums
from local_bench.settle.paired import adjusted_bh, adjusted_holm, paired_differences
from tests.runs.test_columns import random_run


def sides_by_row(run):
    by_model, scores = {}, {}
    for line in lines(run.store):
        by_model.setdefault(line.model, {})[line.task_id, line.deliverable] = line
    by_candidate = run.store.scores_by_candidate()
    for row in sorted(run.store.candidates(), key=lambda row: row.work_id):
        for name, score in by_candidate.get(row.work_id, {}).items():
            if row.attempt == 1 and score.applies:
                scores.setdefault((row.model, name), {})[row.task_id, row.deliverable] = score.value
    return by_model, scores


def numbers(keys):
    indices = {task_id: i for i, task_id in enumerate(dict.fromkeys(task_id for task_id, _ in keys))}
    return [indices[task_id] for task_id, _ in keys]


def compared(figure, models, sure, possible, below, n, n_unscored):
    total = np.ones(2) if below is None else below.sum(axis=0)
    with np.errstate(invalid="ignore"):
        ends = [side.sum(axis=0) / np.where(total == 0, np.nan, total) for side in (sure, possible)]
    bounds = [(float(low), float(high)) for low, high in zip(*ends, strict=True)]
    (difference,) = paired_differences(models, sure, below, bounds=bounds)
    known = [None if np.isnan(low) else low for low, _ in bounds]
    return FigureComparison(figure, known[0], known[1], difference, n, n_unscored)


def figures_by_row(models, x, y, scores_x, scores_y, names):
    keys = [key for key in x if key in y]
    if not keys:
        return
    tasks, n_tasks = numbers(keys), len({task_id for task_id, _ in keys})
    part = np.array([x[key].part_micro_usd for key in keys], dtype=np.float64)
    decisions = np.array([[{None: np.nan}.get(s[key].decision.accepted, s[key].decision.accepted) for s in (x, y)]
                          for key in keys], dtype=np.float64)  # fmt: skip
    yes, no, open_ = decisions == 1, decisions == 0, np.isnan(decisions)
    n_open = int(open_.any(axis=1).sum())
    paid, payable = (task_sums(tasks, part[:, None] * which, n_tasks) for which in (yes, ~no))
    yield compared("revenue", models, paid, payable, None, len(keys), n_open)
    size = np.bincount(tasks, minlength=n_tasks)[:, None]
    accepted, acceptable = (task_sums(tasks, which, n_tasks) for which in (yes, ~no))
    complete, completable = ((side == size).astype(np.float64) for side in (accepted, acceptable))
    undecided = int((complete != completable).any(axis=1).sum())
    yield compared("orders accepted", models, complete, completable, np.ones_like(complete), n_tasks, undecided)
    requested = np.repeat(size.astype(np.float64), 2, axis=1)
    yield compared("images accepted", models, accepted, acceptable, requested, len(keys), n_open)
    for name in names:
        first, second = scores_x.get((models[0], name), {}), scores_y.get((models[1], name), {})
        keys = [key for key in first if key in second]
        if keys:
            yield score_by_row(name, models, keys, first, second)


def score_by_row(name, models, keys, first, second):
    tasks, n_tasks = numbers(keys), len({task_id for task_id, _ in keys})
    values = np.array([[first[key], second[key]] for key in keys], dtype=np.float64)
    both = np.asarray(~np.isnan(values).any(axis=1, keepdims=True))
    sums = task_sums(tasks, np.where(both, values, 0.0), n_tasks)
    counts = task_sums(tasks, np.repeat(both, 2, axis=1), n_tasks)
    found = compared(name, models, sums, sums, counts, int(both.sum()), int((~both).sum()))
    worst, best = ((np.where(np.isnan(values), end, values)).mean(axis=0) for end in (0, 5))
    ends = (None, None) if name == "entropy" else (float(worst[0] - best[1]), float(best[0] - worst[1]))
    return replace(found, difference=replace(found.difference, at_least=ends[0], at_most=ends[1]))


def adjusted(rows):
    p = [row.difference.p for row in rows]
    return [
        replace(row, difference=replace(row.difference, p_holm=holm, p_bh=bh))
        for row, holm, bh in zip(rows, adjusted_holm(p), adjusted_bh(p), strict=True)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_comparisons_are_those_of_single_rows(tmp_path, seed):
    with random_run(tmp_path / "run", seed) as run:
        decide(run)
        (lines_of, scores), names = sides_by_row(run), [name for _, name in run.store.score_names()]
        by_figure: dict[str, list[FigureComparison]] = {}
        for i, a in enumerate(sorted(lines_of)):
            for b in sorted(lines_of)[i + 1 :]:
                for row in figures_by_row((a, b), lines_of[a], lines_of[b], scores, scores, names):
                    by_figure.setdefault(row.figure, []).append(row)
        order = ["revenue", "orders accepted", "images accepted", *names]
        expected = [row for name in order for row in adjusted(by_figure.get(name, []))]
        assert repr(compare(run, run, every_pair=True).rows) == repr(expected)
