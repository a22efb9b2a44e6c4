"""Figures of one run: acceptance by score, time by phase, throughput, break-even, retries and people's decisions."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from local_bench.analysis.economics import economics_of, generation_stats
from local_bench.analysis.payment import payment
from local_bench.analysis.settlement import Accounting
from local_bench.core.errors import ConfigError, UserError
from local_bench.core.money import MICRO, NS_PER_HOUR
from local_bench.core.table import Column, Table
from local_bench.report.panels import Bars, Figure, Line, Lines, Panel, Series
from local_bench.report.view import model_order
from local_bench.runs.config import SettlementConfig
from local_bench.runs.prices import price_of
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store import OutcomeRow
from local_bench.settle.attempts import FAIL, MISSING, PASS, UNSCORED, Outcomes, count_attempts
from local_bench.settle.discrimination import EDGES, by_bin
from local_bench.settle.explain import COMPOSITE
from local_bench.settle.intervals import mean_interval
from local_bench.suites.questions_from import scale_of
from local_bench.suites.registry import suite

MAX_PANELS = 4
"""Scores of one figure: those that decide first."""
JOB_SIZES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
"""Images of a job at which its cost per image is drawn."""
MAX_BARS = 240
"""Bars of one panel; with more models and categories the heat map has the numbers."""


def run_figures(
    run: RunDir, money: Accounting, outcomes: Sequence[OutcomeRow], people: Mapping[str, bool] | None = None
) -> dict[str, Figure]:
    """The figures by file name; those without data are left out. `people` are the annotators' decisions by work id."""
    by_name = {
        "scores_by_category": _scores_by_category(run, outcomes),
        "time_by_phase": _time_by_phase(money),
        "throughput": _throughput(run, money),
        "break_even": _break_even(run, money),
        "pass_at_k": _pass_at_k(run, outcomes),
    }
    if people:
        by_name |= {"acceptance_by_score": _acceptance_by_score(run, outcomes, people)} | _payment(run)
    return {name: figure for name, figure in by_name.items() if figure is not None}


def _figure(title: str, panels: Sequence[Panel], columns: int = 2) -> Figure | None:
    """The figure with its numbers in long form; None without panels."""
    if not panels:
        return None
    names = ("panel", "series", "x", "value", "low", "high")
    rows = tuple(row for panel in panels for row in _rows(panel))
    return Figure(Table(title, tuple(Column(name, name) for name in names), rows), tuple(panels), columns)


def _rows(panel: Panel) -> Iterator[tuple[str | float | None, ...]]:
    match panel:
        case Bars():
            for series in panel.series:
                ends = series.ends or (None,) * len(series.values)
                for label, value, end in zip(panel.labels, series.values, ends, strict=True):
                    yield (panel.title, series.name, label, value, *(end or (None, None)))
        case Lines():
            for line in panel.lines:
                bands = line.ends or ((None, None),) * len(line.xs)
                for x, y, band in zip(line.xs, line.ys, bands, strict=True):
                    yield (panel.title, line.name, x, y, *band)
            for name, y in panel.levels:
                yield (panel.title, name, None, y, None, None)


def _acceptance_by_score(run: RunDir, outcomes: Sequence[OutcomeRow], decided: Mapping[str, bool]) -> Figure | None:
    """Of the annotators' decisions. (The run's own follow from the scores: they would be a step at the threshold.)"""
    tasks = {row.candidate.work_id: row.candidate.task_id for row in outcomes}
    of_scores: dict[str, list[tuple[float, bool, str]]] = defaultdict(list)
    for row in run.store.scores("judge"):
        if row.score.value is not None and row.work_id in decided:
            of_scores[row.score.name].append((row.score.value, decided[row.work_id], tasks[row.work_id]))
    panels = []
    for name in _deciding_first(run, sorted(of_scores)):
        values, labels, of_task = map(np.array, zip(*of_scores[name], strict=True))
        low, high = float(values.min()), float(values.max())
        if low == high:
            continue
        bins = by_bin(values, labels, np.interp(EDGES, (0, 1), (low, high)), np.unique(of_task, return_inverse=True)[1])
        points = [
            (one.mean, one.rate, one.interval or (0.0, 1.0))
            for one in bins
            if one.mean is not None and one.rate is not None
        ]
        xs, ys, ends = zip(*points, strict=True)  # low < high: at least one bin has images
        line = Line("accepted", xs, ys, ends)
        panels.append(Lines(name, (line,), "mean score of the bin", "fraction accepted", fractions=True))
    return _figure("Images accepted by annotators, by score (95 % intervals over tasks)", panels)


