"""ServImage's tables 4 and 9 to 13 and figures 3 to 5: judges, people's labels, predictors of payment, of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from local_bench.analysis.agreement import Pair, agreement, judge_labels
from local_bench.analysis.official import image_results, run_results
from local_bench.analysis.payment import explained_alike, payment, predicted, rejected
from local_bench.analysis.people_settlement import settled_by_predictions
from local_bench.analysis.predictors.card import Card, difference_of, inputs_of, load
from local_bench.analysis.predictors.evaluation import Compared, report
from local_bench.analysis.predictors.predictions import n_used_tasks, predicted_by, used_tasks_note
from local_bench.annotation.protocol import OVERALL
from local_bench.annotation.ratings import PEOPLE
from local_bench.core.errors import UserError, count
from local_bench.core.money import usd
from local_bench.core.table import Cell, Column, Table
from local_bench.report.panels import Bars, Figure, Series
from local_bench.report.papers.inputs import Request
from local_bench.report.papers.servimage import MODEL, category_name, in_order, percent, published, standard
from local_bench.runs.payment import model_log_odds, read_predictions
from local_bench.runs.rundir import RunDir
from local_bench.settle.agreement import Agreement
from local_bench.settle.explain import COMPOSITE
from local_bench.settle.predictors.evaluation import Measured
from local_bench.settle.predictors.models import ExpectedRevenue
from local_bench.suites.servimage.results import parts

_NAMES = {
    "brf": "BRF",
    "veq": "VEQ",
    "veq_clarity": "VEQ: Clarity",
    "veq_realism": "VEQ: Realism",
    "veq_aesthetic": "VEQ: Aesthetic",
    "veq_text": "VEQ: Text",
    "cns": "CNS",
    COMPOSITE: "ServImageScore",
    OVERALL: "Overall",
}
_DIMENSIONS = ("brf", "veq", "cns", OVERALL)


def _people(request: Request) -> Path:
    files = request.options.people
    if len(files) != 1:
        raise UserError(f"--people must be one file here, but {len(files)} are given: put the labels into one file")
    return files[0]


def _name(score: str) -> str:
    return _NAMES.get(score, score)


def table_9(request: Request) -> Table:
    """Table 2 with predicted decisions instead of the run's own: by a trained predictor, or by one that is fitted
    to the run's own annotations of other tasks."""
    folders = request.options.predictor
    if len(folders) + bool(request.options.people) != 1:
        raise UserError("table-9 is by one predictor: give either --people, or --predictor once")
    expected: dict[str, ExpectedRevenue] = {}
    differences: list[str] = []
    if folders:
        card, lines = predicted_by(folders[0], request.run, request.options.allow_unlike)
        accepted = {line.work_id: line.accepted for line in lines}
        expected = {settled.predicted.model: settled.expected for settled in settled_by_predictions(request.run, lines)}
        kind = f"{card.kind}, trained on {', '.join(card.trained_on.runs)}"
        differences = [*trained_otherwise(card, request.runs), *used_tasks_note(*n_used_tasks(lines))]
    else:
        accepted = predicted(request.run, _people(request))
        kind = "logistic regression on the scores that decide, for each task fitted to the labels of the others"
    of_image = {
        (row.model, row.task.task_id, row.deliverable): row.work_id
        for row in image_results(request.run)
        if row.attempt == 1
    }
    data = parts(run_results(request.run))
    images = [
        replace(image, accepted=accepted.get(of_image[image.model, image.task_id, image.deliverable]))
        for image in data.images
    ]
    notes = [
        *differences,
        f"the predictor is {kind}, and accepts from a probability of one half on; the paper's is ServImageModel",
    ]
    for model, of_model in expected.items():
        ends = of_model.interval_micro_usd
        within = f" (95 %, of the choice of tasks: {usd(ends[0])} to {usd(ends[1])})" if ends else ""
        notes.append(
            f"expected revenue of {model}, the sum of probability times price and not part of the table: "
            f"{usd(of_model.expected_micro_usd)}{within}"
        )
    return standard(
        "ServImage, table 9: settlement by predicted payment", published(replace(data, images=images)), notes
    )


def _rates(pairs: list[Pair], measure: str) -> dict[str, Agreement | None]:
    return {pair.dimension: getattr(pair, measure) for pair in pairs}


