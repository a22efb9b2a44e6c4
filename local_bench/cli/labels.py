"""The output of `settle` about human annotations: estimates, plans, and what predicts payment."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local_bench.cli.output import say, say_notes
from local_bench.cli.predictor import CALIBRATED_NOTE, EXPECTED_NOTE, expected_json, settled_text
from local_bench.core.errors import UserError, count
from local_bench.core.files import refuse_existing
from local_bench.core.money import usd, usd_number
from local_bench.core.table import Column
from local_bench.report.render import interval, printed
from local_bench.report.text import percent

if TYPE_CHECKING:
    from local_bench.analysis.payment import Payment
    from local_bench.analysis.people_settlement import PeopleSettlement
    from local_bench.analysis.sampling import Labels, ModelLabels
    from local_bench.runs.rundir import RunDir
    from local_bench.settle.ppi import LabelPlan


@dataclass(frozen=True)
class LabelOptions:
    """The annotation options of `settle`; no output if all are omitted."""

    people: Path | None
    plan_labels: float | None
    questions: Path | None
    explain: bool = False
    predictor: Path | None = None
    other_judge: bool = False

    def check(self) -> None:
        """Raise UserError for invalid combinations, before any work is done."""
        from local_bench.analysis.sampling import MAY_BE_ANNOTATED

        if self.questions is not None:
            if self.plan_labels is None:
                raise UserError("--questions writes the images planned by --plan-labels: give --plan-labels WIDTH too")
            refuse_existing(self.questions, MAY_BE_ANNOTATED)
        if self.explain and self.people is None:
            raise UserError("--explain requires human annotations: give them with --people FILE")
        if self.other_judge and self.predictor is None:
            raise UserError("--other-judge is about a predictor: give one with --predictor DIR, or leave it out")
        if self.predictor is not None:
            from local_bench.analysis.predictors.card import load

            load(self.predictor)

    def output(self, run: "RunDir") -> tuple[str, dict[str, Any]]:
        """The result as text and JSON; notes are printed to stderr."""
        parts = [self._labels(run), self._predicted(run)]
        text = "".join(f"\n\n{text}" for text, _ in parts if text)
        return text, {name: value for _, values in parts for name, value in values.items()}

    def _labels(self, run: "RunDir") -> tuple[str, dict[str, Any]]:
        from local_bench.analysis.people_settlement import settled_by_people
        from local_bench.analysis.sampling import labelling, write_questions

        if self.people is None and self.plan_labels is None:
            return "", {}
        result = labelling(run, self.plan_labels, self.people)
        say_notes(*result.notes)
        if self.questions is not None:
            write_questions(result, self.questions)
            if any(m.plan is not None and m.plan.n_labels for m in result.models):
                say(f"local-bench: the images to annotate are in {self.questions}: set each `overall` to true or false")
        text, values = labels_text(result), {"labels": {m.model: _model_json(m) for m in result.models}}
        if self.people is not None:
            settled = settled_by_people(run, self.people)
            text = f"{people_text(settled)}\n\n{text}"
            values |= {"people": {of_model.people.model: people_json(of_model) for of_model in settled}}
        if self.explain and self.people is not None:
            from local_bench.analysis.payment import payment

            paid = payment(run, self.people)
            for note in paid.notes:
                say(f"local-bench: --explain: {note}")
            text, values = f"{text}\n\n{payment_text(paid)}", values | {"payment": payment_json(paid)}
        return text, values

    def _predicted(self, run: "RunDir") -> tuple[str, dict[str, Any]]:
        from local_bench.cli.tables import settlement_json

        if self.predictor is None:
            return "", {}
        from local_bench.analysis.people_settlement import settled_by_predictions
        from local_bench.analysis.predictors.predictions import n_used_tasks, predicted_by, used_tasks_note

        card, lines = predicted_by(self.predictor, run, self.other_judge)
        settled = settled_by_predictions(run, lines)
        n_used, n_tasks = n_used_tasks(lines)
        say_notes(*used_tasks_note(n_used, n_tasks))
        models = {of_model.predicted.model: of_model for of_model in settled}
        values = {
            "kind": card.kind,
            "sha256": card.sha256,
            "n_tasks_used_in_training": n_used,
            "models": {model: settlement_json(of_model.predicted) for model, of_model in models.items()},
            "expected_revenue": {model: expected_json(of_model.expected) for model, of_model in models.items()},
        }
        return settled_text(settled), {"predictor": values}


BOUNDS_NOTE = (
    "no revenue by people of models with images that are not made or have no decision by people (not annotated, cannot "
    "tell, an even vote): estimates of the made images are below; bounds: these images all rejected, all accepted"
)
INTERVAL = ("revenue_low_usd", "revenue_high_usd", "revenue_ci95_low_usd", "revenue_ci95_high_usd")
"""Keys of a settlement that have no value while images have no decision by people or are not made."""
NEEDS_ALL = (*INTERVAL, "revenue_usd", "profit_usd", "share", "task_acceptance", "deliverable_acceptance", "as_printed")
"""Keys of a settlement that have no value while images have no decision by people."""


def people_text(settled: "Sequence[PeopleSettlement]") -> str:
    """The settlement by the annotators' decisions and that of the run."""
    paid = any(of_model.people.total.value_micro_usd for of_model in settled)
    sampled = any(of_model.not_annotated or of_model.not_made for of_model in settled)
    rows = []
    for of_model in settled:
        mine, run, n, n_not_made = of_model.people.total, of_model.run.total, *_undecided(of_model)
        row: dict[str, Any] = {"model": of_model.people.model, "accepted": f"{mine.n_accepted} of {mine.n}"}
        row |= {"by_run": f"{run.n_accepted} of {run.n}", "n_not_annotated": n, "n_not_made": n_not_made or None}
        if paid:
            row |= {"run_revenue": run.revenue_micro_usd}
            row |= _ends("bound", mine.bounds_micro_usd if sampled else None)
            if not n + n_not_made:
                row |= {"revenue": mine.revenue_micro_usd} | _ends("ci", mine.revenue_interval_micro_usd)
        rows.append(row)
    return printed(_PEOPLE, rows, [BOUNDS_NOTE] if sampled and paid else [])