def _deciding_first(run: RunDir, names: Sequence[str]) -> list[str]:
    """At most MAX_PANELS of the scores, those with a threshold first."""
    rule = thresholds_of(run.config)
    return sorted(names, key=lambda name: name not in rule)[:MAX_PANELS]


def _scores_by_category(run: RunDir, outcomes: Sequence[OutcomeRow]) -> Figure | None:
    category = {row.candidate.task_id: row.category for row in outcomes}
    categories = sorted(set(category.values()))
    models = model_order(run)
    if len(categories) < 2 or len(models) * len(categories) > MAX_BARS:
        return None
    values: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names = _deciding_first(run, suite(run.config.suite.name).scores_of_judge)
    for model in models:
        for name, task_id, value in run.store.score_values(model):
            values[name, model, category[task_id]][task_id].append(value)
    panels = []
    for name in names:
        series = []
        for model in models:
            tasks = [[*values[name, model, part].values()] for part in categories]
            means = tuple(float(np.mean(np.concatenate(by_task))) if by_task else None for by_task in tasks)
            scale = scale_of(run.config.suite.name, name)
            ends = (
                mean_interval([sum(task) for task in by_task], [len(task) for task in by_task], scale)
                for by_task in tasks
            )
            series.append(Series(model, means, tuple(ends)))
        if any(value is not None for bars in series for value in bars.values):
            panels.append(Bars(name, tuple(categories), tuple(series), "mean score"))
    return _figure("Scores by category (95 % intervals over tasks)", panels, 2 if len(categories) <= 6 else 1)


def _time_by_phase(money: Accounting) -> Figure | None:
    rows = [row for row in money.costs if row.held_ns]
    labels = tuple(dict.fromkeys(row.model or "all models" for row in rows))
    phases = list(dict.fromkeys(row.phase for row in rows))
    hours = {(row.phase, row.model or "all models"): row.held_ns / NS_PER_HOUR for row in rows}
    series = tuple(Series(phase, tuple(hours.get((phase, label)) for label in labels)) for phase in phases)
    return _figure("Time of the devices by phase", [Bars("", labels, series, "device-hours", True)] if rows else [], 1)


def _throughput(run: RunDir, money: Accounting) -> Figure | None:
    stats = generation_stats(run.store, money, model_order(run))
    timed = {m.model: m.timing for m in stats if m.timing.seconds_per_image is not None}
    measured = Series("measured", tuple(timing.seconds_per_image for timing in timed.values()))
    floor = Series("lower bound of the operations", tuple(timing.floor_s_per_image for timing in timed.values()))
    series = (measured, floor) if any(value is not None for value in floor.values) else (measured,)
    title = "Denoising and decoding per image, and its lower bound" if len(series) > 1 else "Denoising and decoding"
    return _figure(title, [Bars("", tuple(timed), series, "device-seconds per image")] if timed else [], 1)


def _break_even(run: RunDir, money: Accounting) -> Figure | None:
    economics = economics_of(run, money)
    if economics is None or money.price is None:
        return None
    kwh = Fraction(run.config.settlement.usd_per_kwh or 0)
    ends = [] if money.price.parts else _price_range(run.config.settlement, money.price.gpu)
    lines = []
    for model in filter(economics.timed.__contains__, model_order(run)):  # in the colours of the other figures
        local, hour = economics.timed[model], money.usd_per_hour(model) or Fraction(0)
        curve, *bands = ([float(local.amortised_usd(n, price, kwh)) for n in JOB_SIZES] for price in (hour, *ends))
        if all(curve):  # a logarithm has no 0
            lines.append(Line(model, tuple(map(float, JOB_SIZES)), tuple(curve), tuple(zip(*bands, strict=True))))
    apis = {point.api: float(point.api_usd_per_image) for point in economics.against}
    band = "; bands: lowest to highest price of the device" if ends else ""
    panel = Lines("", tuple(lines), "images", "US dollars per image", logarithmic=True, levels=tuple(apis.items()))
    return _figure(f"Cost per image by size of the job, and API prices{band}", [panel] if lines else [], 1)


