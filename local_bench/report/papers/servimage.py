"""ServImage's tables 1 to 3 and 6 to 8 and figure 2, from decisions and prices."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from statistics import median
from typing import Any

from local_bench.core.errors import UserError, count
from local_bench.core.table import Cell, Column, Table
from local_bench.report.panels import Figure, Histogram
from local_bench.report.papers.inputs import Request, once
from local_bench.suites.published import api_prices
from local_bench.suites.servimage import published as numbers
from local_bench.suites.servimage.results import PaidTask, Parts, parts, read_parts
from local_bench.suites.servimage.results import notes as export_notes

_SETTLEMENT = (
    "settlement as printed: an order is paid once all its images are accepted, and rates are over what was decided; "
    "eq. 1, which pays each accepted image its part, is in `score` and `settle`"
)
ORDER = ("Portrait", "Product", "Digital")
"""The paper's order of categories; others come after, by name."""
MODEL = Column("model", "Model")
_REVENUE = (("revenue_usd_k", "Rev ($k)", ".2f"), ("share_pct", "Share (%)", ".1f"))
_ACCEPTANCE = (
    ("task_acceptance_pct", "Task Acc. (%)", ".2f"),
    ("deliverable_acceptance_pct", "Deliv. Acc. (%)", ".2f"),
)


def gathered(request: Request) -> Parts:
    """All sources as one table. UserError if a model is in two of them, or if their tasks differ."""
    options = request.options
    if request.runs:
        tables = [(run.path, parts(results)) for run, results in request.results]
    elif options.tasks is None:
        raise UserError("annotations contain no prices: give the tasks with --tasks")
    else:
        tables = [(request.files[0], read_parts(request.files, options.tasks, options.scores))]
    once([(path, table.models) for path, table in tables])
    first, tasks = tables[0][0], {task.task_id: task for task in tables[0][1].tasks}
    for path, table in tables[1:]:
        other_tasks = {task.task_id: task for task in table.tasks}
        differing = next((i for i in [*tasks, *other_tasks] if tasks.get(i) != other_tasks.get(i)), None)
        if differing is not None:
            raise UserError(
                f"{first} and {path} have other tasks (the first that differs is {differing!r}): their models "
                "cannot be in one table, give runs of the same tasks"
            )
    models = [model for _, table in tables for model in table.models]
    return Parts(
        [image for _, table in tables for image in table.images],
        tables[0][1].tasks,
        [score for _, table in tables for score in table.scores or ()] or None,
        request.costs_of(models, {model: usd for _, table in tables for model, usd in (table.costs or {}).items()}),
        models,
    )


def published(data: Parts) -> Mapping[str, Any]:
    """The published numbers, by `suites.servimage.published`, whose notes are left out: they are about the columns of
    `score`."""
    return numbers.published(data).data


def _partial_sets(request: Request) -> list[str]:
    """The sets that were judged by a part of their images, one sentence per model."""
    return [note for _, results in request.results for note in export_notes(results)]


def decided(data: Mapping[str, Any], by_category: bool = False) -> list[str]:
    """How many tasks and images of each model have a decision, one sentence per model."""
    notes = []
    for name, sums in data["models"].items():
        printed = sums["as_printed"]
        parts = [("", printed, sums)]
        if by_category:
            categories = in_order(list(sums["by_category"]))
            parts = [(f"{category_name(c)} ", printed["by_category"][c], sums["by_category"][c]) for c in categories]
        counts = (
            f"{part}{n['n_tasks']} of {count(every['n_tasks'], 'orders')} and {n['n_deliverables']} of "
            f"{count(every['n_deliverables'], 'images')}"
            for part, n, every in parts
        )
        notes.append(f"decided for {name}: {'; '.join(counts)}")
    return notes


def category_name(category: str) -> str:
    """`C-Portrait` as the paper prints it."""
    return category.removeprefix("C-")


def in_order(categories: Sequence[str]) -> list[str]:
    """Categories in the paper's order."""
    index = {name: i for i, name in enumerate(ORDER)}
    return sorted(set(categories), key=lambda c: (index.get(category_name(c), len(ORDER)), c))


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def table_1(request: Request) -> Table:
    """Tasks, images, value and mean price by category; from the tasks, independent of the results."""
    tasks = gathered(request).tasks
    rows = [_statistics(category_name(c), [t for t in tasks if t.category == c]) for c in _categories(tasks)]
    columns = (
        Column("category", "Category"),
        Column("tasks", "#Tasks", ","),
        Column("deliverables", "#Deliverables", ","),
        Column("value_usd_k", "Total Value ($k)", ".1f"),
        Column("price_usd", "Avg Price ($)", ",.2f"),
    )
    return Table("ServImage, table 1: statistics of the benchmark", columns, (*rows, _statistics("All", tasks)))


def _categories(tasks: Sequence[PaidTask]) -> list[str]:
    return in_order([task.category for task in tasks])


def _statistics(name: str, tasks: Sequence[PaidTask]) -> tuple[Cell, ...]:
    value = sum((task.price_usd for task in tasks), Decimal(0))
    return name, len(tasks), sum(t.deliverables for t in tasks), float(value / 1000), float(value / len(tasks))


