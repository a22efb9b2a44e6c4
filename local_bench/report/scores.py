"""The scores of a run for display: means by model, with the number of images that are not included."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from local_bench.core.types import Score
from local_bench.report.text import NOT_APPLICABLE
from local_bench.report.view import model_order, thresholds
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Reason, scored
from local_bench.settle.acceptance import missed
from local_bench.settle.bootstrap import numbered, task_sums
from local_bench.settle.intervals import mean_interval
from local_bench.suites.questions_from import scale_of

MAX_REASONS = 30


@dataclass(frozen=True)
class ScoreRow:
    """One score of one model, over all its images."""

    model: str
    mean: str
    interval: str
    """Of the mean; empty if there is none."""
    spread: str
    """The mean uncertainty of one image's score; empty if unknown."""
    n: int
    n_unscored: int
    n_not_applicable: int
    n_missing: int
    """Images without a row for this score."""
    best: bool = False
    """Whether no other model has a better mean."""


def score_names(run: RunDir) -> list[str]:
    """The names of all scores: those that decide acceptance, the judge's others, the metrics (requested or found)."""
    names = run.store.score_names()
    judged = [name for kind, name in names if kind == "judge"]
    measured = [name for kind, name in names if kind != "judge"]
    return list(dict.fromkeys([*thresholds(run), *judged, *run.config.metrics, *measured]))


def score_table(run: RunDir) -> dict[str, list[ScoreRow]]:
    """For every score, one row per model. Means exclude missing values, and their number is given."""
    images = run.store.n_candidates()
    found = {(row.name, row.model): row for row in run.store.score_summaries()}
    intervals = score_intervals(run)
    table: dict[str, list[ScoreRow]] = {}
    directions, places = better(run), decimals(run)
    for name in score_names(run):
        table[name] = []
        means = [row.mean for (of, _), row in found.items() if of == name and row.mean is not None]
        worth_marking = len(means) > 1 and min(means) < max(means)
        best = (min if "low" in directions.get(name, "") else max)(means) if worth_marking else None
        for model in model_order(run):
            row = found.get((name, model))
            n, n_na, n_unscored = (row.n, row.n_not_applicable, row.n_unscored) if row else (0, 0, 0)
            nothing = "unscored" if n_unscored else NOT_APPLICABLE if n_na else "missing"
            mean = figure(row.mean, places[name]) if row and row.mean is not None else nothing
            missing = images.get(model, 0) - n - n_na - n_unscored
            ends = intervals.get((name, model))
            between = " to ".join(figure(end, places[name]) for end in ends) if ends and row else ""
            spread = f"each ± {row.spread:.2f}" if row and row.spread is not None else ""
            leads = best is not None and row is not None and row.mean == best
            table[name].append(ScoreRow(model, mean, between, spread, n, n_unscored, n_na, missing, leads))
    return table


def score_intervals(run: RunDir) -> dict[tuple[str, str], tuple[float, float]]:
    """The 95 % interval over tasks of the mean of each score, by name and model; absent for fewer than two tasks."""
    return run.store.once("score intervals", lambda: _score_intervals(run))


def _score_intervals(run: RunDir) -> dict[tuple[str, str], tuple[float, float]]:
    images = run.store.frame("candidates", ["work_id", "model", "task_id", "position"])
    values = scored(run.store.frame("scores", ["work_id", "name", "value"])).merge(images, on="work_id")
    found = {}
    for (name, model), rows in values.sort_values("position").groupby(["name", "model"], sort=False):
        of_task, n_tasks = numbered(rows["task_id"].to_numpy(dtype=object))
        sums = task_sums(of_task, np.stack([rows["value"], np.ones(len(rows))], axis=1), n_tasks).T
        ends = mean_interval(sums[0], sums[1], scale_of(run.config.suite.name, name))
        if ends is not None:
            found[name, model] = ends
    return found


def decimals(run: RunDir) -> dict[str, int]:
    """Score -> decimals of all its numbers: two for a judge's; for a metric's four if all means are below 1, where
    models differ little, and three if they are below 10."""
    found = dict.fromkeys(score_names(run), 2)
    largest: dict[str, float] = {}
    for row in run.store.score_summaries():
        if row.kind != "judge" and row.mean is not None:
            largest[row.name] = max(largest.get(row.name, 0.0), abs(row.mean))
    return found | {name: 2 if mean >= 10 else 3 if mean >= 1 else 4 for name, mean in largest.items()}


def figure(value: float, decimals: int) -> str:
    """A score or the mean of one, without a sign for zero."""
    return f"{value:z.{decimals}f}"


def better(run: RunDir) -> dict[str, str]:
    """Which way is better, for each metric whose identity the ledger has."""
    directions = {True: "higher is better", False: "lower is better"}
    known = {name: run.store.json_meta(f"metric:{name}") for name in score_names(run)}
    return {
        name: directions[about["higher_is_better"]]
        for name, about in known.items()
        if about and "higher_is_better" in about
    }


def score_text(score: Score, decimals: int) -> tuple[str, str | None]:
    """(text of the score's cell, reason for a missing value); never 0 for a missing value."""
    if not score.applies:
        return NOT_APPLICABLE, None
    if score.value is None:
        return "unscored", score.unscored or "no reason given"
    return figure(score.value, decimals) + ("" if score.spread is None else f" ± {score.spread:.2f}"), None


def missed_text(scores: Iterable[Score], thresholds: Mapping[str, float], places: Mapping[str, int]) -> str:
    """The scores below their thresholds: `brf 2.50 < 4.5, veq 3.00 < 4`; empty if there are none."""
    found = []
    for name, (value, threshold) in missed(scores, thresholds).items():
        text = figure(value, places.get(name, 2))
        found.append(f"{name} {text if float(text) < threshold else f'{value:.6g}'} < {threshold:g}")
    return ", ".join(found)


def decision_reasons(run: RunDir) -> list[Reason]:
    """Why deliverables are unscored, the most frequent reason first."""
    return run.store.undecided(MAX_REASONS)


def score_reasons(run: RunDir) -> list[Reason]:
    """Why scores are unscored, the most frequent reason first."""
    return run.store.unscored_scores(MAX_REASONS)
