"""The output of `local-bench predictor` and of `settle --predictor`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from local_bench.core.money import usd, usd_number
from local_bench.report.render import aligned
from local_bench.report.text import percent

if TYPE_CHECKING:
    from local_bench.analysis.people_settlement import PredictedSettlement
    from local_bench.analysis.predictors.card import Card
    from local_bench.analysis.predictors.dataset import Statistics
    from local_bench.analysis.predictors.evaluation import Report
    from local_bench.runs.prediction_file import PredictionLine
    from local_bench.settle.predictors.evaluation import Measured
    from local_bench.settle.predictors.revenue import ExpectedRevenue

CALIBRATED_NOTE = "the ECE of these images that exact probabilities would have on average"
EXPECTED_NOTE = (
    "expected revenue: probability times price; its interval is of the choice of orders and not of the predictor's fit"
)


def card_json(card: "Card") -> dict[str, Any]:
    """What was trained on what, without the fitted numbers; tasks are counted."""
    given = card.model_dump(mode="json", exclude={"predictor", "tuned_rule", "rule"})
    given["trained_on"]["n_tasks"] = {split: len(tasks) for split, tasks in given["trained_on"].pop("tasks").items()}
    return given | {"tuned_rule": tuned_thresholds(card)}


def tuned_thresholds(card: "Card") -> dict[str, float]:
    """The thresholds of the tuned rule."""
    from local_bench.settle.predictors.models import Rule, loads

    rule = loads(card.tuned_rule)
    assert isinstance(rule, Rule)
    return rule.thresholds


def card_text(card: "Card") -> str:
    """One paragraph."""
    on = card.trained_on
    counts = ", ".join(f"{on.n_images[split]} {split}" for split in on.n_images)
    thresholds = ", ".join(f"{name} >= {value:.3g}" for name, value in tuned_thresholds(card).items())
    return (
        f"{card.kind} on {', '.join(card.inputs.scores)}; annotated images: {counts}; calibrated on: "
        f"{on.calibrated_on}; {percent(card.majority)} of the training images are accepted; tuned rule: {thresholds}"
    )


def report_text(found: "Report") -> str:
    """Table 4 with further measures, then figure 4 (c): accuracy by category."""
    from local_bench.settle.explain import LEAST_TASKS

    header = ["predictor", "images", "accuracy", "95 %", "over tuned rule", "95 %", "balanced", "AUC", "95 %"]
    header += ["PR-AUC", "Brier", "ECE", "if calibrated", "no prediction"]
    rows, of_category = [], []
    categories = sorted({c for row in found.rows if row.evaluation for c in row.evaluation.by_category})
    for row in found.rows:
        e = row.evaluation
        if e is None:
            rows.append([row.name, "0", *["-"] * 11, str(found.n)])
            continue
        over = row.over_tuned_rule
        rows.append(
            [
                *(row.name, str(e.n), _percent(e.accuracy), _interval(e.accuracy, 100)),
                *(["-", "-"] if over is None else [_percent(over, "+"), _interval(over, 100)]),
                *(_percent(e.balanced_accuracy), _number(e.auc), _interval(e.auc), _number(e.pr_auc)),
                *(_number(e.brier), _number(e.ece), f"{e.ece_if_calibrated:.3f}", str(e.n_unpredicted)),
            ]
        )
        cells = [e.by_category.get(category) for category in categories]
        of_category.append([row.name, *("-" if m is None else f"{_percent(m)} ({_interval(m, 100)})" for m in cells)])
    note = (
        f"{found.n} annotated images of tasks that did not train or calibrate the predictor; {found.n_left_out} "
        "others are left out; accuracy at a probability of one half; intervals: 95 %, bootstrap over tasks, from "
        f"{LEAST_TASKS} tasks on; if calibrated: {CALIBRATED_NOTE}"
    )
    return "\n\n".join([aligned(header, rows), aligned(["accuracy", *categories], of_category), note])


def report_json(found: "Report") -> dict[str, Any]:
    """Rates as fractions; a measure is `{value, low, high}`."""
    return {
        "n": found.n,
        "n_left_out": found.n_left_out,
        "rows": [
            {
                "name": row.name,
                **({} if row.evaluation is None else asdict(row.evaluation)),
                "accuracy_over_tuned_rule": row.over_tuned_rule and asdict(row.over_tuned_rule),
            }
            for row in found.rows
        ],
    }


def _percent(of: "Measured", sign: str = "") -> str:
    return "-" if of.value is None else f"{100 * of.value:{sign}.1f} %"


def _number(of: "Measured") -> str:
    return "-" if of.value is None else f"{of.value:.3f}"


def _interval(of: "Measured", scale: int = 1) -> str:
    if of.low is None or of.high is None:
        return "-"
    form = ".1f" if scale > 1 else ".3f"
    return f"{scale * of.low:{form}} to {scale * of.high:{form}}"


def predictions_text(lines: Sequence["PredictionLine"]) -> str:
    """Counts by model."""
    rows = []
    for model in dict.fromkeys(line.model for line in lines):
        of = [line for line in lines if line.model == model]
        known = [line.probability for line in of if line.probability is not None]
        mean = f"{sum(known) / len(known):.3f}" if known else "-"
        accepted = str(sum(line.accepted is True for line in of))
        rows.append([model, str(len(of)), accepted, mean, str(len(of) - len(known))])
    return aligned(["model", "images", "predicted accepted", "mean probability", "no prediction"], rows)


def used_tasks_note(n_used: int, n_tasks: int) -> str:
    return (
        f"local-bench: {n_used} of the run's {n_tasks} tasks trained or calibrated the predictor: its predictions for "
        "them are better than for new tasks"
    )


def settled_text(settled: Sequence["PredictedSettlement"]) -> str:
    """Revenue by predicted decisions and expected revenue, apart, with the run's own."""
    header = ["model", "revenue, predicted", "95 %", "expected revenue", "95 %", "revenue, by the run"]
    header += ["accepted, predicted", "by the run", "no prediction"]
    rows = []
    for one in settled:
        mine, run = one.predicted.total, one.run.total
        interval = mine.revenue_interval_micro_usd
        rows.append(
            [
                one.predicted.model,
                *(usd(mine.revenue_micro_usd), " to ".join(map(usd, interval)) if interval else "-"),
                *(*expected_cells(one.expected), usd(run.revenue_micro_usd)),
                *(f"{mine.n_accepted} of {mine.n}", f"{run.n_accepted} of {run.n}", str(one.expected.n_unscored)),
            ]
        )
    return f"{aligned(header, rows)}\n{EXPECTED_NOTE}"


