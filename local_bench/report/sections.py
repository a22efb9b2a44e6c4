"""What a report has of one run beside its leaderboard and its images, as sections of sentences and tables: settlement,
the benchmark's numbers, ground truth, other scenarios, scores, judges, generation, costs and provenance."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from local_bench.analysis.economics import GenerationStats, economics_of, generation_stats, prompt_truncations
from local_bench.analysis.ground_truth import GroundTruthCheck
from local_bench.analysis.hard_rules import hard_rule_stats
from local_bench.analysis.official import official
from local_bench.analysis.sensitivity import Sweep, over_prices, over_thresholds
from local_bench.analysis.settlement import Accounting
from local_bench.analysis.workflows import Workflow, workflow_results
from local_bench.core import strictjson
from local_bench.core.errors import UserError, count
from local_bench.core.money import MICRO, usd, usd_exact, usd_fine
from local_bench.core.table import Cell, Column, Table, table_of
from local_bench.models.gpus import gpu_of
from local_bench.report.judging import judging_tables
from local_bench.report.render import interval
from local_bench.report.settlement import settlement_table, total_row
from local_bench.report.text import duration, energy, operations, percent, significant, usd_fraction
from local_bench.report.view import better, decimals, figure, model_order, price_sentence, score_intervals, score_names
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store.contents import root
from local_bench.suites.published import SETTLEMENT_PRICES, api_prices
from local_bench.suites.registry import suite

MAX_REASONS = 30
MAX_PROVENANCE_BYTES = 5_000_000
_MODEL = Column("model", "model")
_N_UNSCORED = Column("n_unscored", "unscored", ",")


@dataclass(frozen=True)
class Section:
    name: str
    """In the page's address."""
    title: str
    sentences: Sequence[str]
    tables: Sequence[Table]


def sections(run: RunDir, money: Accounting, truth: GroundTruthCheck | None) -> list[Section]:
    """Those that have something to show. LedgerError if the stored metadata is damaged."""
    priced = any(s.total.value_micro_usd for s in money.settlements)
    stats = generation_stats(run.store, money, model_order(run))
    every = [
        Section("settlement", "Settlement" if priced else "Decisions", *_settlement(run, money, priced)),
        Section("benchmark", "The benchmark's own numbers", *_benchmark(run)),
        Section("truth", "Ground truth", *_truth(truth)),
        Section("scenarios", "Other scenarios", *_scenarios(run, money)),
        Section("scores", "Scores", *_scores(run)),
        Section("judges", "Judges", *judging_tables(run)),
        Section("generation", "Generation", *_generation(run, stats)),
        Section("costs", "Costs", *_costs(run, money)),
        Section("provenance", "Provenance", *_provenance(run)),
    ]
    return [section for section in every if section.sentences or section.tables]


Content = tuple[list[str], list[Table]]


def _some(*tables: Table) -> list[Table]:
    return [table for table in tables if table.rows]


# ---- settlement


def _settlement(run: RunDir, money: Accounting, priced: bool) -> Content:
    rule = " and ".join(f"{name} at least {threshold:g}" for name, threshold in thresholds_of(run.config).items())
    accepted = f"A deliverable is accepted when every score that applies to it reaches its threshold ({rule})"
    stats = hard_rule_stats(run)
    if stats and run.config.acceptance.rules:
        accepted += ", and every hard rule of the task is met"
    if priced:
        sentences = [
            "ServImage, eq. 1: each model is evaluated on every task by itself. A task's price is split equally "
            f"over its deliverables, and a deliverable pays its part when it is accepted. {accepted}. Deliverables "
            "that could not be scored pay nothing and are counted separately."
        ]
    else:
        sentences = [f"{accepted}. These are not the benchmark's own numbers."]
    if stats:
        counts = "they count in acceptance" if run.config.acceptance.rules else "they do not count in acceptance here"
        sentences.append(f"Hard rules of the tasks are checked on the files by code; {counts} (acceptance.rules).")
    categories = sorted({category for s in money.settlements for category in s.by_category})
    by_category = [
        {"category": category, "model": s.model, **total_row(s.by_category[category])}
        for category in categories
        for s in money.settlements
        if category in s.by_category
    ]
    rules = table_of(
        "Effect of the hard rules on first attempts",
        (
            *(_MODEL, Column("n", "images with rules", ","), Column("n_missed", "break a rule", ",")),
            *(Column("n_unscored", "not checkable", ","), Column("n_decided", "refused by rules alone", ",")),
            Column("n_tasks_decided", "tasks lost by that", ","),
        ),
        [{"model": model, **vars(counts)} for model, counts in stats.items()],
    )
    undecided = _reasons("Why images have no decision", "model", run.store.reasons("decisions", MAX_REASONS))
    return sentences, _some(settlement_table("By category", by_category), rules, undecided)