def _n_units(rates: Mapping[str, Agreement | None]) -> str:
    return ", ".join(f"{_name(name)} {rate.n if (rate := rates.get(name)) else 0}" for name in _DIMENSIONS)


def table_10(request: Request) -> Table:
    """Agreement of each judge with the annotators' decisions."""
    agreements = agreement(request.run, _people(request))
    columns = (
        Column("judge", "Judge"),
        *(Column(f"{name}_vs_human", f"{_name(name)} vs Human", ".2f") for name in _DIMENSIONS),
    )
    pairs = [pair for pair in agreements.pairs if pair.against == PEOPLE]
    rows, notes = [], list[str]()
    for judge in dict.fromkeys(pair.judge for pair in pairs):
        rates = _rates([pair for pair in pairs if pair.judge == judge], "rate")
        rows.append((judge, *(rate.value if (rate := rates.get(name)) else None for name in _DIMENSIONS)))
        notes.append(f"labelled images that {judge} judged: {_n_units(rates)}")
    notes += agreements.notes
    return Table("ServImage, table 10: agreement of judges and people", columns, tuple(rows), tuple(notes))


def table_11(request: Request) -> Table:
    """Spearman's rank correlation over models of each pair of judges."""
    if len(judge_labels(request.run)) == 1:
        raise UserError(
            f"{request.run.path} has one judge: add another under `panel` in its config, run `local-bench judge` again"
        )
    agreements = agreement(request.run)
    columns = (
        Column("judges", "Pair of Judges"),
        *(Column(f"rho_{name}", f"ρ {_name(name)}", ".2f") for name in _DIMENSIONS),  # noqa: RUF001 (the paper's sign)
    )
    rows, notes = [], list[str]()
    for first, second in dict.fromkeys((pair.judge, pair.against) for pair in agreements.pairs):
        rho = _rates([pair for pair in agreements.pairs if (pair.judge, pair.against) == (first, second)], "rho")
        cells = (rate.value if (rate := rho.get(name)) else None for name in _DIMENSIONS)
        rows.append((f"{first} vs {second}", *cells))
        notes.append(f"models that {first} and {second} rank: {_n_units(rho)}")
    return Table("ServImage, table 11: rank correlation over models", columns, tuple(rows), tuple(notes))


def table_12(request: Request) -> Table:
    """The lowest dimension of every rejected image."""
    paid = payment(request.run, _people(request))
    failures = paid.failures
    categories = in_order([c for row in failures.rows for c in row.by_category])
    columns = (
        Column("dimension", "Dimension"),
        Column("overall_pct", "Overall (%)", ".1f"),
        *(Column(f"{category_name(c).lower()}_pct", f"{category_name(c)} (%)", ".1f") for c in categories),
        Column("mean_accepted", "Acc. Score", ".2f"),
        Column("mean_rejected", "Rej. Score", ".2f"),
        Column("cohens_d", "Cohen's d", ".2f"),
    )
    rows = tuple(
        (
            *(_name(row.name), percent(row.share), *(percent(row.by_category[c]) for c in categories)),
            *(row.mean_accepted, row.mean_rejected, row.cohens_d),
        )
        for row in failures.rows
    )
    notes = (
        f"{count(failures.n_rejected, 'images were')} rejected; {failures.n_unscored} of them lack a score and are in "
        "no share",
        f"{failures.n_tied} have several lowest scores and count for the first of them in the order of the rows",
        *paid.notes,
    )
    return Table("ServImage, table 12: dominant dimension of failure", columns, rows, notes)


def table_13(request: Request) -> Table:
    """The rejected image with the lowest score of each dimension."""
    examples = rejected(request.run, _people(request))
    titles = {task.task_id: task.title for task in request.run.store.tasks()}
    columns = (
        *(Column("dimension", "Dimension"), MODEL, Column("category", "Category")),
        *(Column("task_id", "Task"), Column("description", "Task Description")),
        *(Column("dominant_score", "Dominant Score", ".2f"), Column("failure_notes", "Failure Notes")),
    )
    rows = []
    for name, (row, scores) in examples.items():
        others = ", ".join(f"{_name(k)} {value:.2f}" for k, value in scores.items() if k != name)
        remark = f"lowest of its scores; {others}" if others else "its only score"
        model, task_id = row.candidate.model, row.candidate.task_id
        image_cells = (model, category_name(row.category), task_id, titles[task_id])
        rows.append((_name(name), *image_cells, scores[name], remark))
    notes = (
        "the paper's authors chose the examples and wrote the notes: here they are the lowest score and the others",
    )
    return Table("ServImage, table 13: examples of failure", columns, tuple(rows), notes)


