"""The scores of a run for display: means by model, with the number of images that are not included."""

from collections.abc import Iterable, Mapping

import numpy as np

from local_bench.core.types import Score
from local_bench.report.view import thresholds
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import scored
from local_bench.settle.acceptance import missed
from local_bench.settle.intervals import mean_interval, numbered, task_sums
from local_bench.suites.questions_from import scale_of


def score_names(run: RunDir) -> list[str]:
    """The names of all scores: those that decide acceptance, the judge's others, the metrics (requested or found)."""
    names = run.store.score_names()
    judged = [name for kind, name in names if kind == "judge"]
    measured = [name for kind, name in names if kind != "judge"]
    return list(dict.fromkeys([*thresholds(run), *judged, *run.config.metrics, *measured]))


def score_intervals(run: RunDir) -> dict[tuple[str, str], tuple[float, float]]:
    """The 95 % interval over tasks of the mean of each score, by name and model; absent for fewer than two tasks."""
    return run.store.once("score intervals", lambda: _score_intervals(run))


def _score_intervals(run: RunDir) -> dict[tuple[str, str], tuple[float, float]]:
    images = run.store.frame("candidates", ["work_id", "model", "task_id", "position"])
    values = scored(run.store.frame("scores", ["work_id", "name", "value"])).merge(images, on="work_id")
    intervals = {}
    for (name, model), rows in values.sort_values("position").groupby(["name", "model"], sort=False):
        of_task, n_tasks = numbered(rows["task_id"].to_numpy(dtype=object))
        sums = task_sums(of_task, np.stack([rows["value"], np.ones(len(rows))], axis=1), n_tasks).T
        ends = mean_interval(sums[0], sums[1], scale_of(run.config.suite.name, name))
        if ends is not None:
            intervals[name, model] = ends
    return intervals


def decimals(run: RunDir) -> dict[str, int]:
    """Score -> decimals of all its numbers: two for a judge's; for a metric's four if all means are below 1, where
    models differ little, and three if they are below 10."""
    places = dict.fromkeys(score_names(run), 2)
    largest: dict[str, float] = {}
    for row in run.store.score_summaries():
        if row.kind != "judge" and row.mean is not None:
            largest[row.name] = max(largest.get(row.name, 0.0), abs(row.mean))
    return places | {name: 2 if mean >= 10 else 3 if mean >= 1 else 4 for name, mean in largest.items()}


def figure(value: float, decimals: int) -> str:
    """A score or the mean of one, without a sign for zero."""
    return f"{value:z.{decimals}f}"


def better(run: RunDir) -> dict[str, str]:
    """Which way is better, for each metric whose identity the ledger has."""
    directions = {True: "higher is better", False: "lower is better"}
    identities = {name: run.store.json_meta(f"metric:{name}") for name in score_names(run)}
    return {
        name: directions[about["higher_is_better"]]
        for name, about in identities.items()
        if about and "higher_is_better" in about
    }


def missed_text(scores: Iterable[Score], thresholds: Mapping[str, float], places: Mapping[str, int]) -> str:
    """The scores below their thresholds: `brf 2.50 < 4.5, veq 3.00 < 4`; empty if there are none."""
    texts = []
    for name, (value, threshold) in missed(scores, thresholds).items():
        text = figure(value, places.get(name, 2))
        texts.append(f"{name} {text if float(text) < threshold else f'{value:.6g}'} < {threshold:g}")
    return ", ".join(texts)
