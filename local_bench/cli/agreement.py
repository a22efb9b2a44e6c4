"""`local-bench agreement`: agreement of a run's judges with human annotators and with each other."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import JSON, PATH, RUN, examples
from local_bench.cli.output import say, show, show_json
from local_bench.core.tables import table

if TYPE_CHECKING:
    from local_bench.analysis.agreement import Agreements, Pair
    from local_bench.settle.agreement import Agreement


@click.command(
    epilog=examples("local-bench agreement runs/studio", "local-bench agreement runs/studio --people labels.jsonl")
)
@RUN
@click.option("--people", metavar="FILE", type=PATH, help="Human annotations, one JSON object per line.")
@click.option("--top", metavar="K", type=click.IntRange(1), default=3, help="Compare the K best models [default: 3].")
@JSON
def agreement(run_dir: Path, people: Path | None, top: int, as_json: bool) -> int:
    """Report judge-human and inter-judge agreement of RUN.

    A line of FILE has model, task_id, deliverable, attempt, rater, and any of brf, veq, cns, overall: true or false for
    accepted or not, a number on the score's scale, or null."""
    from local_bench.analysis.agreement import agreement as agreements
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        found = agreements(run, people, top)
    for note in found.notes:
        say(f"local-bench: {note}")
    if as_json:
        show_json({"run_dir": str(run_dir)} | agreements_json(found))
    else:
        show(agreements_text(found))
    return 0


def agreements_text(found: "Agreements") -> str:
    """The tables, then the reasons for undefined values."""
    parts = []
    if found.pairs:
        header = ["judge", "against", "on", "images", "agree", "95 %", "kappa", "95 %"]
        header += ["models", "rho", f"top {found.k}", "unscored"]
        parts.append(table(header, [_pair_row(p) for p in found.pairs]))
    if found.alphas:
        rows = [
            [a.among, a.dimension, str(a.n_raters), str(a.alpha.n), a.level, _figure(a.alpha), str(a.alpha.n_unscored)]
            for a in found.alphas
        ]
        parts.append(table(["among", "on", "raters", "images", "level", "alpha", "left out"], rows))
    if found.order_swaps:
        rows = [
            [
                *(s.judge, str(s.same.n), _figure(s.same), _ends(s.same.low, s.same.high), _signed(s.mean_difference)),
                *(_ends(*s.interval) if s.interval else "-", str(s.same.n_unscored)),
            ]
            for s in found.order_swaps
        ]
        header = ["sets in both orders", "images", "same", "95 %", "difference", "95 %", "unscored"]
        parts.append(table(header, rows))
    if missing := _missing(found):
        parts.append(missing)
    return "\n\n".join(parts)


def _missing(found: "Agreements") -> str:
    """One line per reason why values are undefined, with their number."""
    figures = [(name, figure) for p in found.pairs for name, figure in _named(p, found.k)]
    figures += [("alpha", a.alpha) for a in found.alphas]
    reasons = Counter((name, figure.undefined) for name, figure in figures if figure is not None and figure.undefined)
    return "\n".join(f"{name} is not defined in {n} rows: {why}" for (name, why), n in reasons.items())


def _named(p: "Pair", k: int) -> list[tuple[str, "Agreement | None"]]:
    return [("agree", p.rate), ("kappa", p.kappa), ("rho", p.rho), (f"top {k}", p.top_k)]


def _pair_row(p: "Pair") -> list[str]:
    rate, kappa = p.rate, p.kappa
    return [
        *(p.judge, p.against, p.dimension),
        "-" if rate is None else str(rate.n),
        *(_figure(rate), "-" if rate is None else _ends(rate.low, rate.high)),
        *(_figure(kappa), "-" if kappa is None else _ends(kappa.low, kappa.high)),
        *(str(p.rho.n), _figure(p.rho), _figure(p.top_k)),
        "-" if rate is None else str(rate.n_unscored),
    ]


def _figure(a: "Agreement | None") -> str:
    return "-" if a is None or a.value is None else f"{a.value:.3f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _ends(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def agreements_json(found: "Agreements") -> dict[str, Any]:
    """The same as JSON: rates and coefficients as fractions, differences in points of the score."""
    return {
        "judges": found.judges,
        "raters": found.raters,
        "top_k": found.k,
        "notes": found.notes,
        "pairs": [
            {
                "dimension": p.dimension,
                "judge": p.judge,
                "against": p.against,
                "agreement_rate": figure_json(p.rate),
                "cohen_kappa": figure_json(p.kappa),
                "spearman": figure_json(p.rho),
                "top_k_overlap": figure_json(p.top_k),
            }
            for p in found.pairs
        ],
        "krippendorff_alpha": [
            {"dimension": a.dimension, "among": a.among, "n_raters": a.n_raters, "level": a.level}
            | (figure_json(a.alpha) or {})
            for a in found.alphas
        ],
        "order_swap": [
            {
                "judge": s.judge,
                "same": figure_json(s.same),
                "mean_difference": s.mean_difference,
                "mean_difference_low": s.interval and s.interval[0],
                "mean_difference_high": s.interval and s.interval[1],
            }
            for s in found.order_swaps
        ],
    }


def figure_json(a: "Agreement | None") -> dict[str, Any] | None:
    """`value` (null with the reason in `undefined`), `low`, `high`, `n`, `n_unscored`; null for no decisions."""
    if a is None:
        return None
    ends = {"low": a.low, "high": a.high}
    return {"value": a.value, **ends, "n": a.n, "n_unscored": a.n_unscored, "undefined": a.undefined}