_PEOPLE = (
    *(Column("model", "model"), Column("revenue", "revenue by people", usd), *interval("", usd, "ci_low", "ci_high")),
    *(Column("bound_low", "low", usd, "bounds", below=True), Column("bound_high", "high", usd, "bounds", below=True)),
    *(Column("run_revenue", "by the run", usd), Column("accepted", "accepted by people")),
    *(
        Column("by_run", "accepted by the run"),
        Column("n_not_annotated", "no decision by people"),
        Column("n_not_made", "not made"),
    ),
)


def _undecided(settled: "PeopleSettlement", category: str | None = None) -> tuple[int, int]:
    """How many images, of a category or of all, have no decision by people, and how many are not made."""
    n, n_not_made = settled.not_annotated, settled.not_made
    return (n.total(), n_not_made.total()) if category is None else (n[category], n_not_made[category])


def _ends(name: str, ends: tuple[Any, Any] | None) -> dict[str, Any]:
    low, high = ends or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def people_json(settled: "PeopleSettlement") -> dict[str, Any]:
    """The settlement by the annotators; null where a value requires that all images are made or decided."""
    from local_bench.cli.tables import settlement_json

    values = settlement_json(settled.people)
    for category, numbers in [(None, values), *values["by_category"].items()]:
        n, n_not_made = _undecided(settled, category)
        numbers |= {"n_not_annotated": n, "n_not_made": n_not_made}
        numbers.update({k: None for k in (NEEDS_ALL if n else INTERVAL if n_not_made else ()) if k in numbers})
    return values


def labels_text(labels: "Labels") -> str:
    """Tables of the estimates and of the annotation plan, by model."""
    parts = []
    estimated = [m for m in labels.models if m.estimates is not None]
    if estimated:
        paid = any(m.value_micro_usd for m in estimated)
        notes = ["estimates of the made images by judge and annotations; 95 %: of the choice of annotated images"]
        notes += [
            f"{m.model} has no interval: {undefined}"
            for m in estimated
            if m.estimates is not None and (undefined := m.estimates["revenue_share"].undefined)
        ]
        parts.append(printed(_ESTIMATES, [_estimate_row(m, paid) for m in estimated], notes))
    planned = [(m, m.plan) for m in labels.models if m.plan is not None]
    if planned:
        rows = [
            vars(plan) | {"model": m.model, "n": len(m.work_ids), "n_labels": plan.n_labels, "round": _round(plan)}
            for m, plan in planned
        ]
        names = ("seen" if m.sampled.all() and not plan.n_labels else _round(plan) for m, plan in planned)
        parts.append(printed(_PLANS, rows, [_ROUNDS[name] for name in dict.fromkeys(names)]))
    return "\n\n".join(parts) or "no image of this run is annotated"