def _reasons(title: str, where: str, reasons: Sequence[dict[str, Any]]) -> Table:
    columns = (Column("text", "reason"), Column("where", where), Column("n", "n", ","))
    notes = [f"The {MAX_REASONS} most frequent reasons."] if len(reasons) == MAX_REASONS else []
    return table_of(title, columns, reasons, notes)


def _benchmark(run: RunDir) -> Content:
    entry = suite(run.config.suite.name)
    if entry.numbers_are_settlement:
        return [], []
    tables = []
    for label, numbers in official(run).items():
        title = run.config.suite.name if label == "all" else f"{run.config.suite.name}, {label}"
        for i, table in enumerate(numbers.tables):
            notes = tuple(numbers.notes) if i == len(numbers.tables) - 1 else ()
            tables.append(replace(table, title=title, notes=notes))
    sentence = (
        "Equal to `local-bench score` on the files of `local-bench export`. Open results count as not accepted and are "
        "reported separately."
    )
    return ([sentence] if tables and entry.layout else []), tables


# ---- ground truth


def _truth(truth: GroundTruthCheck | None) -> Content:
    if truth is None or not truth.money:
        return [], []
    unknown = sum(row.n_unknown for row in truth.money)
    sentences = [
        "In this suite a program without any model reads from the pixels what an image shows, so the correct answer "
        "to every question is known. A deliverable is right if it shows everything that was ordered."
    ]
    if unknown:
        sentences.append(
            f"{count(unknown, 'deliverables have')} no ground truth (not generated, or of another size) and are left "
            "out."
        )
    money = table_of(
        "Revenue by the judge, by a perfect judge, and by ground truth",
        (
            *(_MODEL, _usd("judged_micro_usd", "by the judge"), _usd("faultless_micro_usd", "perfect judge")),
            *(_usd("true_micro_usd", "ground truth"), *interval("true_interval_micro_usd", usd, "0", "1")),
            _usd("off_micro_usd", "error", about="Judge minus ground truth."),
            *interval("off_interval_micro_usd", usd, "0", "1"),
            *(_usd("too_much_micro_usd", "paid but wrong"), _usd("too_little_micro_usd", "right but not paid")),
            *(Column("n_right", "right", ","), *interval("", percent, "right_low", "right_high")),
            *(Column("n", "of", ","), Column("decided.value", "decisions correct", percent)),
            *interval("decided", percent),
            Column("rho.value", "rho", ".2f", about="Spearman's correlation of the judge's score with the true one."),
        ),
        sorted(truth.money, key=lambda row: (-row.judged_micro_usd, row.model)),
        ["Small: 95 % intervals for tasks like these."],
    )
    answers = table_of(
        "Accuracy of the judge's answers",
        (
            *(Column("rubric", "rubric"), Column("judge", "judge"), _MODEL, Column("same.n", "answers", ",")),
            *(Column("same.value", "correct", percent), *interval("same", percent)),
            *(Column("n_yes_for_no", "false positives", ","), Column("n_no_for_yes", "false negatives", ",")),
            Column("rho.value", "rho", ".2f"),
            Column("mean_difference", "bias", "+z.2f", about="Mean of given minus true, in the rubric's points."),
            *(*interval("interval", "+z.2f", "0", "1"), Column("same.n_unscored", "unscored", ",")),
        ),
        truth.answers,
        ["Small: 95 % intervals over tasks. There is no ground truth for sharpness and aesthetics."],
    )
    return sentences, _some(money, answers)


