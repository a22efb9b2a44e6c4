"""What `settle --people FILE --explain` says of payment."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from local_bench.core.money import usd, usd_number
from local_bench.core.tables import table

if TYPE_CHECKING:
    from local_bench.analysis.payment import Payment


def payment_text(found: "Payment") -> str:
    """Tables: which scores go along with payment, why images were rejected, how good predictors are."""
    header = ["score", "images", "AUC", "95 %", "Spearman", "PR-AUC", "paid", "unscored", "does not apply"]
    rows = [
        [
            *(e.name, str(e.n), _figure(e.auc), _ends(e.auc_low, e.auc_high), _figure(e.spearman.value)),
            *(_figure(e.pr_auc), _percent(e.base_rate), str(e.n_unscored), str(e.n_not_applicable)),
        ]
        for e in found.explained
    ]
    parts = [table(header, rows)]
    bins = [[f"{b.low:g} to {b.high:g}", str(b.n), _percent(b.rate)] for b in found.by_composite]
    parts.append(table(["composite", "images", "paid"], bins))
    parts.append(_failures_text(found))
    if found.predictors:
        header = [
            "predictor",
            "images",
            "accuracy",
            "AUC",
            "PR-AUC",
            "Brier",
            "ECE",
            *next(iter(found.expected.values())),
        ]
        labelled = sum(revenue.n for revenue in found.realised.values())
        realised = [usd(revenue.realised_micro_usd) for revenue in found.realised.values()]
        rows = [["as labelled", str(labelled), *5 * ["-"], *realised]]
        rows += [
            [
                *(name, str(f.quality.n), _percent(f.quality.accuracy), _figure(f.quality.auc)),
                *(_figure(f.quality.pr_auc), _figure(f.quality.brier), _figure(f.quality.ece)),
                *(usd(revenue.expected_micro_usd) for revenue in found.expected[name].values()),
            ]
            for name, f in found.predictors.items()
        ]
        parts.append(table(header, rows))
        parts.append(
            "under a model's name: what its labelled images do earn, then what all its images are expected "
            "to; the other figures are of unseen orders"
        )
    else:
        parts.append(f"no predictor: {found.not_fitted}")
    return "\n\n".join(parts)


def _failures_text(found: "Payment") -> str:
    f = found.failures
    categories = list(f.rows[0].by_category) if f.rows else []
    header = ["rejected for", "share", *categories, "mean paid", "mean rejected", "Cohen's d"]
    rows = [
        [
            *(row.name, _percent(row.share), *(_percent(row.by_category[c]) for c in categories)),
            *(_figure(row.mean_accepted), _figure(row.mean_rejected), _figure(row.cohens_d)),
        ]
        for row in f.rows
    ]
    counted = (
        f"{f.n_rejected} rejected images, of {f.n_unscored} the lowest score is open; {f.n_tied} ties went to "
        f"{'the first in this order' if f.ties == 'first' else 'all of them in equal parts'}"
    )
    return f"{table(header, rows)}\n{counted}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


def _ends(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def payment_json(found: "Payment") -> dict[str, Any]:
    """The same for programs: money in US dollars, parts as fractions; a predictor as the text that brings it back."""
    from local_bench.settle.predictors.serialization import dumps

    return {
        "explained": [asdict(row) for row in found.explained],
        "acceptance_by_composite": [asdict(b) for b in found.by_composite],
        "failures": asdict(found.failures),
        "untaught": found.not_fitted,
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
                "expected_revenue": {
                    model: {
                        "expected_usd": usd_number(revenue.expected_micro_usd),
                        "at_most_expected_usd": usd_number(revenue.at_most_expected_micro_usd),
                        "n": revenue.n,
                        "n_unscored": revenue.n_unscored,
                    }
                    for model, revenue in found.expected[name].items()
                },
                "predictor": dumps(f.predictor),
            }
            for name, f in found.predictors.items()
        },
    }