def _price_range(config: SettlementConfig, gpu: str) -> list[Fraction]:
    """The lowest and the highest price per device-hour; empty unless the table has both."""
    levels = ("low", "high") if config.usd_per_hour is None else ()
    try:
        prices = [price_of(config.model_copy(update={"price": level, "gpu": gpu}), "") for level in levels]
    except ConfigError:
        return []
    return [] if None in prices else [Fraction(price.micro_usd_per_hour, MICRO) for price in prices if price]


def _pass_at_k(run: RunDir, outcomes: Sequence[OutcomeRow]) -> Figure | None:
    """pass@k (unbiased) over attempts and the gap between the best and the first attempt, by tasks; an attempt passes
    if all of its images are accepted."""
    attempts = max((row.candidate.attempt for row in outcomes), default=1)
    if attempts < 2:
        return None
    counted = {model: count_attempts(table) for model, table in _attempts(outcomes).items()}
    models, lines = [model for model in model_order(run) if model in counted], list[Line]()
    for model in models:
        of_model = counted[model]
        ks = range(1, of_model.shown.attempts + 1)
        shown, best = ([float(r.pass_at_unbiased(k) or 0) for k in ks] for r in (of_model.shown, of_model.at_best))
        ends = tuple(zip(shown, best, strict=True)) if of_model.n_unscored or of_model.n_missing else ()
        lines.append(Line(model, tuple(map(float, ks)), tuple(shown), ends))
    gaps = [one.hype_gap if (one := counted[model].shown).attempts > 1 else None for model in models]
    series = Series("hype gap", tuple(None if gap is None else float(gap) for gap in gaps))
    panels = (
        Lines(
            "pass@k (band: with everything undecided passed)", tuple(lines), "k", "fraction of tasks", fractions=True
        ),
        Bars("hype gap: any attempt passes, less the first one", tuple(models), (series,), "fraction of tasks"),
    )
    return _figure("Success with retries", panels, 2)


def _attempts(outcomes: Sequence[OutcomeRow]) -> dict[str, Outcomes]:
    """Model -> (tasks, attempts) PASS, FAIL, UNSCORED or MISSING."""
    images: dict[str, dict[str, dict[int, list[bool | None]]]] = defaultdict(lambda: defaultdict(dict))
    for row in outcomes:
        candidate = row.candidate
        images[candidate.model][candidate.task_id].setdefault(candidate.attempt, []).append(row.accepted)
    tables = {}
    for model, tasks in images.items():
        table = np.full((len(tasks), max(map(max, tasks.values()))), MISSING, dtype=np.int8)
        for t, by_attempt in enumerate(tasks.values()):
            for attempt, accepted in by_attempt.items():
                table[t, attempt - 1] = FAIL if False in accepted else UNSCORED if None in accepted else PASS
        tables[model] = table
    return tables


def _payment(run: RunDir) -> dict[str, Figure | None]:
    """What predicts the annotators' decisions, and how well predicted probabilities are calibrated."""
    try:
        predicted = payment(run, run.path)
    except UserError:  # two protocols disagree: the page's warnings include it
        return {}
    rows = sorted((row for row in predicted.explained if row.auc is not None), key=lambda row: -(row.auc or 0))
    ends = tuple(None if row.auc_low is None or row.auc_high is None else (row.auc_low, row.auc_high) for row in rows)
    names = tuple("mean of the deciding scores" if row.name == COMPOSITE else row.name for row in rows)
    bars = Bars("", names, (Series("AUC", tuple(row.auc for row in rows), ends),), "area under the ROC curve")
    lines = tuple(
        Line(
            name,
            tuple(float(row.mean) for row in predictor.quality.bins if row.mean is not None),
            tuple(float(row.rate) for row in predictor.quality.bins if row.rate is not None),
        )
        for name, predictor in predicted.predictors.items()
    )
    calibration = Lines("", lines, "predicted probability", "fraction accepted by annotators", diagonal=True)
    return {
        "what_predicts_payment": _figure(
            "Scores and the annotators' decisions (95 % intervals over tasks)", [bars] if rows else [], 1
        ),
        "calibration": _figure(
            "Calibration of predictors on held-out tasks", [calibration] if predicted.predictors else [], 1
        ),
    }


def numbered(figures: Mapping[str, Figure], run: int, name: str) -> dict[str, Figure]:
    """The figures with file names and titles of one run among several."""
    return {
        f"{key}_{run + 1}": replace(figure, data=replace(figure.data, title=f"{figure.data.title}: {name}"))
        for key, figure in figures.items()
    }