def _usd(key: str, name: str, form: Callable[[int], str] = usd, **more: Any) -> Column:
    """Of micro-dollars."""
    return Column(key, name, form, **more)


def _each(micro: int) -> str:
    return usd_fine(micro) if micro else "<$0.000001"


# ---- other scenarios


def _scenarios(run: RunDir, money: Accounting) -> Content:
    economics = economics_of(run, money)
    if economics is None:
        return [], []
    several, prices = len(economics.table.models) > 1, api_prices(SETTLEMENT_PRICES)
    models = zip(economics.table.models, economics.by_ledger, economics.by_api, strict=True)
    placed = economics.competition.placed
    rows = [SimpleNamespace(model=model, placed=placed[model], here=here, api=api) for model, here, api in models]
    competition = (
        *(Column("placed.rank", "rank", ","), Column("placed.revenue_usd", "revenue in competition", usd_fraction)),
        Column("placed.revenue_low_usd", "low", usd_fraction, "range", below=True),
        Column("placed.revenue_high_usd", "high", usd_fraction, "range", below=True),
        *(Column("placed.n_won", "tasks won", ","), Column("placed.n_shared", "shared", ",", below=True)),
    )
    columns = (
        *(_MODEL, *(competition if several else ()), Column("here.cost_usd", "cost", usd_fraction)),
        *(Column("here.cost_savings", "saved", percent), Column("here.model_contribution", "contribution", percent)),
        *(Column("here.contribution_ratio", "ratio", ".2f"), Column("api.cost_usd", "cost", usd_fraction, "at an API")),
        Column("api.cost_savings", "saved", percent, "at an API"),
        Column("api.contribution_ratio", "ratio", ".2f", "at an API"),
    )
    table = table_of(
        "The same images in competition, and as a first attempt at the measured cost",
        columns,
        sorted(rows, key=lambda row: (row.placed.rank, row.model)),
        _competition_notes(several, economics.competition.n_open),
    )
    break_even = table_of(
        "Break-even with an API",
        (
            *(_MODEL, Column("api", "API"), Column("api_usd_per_image", "API, per image", usd_fraction)),
            Column("usd_per_image", "here, per image", usd_fraction),
            Column("marginal_usd_per_image", "one more", usd_fraction, below=True),
            Column("break_even_usd_per_hour", "hour up to", usd_fraction, about="The highest price of a device-hour."),
            Column("break_even_usd_per_hour_endless", "without end", usd_fraction, below=True),
            Column("break_even_images", "images from", ",", about="The smallest number of images at this run's price."),
        ),
        economics.against,
        [
            "Small: the cost of one more image, and the highest price of a device-hour for an unlimited job. A "
            f"dash: never. API prices: {prices.source}, {prices.date}; lowest, median, highest.",
            *economics.notes,
        ],
    )
    thresholds = _sweep(
        "Revenue at a common threshold of all deciding scores",
        over_thresholds(run),
        lambda value: f"{float(value):.1f}",
        "A missing score pays nothing. Changes of rank are relative to 3.5.",
    )
    device_prices = _sweep(
        "Profit at other prices of a device-hour",
        over_prices(run, money),
        lambda price: usd_exact(round(price * MICRO)),
        "Revenue less the cost of all that was held for the model: a quarter to four times the run's own price.",
    )
    return [], _some(table, workflow_table(workflow_results(run.store, money)), break_even, thresholds, device_prices)


