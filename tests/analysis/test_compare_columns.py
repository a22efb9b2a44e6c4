"""`compare` computes by columns what the same statistics computed row by row give."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from local_bench.analysis.compare import FigureComparison, _paired_by_task, compare
from local_bench.core.types import Score, Task
from local_bench.runs.scoring import decide
from local_bench.settle.paired import Statistics, adjusted_bh, adjusted_holm, differences
from local_bench.suites.hype_edit_1.suite import HypeEdit1
from local_bench.suites.ice_bench.suite import IceBench
from local_bench.suites.idea_bench.suite import IdeaBench
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure, weights_of
from tests.lines import lines
from tests.runs.random_run import random_run, stored_decisions


def sides_by_row(run):
    """Model -> (task, deliverable, attempt) -> (part of the price, decision); (model, score) -> the same -> value."""
    by_model, scores = {}, {}
    part = {(line.model, line.task_id, line.deliverable): line.part_micro_usd for line in lines(run.store)}
    decided = {work_id: decision.accepted for work_id, decision in stored_decisions(run)}
    by_candidate = run.store.scores_by_candidate()
    for row in run.store.candidates():
        key = row.task_id, row.deliverable, row.attempt
        paid = part[row.model, row.task_id, row.deliverable] if row.attempt == 1 else 0
        by_model.setdefault(row.model, {})[key] = paid, decided.get(row.work_id)
        for name, score in by_candidate.get(row.work_id, {}).items():
            if score.applies:
                scores.setdefault((row.model, name), {})[key] = score.value
    for row in run.store.candidates():  # a missing score that applies to another image of the deliverable is unscored
        for name in {name for _, name in scores} - set(by_candidate.get(row.work_id, {})):
            others = [key for (_, other), of in scores.items() if other == name for key in of]
            if any(key[:2] == (row.task_id, row.deliverable) for key in others):
                scores.setdefault((row.model, name), {})[row.task_id, row.deliverable, row.attempt] = None
    return by_model, scores


def sums(keys, values, which=None):
    """(tasks, columns) of the keys' values, tasks by id."""
    tasks = sorted({task_id for task_id, *_ in keys})
    table = np.zeros((len(tasks), 2))
    for i, key in enumerate(keys):
        if which is None or which[i]:
            table[tasks.index(key[0])] += values[i]
    return table


def compared(figure, models, sure, possible, below, n, n_unscored, unit=1.0, widest=1.0, least=None):
    total = below.sum(axis=0)
    with np.errstate(invalid="ignore"):
        ends = [unit * side.sum(axis=0) / np.where(total == 0, np.nan, total) for side in (sure, possible)]
    ((difference,),) = differences([Statistics(models, sure, below, unit, widest, least, best=possible)])
    at_least, at_most = ends[0][0] - ends[1][1], ends[1][0] - ends[0][1]
    if not np.isnan(at_least):
        assert (difference.at_least, difference.at_most) == pytest.approx((at_least, at_most))
    known = [None if np.isnan(low) else float(low) for low in ends[0]]
    return FigureComparison(figure, known[0], known[1], difference, n, n_unscored)


def figures_by_row(models, x, y, scores_x, scores_y, names):
    keys = sorted(key for key in x if key in y)
    if not keys:
        return
    first = [attempt == 1 for *_, attempt in keys]
    part = np.array([[x[key][0]] * 2 for key in keys], dtype=np.float64)
    decisions = np.array([[np.nan if s[key][1] is None else s[key][1] for s in (x, y)] for key in keys])
    yes, no, open_ = decisions == 1, decisions == 0, np.isnan(decisions).any(axis=1)
    ones = np.ones((len(keys), 2))
    if any(first):
        price = sums(keys, part, first)
        total = float(price[:, 0].sum())
        below = price if total else np.ones_like(price)
        paid, payable = (sums(keys, part * which, first) for which in (yes, ~no))
        n, n_open = sum(first), int(open_[first].sum())
        yield compared("revenue", models, paid, payable, below, n, n_open, total or 1.0)
        size = sums(keys, ones, first)
        complete, completable = ((sums(keys, which, first) == size).astype(float) for which in (yes, ~no))
        undecided = int((complete != completable).any(axis=1).sum())
        yield compared("tasks accepted", models, complete, completable, np.ones_like(size), len(size), undecided)
    accepted, acceptable = sums(keys, yes), sums(keys, ~no)
    yield compared("images accepted", models, accepted, acceptable, sums(keys, ones), len(keys), int(open_.sum()))
    for name in names:
        of_x, of_y = scores_x.get((models[0], name), {}), scores_y.get((models[1], name), {})
        scored = [key for key in keys if key in of_x and key in of_y]
        if scored:
            yield score_by_row(name, models, keys, scored, of_x, of_y)


