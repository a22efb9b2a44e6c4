"""The output of `settle --people FILE --explain`: scores and predictors of payment."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from local_bench.cli.predictor_output import CALIBRATED_NOTE, EXPECTED_NOTE, expected_cells, expected_json
from local_bench.core.money import usd, usd_number
from local_bench.core.table import Column
from local_bench.report.render import interval, printed
from local_bench.report.text import percent

if TYPE_CHECKING:
    from local_bench.analysis.payment import Payment


def payment_text(found: "Payment") -> str:
    """Tables: association of scores with payment, reasons for rejection, quality of predictors."""
    parts = [
        printed(_SCORES, found.explained),
        printed(_BINS, found.by_composite),
        _failures_text(found),
    ]
    if not found.predictors:
        return "\n\n".join([*parts, f"no predictor: {found.not_fitted}"])
    quality = [vars(f.quality) | {"name": name} for name, f in found.predictors.items()]
    parts.append(printed(_QUALITY, quality, [f"measured on held-out tasks; if calibrated: {CALIBRATED_NOTE}"]))
    revenue = [
        {"model": model, "n": of.n, "realised": of.realised_micro_usd, "predictor": name}
        | expected_cells(found.expected[name][model])
        for model, of in found.realised.items()
        for name in found.predictors
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
    *interval("", usd, "expected_low", "expected_high"),
)


def _failures_text(found: "Payment") -> str:
    f = found.failures
    categories = list(f.rows[0].by_category) if f.rows else []
    columns = (
        *(Column("name", "rejected for"), Column("share", "share", percent)),
        *(Column(category, category, percent) for category in categories),
        *(Column("mean_accepted", "mean paid", ".3f"), Column("mean_rejected", "mean rejected", ".3f")),
        Column("hedges_g", "Hedges' g", ".3f"),
    )
    summary = (
        f"{f.n_rejected} rejected images; the lowest score of {f.n_unscored} is unknown; {f.n_tied} ties were "
        f"{'assigned to the first in this order' if f.ties == 'first' else 'split equally'}"
    )
    return printed(columns, [{**row.by_category, **vars(row)} for row in f.rows], [summary])


def payment_json(found: "Payment") -> dict[str, Any]:
    """The result as JSON: money in US dollars, shares as fractions, predictors in serialised form."""
    from local_bench.settle.predictors.models import dumps

    return {
        "explained": [asdict(row) for row in found.explained],
        "acceptance_by_composite": [asdict(b) for b in found.by_composite],
        "failures": asdict(found.failures),
        "untaught": found.not_fitted,
        "notes": found.notes,
        "realised_revenue": {
            model: {
                "realised_usd": usd_number(revenue.realised_micro_usd),
                "at_most_realised_usd": usd_number(revenue.at_most_realised_micro_usd),
                "n": revenue.n,
                "n_unscored": revenue.n_unscored,
            }
            for model, revenue in found.realised.items()
        },
        "predictors": {
            name: {
                "quality": asdict(f.quality),
                "n_unscored": f.n_unscored,
                "n_unlabelled": f.n_unlabelled,
                "expected_revenue": {model: expected_json(revenue) for model, revenue in found.expected[name].items()},
                "predictor": dumps(f.predictor),
            }
            for name, f in found.predictors.items()
        },
    }
