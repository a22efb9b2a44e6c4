"""The output of `local-bench predictor` and of `settle --predictor`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from local_bench.core.money import usd, usd_number
from local_bench.core.table import Column
from local_bench.report.render import interval, printed
from local_bench.report.text import interval as between
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


_REPORT = (
    *(Column("name", "predictor"), Column("evaluation.n", "images")),
    *(Column("evaluation.accuracy.value", "accuracy", percent), *interval("evaluation.accuracy", percent)),
    *(Column("over_tuned_rule.value", "over tuned rule", "+.1%"), *interval("over_tuned_rule", "+.1%")),
    Column("evaluation.balanced_accuracy.value", "balanced", percent),
    *(Column("evaluation.auc.value", "AUC", ".3f"), *interval("evaluation.auc", ".3f")),
    *(Column("evaluation.pr_auc.value", "PR-AUC", ".3f"), Column("evaluation.brier.value", "Brier", ".3f")),
    *(Column("evaluation.ece.value", "ECE", ".3f"), Column("evaluation.ece_if_calibrated", "if calibrated", ".3f")),
    Column("evaluation.n_unpredicted", "no prediction"),
)


def report_text(found: "Report") -> str:
    """Table 4 with further measures, then figure 4 (c): accuracy by category."""
    from local_bench.settle.explain import LEAST_TASKS

    categories = sorted({c for row in found.rows if row.evaluation for c in row.evaluation.by_category})
    of_category = [
        {"name": row.name, **{c: _with_interval(m) for c, m in row.evaluation.by_category.items()}}
        for row in found.rows
        if row.evaluation
    ]
    notes = [f"{row.name}: no prediction for any of {found.n} images" for row in found.rows if not row.evaluation]
    notes.append(
        f"{found.n} annotated images of tasks that did not train or calibrate the predictor; {found.n_left_out} "
        "others are left out; accuracy at a probability of one half; intervals: 95 %, bootstrap over tasks, from "
        f"{LEAST_TASKS} tasks on; if calibrated: {CALIBRATED_NOTE}"
    )
    accuracy = (Column("name", "accuracy"), *(Column(category, category) for category in categories))
    return "\n\n".join([printed(_REPORT, found.rows), printed(accuracy, of_category), *notes])


def _with_interval(measured: "Measured") -> str | None:
    if measured.value is None or measured.low is None or measured.high is None:
        return None if measured.value is None else percent(measured.value)
    return f"{percent(measured.value)} ({between(measured.low, measured.high)})"


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


def predictions_text(lines: Sequence["PredictionLine"]) -> str:
    """Counts by model."""
    rows = []
    for model in dict.fromkeys(line.model for line in lines):
        of_model = [line for line in lines if line.model == model]
        known = [line.probability for line in of_model if line.probability is not None]
        row = {"model": model, "n": len(of_model), "accepted": sum(line.accepted is True for line in of_model)}
        rows.append(row | {"mean": sum(known) / len(known) if known else None, "none": len(of_model) - len(known)})
    columns = (
        *(Column("model", "model"), Column("n", "images"), Column("accepted", "predicted accepted")),
        *(Column("mean", "mean probability", ".3f"), Column("none", "no prediction")),
    )
    return printed(columns, rows)


def used_tasks_note(n_used: int, n_tasks: int) -> str:
    return (
        f"local-bench: {n_used} of the run's {n_tasks} tasks trained or calibrated the predictor: its predictions for "
        "them are better than for new tasks"
    )


_SETTLED = (
    *(Column("predicted.model", "model"), Column("predicted.total.revenue_micro_usd", "revenue, predicted", usd)),
    *interval("predicted.total.revenue_interval_micro_usd", usd, "0", "1"),
    Column("expected.expected_micro_usd", "expected revenue", usd),
    *interval("expected.interval_micro_usd", usd, "0", "1"),
    Column("run.total.revenue_micro_usd", "revenue, by the run", usd),
    *(Column("predicted.total.n_accepted", "accepted, predicted"), Column("predicted.total.n", "of")),
    *(Column("run.total.n_accepted", "by the run"), Column("run.total.n", "of")),
    Column("expected.n_unscored", "no prediction"),
)


def settled_text(settled: Sequence["PredictedSettlement"]) -> str:
    """Revenue by predicted decisions and expected revenue, apart, with the run's own."""
    return printed(_SETTLED, settled, [EXPECTED_NOTE])


def expected_cells(expected: "ExpectedRevenue") -> dict[str, int | None]:
    """Expected revenue and its interval, in micro-dollars."""
    low, high = expected.interval_micro_usd or (None, None)
    return {"expected": expected.expected_micro_usd, "expected_low": low, "expected_high": high}


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
    categories = [
        {"category": c, "n": n, "accepted": found.accepted_by_category[c]} for c, n in found.samples_by_category.items()
    ]
    by_category = (Column("category", "category"), Column("n", "samples"), Column("accepted", "accepted", percent))
    concepts = (
        *(Column("name", "concept"), Column("n", "samples"), Column("auc", "AUC", ".3f")),
        *(Column("n_unscored", "missing"), Column("n_not_applicable", "not applicable")),
    )
    return "\n\n".join([counts, printed(by_category, categories), printed(concepts, found.explained)])


def statistics_json(found: "Statistics") -> dict[str, Any]:
    """Counts, and shares as fractions."""
    return asdict(found)