_IMAGES = (Column("model", "model"), Column("n", "images"))
_ESTIMATES = (
    *(*_IMAGES, Column("n_labelled", "annotated"), Column("decided", "revenue by the judge", usd)),
    *(Column("revenue", "estimated revenue", usd), *interval("", usd, "revenue_low", "revenue_high")),
    *(Column("accepted", "accepted by the judge", percent), Column("estimate", "estimated acceptance", percent)),
    *(*interval("", percent), Column("power", "power", ".2f"), Column("n_unanswered", "no decision")),
)
_PLANS = (
    *(*_IMAGES, Column("n_known", "annotated"), Column("n_labels", "to annotate")),
    *(Column("width", "expected width", percent), Column("round", "round")),
)
_ROUNDS = {
    "first": "first round: how often the judge is right is not known yet, so the number of images is for a judge that "
    "is no better than a guess; repeat the command with --people FILE after it: further images may be necessary",
    "next": "next round: the number of images is for a judge whose errors are like those found so far, and is then "
    "enough in 4 of 5 cases; repeat the command with --people FILE after it",
    "none": "no further round: the interval is at most as wide as requested",
    "seen": "no further round: every image is annotated, or was left without a decision",
}


def _round(plan: "LabelPlan") -> str:
    return "none" if not plan.n_labels else "next" if plan.n_known else "first"


def _estimate_row(m: "ModelLabels", paid: bool) -> dict[str, Any]:
    """In money if the tasks have prices, otherwise in images."""
    assert m.estimates is not None
    revenue, images, n = m.estimates["revenue_share"], m.estimates["deliverable_acceptance"], len(m.work_ids)
    row: dict[str, Any] = {"model": m.model, "n": n, "n_labelled": revenue.n_labelled, "estimate": images.estimate}
    row |= {"low": images.low, "high": images.high, "power": revenue.power, "n_unanswered": revenue.n_unanswered}
    if not paid:
        return row | {"accepted": m.n_accepted / n if n else None}
    low, high = revenue.of_weight(revenue.low), revenue.of_weight(revenue.high)
    row |= {"decided": m.decided_micro_usd, "revenue": round(revenue.estimate * revenue.weight)}
    return row | (_ends("revenue", None if low is None or high is None else (round(low), round(high))))


def _model_json(m: "ModelLabels") -> dict[str, Any]:
    estimates, plan = m.estimates, m.plan
    return {
        "n_images": len(m.work_ids),
        "n_not_made": m.n_not_made,
        "value_usd": usd_number(m.value_micro_usd),
        "decided_usd": usd_number(m.decided_micro_usd),
        "n_accepted": m.n_accepted,
        "estimates": estimates
        and {
            name: {key: getattr(estimate, key.removeprefix("ci95_")) for key in _ESTIMATE_KEYS}
            for name, estimate in estimates.items()
        },
        "plan": plan
        and {
            "round": _round(plan),
            "n_labels": plan.n_labels,
            "n_known": plan.n_known,
            "width": plan.width,
            "ask": [
                {"task_id": m.keys[i][0], "deliverable": m.keys[i][1], "probability": float(plan.probabilities[i])}
                for i in map(int, plan.images)
            ],
        },
    }


_ESTIMATE_KEYS = (
    *("estimate", "low", "high", "ci95_low", "ci95_high", "bound_low", "bound_high", "undefined", "over", "power"),
    *("judge_alone", "at_least", "at_most", "n", "n_labelled", "n_unanswered", "n_unpredicted"),
)