def score_by_row(name, models, keys, scored, first, second):
    values = np.array([[first[key], second[key]] for key in scored], dtype=np.float64)
    both = ~np.isnan(values).any(axis=1)
    tasks = sorted({task_id for task_id, *_ in keys})  # also those without a score
    above, below = np.zeros((len(tasks), 2)), np.zeros((len(tasks), 2))
    for key, value, known in zip(scored, values, both, strict=True):
        if known:
            above[tasks.index(key[0])] += value
            below[tasks.index(key[0])] += 1
    judged = name in ("brf", "veq", "cns")
    n, n_open = int(both.sum()), int((~both).sum())
    scale = {"widest": 5.0, "least": 0.0} if judged else {"widest": None}
    found = compared(name, models, above, above, below, n, n_open, **scale)
    worst, best = ((np.where(np.isnan(values), end, values)).mean(axis=0) for end in (0, 5))
    ends = (float(worst[0] - best[1]), float(best[0] - worst[1])) if judged else (None, None)
    return replace(found, difference=replace(found.difference, at_least=ends[0], at_most=ends[1]))


def adjusted(rows, images):
    """Holm and BH over the pairs of different images."""
    keys = [frozenset((images[row.difference.a], images[row.difference.b])) for row in rows]
    tests = {key: row.difference.p for key, row in zip(keys, rows, strict=True) if len(key) == 2}
    holm, bh = (dict(zip(tests, of(list(tests.values())), strict=True)) for of in (adjusted_holm, adjusted_bh))
    return [
        replace(
            row,
            difference=replace(
                row.difference, p_holm=holm.get(key, row.difference.p), p_bh=bh.get(key, row.difference.p)
            ),
        )
        for row, key in zip(rows, keys, strict=True)
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
        order = ["revenue", "tasks accepted", "images accepted", *names]
        expected = [row for name in order for row in adjusted(by_figure.get(name, []), run.store.outcomes_by_model())]
        assert repr(compare(run, run, every_pair=True).rows) == repr(expected)


def test_figures_of_hype_edit_1_are_compared_by_task_over_all_attempts():
    """pass@4 = 1 - C(n - c, 4) / C(n, 4) and 1 + sum over j < 4 of C(n - c, j) / C(n, j), with n = 10 attempts."""
    task = Task("t", "c", 0, "T", "B", ("D",), ())
    images = [
        ImageResult(f"{m}{i}", m, task, 1, i + 1, "x", None, (None if i == 9 else i < passes))
        for m, passes in (("a", 3), ("b", 0))
        for i in range(10)
    ]
    found = {
        (one.figure, one.model): one for one in HypeEdit1().figures_by_task(RunResults(images, {}, {}, None, None))
    }
    assert found["pass@4", "a"].value == pytest.approx(1 - comb(7, 4) / comb(10, 4))
    assert found["expected attempts", "a"].value == pytest.approx(sum(comb(7, j) / comb(10, j) for j in range(4)))
    assert (found["pass@4", "b"].value, found["expected attempts", "b"].value) == (0, 4)
    scales = {figure: (one.least, one.least + one.widest) for (figure, _), one in found.items()}
    assert scales == {"pass@4": (0, 1), "expected attempts": (1, 4)}


def test_cases_of_idea_bench_and_items_of_ice_bench_have_the_weights_of_the_overall_score(monkeypatch):
    def image(task_id, category, uid):
        task = Task(task_id, category, 0, "T", "B", ("D",), (), own={"uid": uid})
        return ImageResult(task_id, "m", task, 1, 1, "x", None, None, {"v": Score("v", 50.0)})

    cases = [image("1", "T2I", "0001"), image("2", "T2I", "0001"), image("3", "T2I", "0002"), image("4", "I2I", "0003")]
    results = RunResults(cases, {}, {}, None, None)
    monkeypatch.setattr(
        "local_bench.suites.idea_bench.published.case_scores", lambda _: {i.work_id: Score("c", 60.0) for i in cases}
    )

    def weighted(figures):
        weights = weights_of(figures)
        return {one.task_id: (one.value, weight) for one, weight in zip(figures, weights, strict=True)}

    figures = [*IdeaBench().figures_by_task(results)]
    assert weighted(figures) == {"1": (60, 1 / 4), "2": (60, 1 / 4), "3": (60, 1 / 2), "4": (60, 1)}
    second = replace(cases[0], work_id="1, attempt 2", attempt=2)
    missing = replace(cases[1], work_id="2, image 2", deliverable=2, pixels_sha256=None, unscored="no memory")
    scores = {image.work_id: Score("c", 60.0) for image in cases} | {second.work_id: Score("c", 0.0)}
    monkeypatch.setattr("local_bench.suites.idea_bench.published.case_scores", lambda _: scores)
    more = replace(results, images=[*cases, second, missing])
    assert {one.task_id: one.value for one in IdeaBench().figures_by_task(more)} == dict.fromkeys("1234", 60)
    del scores["3"]
    assert [one.value for one in IdeaBench().figures_by_task(more)] == [60, 60, None, 60]
    monkeypatch.setattr("local_bench.suites.ice_bench.published.image_score", lambda task, _: Score("c", 0.6))
    of_ice = [*IceBench().figures_by_task(results)]
    assert weighted(of_ice) == {"1": (0.6, 1 / 3), "2": (0.6, 1 / 3), "3": (0.6, 1 / 3), "4": (0.6, 1)}
    # where only some cases are compared, tasks and categories keep their weights, not cases
    assert weighted(figures[1:]) == {"2": (60, 1 / 2), "3": (60, 1 / 2), "4": (60, 1)}
    assert weighted(figures[2:]) == {"3": (60, 1), "4": (60, 1)}
    assert weighted(of_ice[2:]) == {"3": (0.6, 1), "4": (0.6, 1)}


def test_an_overall_score_is_the_mean_of_the_tasks_that_both_models_have():
    """Of the two items of a task the models share one, and another model has nothing: it has a row without values."""
    values = {("a", "1"): 0.2, ("a", "2"): 0.9, ("a", "3"): 0.6, ("b", "1"): 0.4, ("b", "2"): None, ("b", "3"): 0.4}
    values |= {("none", task): None for task in "123"}
    groups = {"1": ("x",), "2": ("x",), "3": ("y",)}
    own = {}
    for (model, task), value in values.items():
        own.setdefault(("overall score", model), {})[task] = TaskFigure(
            "overall score", model, task, value, groups[task]
        )
    rows = {models: [*_paired_by_task(models, own, own, ["1", "2", "3"])] for models in (("a", "b"), ("a", "none"))}
    [ab], [a_none] = rows.values()
    assert (ab.n, ab.n_unscored) == (2, 1)
    above, below = ab.statistics.above.sum(axis=0), ab.statistics.below.sum(axis=0)
    assert list(above / below) == pytest.approx([(0.2 + 0.6) / 2, (0.4 + 0.4) / 2])
    assert (a_none.n, a_none.n_unscored, a_none.statistics.above.shape) == (0, 3, (0, 2))
    ((difference,),) = differences([a_none.statistics])
    assert (difference.estimate, difference.p, difference.n_tasks) == (None, None, 0)
