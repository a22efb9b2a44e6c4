"""The judges of a run: repeatability, robustness to prompt injection, and agreement with each other;
and for `judges compare` one table of what is known of each, which adds people's annotations and ground truth."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from local_bench.analysis.agreement import Agreements, agreement, judge_labels, order_swaps
from local_bench.analysis.ground_truth import check_ground_truth
from local_bench.annotation.ratings import PEOPLE
from local_bench.core.errors import LedgerError, UserError, count
from local_bench.core.table import Cell, Column, Table, table_of
from local_bench.models.cards import cards
from local_bench.report.panels import Bars, Figure, Series
from local_bench.report.render import interval
from local_bench.report.text import percent
from local_bench.runs.config import RunConfig
from local_bench.runs.judge import PACE, RepeatabilityRow, retest_rows
from local_bench.runs.rundir import RunDir
from local_bench.settle.agreement import Agreement
from local_bench.settle.ground_truth import ALL
from local_bench.settle.intervals import wilson
from local_bench.suites.base import CNS_SET
from local_bench.suites.registry import suite

NOT_TRIED = "not tried"
NOT_NOTED = "not noted"
TOP_K = 3
_PROTOCOLS = {"json": "a JSON object", "logit": "the labels' probabilities"}


class Attacks(BaseModel):
    """Results of the prompt-injection test of one judge."""

    n: int = Field(ge=0)
    """Attacks with a usable answer both with and without the injected text."""
    n_unscored: int = Field(ge=0)
    fooled_by: list[str]

    @property
    def n_fooled(self) -> int:
        return len(self.fooled_by)


class Judge(BaseModel):
    """One judge of a run, as stored in the provenance."""

    name: str
    judge_id: str
    card: str
    protocol: str = NOT_NOTED
    transport: str = NOT_NOTED
    server: str = ""
    reproducible: bool | None = None
    """None if it was not tested."""
    note: str = "batch invariance was not checked"
    not_batch_invariant: str = ""
    """Why vLLM's batch-invariant mode is off; empty if it is on, or the judge does not have one."""
    attacks: Attacks | None = None
    """None if they were not tested."""

    @property
    def repeats(self) -> str:
        """Repeatability of the answers; `reproducible` only if it was tested."""
        return {None: NOT_TRIED, True: "reproducible", False: "not reproducible"}[self.reproducible]

    @property
    def check(self) -> str:
        """What was found on batch invariance."""
        notes = (
            "" if self.reproducible is None else self.note,
            f"batch invariance is not guaranteed: {self.not_batch_invariant}" if self.not_batch_invariant else "",
        )
        return "; ".join(filter(None, notes))

    @property
    def fooled(self) -> str:
        """`2 of 16 prompt injections successful`."""
        if self.attacks is None:
            return "prompt injection not tested"
        return f"{self.attacks.n_fooled} of {count(self.attacks.n, 'prompt injections')} successful"


def judges(run: RunDir) -> list[Judge]:
    """Return the judges with verdicts in the ledger, in config order. LedgerError if their metadata is damaged."""
    noted = run.store.json_meta("provenance") or {}
    configs = {config.label: config for config in run.config.judges}
    try:
        every = [Judge.model_validate(entry) for entry in [noted.get("judge"), *noted.get("panel", [])] if entry]
        by_id = {judge.judge_id: judge for judge in every}
        return [
            by_id.get(judge_id)
            or Judge(name=label, judge_id=judge_id, card=configs[label].card if label in configs else NOT_NOTED)
            for judge_id, label in judge_labels(run).items()
        ]
    except (ValidationError, AttributeError, TypeError):
        raise LedgerError(
            f"the judge metadata in {run.store.path} cannot be read: run `local-bench judge {run.path}` again"
        ) from None