def payment_text(payment: "Payment") -> str:
    """Tables: association of scores with payment, reasons for rejection, quality of predictors."""
    parts = [printed(_SCORES, payment.explained), printed(_BINS, payment.by_composite), _failures_text(payment)]
    if not payment.predictors:
        return "\n\n".join([*parts, f"no predictor: {payment.not_fitted}"])
    quality = [vars(f.quality) | {"name": name} for name, f in payment.predictors.items()]
    parts.append(printed(_QUALITY, quality, [f"measured on held-out tasks; if calibrated: {CALIBRATED_NOTE}"]))
    revenue = [
        {"model": model, "n": revenue_of.n, "realised": revenue_of.realised_micro_usd, "predictor": name}
        | {"expected": expected[model].expected_micro_usd, "n_unscored": expected[model].n_unscored}
        | _ends("expected", expected[model].interval_micro_usd)
        for model, revenue_of in payment.realised.items()
        for name, expected in payment.expected.items()
    ]
    return "\n\n".join([*parts, printed(_REVENUE, revenue, [EXPECTED_NOTE])])


_COUNTS = (Column("n_unscored", "unscored"), Column("n_not_applicable", "not applicable"))
_SCORES = (
    *(Column("name", "score"), Column("n", "images"), Column("auc", "AUC", ".3f")),
    *interval("", ".3f", "auc_low", "auc_high"),
    *(Column("spearman.value", "Spearman", ".3f"), Column("pr_auc", "PR-AUC", ".3f")),
    *(Column("base_rate", "paid", percent), *_COUNTS),
)
_BINS = (
    *(Column("low", "composite", "g", below=True), Column("high", "", "g", below=True)),
    *(Column("n", "images"), Column("rate", "paid", percent)),
)
_QUALITY = (
    *(Column("name", "predictor"), Column("n", "images"), Column("accuracy", "accuracy", percent)),
    *(Column("auc", "AUC", ".3f"), Column("pr_auc", "PR-AUC", ".3f"), Column("brier", "Brier", ".3f")),
    *(Column("ece", "ECE", ".3f"), Column("ece_if_calibrated", "if calibrated", ".3f")),
)
_REVENUE = (
    *(Column("model", "model"), Column("n", "annotated"), Column("realised", "revenue of these", usd)),
    *(Column("predictor", "predictor"), Column("expected", "expected revenue of all", usd)),
    *(*interval("", usd, "expected_low", "expected_high"), Column("n_unscored", "no prediction")),
)


def _failures_text(payment: "Payment") -> str:
    f = payment.failures
    columns = (
        *(Column("name", "rejected for"), Column("share", "share", percent)),
        *(Column(category, category, percent) for category in (f.rows[0].by_category if f.rows else ())),
        *(Column("mean_accepted", "mean paid", ".3f"), Column("mean_rejected", "mean rejected", ".3f")),
        Column("hedges_g", "Hedges' g", ".3f"),
    )
    summary = (
        f"{count(f.n_rejected, 'rejected images')}; the lowest score of {f.n_unscored} is unknown; {f.n_tied} ties "
        "were assigned to the first in this order"
    )
    return printed(columns, [{**row.by_category, **vars(row)} for row in f.rows], [summary])


def payment_json(payment: "Payment") -> dict[str, Any]:
    """The result as JSON: money in US dollars, shares as fractions, predictors in serialised form."""
    from local_bench.analysis.loading import in_usd
    from local_bench.settle.predictors.models import dumps

    return {
        "explained": [asdict(row) for row in payment.explained],
        "acceptance_by_composite": [asdict(b) for b in payment.by_composite],
        "failures": asdict(payment.failures),
        "untaught": payment.not_fitted,
        "notes": payment.notes,
        "realised_revenue": {
            model: in_usd(vars(revenue), ("realised_usd", "at_most_realised_usd", "n", "n_unscored"))
            for model, revenue in payment.realised.items()
        },
        "predictors": {
            name: {
                "quality": asdict(f.quality),
                "n_unscored": f.n_unscored,
                "n_unlabelled": f.n_unlabelled,
                "expected_revenue": {
                    model: expected_json(revenue) for model, revenue in payment.expected[name].items()
                },
                "predictor": dumps(f.predictor),
            }
            for name, f in payment.predictors.items()
        },
    }
