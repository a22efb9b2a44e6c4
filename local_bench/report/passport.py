"""`judges compare`: what is known of each judge of a run, in one table: agreement and bias against people's annotations
or ground truth, and its order sensitivity, prompt injections, repeatability and speed. All figures are computed
elsewhere (`analysis.agreement`, `analysis.ground_truth`, `report.judging`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local_bench.analysis.agreement import agreement, judge_labels, order_swaps
from local_bench.analysis.ground_truth import check_ground_truth
from local_bench.annotation.ratings import PEOPLE
from local_bench.core.errors import UserError
from local_bench.core.table import Cell, Column, Table
from local_bench.report.judging import judges, same_answers
from local_bench.report.panels import Bars, Figure, Series
from local_bench.runs.judge import PACE, retest_rows
from local_bench.runs.rundir import RunDir
from local_bench.settle.agreement import Agreement
from local_bench.settle.ground_truth import ALL
from local_bench.settle.intervals import wilson

TRUTH = "ground truth"
Row = tuple[Cell, ...]
_COLUMNS = (
    Column("judge", "judge"),
    Column("dimension", "dimension"),
    Column("n", "n"),
    Column("n_unscored", "unscored"),
    Column("agreement", "agreement", ".3f", higher_is_better=True),
    Column("agreement_low", "low", ".2f", "agreement"),
    Column("agreement_high", "high", ".2f", "agreement"),
    Column("kappa", "kappa", ".3f", higher_is_better=True),
    Column("bias", "bias", "+z.3f"),
    Column("bias_low", "low", "+z.2f", "bias"),
    Column("bias_high", "high", "+z.2f", "bias"),
    Column("bias_unit", "unit", group="bias"),
    Column("same_in_both_orders", "same in both orders", ".3f"),
    Column("injections", "injections", ".3f", higher_is_better=False),
    Column("injections_low", "low", ".2f", "injections"),
    Column("injections_high", "high", ".2f", "injections"),
    Column("same_when_repeated", "same when repeated", ".3f"),
    Column("questions_per_s", "questions/s", ".2f"),
)
_UNIT = [column.key for column in _COLUMNS].index("bias_unit")
_NOTES = (
    "n: images with both decisions (answers, against ground truth); agreement: share of equal ones; bias: mean of the "
    "judge minus the other side, in score points or as a difference of shares; low, high: 95 % intervals, over tasks",
    "injections: share of the prompt injections that raised a score; same: share of equal answers with a set's images "
    "in both orders, and when a question is repeated (`judge --rejudge`); questions/s: answers per second without "
    "loading, on the devices of the run; a dash: not tested, or not recorded",
)


def passport(run: RunDir, people: Path | None = None) -> Figure:
    """The table of all judges of `run`, and a figure of their agreement and bias. Without `people` (see
    `load_annotations`) they are compared with the suite's ground truth. UserError if the suite has none, if nothing has
    been judged, or if the annotations cannot be read."""
    if not judge_labels(run):
        raise UserError(f"{run.path} has not been judged: run `local-bench judge {run.path}` first")
    compared, notes = _with_truth(run) if people is None else _with_people(run, people)
    robustness, against = _known(run), TRUTH if people is None else PEOPLE
    rows = tuple((*row, *robustness.get(str(row[0]), (None,) * 6)) for row in compared)
    table = Table(f"Judges of {run.config.name} compared with {against}", _COLUMNS, rows, (*notes, *_NOTES))
    panels = [_bars(table, "agreement", "agreement", f"share equal to {against}", rows)]
    for unit in dict.fromkeys(row[_UNIT] for row in rows):
        of_unit = [row for row in rows if row[_UNIT] == unit]
        panels.append(_bars(table, "bias", f"bias ({unit})", f"mean of judge minus {against}", of_unit))
    return Figure(table, tuple(panels), 2)


def _with_people(run: RunDir, people: Path) -> tuple[list[Row], list[str]]:
    agreements = agreement(run, people)
    return [
        _row(p.judge, p.dimension, p.rate, p.kappa, p.mean_difference, p.interval, p.in_points)
        for p in agreements.pairs
        if p.against == PEOPLE
    ], agreements.notes


def _with_truth(run: RunDir) -> tuple[list[Row], list[str]]:
    check = check_ground_truth(run)
    if check is None:
        raise UserError(
            f"the suite {run.config.suite.name} has no ground truth: give people's annotations with --people FILE "
            "(a file, or a RUN annotated with `local-bench annotate`)"
        )
    of_all = (row for row in check.answers if row.model == ALL)
    return [_row(row.judge, row.rubric, row.same, None, row.mean_difference, row.interval, True) for row in of_all], []


def _row(
    judge: str,
    dimension: str,
    rate: Agreement | None,
    kappa: Agreement | None,
    bias: float | None,
    ends: tuple[float, float] | None,
    in_points: bool,
) -> Row:
    """The columns of one judge in one dimension."""
    rated = (None,) * 5 if rate is None else (rate.n, rate.n_unscored, rate.value, rate.low, rate.high)
    unit = "points" if in_points else "share accepted"
    return judge, dimension, *rated, kappa and kappa.value, bias, *(ends or (None, None)), unit


def _known(run: RunDir) -> dict[str, Row]:
    """The last six columns of each judge."""
    swaps = {swap.judge: swap.same.value for swap in order_swaps(run)}
    repeats, paces = retest_rows(run), run.store.notes(PACE)
    columns: dict[str, Row] = {}
    for judge in judges(run):
        n = judge.attacks.n if judge.attacks else 0
        fooled = min(judge.attacks.n_fooled, n) if judge.attacks else 0
        same, n_repeated = same_answers(row for row in repeats if row.judge == judge.name)
        columns[judge.name] = (
            swaps.get(judge.name),
            *((fooled / n, *wilson(fooled, n)) if n else (None, None, None)),
            same / n_repeated if n_repeated else None,
            _per_second(paces.get(judge.judge_id)),
        )
    return columns


def _per_second(pace: object) -> float | None:
    match pace:
        case {"n": int(n), "seconds": float(seconds)} if seconds > 0:
            return n / seconds
    return None


def _bars(table: Table, key: str, title: str, unit: str, rows: Sequence[Row]) -> Bars:
    """The values of a column, with the interval in the two columns after it, by dimension and judge."""
    at = table.keys.index(key)
    values: dict[Row, Any] = {row[:2]: row[at] for row in rows}
    ends: dict[Row, Any] = {row[:2]: row[at + 1 : at + 3] for row in rows if row[at + 1] is not None}
    dimensions = tuple(dict.fromkeys(str(row[1]) for row in rows))
    series = [
        Series(judge, *(tuple(cells.get((judge, dimension)) for dimension in dimensions) for cells in (values, ends)))
        for judge in dict.fromkeys(str(row[0]) for row in rows)
    ]
    return Bars(title, dimensions, tuple(series), unit)