def figure_3(request: Request) -> Figure:
    """Acceptance by bin of the composite score."""
    paid = payment(request.run, _people(request))
    bins = [b for b in paid.by_composite if b.n]
    columns = (
        Column("composite", "Composite score"),
        Column("images", "Images", ","),
        Column("acceptance_pct", "Acceptance (%)", ".1f"),
    )
    rows = tuple((f"{b.low:g} to {b.high:g}", b.n, percent(b.rate)) for b in bins)
    note = "the composite is the mean of BRF, VEQ and CNS that apply: the paper does not say how it combines them"
    title = "ServImage, figure 3: acceptance by composite score"
    shares = Series("acceptance", tuple(percent(b.rate) for b in bins))
    panel = Bars("labelled images", tuple(row[0] for row in rows), (shares,), "accepted, %")
    return Figure(Table(title, columns, rows, (note, *paid.notes)), (panel,))


def figure_5(request: Request) -> Figure:
    """AUC, Spearman's rho and PR-AUC of every score and metric of the run against payment, on the same images."""
    explained, left_out = explained_alike(request.run, _people(request))
    columns = (
        Column("metric", "Metric"),
        *(Column(key, name, ".3f") for key, name in (("auc", "AUC"), ("spearman", "Spearman"), ("pr_auc", "PR-AUC"))),
        Column("images", "Images", ","),
    )
    rows = tuple((_name(e.name), e.auc, e.spearman.value, e.pr_auc, e.n) for e in explained)
    series = tuple(
        Series(column.name, tuple(values))
        for column, values in zip(
            columns[1:4],
            ([e.auc for e in explained], [e.spearman.value for e in explained], [e.pr_auc for e in explained]),
            strict=True,
        )
    )
    notes = [
        "the paper's other metrics are of other benchmarks; here they are the metrics of the run",
        f"every row is of the same {explained[0].n} labelled images, which have all of these scores; metrics of which "
        "less is better count with their sign changed",
    ]
    if left_out:
        names = ", ".join(map(_name, left_out))
        notes.append(f"left out, because they do not apply to every labelled image or were not computed: {names}")
    title = "ServImage, figure 5: metrics against payment"
    panel = Bars("labelled images", tuple(_name(e.name) for e in explained), series)
    return Figure(Table(title, columns, rows, tuple(notes)), (panel,), columns=1)


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
            notes.append(
                f"{count(evaluated.n, 'images are')} evaluated; {evaluated.n_left_out} others trained the predictors"
            )
            notes += evaluated.notes
    return compared, notes


def trained_otherwise(card: Card, runs: Sequence[RunDir]) -> list[str]:
    """A sentence for every run whose judges or rubrics are not those that the predictor was trained with."""
    return [
        f"* not comparable: the predictor ({card.kind}) was trained with other judges or rubrics than those of "
        f"{run.path.name}"
        for run in runs
        if difference_of(card.inputs, inputs_of(run), run.path)
    ]


def _cells(rate: Measured | None) -> tuple[float | None, float | None, float | None]:
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
    accuracies = [_cells(e.accuracy) for e in evaluated.values()]
    ends = tuple(None if low is None or high is None else (low, high) for _, low, high in accuracies)
    overall = Series("accuracy", tuple(value for value, *_ in accuracies), ends)
    by_category = tuple(
        Series(name, tuple(_cells(e.by_category.get(c))[0] for c in categories)) for name, e in evaluated.items()
    )
    panels = (
        Bars("(b) payment decisions", names, (overall,), "accuracy, %"),
        Bars("(c) by category", tuple(map(category_name, categories)), by_category, "accuracy, %"),
    )
    title = "ServImage, figure 4: accuracy of predictors of payment"
    return Figure(Table(title, columns, table, tuple(notes)), panels, columns=1)