def table_2(request: Request) -> Table:
    return standard("ServImage, table 2: standard settlement", published(gathered(request)), _partial_sets(request))


def standard(title: str, data: Mapping[str, Any], notes: Sequence[str] = ()) -> Table:
    """Tables 2 and 9: revenue, share and acceptance in all, then revenue and share by category."""
    models: Mapping[str, Any] = data["models"]
    categories = in_order([category for model in models.values() for category in model["by_category"]])
    columns = [MODEL]
    columns += [Column(f"total_{key}", name, form, "Total", True) for key, name, form in (*_REVENUE, *_ACCEPTANCE)]
    for category in map(category_name, categories):
        columns += [Column(f"{category.lower()}_{key}", name, form, category, True) for key, name, form in _REVENUE]
    rows = []
    for name, model in models.items():
        printed = model["as_printed"]
        cells = [cell for category in categories for cell in _earned(printed["by_category"][category])[:2]]
        rows.append((name, *_earned(printed), *cells))
    return Table(title, tuple(columns), tuple(rows), (_SETTLEMENT, *notes, *decided(data)))


def _earned(numbers: Mapping[str, Any]) -> tuple[Cell, ...]:
    acceptance = (numbers["task_acceptance"], numbers["deliverable_acceptance"])
    return numbers["revenue_usd"] / 1000, percent(numbers["share"]), *map(percent, acceptance)


def table_3(request: Request) -> Table:
    """The competition of all models of all sources."""
    table = gathered(request)
    data = published(table)
    rows = tuple((name, won["revenue_usd"] / 1000, won["rank"]) for name, won in data["competition"].items())
    columns = (MODEL, Column("revenue_usd_k", "Rev ($k)", ".1f", higher_is_better=True), Column("rank", "Rank", "d"))
    notes = numbers.competition_notes(table.models, table.scores, data["n_competition_open"])
    if request.options.people:
        notes += ["the scores that decide ties are the judges'", *request.judges]
    title = "ServImage, table 3: crowdsourcing competition"
    return Table(title, columns, rows, (*_partial_sets(request), *notes, *decided(data)))


def table_6(request: Request) -> Table:
    """The metered cost per image; without sources, the prices that the paper assumed for its APIs."""
    columns = (MODEL, Column("usd_per_image", "Price per image ($)", ".9g"))
    if not request.runs and not request.files:
        prices = api_prices("servimage")
        title = f"ServImage, table 6: API prices per call, as assumed in {prices.source}"
        return Table(title, columns, tuple((name, float(usd)) for name, usd in prices.exact.items()))
    table = gathered(request)
    usd = table.costs or {}
    rows = tuple((name, None if name not in usd else float(usd[name])) for name in table.models)
    notes = ("the costs are those that the meter found, or those given, and not prices of APIs",)
    return Table("ServImage, table 6: cost per image", columns, rows, notes)


def table_7(request: Request) -> Table:
    """Eqs. 6 to 8 with the cost of the images."""
    table = gathered(request)
    data = published(table)
    columns = (
        MODEL,
        Column("cost_savings_pct", "Cost Savings (%)", ".1f", higher_is_better=True),
        Column("model_contribution_pct", "Model Contribution (%)", ".1f", higher_is_better=True),
        Column("contribution_ratio", "Contribution Ratio", ".4f", higher_is_better=True),
    )
    rows = tuple(
        (name, percent(saved["cost_savings"]), percent(saved["model_contribution"]), saved["contribution_ratio"])
        for name, saved in data["models"].items()
    )
    notes = (*_partial_sets(request), *numbers.cost_notes(table.models, table.costs), *decided(data))
    return Table("ServImage, table 7: cost reduction", columns, rows, notes)


def table_8(request: Request) -> Table:
    data = published(gathered(request))
    columns = (
        MODEL,
        Column("category", "Category"),
        *(Column(key, name, form, "", True) for key, name, form in (*_REVENUE, *_ACCEPTANCE)),
    )
    rows = tuple(
        (name, category_name(category), *_earned(model["as_printed"]["by_category"][category]))
        for name, model in data["models"].items()
        for category in in_order(list(model["by_category"]))
    )
    title = "ServImage, table 8: standard settlement by category"
    notes = (_SETTLEMENT, *_partial_sets(request), *decided(data, by_category=True))
    return Table(title, columns, rows, notes, ranked_within="category")


def figure_2(request: Request) -> Figure:
    """Prices of tasks by category, on a logarithmic axis, with their medians."""
    tasks = gathered(request).tasks
    prices = [
        (category_name(c), sorted(float(t.price_usd) for t in tasks if t.category == c)) for c in _categories(tasks)
    ]
    columns = (
        Column("category", "Category"),
        Column("tasks", "#Tasks", ","),
        *(Column(f"{key}_usd", f"{key.capitalize()} ($)", ",.2f") for key in ("least", "median", "mean", "greatest")),
    )
    rows = tuple((name, len(usd), usd[0], median(usd), sum(usd) / len(usd), usd[-1]) for name, usd in prices)
    title = "ServImage, figure 2: distribution of prices, medians dashed"
    panels = tuple(Histogram(name, tuple(usd), "price of a task, US dollars") for name, usd in prices)
    return Figure(Table(title, columns, rows), panels)