def _competition_notes(several: bool, n_open: int) -> list[str]:
    competition = (
        "Competition: each task's full price goes to the model with the most accepted images; ties are broken by "
        "summed scores, and remaining ties share it."
    )
    savings = (
        "Saved: the model works first and humans redo every task that is not fully accepted, so the cost is that of "
        "the model plus the price of those tasks. Contribution is the share of the value in tasks that the model "
        "completes; the ratio is contribution divided by what is still paid, the model's cost and the humans' "
        "redoing, as a share of the value."
    )
    undecided = f"{count(n_open, 'tasks')} of the competition could still be decided by open images."
    return [*([competition] if several else []), savings, *([undecided] if n_open else [])]


def workflow_table(workflows: Sequence[Workflow]) -> Table:
    return table_of(
        "Workflows on the same attempts",
        (
            *(_MODEL, Column("result.way", "workflow"), Column("result.n_passed", "passed", ",")),
            Column("result.n_passed_high", "at best", ",", below=True),
            *(Column("result.n_tasks", "of", ","), Column("result.n_images", "images", ",")),
            *(Column("result.n_reviews", "reviews", ","), _usd("revenue_micro_usd", "revenue")),
            Column("images_usd", "cost of images", usd_fraction),
        ),
        workflows,
        [
            "One shot; retries until one passes; best of N by summed scores. A human reviews the first attempt or "
            "the selected image once, and every retry. Cost: of the images that the workflow uses. At best: if all "
            "undecided pass."
        ],
    )


def _sweep(title: str, sweep: Sweep | None, text: Any, note: str) -> Table:
    points = [] if sweep is None else sweep.points
    settings = [text(point.setting[0][1]) for point in points]
    models = list(points[0].values) if points else []
    rows = [{"model": model} | dict(zip(settings, (p.values[model] for p in points), strict=True)) for model in models]
    notes = [note]
    for flip in sweep.flips if sweep else ():
        where = ", ".join(text(value) for setting in flip.settings for _, value in setting)
        notes.append(f"{flip.behind} is ahead of {flip.ahead} at {where}.")
    if sweep and not sweep.flips and len(models) > 1:
        notes.append("The ranking does not change.")
    return table_of(title, (_MODEL, *(Column(setting, setting, usd_fraction) for setting in settings)), rows, notes)


# ---- scores


def _scores(run: RunDir) -> Content:
    n_images, intervals, places = run.store.n_candidates(), score_intervals(run), decimals(run)
    stored = {(row.name, row.model): row for row in run.store.score_summaries()}
    directions = better(run)
    rows: list[dict[str, Cell]] = []
    for name in score_names(run):
        for model in model_order(run):
            row = stored.get((name, model))
            n, n_na, n_unscored = (row.n, row.n_not_applicable, row.n_unscored) if row else (0, 0, 0)
            between = intervals.get((name, model)) if row else None
            rows.append(
                {
                    "score": name,
                    "model": model,
                    "mean": None if row is None or row.mean is None else figure(row.mean, places[name]),
                    "low": figure(between[0], places[name]) if between else None,
                    "high": figure(between[1], places[name]) if between else None,
                    "spread": row and row.spread,
                    "better": directions.get(name),
                    "n": n,
                    "n_unscored": n_unscored,
                    "n_not_applicable": n_na,
                    "n_missing": n_images.get(model, 0) - n - n_na - n_unscored,
                }
            )
    table = table_of(
        "Means, and the images behind them",
        (
            *(Column("score", "score"), _MODEL, Column("mean", "mean")),
            *(Column("low", "low", below=True), Column("high", "high", below=True)),
            *(Column("spread", "uncertainty of one image", "± {:.2f}".format), Column("better", "better")),
            *(Column("n", "images", ","), _N_UNSCORED),
            *(Column("n_not_applicable", "not applicable", ","), Column("n_missing", "missing", ",")),
        ),
        rows,
        [
            "Small: 95 % intervals for tasks like these. Unscored: no usable answer. Not applicable: not asked "
            "about this image. Missing: not computed yet.",
            *([_spread(len(run.config.judges))] if any(row.spread is not None for row in stored.values()) else []),
        ],
    )
    return [], _some(table, _reasons("Why scores are unscored", "score", run.store.reasons("scores", MAX_REASONS)))


