"""The output of `settle --people FILE --explain`: scores and predictors of payment."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from local_bench.cli.predictor_output import CALIBRATED_NOTE, EXPECTED_NOTE, expected_cells, expected_json
from local_bench.core.money import usd, usd_number
from local_bench.report.render import aligned
from local_bench.report.text import percent

if TYPE_CHECKING:
    from local_bench.analysis.payment import Payment


def payment_text(found: "Payment") -> str:
    """Tables: association of scores with payment, reasons for rejection, quality of predictors."""
    header = ["score", "images", "AUC", "95 %", "Spearman", "PR-AUC", "paid", "unscored", "not applicable"]
    rows = [
        [
            *(e.name, str(e.n), _number(e.auc), _interval(e.auc_low, e.auc_high), _number(e.spearman.value)),
            *(_number(e.pr_auc), _percent(e.base_rate), str(e.n_unscored), str(e.n_not_applicable)),
        ]
        for e in found.explained
    ]
    parts = [aligned(header, rows)]
    bins = [[f"{b.low:g} to {b.high:g}", str(b.n), _percent(b.rate)] for b in found.by_composite]
    parts.append(aligned(["composite", "images", "paid"], bins))
    parts.append(_failures_text(found))
    if found.predictors:
        header = ["predictor", "images", "accuracy", "AUC", "PR-AUC", "Brier", "ECE", "if calibrated"]
        rows = [
            [
                *(name, str(f.quality.n), _percent(f.quality.accuracy), _number(f.quality.auc)),
                *(_number(f.quality.pr_auc), _number(f.quality.brier)),
                *(_number(f.quality.ece), _number(f.quality.ece_if_calibrated)),
            ]
            for name, f in found.predictors.items()
        ]
        parts.append(f"{aligned(header, rows)}\nmeasured on held-out tasks; if calibrated: {CALIBRATED_NOTE}")
        header = ["model", "annotated", "revenue of these", "predictor", "expected revenue of all", "95 %"]
        rows = [
            [model, str(of.n), usd(of.realised_micro_usd), name, *expected_cells(found.expected[name][model])]
            for model, of in found.realised.items()
            for name in found.predictors
        ]
        parts.append(f"{aligned(header, rows)}\n{EXPECTED_NOTE}")
    else:
        parts.append(f"no predictor: {found.not_fitted}")
    return "\n\n".join(parts)


def _failures_text(found: "Payment") -> str:
    f = found.failures
    categories = list(f.rows[0].by_category) if f.rows else []
    header = ["rejected for", "share", *categories, "mean paid", "mean rejected", "Hedges' g"]
    rows = [
        [
            *(row.name, _percent(row.share), *(_percent(row.by_category[c]) for c in categories)),
            *(_number(row.mean_accepted), _number(row.mean_rejected), _number(row.hedges_g)),
        ]
        for row in f.rows
    ]
    summary = (
        f"{f.n_rejected} rejected images; the lowest score of {f.n_unscored} is unknown; {f.n_tied} ties were "
        f"{'assigned to the first in this order' if f.ties == 'first' else 'split equally'}"
    )
    return f"{aligned(header, rows)}\n{summary}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"


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
