"""ServImage's tables 1 to 3 and 6 to 8 and figure 2, from decisions and prices."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from statistics import median
from typing import Any

from local_bench.core.errors import UserError
from local_bench.core.table import Cell, Column, Table
from local_bench.report.panels import Figure, Histogram
from local_bench.report.papers.inputs import Given, once
from local_bench.suites.api_prices import api_prices
from local_bench.suites.servimage import published as numbers
from local_bench.suites.servimage.export import Parts, parts
from local_bench.suites.servimage.export import notes as export_notes
from local_bench.suites.servimage.results import Order, check_images, read_annotations, read_orders, read_scores

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


def gathered(given: Given) -> Parts:
    """All sources as one table. UserError if a model is in two of them, or if their orders differ."""
    found = (
        [(run.path, parts(results)) for run, results in given.results]
        if given.runs
        else [(given.files[0], _from_files(given))]
    )
    once([(path, of.models) for path, of in found])
    first, orders = found[0][0], {order.task_id: order for order in found[0][1].orders}
    for path, of in found[1:]:
        own = {order.task_id: order for order in of.orders}
        differing = next((i for i in [*orders, *own] if orders.get(i) != own.get(i)), None)
        if differing is not None:
            raise UserError(
                f"{first} and {path} have other orders (the first that differs is {differing!r}): their models "
                "cannot be in one table, give runs of the same orders"
            )
    models = [model for _, of in found for model in of.models]
    return Parts(
        [image for _, of in found for image in of.images],
        found[0][1].orders,
        [score for _, of in found for score in of.scores],
        given.costs_of(models, {model: usd for _, of in found for model, usd in of.costs.items()}),
        models,
    )


def _from_files(given: Given) -> Parts:
    options = given.options
    if options.tasks is None:
        raise UserError("annotations contain no prices: give the orders with --tasks")
    orders = read_orders(options.tasks)
    annotations = read_annotations(given.files)
    scores = [] if options.scores is None else read_scores(options.scores)
    check_images([*annotations.images, *scores], orders)
    return Parts(annotations.images, orders, scores, {}, annotations.models)


def published(of: Parts) -> Mapping[str, Any]:
    """The published numbers, by `suites.servimage.published`, whose notes are left out: they are about the columns of
    `score`."""
    return numbers.published(of.images, of.orders, of.scores or None, of.costs or None, models=of.models).data


def _partial_sets(given: Given) -> list[str]:
    """The sets that were judged by a part of their images, one sentence per model."""
    return [note for _, results in given.results for note in export_notes(results)]


def decided(data: Mapping[str, Any], by_category: bool = False) -> list[str]:
    """How many orders and images of each model have a decision, one sentence per model."""
    notes = []
    for name, of in data["models"].items():
        printed = of["as_printed"]
        parts = [("", printed, of)]
        if by_category:
            categories = in_order(list(of["by_category"]))
            parts = [(f"{category_name(c)} ", printed["by_category"][c], of["by_category"][c]) for c in categories]
        counts = (
            f"{part}{n['n_tasks']} of {every['n_tasks']} orders and {n['n_deliverables']} of {every['n_deliverables']} "
            "images"
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


def table_1(given: Given) -> Table:
    """Orders, images, value and mean price by category; from the orders, independent of the results."""
    orders = gathered(given).orders
    rows = [_statistics(category_name(c), [o for o in orders if o.category == c]) for c in _categories(orders)]
    columns = (
        Column("category", "Category"),
        Column("tasks", "#Tasks", ","),
        Column("deliverables", "#Deliverables", ","),
        Column("value_usd_k", "Total Value ($k)", ".1f"),
        Column("price_usd", "Avg Price ($)", ",.2f"),
    )
    return Table("ServImage, table 1: statistics of the benchmark", columns, (*rows, _statistics("All", orders)))


def _categories(orders: Sequence[Order]) -> list[str]:
    return in_order([order.category for order in orders])


def _statistics(name: str, orders: Sequence[Order]) -> tuple[Cell, ...]:
    value = sum((order.price_usd for order in orders), Decimal(0))
    return name, len(orders), sum(o.deliverables for o in orders), float(value / 1000), float(value / len(orders))


def table_2(given: Given) -> Table:
    return standard("ServImage, table 2: standard settlement", published(gathered(given)), _partial_sets(given))


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
        of = [cell for category in categories for cell in _earned(printed["by_category"][category])[:2]]
        rows.append((name, *_earned(printed), *of))
    return Table(title, tuple(columns), tuple(rows), (_SETTLEMENT, *notes, *decided(data)))


def _earned(of: Mapping[str, Any]) -> tuple[Cell, ...]:
    acceptance = (of["task_acceptance"], of["deliverable_acceptance"])
    return of["revenue_usd"] / 1000, percent(of["share"]), *map(percent, acceptance)


def table_3(given: Given) -> Table:
    """The competition of all models of all sources."""
    of = gathered(given)
    data = published(of)
    rows = tuple((name, won["revenue_usd"] / 1000, won["rank"]) for name, won in data["competition"].items())
    columns = (MODEL, Column("revenue_usd_k", "Rev ($k)", ".1f", higher_is_better=True), Column("rank", "Rank", "d"))
    notes = numbers.competition_notes(of.models, of.scores or None, data["n_competition_open"])
    if given.options.people:
        notes += ["the scores that decide ties are the judges'", *given.judges]
    title = "ServImage, table 3: crowdsourcing competition"
    return Table(title, columns, rows, (*_partial_sets(given), *notes, *decided(data)))


def table_6(given: Given) -> Table:
    """The metered cost per image; without sources, the prices that the paper assumed for its APIs."""
    columns = (MODEL, Column("usd_per_image", "Price per image ($)", ".9g"))
    if not given.runs and not given.files:
        prices = api_prices("servimage")
        title = f"ServImage, table 6: API prices per call, as assumed in {prices.source}"
        return Table(title, columns, tuple((name, float(usd)) for name, usd in prices.exact.items()))
    of = gathered(given)
    rows = tuple((name, None if name not in of.costs else float(of.costs[name])) for name in of.models)
    notes = ("the costs are those that the meter found, or those given, and not prices of APIs",)
    return Table("ServImage, table 6: cost per image", columns, rows, notes)


def table_7(given: Given) -> Table:
    """Eqs. 6 to 8 with the cost of the images."""
    of = gathered(given)
    data = published(of)
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
    notes = (*_partial_sets(given), *numbers.cost_notes(of.models, of.costs), *decided(data))
    return Table("ServImage, table 7: cost reduction", columns, rows, notes)


def table_8(given: Given) -> Table:
    data = published(gathered(given))
    columns = (
        MODEL,
        Column("category", "Category"),
        *(Column(key, name, form, "", True) for key, name, form in (*_REVENUE, *_ACCEPTANCE)),
    )
    rows = tuple(
        (name, category_name(category), *_earned(of["as_printed"]["by_category"][category]))
        for name, of in data["models"].items()
        for category in in_order(list(of["by_category"]))
    )
    title = "ServImage, table 8: standard settlement by category"
    notes = (_SETTLEMENT, *_partial_sets(given), *decided(data, by_category=True))
    return Table(title, columns, rows, notes, ranked_within="category")


def figure_2(given: Given) -> Figure:
    """Prices of orders by category, on a logarithmic axis, with their medians."""
    orders = gathered(given).orders
    prices = {
        category_name(c): sorted(float(o.price_usd) for o in orders if o.category == c) for c in _categories(orders)
    }
    columns = (
        Column("category", "Category"),
        Column("tasks", "#Tasks", ","),
        *(Column(f"{key}_usd", f"{key.capitalize()} ($)", ",.2f") for key in ("least", "median", "mean", "greatest")),
    )
    rows = tuple((name, len(of), of[0], median(of), sum(of) / len(of), of[-1]) for name, of in prices.items())
    title = "ServImage, figure 2: distribution of prices, medians dashed"
    panels = tuple(Histogram(name, tuple(of), "price of an order, US dollars") for name, of in prices.items())
    return Figure(Table(title, columns, rows), panels)
