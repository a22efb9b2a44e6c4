"""ServImage's table 4 and figure 4: accuracy of predictors of payment, from runs with annotations."""

from collections.abc import Sequence

from local_bench.analysis.predictors.card import Card, judges_differ, load
from local_bench.analysis.predictors.evaluation import Compared, report
from local_bench.core.errors import UserError
from local_bench.core.table import Cell, Column, Table
from local_bench.report.panels import Bars, Figure, Series
from local_bench.report.papers.inputs import Request
from local_bench.report.papers.servimage import category_name, in_order, percent
from local_bench.runs.payment import model_log_odds, read_predictions
from local_bench.runs.rundir import RunDir
from local_bench.settle.predictors.evaluation import Evaluation, Measured

_NOTE = (
    "accuracy at a probability of one half on annotated images of tasks that trained no predictor; the paper's rows "
    "are variants of ServImageModel on its own test split"
)


def _rows(request: Request) -> tuple[dict[str, Compared], list[str]]:
    """The baselines, the judges and every predictor, by name, and notes. UserError if the predictors were not trained
    alike, because they would be evaluated on different images."""
    compared: dict[str, Compared] = {}
    others = [read_predictions(file) for file in request.options.predictions]
    cards = [load(folder) for folder in request.options.predictor]
    notes = [_NOTE]
    for folder, card in zip(request.options.predictor, cards, strict=True):
        if card.trained_on != cards[0].trained_on.model_copy(update={"calibrated_on": card.trained_on.calibrated_on}):
            raise UserError(
                f"{folder} and {request.options.predictor[0]} were trained on different annotations: give predictors "
                "that were trained on the same runs with the same --seed"
            )
        odds = model_log_odds(card.kind, request.runs, folder)
        evaluated = report(card, request.runs, request.options.people, others, request.options.allow_unlike, odds)
        rows = {row.name: row for row in evaluated.rows}
        new = {name: row for name, row in rows.items() if name not in compared}
        if not new and len(cards) > 1 and card.kind != "rule":
            raise UserError(f"{folder} is a second predictor of kind {card.kind}: give one of each kind")
        compared |= new
        notes += trained_otherwise(card, request.runs)
        if card is cards[0]:
            notes.append(f"{evaluated.n} images are evaluated; {evaluated.n_left_out} others trained the predictors")
            notes += evaluated.notes
    return compared, notes


def trained_otherwise(card: Card, runs: Sequence[RunDir]) -> list[str]:
    """A sentence for every run whose judges or rubrics are not those that the predictor was trained with."""
    return [
        f"* not comparable: the predictor ({card.kind}) was trained with other judges or rubrics than those of "
        f"{run.path.name}"
        for run in runs
        if judges_differ(card.inputs, run)
    ]


def _cells(rate: Measured | None) -> tuple[Cell, ...]:
    return (None, None, None) if rate is None else (percent(rate.value), percent(rate.low), percent(rate.high))


def table_4(request: Request) -> Table:
    """The accuracy of every predictor, with its interval and further measures."""
    rows, notes = _rows(request)
    columns = (
        Column("predictor", "Predictor"),
        Column("accuracy_pct", "Acc. (%)", ".2f"),
        Column("accuracy_low_pct", "low", ".2f"),
        Column("accuracy_high_pct", "high", ".2f"),
        Column("over_tuned_rule_pct", "over tuned rule", "+.2f"),
        Column("balanced_accuracy_pct", "Balanced Acc. (%)", ".2f"),
        Column("auc", "AUC", ".3f"),
        Column("ece", "ECE", ".3f"),
        Column("images", "Images", "d"),
    )
    cells: list[tuple[Cell, ...]] = []
    for name, row in rows.items():
        e, over = row.evaluation, row.over_tuned_rule
        if e is None:
            cells.append((name, *[None] * 7, 0))
            continue
        difference = None if over is None else percent(over.value)
        cells.append(
            (name, *_cells(e.accuracy), difference, percent(e.balanced_accuracy.value), e.auc.value, e.ece.value, e.n)
        )
    title = "ServImage, table 4: accuracy of predictors of payment"
    return Table(title, columns, tuple(cells), tuple(notes))


def figure_4(request: Request) -> Figure:
    """Accuracy (b), and accuracy by category (c); (a) is an illustration."""
    rows, notes = _rows(request)
    evaluated = {name: row.evaluation for name, row in rows.items() if row.evaluation is not None}
    categories = in_order([c for e in evaluated.values() for c in e.by_category])
    columns = (
        Column("predictor", "Predictor"),
        Column("accuracy_pct", "Accuracy (%)", ".2f"),
        *(Column(f"{category_name(c).lower()}_pct", f"{category_name(c)} (%)", ".2f") for c in categories),
    )
    table = tuple(
        (name, percent(e.accuracy.value), *(_cells(e.by_category.get(c))[0] for c in categories))
        for name, e in evaluated.items()
    )
    names = tuple(evaluated)
    overall = Series(
        "accuracy", tuple(percent(e.accuracy.value) for e in evaluated.values()), tuple(map(_ends, evaluated.values()))
    )
    by_category = tuple(
        Series(name, tuple(_cells(e.by_category.get(c))[0] for c in categories))  # type: ignore[misc]  # numbers
        for name, e in evaluated.items()
    )
    panels = (
        Bars("(b) payment decisions", names, (overall,), "accuracy, %"),
        Bars("(c) by category", tuple(map(category_name, categories)), by_category, "accuracy, %"),
    )
    title = "ServImage, figure 4: accuracy of predictors of payment"
    return Figure(Table(title, columns, table, tuple(notes)), panels, columns=1)


def _ends(evaluation: Evaluation) -> tuple[float, float] | None:
    low, high = evaluation.accuracy.low, evaluation.accuracy.high
    return None if low is None or high is None else (100 * low, 100 * high)
