"""`local-bench agreement` and `judges compare`: a run's judges compared with human annotators and with each other."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import FORMAT, JSON, PATH, RUN, Commands, examples
from local_bench.cli.output import say, say_notes, say_written, show, show_result
from local_bench.core.errors import count
from local_bench.report.render import columns_text

if TYPE_CHECKING:
    from local_bench.analysis.agreement import Agreements
    from local_bench.settle.agreement import Agreement


@click.command(
    epilog=examples(
        "local-bench agreement runs/studio",
        "local-bench agreement runs/studio --people labels.jsonl",
        "local-bench agreement runs/studio --people runs/studio   # annotated with `annotate`",
    )
)
@RUN
@click.option("--people", metavar="FILE|RUN", type=PATH, help="Human annotations: JSONL, or a RUN annotated here.")
@click.option("--top", metavar="K", type=click.IntRange(1), default=3, help="Compare the K best models [default: 3].")
@JSON
def agreement(run_dir: Path, people: Path | None, top: int, as_json: bool) -> int:
    """Report judge-human and inter-judge agreement of RUN.

    A line of FILE has model, task_id, deliverable, attempt, rater, and any of brf, veq, cns, overall: true or false for
    accepted or not, a number on the score's scale, or null."""
    from local_bench.analysis.agreement import agreement as agreements
    from local_bench.report.judging import agreement_tables
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        result = agreements(run, people, top)
        say_written(run)
    say_notes(*result.notes)
    names = ("agreement", "kappa", "rho", f"top {result.k}")
    estimates = [of for p in result.pairs for of in zip(names, (p.rate, p.kappa, p.rho, p.top_k), strict=True)]
    estimates += [("alpha", a.alpha) for a in result.alphas]
    reasons = Counter((name, value.undefined) for name, value in estimates if value is not None and value.undefined)
    undefined = [f"{name} is undefined in {count(n, 'rows')}: {reason}" for (name, reason), n in reasons.items()]
    text = "\n\n".join([*map(columns_text, agreement_tables(result)), *(["\n".join(undefined)] if undefined else [])])
    return show_result({"run_dir": str(run_dir)} | agreements_json(result), text, as_json)


def agreements_json(agreements: "Agreements") -> dict[str, Any]:
    """The result as JSON: rates and coefficients as fractions, differences in points of the score."""
    return {
        "judges": agreements.judges,
        "raters": agreements.raters,
        "top_k": agreements.k,
        "notes": agreements.notes,
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
            for p in agreements.pairs
        ],
        "krippendorff_alpha": [
            {"dimension": a.dimension, "among": a.among, "n_raters": a.n_raters, "level": a.level}
            | (figure_json(a.alpha) or {})
            | {"same": figure_json(a.same)}
            for a in agreements.alphas
        ],
        "order_swap": [
            {
                "judge": s.judge,
                "same": figure_json(s.same),
                "mean_difference": s.mean_difference,
                "mean_difference_low": s.interval and s.interval[0],
                "mean_difference_high": s.interval and s.interval[1],
            }
            for s in agreements.order_swaps
        ],
    }


def figure_json(a: "Agreement | None") -> dict[str, Any] | None:
    """`value` (null with the reason in `undefined`), `low`, `high`, `n`, `n_unscored`, and for rho and the
    top k `by_chance`; null without decisions."""
    if a is None:
        return None
    ends = {"low": a.low, "high": a.high}
    chance = {} if a.by_chance is None else {"by_chance": a.by_chance}
    return {"value": a.value, **ends, "n": a.n, "n_unscored": a.n_unscored, "undefined": a.undefined} | chance


@click.group(cls=Commands)
def judges() -> None:
    """Compare the judges of a run."""


@judges.command(
    epilog=examples(
        "local-bench judges compare runs/demo                          # with ground truth",
        "local-bench judges compare runs/studio --people labels.jsonl",
        "local-bench judges compare runs/studio --people labels.jsonl --out judges.svg",
    )
)
@RUN
@click.option("--people", metavar="FILE|RUN", type=PATH, help="Human annotations, as `local-bench agreement` reads.")
@click.option("--out", type=PATH, help="Draw agreement and bias as .svg, .pdf or .png.")
@FORMAT
@JSON
def compare(run_dir: Path, people: Path | None, out: Path | None, form: str, as_json: bool) -> int:
    """Compare RUN's judges on the same labelled images.

    Agreement and bias in each dimension with intervals, against people's annotations or, without --people, the suite's
    ground truth; order sensitivity, successful prompt injections, repeatability and questions per second."""
    from local_bench.report.judging import passport
    from local_bench.report.papers.draw import check_suffix, draw_all
    from local_bench.report.render import FORMATS
    from local_bench.runs.rundir import RunDir

    if out is not None:
        check_suffix(out)
    with RunDir.open(run_dir) as run:
        figure = passport(run, people)
        say_written(run)
    show(FORMATS["json" if as_json else form](figure.data))
    say(*figure.data.notes)
    if out is not None:
        draw_all(figure, [out])
    return 0