def expected_cells(expected: "ExpectedRevenue") -> tuple[str, str]:
    """Expected revenue and its interval."""
    interval = expected.interval_micro_usd
    return usd(expected.expected_micro_usd), " to ".join(map(usd, interval)) if interval else "-"


def expected_json(expected: "ExpectedRevenue") -> dict[str, Any]:
    """Expected revenue, in US dollars."""
    low, high = expected.interval_micro_usd or (None, None)
    return {
        "expected_usd": usd_number(expected.expected_micro_usd),
        "at_most_expected_usd": usd_number(expected.at_most_expected_micro_usd),
        "ci95_low_usd": None if low is None else usd_number(low),
        "ci95_high_usd": None if high is None else usd_number(high),
        "n": expected.n,
        "n_unscored": expected.n_unscored,
    }


def statistics_text(found: "Statistics") -> str:
    """Counts, then one row per category and per concept."""
    counts = (
        f"{found.n_samples} samples of {found.n_tasks} tasks by {found.n_models} models, "
        f"{percent(found.accepted)} accepted; of {found.n_lines} lines {found.n_unlabelled} have no label, "
        f"{found.n_duplicates} are repeated, and {found.n_contradictory} deliverables have both labels and are left out"
    )
    if found.n_doubtful is not None:
        counts += f"; {found.n_doubtful} doubtful training samples are left out"
    counts += "; by split: " + ", ".join(f"{n} {split}" for split, n in found.samples_by_split.items())
    categories = [[c, str(n), percent(found.accepted_by_category[c])] for c, n in found.samples_by_category.items()]
    concepts = [
        [e.name, str(e.n), "-" if e.auc is None else f"{e.auc:.3f}", str(e.n_unscored), str(e.n_not_applicable)]
        for e in found.explained
    ]
    header = ["concept", "samples", "AUC", "missing", "not applicable"]
    return "\n\n".join([counts, aligned(["category", "samples", "accepted"], categories), aligned(header, concepts)])


def statistics_json(found: "Statistics") -> dict[str, Any]:
    """Counts, and shares as fractions."""
    return asdict(found)
