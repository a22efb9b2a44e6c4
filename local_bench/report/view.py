"""What is said of a run in sentences: what to read with care, and what its time cost; the order of its models; and its
scores for display: means by model, with the number of images that are not included."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.errors import count
from local_bench.core.money import usd_exact
from local_bench.core.types import Score
from local_bench.models.cards import cards
from local_bench.report.judging import judge_warnings
from local_bench.report.text import percent
from local_bench.runs.image_store import faults_sentence
from local_bench.runs.prices import Price
from local_bench.runs.roofline import impossible_timings
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store import scored
from local_bench.settle.acceptance import missed
from local_bench.settle.intervals import mean_interval, task_sums
from local_bench.settle.settlement import Settlement
from local_bench.suites.questions_from import scale_of


def model_order(run: RunDir) -> list[str]:
    """Return the models in config order, then any other models in the ledger by name."""
    labels = [m.label for m in run.config.models]
    return labels + [model for model in run.store.models() if model not in labels]


def warnings(run: RunDir, settlements: list[Settlement]) -> list[str]:
    """Return one warning per problem: small models, judges, impossible times, low coverage, unfinished work."""
    by_name = cards()
    small = [
        by_name[name]
        for name in dict.fromkeys([*(m.card for m in run.config.models), *(j.card for j in run.config.judges)])
        if name in by_name and by_name[name].source.build
    ]
    sentences = [
        f"{card.name} is a small model with random weights for testing: its outputs are meaningless."
        for card in small
        if card.source.random
    ]
    trained = [card.name for card in small if not card.source.random]
    if trained:
        sentences.append(
            f"{', '.join(trained)}: small models trained only on the synthetic printshop images. Their results "
            "are valid for these images only and do not apply to large models."
        )
    decided = run.config.judges or any(s.total.n for s in settlements)
    if not run.config.judges:
        sentences.append("The run has no judge" + ("." if decided else ": no image has a decision."))
    sentences += judge_warnings(run) + impossible_timings(run.store)
    unseen, n_images = unseen_inputs(run), run.store.n_candidates()
    requested = {s.model: s.total.n + s.total.n_unscored for s in settlements}
    blind = ", ".join(f"{model} {n:,} of {count(requested[model], 'images')}" for model, n in unseen.n_images.items())
    if blind:
        sentences.append(
            "Generated without all of their task's input images, which the model does not take (suite.unsupported): "
            f"{blind}. Judges and metrics compare them with the source all the same."
        )
    sentences += [
        f"{', '.join(models)} have the same pixels in {count(n, 'images')} of the same deliverables: if one was "
        "copied, it is judged and paid once per model."
        for models, n in run.store.shared_images().items()
    ]
    n_tasks = count(len(run.store.tasks()), "tasks")
    fewer = [s for s in settlements if s.total.n_tasks < len(run.store.tasks())]
    sentences += [f"{s.model}: {s.total.n_tasks:,} of the run's {n_tasks}; its figures are of these." for s in fewer]
    least = run.config.settlement.coverage_min
    required = max(percent(least), f"{100 * least:g} %", key=len)  # not rounded
    less = f"less than the required {required} (settlement.coverage_min)."
    for s in settlements:
        if decided and s.total.coverage < least:
            noun = "first attempts" if n_images[s.model] > requested[s.model] else "images"
            what = "tasks' value could be settled" if s.total.value_micro_usd else f"{noun} could be decided"
            sentences.append(f"{s.model}: {percent(s.total.coverage)} of the {what}, {less}")
    progress = run.store.progress()
    for row in progress:
        if row.n_planned:
            left = count(row.n, "images have")
            sentences.append(f"{row.model}: {row.n_planned:,} of {left} not been generated yet.")
        if row.n_undecided:
            left = count(row.n_first, "deliverables have no decision yet and count")
            sentences.append(f"{row.model}: {row.n_undecided:,} of {left} as unscored.")
    planned = {row.model for row in progress}
    sentences += [f"{model}: no images are planned yet." for model in model_order(run) if model not in planned]
    if faults := run.image_store.all_faults:
        sentences.append(f"{faults_sentence(faults)}. Scores and decisions are of the images as they were generated.")
    return sentences


def price_sentence(price: Price | None) -> str:
    """The source of the price per hour, or a note that there is none."""
    if price is None:
        return (
            "The price table has no row for the device of this run, so what its time cost is not stated; "
            "settlement.usd_per_hour in the config sets a price."
        )
    hour = f"{usd_exact(price.micro_usd_per_hour)} for an hour of {price.gpu}"
    level = "the lab's own price" if price.level == "own" else f"the {price.level} price of the table"
    as_of = f", as of {price.date}" if price.date else ""
    return f"Time is priced at {hour} ({level}; source: {price.source}{as_of})."


def score_names(run: RunDir) -> list[str]:
    """The names of all scores: those that decide acceptance, the judge's others, the metrics (requested or found)."""
    names = run.store.score_names()
    judged = [name for kind, name in names if kind == "judge"]
    measured = [name for kind, name in names if kind != "judge"]
    return list(dict.fromkeys([*thresholds_of(run.config), *judged, *run.config.metrics, *measured]))


def score_intervals(run: RunDir) -> dict[tuple[str, str], tuple[float, float]]:
    """The 95 % interval over tasks of the mean of each score, by name and model; absent for fewer than two tasks."""
    return run.store.once("score intervals", lambda: _score_intervals(run))


def _score_intervals(run: RunDir) -> dict[tuple[str, str], tuple[float, float]]:
    images = run.store.frame("candidates", ["work_id", "model", "task_id", "position"])
    values = scored(run.store.frame("scores", ["work_id", "name", "value"])).merge(images, on="work_id")
    intervals = {}
    for (name, model), rows in values.sort_values("position").groupby(["name", "model"], sort=False):
        of_task, tasks = pd.factorize(rows["task_id"])
        sums = task_sums(of_task, np.stack([rows["value"], np.ones(len(rows))], axis=1), len(tasks)).T
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
    identities = {name: run.store.json_meta(f"metric:{name}") or {} for name in score_names(run)}
    higher = {name: about["higher_is_better"] for name, about in identities.items() if "higher_is_better" in about}
    return {name: "higher is better" if is_better else "lower is better" for name, is_better in higher.items()}


def missed_text(scores: Iterable[Score], thresholds: Mapping[str, float], places: Mapping[str, int]) -> str:
    """The scores below their thresholds: `brf 2.50 < 4.5, veq 3.00 < 4`; empty if there are none."""
    texts = []
    for name, (value, threshold) in missed(scores, thresholds).items():
        text = figure(value, places.get(name, 2))
        texts.append(f"{name} {text if float(text) < threshold else f'{value:.6g}'} < {threshold:g}")
    return ", ".join(texts)