def _spread(n_judges: int) -> str:
    if n_judges > 1:
        return "The uncertainty of one image is the standard deviation between the judges' scores; here, its mean."
    return (
        "The uncertainty of one image is the score's standard deviation under the judge's label probabilities, not "
        "its error; here, its mean over the images."
    )


# ---- generation and costs


def _generation(run: RunDir, stats: list[GenerationStats]) -> Content:
    device = "CPU" if all(device == "cpu" for m in stats for device in m.timing.devices) else "GPU"
    table = table_of(
        "Time, cost and energy per image",
        (
            *(Column("m.model", "model"), Column("m.n_images", "images", ","), Column("size", "size", below=True)),
            *(Column("at_once", "at once"), Column("t.seconds_per_image", "time each", significant, unit="s")),
            Column("t.floor_s_per_image", "floor each", significant, unit="s"),
            Column("t.flop_per_image", "operations", operations, below=True),
            *(
                Column("t.utilisation", "MFU", percent),
                Column("t.times_floor", "times the floor", significant, below=True),
            ),
            *(Column("no_floor", "no floor"), Column("m.images_per_gpu_hour", f"images per {device}-hour", ",.0f")),
            _usd("m.image_micro_usd", "cost each", _each),
            _usd("m.marginal_image_micro_usd", "marginal", _each, below=True),
            Column("m.wh_per_image", "energy each", significant, unit="Wh"),
            Column("m.marginal_wh_per_image", "marginal", significant, unit="Wh", below=True),
        ),
        [_generation_row(m) for m in stats],
    )
    sentences = [
        "The time per image is the device time for denoising and decoding it. The cost per image includes all "
        "device time held for the model, with loading and warm-up; the marginal cost, in small print, is that of "
        "one more image. The floor is the time that the counted operations take at the device's peak rate; a run "
        "that is faster is reported as faulty."
    ]
    names = sorted({device for m in stats if m.timing.floor_s is not None for device in m.timing.devices})
    gpus = {gpu.name: gpu for gpu in map(gpu_of, names) if gpu is not None}
    if gpus:
        peaks = " and ".join(f"{gpu.peak_tflops:g} TFLOP/s of {gpu.title}" for gpu in gpus.values())
        sentences.append(f"Floors and utilisation (MFU) are relative to a peak of {peaks} (dense bfloat16).")
    cuts = table_of(
        "Prompts longer than an encoder's limit",
        (
            *(_MODEL, Column("encoder", "encoder"), Column("n_prompts", "prompts", ",")),
            *(Column("n_cut", "truncated", ","), Column("most_tokens", "most tokens lost", ",")),
        ),
        prompt_truncations(run.store),
        ["Each distinct prompt counts once; encoders without a limit are not listed."],
    )
    return [*sentences, *(sentence for m in stats for sentence in _batches(m))], _some(table, cuts)


def _generation_row(m: GenerationStats) -> SimpleNamespace:
    (height, width), *others = m.sizes or [(0, 0)]
    return SimpleNamespace(
        m=m,
        t=m.timing,
        size=f"{width}x{height}{f', {len(others)} more' if others else ''}" if width else None,
        at_once="imported" if m.imported else ", ".join(map(str, m.batch_sizes)) or None,
        no_floor=None if m.imported else m.timing.no_floor,
    )


