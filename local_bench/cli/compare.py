"""`local-bench compare`: paired comparison of the models of two runs on their common tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import JSON, PATH, examples, runs_completed
from local_bench.cli.output import say_notes, say_written, show_result
from local_bench.core.errors import count
from local_bench.report.render import aligned
from local_bench.report.text import p_value

if TYPE_CHECKING:
    from local_bench.analysis.compare import FigureComparison


@click.command(
    epilog=examples(
        "local-bench compare runs/before runs/after",
        "local-bench compare runs/studio runs/studio --all-pairs          # the models of one run",
    )
)
@click.argument("run_a", metavar="RUN_A", type=PATH, shell_complete=runs_completed)
@click.argument("run_b", metavar="RUN_B", type=PATH, shell_complete=runs_completed)
@click.option("--all-pairs", is_flag=True, help="Compare every model of A with every model of B, not only equal names.")
@JSON
def compare(run_a: Path, run_b: Path, all_pairs: bool, as_json: bool) -> int:
    """Compare the models of RUN_A and RUN_B, paired by task.

    Differences in revenue, acceptance and every score that both runs have, with intervals and p-values."""
    from local_bench.analysis.compare import compare as compare_runs
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_a) as a, RunDir.open(run_b) as b:
        result = compare_runs(a, b, every_pair=all_pairs)
        say_written(a, b)
        retried = any(model.attempts > 1 for run in (a, b) for model in run.config.models)
    say_notes(*result.notes)
    values = {"run_a": str(run_a), "run_b": str(run_b), "n_tasks": result.n_tasks}
    values |= {"n_tasks_only_a": result.n_tasks_only_a, "n_tasks_only_b": result.n_tasks_only_b}
    values |= {"notes": result.notes, "comparisons": [_compared_json(row) for row in result.rows]}
    header = ["A", "B", "quantity", "A value", "B value", "A - B", "95 %", "p", "p (Holm)", "detectable", "tasks"]
    table = aligned([*header, "unscored", "if unscored"], [_row(row) for row in result.rows])
    of_first = "revenue and tasks accepted: of first attempts; images accepted and scores: of all attempts; "
    methods = (
        f"{count(result.n_tasks, 'common tasks')}; all quantities are of what both models have, also a benchmark's "
        f"own; {of_first * retried}95 % and p: sign flips and t over tasks, each comparison alone; p (Holm): corrected "
        "for the pairs of a quantity, not for several quantities; detectable: with a power of 80 % on tasks like "
        "these; a difference that is not significant does not mean equal"
    )
    return show_result(values, f"{table}\n{methods}", as_json)


def _row(row: "FigureComparison") -> list[str]:
    d = row.difference
    return [
        *(d.a, d.b, row.figure, _formatted(row, row.a), _formatted(row, row.b), _formatted(row, d.estimate, sign=True)),
        _interval(row, d.low, d.high),
        *("-" if p is None else p_value(p) for p in (d.p, d.p_holm)),
        _formatted(row, d.detectable),
        f"{d.n_differ} of {d.n_tasks} differ" + ", too few" * d.too_few_differ,
        str(row.n_unscored),
        _interval(row, d.at_least, d.at_most) if row.n_unscored else "-",
    ]


def _interval(row: "FigureComparison", low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_formatted(row, low)} to {_formatted(row, high)}"


def _formatted(row: "FigureComparison", value: float | None, sign: bool = False) -> str:
    from local_bench.analysis.compare import IMAGES, REVENUE, TASKS
    from local_bench.core.money import usd

    if value is None:
        return "-"
    if row.figure == REVENUE:
        return ("+" if sign and value > 0 else "") + usd(round(value))
    plus = "+" if sign else ""
    return f"{100 * value:{plus}z.1f} %" if row.figure in (TASKS, IMAGES) else f"{value:{plus}z.3f}"


_NAMES = {"revenue": "revenue_usd", "tasks accepted": "task_acceptance", "images accepted": "deliverable_acceptance"}


def _compared_json(row: "FigureComparison") -> dict[str, Any]:
    """A row as JSON: money in US dollars, shares as fractions, scores in points."""
    from local_bench.analysis.compare import REVENUE
    from local_bench.core.money import usd_number

    d = row.difference
    values = {"a_value": row.a, "b_value": row.b, "difference": d.estimate}
    values |= {"low": d.low, "high": d.high, "at_least": d.at_least, "at_most": d.at_most}
    values |= {"detectable": d.detectable}
    if row.figure == REVENUE:
        values = {name: None if value is None else usd_number(round(value)) for name, value in values.items()}
    return {
        "a": d.a,
        "b": d.b,
        "figure": _NAMES.get(row.figure, row.figure),
        **values,
        "method": "sign flips and t",
        "p": d.p,
        "p_holm": d.p_holm,
        "p_bh": d.p_bh,
        "n": row.n,
        "n_unscored": row.n_unscored,
        "n_tasks": d.n_tasks,
        "n_tasks_differ": d.n_differ,
        "too_few_differ": d.too_few_differ,
    }