def judging_tables(run: RunDir) -> tuple[list[str], list[Table]]:
    """What the report says of the judges: sentences and tables. LedgerError if the stored judge metadata is damaged."""
    run_judges = judges(run)
    if not run_judges:
        return ["Nothing has been judged yet."], []
    sentences = [_CHECKS, *([_word(run.config)] if len(run_judges) > 1 else [])]
    sentences += [
        f"Successful against {judge.name}: {', '.join(judge.attacks.fooled_by)}."
        for judge in run_judges
        if judge.attacks and judge.attacks.fooled_by
    ]
    repeated = any(any(run.store.verdicts(judge.judge_id, table="retests")) for judge in run_judges)
    retests = retest_rows(run) if repeated else []  # it reads all verdicts
    for judge in run_judges:
        rows = [row for row in retests if row.judge == judge.name]
        same, n = same_answers(rows)
        summary = f"{same:,} of {count(n, 'answers')} the same every time" if n else "no comparable answers"
        sentences += [f"Repeatability of {judge.name}, all questions asked again: {summary}."] if rows else []
    tables = [_judge_table(run_judges)]
    if len(run_judges) > 1 or (CNS_SET in run.store.rubrics() and order_swaps(run)):
        tables += agreement_tables(agreement(run, top_k=TOP_K))
    return sentences, [*tables, *([repeatability_table(retests)] if retests else [])]


_CHECKS = (
    "Before it judges, each judge is checked for batch invariance: the same questions alone and in a batch, with "
    "cold and warm caches. Only a judge with equal answers in every session is called reproducible. Then it is "
    "tested for prompt injection: work that clearly fails, with text in the image or the brief that demands a high "
    "score. A test succeeds against the judge if that text alone raises the score."
)
_JUDGE = Column("judge", "judge")


def _judge_table(run_judges: Sequence[Judge]) -> Table:
    columns = (
        *(Column("name", "judge"), Column("title", "title", below=True), Column("card", "card")),
        *(Column("protocol", "protocol"), Column("form", "form", below=True), Column("transport", "transport")),
        *(Column("external", "server", below=True), Column("repeats", "batch invariance")),
        *(Column("check", "check", below=True), Column("n_fooled", "injections successful", ",")),
        *(*interval("", percent), Column("n", "of", ","), Column("n_unscored", "injections unscored", ",")),
    )
    rows = []
    for judge in run_judges:
        card = cards().get(judge.card)
        row = judge.model_dump() | {"title": card.title if card else None, "n_fooled": NOT_TRIED}
        row |= {"form": _PROTOCOLS.get(judge.protocol.rpartition("-")[0]), "repeats": judge.repeats}
        row |= {"external": "external server" if judge.server == "external" else None, "check": judge.check}
        if tried := judge.attacks:
            low, high = wilson(min(tried.n_fooled, tried.n), tried.n)
            row |= {"n_fooled": tried.n_fooled, "low": low, "high": high, "n": tried.n, "n_unscored": tried.n_unscored}
        rows.append(row)
    notes = ["Small: the 95 % Wilson interval of the share of successful injections."]
    return table_of("The judges", columns, rows, notes)


def agreement_tables(agreements: Agreements) -> list[Table]:
    """Pairs of raters, Krippendorff's alpha, and sets shown in both orders; those without rows are left out."""
    pairs = (
        *(_JUDGE, Column("against", "against"), Column("dimension", "dimension"), Column("rate.n", "images", ",")),
        *(Column("rate.value", "agreement", ".3f"), *interval("rate", ".2f")),
        *(Column("kappa.value", "kappa", ".3f"), *interval("kappa", ".2f")),
        *(Column("rho.n", "models", ","), Column("rho.value", "rho", ".3f")),
        *(Column("top_k.value", f"top {agreements.k}", ".3f"), Column("rate.n_unscored", "unscored", ",")),
    )
    notes = [
        "Agreement: rate of equal decisions about an image (95 % interval over tasks), with Cohen's kappa. Rho and "
        f"top {agreements.k}: Spearman's correlation and overlap of the best {agreements.k} in the ranking of models "
        "by mean score. A dash: undefined, e.g. all ratings are equal, or fewer than four models."
    ]
    alphas = (
        *(Column("among", "among"), Column("dimension", "dimension"), Column("n_raters", "raters", ",")),
        *(Column("alpha.n", "images", ","), Column("level", "level"), Column("alpha.value", "alpha", ".3f")),
        *(Column("same.value", "same", ".3f"), Column("alpha.n_unscored", "unscored", ",")),
    )
    orders = (
        *(_JUDGE, Column("same.n", "images", ","), Column("same.value", "same", ".3f"), *interval("same", ".2f")),
        *(Column("mean_difference", "difference", "+z.2f"), *interval("interval", "+z.2f", "0", "1")),
        Column("same.n_unscored", "unscored", ","),
    )
    order_note = "The same answer in both orders, and the mean change of the value from the first to the second one."
    tables = (
        table_of("Agreement", pairs, agreements.pairs, notes),
        table_of("Krippendorff's alpha", alphas, agreements.alphas),
        table_of("Sets shown in both orders", orders, agreements.order_swaps, [order_note]),
    )
    return [table for table in tables if table.rows]