def _batches(m: GenerationStats) -> Iterator[str]:
    """Reduced batches, and images that were generated again."""
    for (planned, used), n in m.halved.items():
        how = (
            f"in batches of {used}, as memory ran out"
            if used > 1
            else "one by one, as larger batches changed bytes here or memory ran out"
        )
        yield f"{m.model}: batches of {planned} were planned, and {count(n, 'images were')} made {how}."
    if m.timing.n_made > m.n_images and not m.imported:
        again = m.timing.n_made - m.n_images
        yield f"{m.model}: {count(again, 'images were')} generated again, because of lost or interrupted work."
    if m.n_out_of_memory:
        times = count(m.n_out_of_memory, "batches did not fit in memory and were")
        yield f"{m.model}: {times} generated again in smaller batches."


def _costs(run: RunDir, money: Accounting) -> Content:
    """Held time and cost by phase and model; the rows add up to the last one."""
    held_ns = sum(row.held_ns for row in money.costs)
    off_meter_ns = sum(session.held_ns for session in run.store.sessions()) - held_ns
    sentences = [price_sentence(money.price), "The rows partition the time for which devices were held."]
    if off_meter_ns > 0:
        sentences.append(f"{duration(off_meter_ns)} of held time is on none of the rows.")
    rows: list[dict[str, Cell]] = [
        {**vars(row), "model": row.model or "whole run", "cost": row.cost_micro_usd if money.price else "no price"}
        for row in money.costs
    ]
    energies = [row.energy_mj for row in money.costs if row.energy_mj is not None]
    if rows:
        total_mj = sum(energies)
        joules: Cell = total_mj if len(energies) == len(rows) else f"at least {energy(total_mj)}" if energies else None
        cost = "no price" if money.cost_micro_usd is None else money.cost_micro_usd
        rows.append({"phase": "all", "model": "all", "held_ns": held_ns, "energy_mj": joules, "cost": cost})
    else:
        sentences.append("No device time was metered.")
    columns = (
        *(Column("phase", "phase"), _MODEL, Column("held_ns", "held", duration), Column("n_items", "items", ",")),
        *(Column("energy_mj", "energy", energy), _usd("cost", "cost", usd_fine)),
    )
    return sentences, _some(table_of("Device time and cost, by phase and model", columns, rows))


# ---- provenance


def _provenance(run: RunDir) -> Content:
    sessions = table_of(
        "Sessions and their devices",
        (
            *(Column("session", "session"), Column("started_utc", "started"), Column("device", "device")),
            *(Column("held_ns", "held", duration), Column("ended", "ended")),
        ),
        [vars(row) | {"ended": row.ended or "did not end"} for row in run.store.sessions()],
    )
    sentences = [f"Root of all results: {root(run.store)} (`local-bench verify` checks it)."]
    path = run.path / "provenance.json"
    if not path.is_file():
        return [*sentences, "This run directory contains no provenance.json."], _some(sessions)
    if path.stat().st_size > MAX_PROVENANCE_BYTES:
        sentences.append(f"provenance.json is larger than {MAX_PROVENANCE_BYTES:,} bytes and is not shown.")
        return sentences, _some(sessions)
    try:
        content = strictjson.read(path, UserError, missing="restore it")
    except UserError:
        return [*sentences, "provenance.json cannot be read as JSON."], _some(sessions)
    rows = tuple(_leaves("", content))
    return sentences, _some(sessions, Table("provenance.json", (Column("key", "key"), Column("value", "value")), rows))


def _leaves(key: str, value: Any, depth: int = 0) -> Iterator[tuple[Cell, ...]]:
    """(dotted key, text) of each value; lists of plain values, and what is nested deeper than six levels, are one."""
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(sub, dict | list) for sub in value))
    if nested and value and depth < 6:
        items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value, 1)
        for name, inner in items:
            yield from _leaves(f"{key}.{name}" if key else str(name), inner, depth + 1)
    elif isinstance(value, list) and not nested:
        yield key, ", ".join(map(_text, value)) or "none"
    else:
        yield key, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