def repeatability_table(retests: Sequence[RepeatabilityRow]) -> Table:
    """Of each judge, by criterion."""
    columns = (
        *(_JUDGE, Column("rubric", "rubric"), Column("criterion", "criterion"), Column("rounds", "rounds", ",")),
        *(Column("retest.same.n", "questions", ","), Column("retest.same.value", "same", percent)),
        *(*interval("retest.same", percent), Column("retest.mean_abs_difference", "difference", ".2f")),
        Column("retest.same.n_unscored", "unscored", ","),
    )
    notes = [
        "Questions with the same answer every time, with 95 % intervals over tasks, and the mean difference between "
        "two answers to one question."
    ]
    return table_of("Repeatability by criterion", columns, retests, notes)


def judge_warnings(run: RunDir) -> list[str]:
    """Return one warning per problem found with the judges."""
    sentences = []
    for judge in judges(run):
        if judge.attacks is not None and judge.attacks.n_fooled:
            sentences.append(f"Judge {judge.name}: {judge.fooled}; text in an image or a brief can raise its scores.")
        if judge.reproducible is False:
            sentences.append(f"Judge {judge.name} is not reproducible: {judge.note}.")
    return sentences


def _word(config: RunConfig) -> str:
    n = len(config.judges)
    votes: Sequence[str] = suite(config.suite.name).pass_fail
    passes = "".join(f" The score {name} is 1 if more than half of the judges pass the image." for name in votes)
    if config.panel_word == "majority":
        word = f"Scores are the majority answer of {n} judges; a tie takes the lower label."
    else:
        word = f"Scores are the mean over {n} judges."
    return word + passes


def same_answers(rows: Iterable[RepeatabilityRow]) -> tuple[int, int]:
    """Numbers of answers that were the same every time, and of all that can be compared."""
    alike = [(row.retest.same.value or 0, row.retest.same.n) for row in rows]
    return round(sum(value * n for value, n in alike)), sum(n for _, n in alike)


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
    notes: list[str] = []
    if people is not None:
        agreements = agreement(run, people)
        compared = [
            _row(p.judge, p.dimension, p.rate, p.kappa, p.mean_difference, p.interval, p.in_points)
            for p in agreements.pairs
            if p.against == PEOPLE
        ]
        notes = agreements.notes
    elif (check := check_ground_truth(run)) is not None:
        of_all = (row for row in check.answers if row.model == ALL)
        compared = [_row(r.judge, r.rubric, r.same, None, r.mean_difference, r.interval, True) for r in of_all]
    else:
        raise UserError(
            f"the suite {run.config.suite.name} has no ground truth: give people's annotations with --people FILE "
            "(a file, or a RUN annotated with `local-bench annotate`)"
        )
    robustness, against = _known(run), TRUTH if people is None else PEOPLE
    rows = tuple((*row, *robustness.get(str(row[0]), (None,) * 6)) for row in compared)
    table = Table(f"Judges of {run.config.name} compared with {against}", _COLUMNS, rows, (*notes, *_NOTES))
    panels = [_bars(table, "agreement", "agreement", f"share equal to {against}", rows)]
    for unit in dict.fromkeys(row[_UNIT] for row in rows):
        of_unit = [row for row in rows if row[_UNIT] == unit]
        panels.append(_bars(table, "bias", f"bias ({unit})", f"mean of judge minus {against}", of_unit))
    return Figure(table, tuple(panels), 2)


def _row(
    judge: str,
    dimension: str,
    rate: Agreement | None,
    kappa: Agreement | None,
    bias: float | None,
    ends: tuple[float, float] | None,
    in_points: bool,
) -> Row:
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
        match paces.get(judge.judge_id):
            case {"n": int(answered), "seconds": float(seconds)} if seconds > 0:
                per_second: float | None = answered / seconds
            case _:
                per_second = None
        columns[judge.name] = (
            swaps.get(judge.name),
            *((fooled / n, *wilson(fooled, n)) if n else (None, None, None)),
            same / n_repeated if n_repeated else None,
            per_second,
        )
    return columns


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
