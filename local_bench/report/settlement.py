"""The settlement of models as a table: for the leaderboard, a category, the terminal and papers; and ServImage's tables
3 and 7 and the break-even of a run for JSON and the exports: money in US dollars, shares as fractions of 1; None:
unknown, or the denominator is 0."""

from collections.abc import Mapping, Sequence
from typing import Any

from local_bench.analysis.economics import economics_of
from local_bench.analysis.settlement import Accounting
from local_bench.core.money import usd_number
from local_bench.core.table import Column, Table, table_of
from local_bench.report.text import percent, small_usd
from local_bench.runs.rundir import RunDir
from local_bench.settle.settlement import Settlement, Total
from local_bench.suites.published import figures_json

_INTERVAL = "95 % interval for tasks like these and the same decisions: the judge's errors are not in it."
COLUMNS = (
    Column("category", "category"),
    Column("model", "model"),
    Column("value_usd", "value", ",.2f", unit="$", about="The prices of the tasks, unscored ones included."),
    Column("revenue_usd", "revenue", ",.2f", higher_is_better=True, unit="$"),
    Column("low", "low", ",.2f", "95 %", unit="$", below=True, about=_INTERVAL),
    Column("high", "high", ",.2f", "95 %", unit="$", below=True, about=_INTERVAL),
    Column("bound_low", "low", ",.2f", "bounds", unit="$", below=True, about="If no unscored image were accepted."),
    Column("bound_high", "high", ",.2f", "bounds", unit="$", below=True, about="If all unscored images were accepted."),
    Column(
        "whole_usd", "full tasks only", ",.2f", unit="$", about="The prices of the tasks with every image accepted."
    ),
    Column("share", "share", percent, higher_is_better=True, bar=True, about="Of the tasks' value."),
    Column("share_low", "low", percent, "95 %", below=True),
    Column("share_high", "high", percent, "95 %", below=True),
    Column("tasks", "tasks accepted", percent, higher_is_better=True),
    Column("tasks_of", "tasks accepted", about="Tasks with every image accepted."),
    Column("images", "images accepted", percent, higher_is_better=True),
    Column("images_of", "images accepted"),
    Column("images_low", "low", percent, "95 %", below=True),
    Column("images_high", "high", percent, "95 %", below=True),
    Column("unscored", "unscored", ",.0f", about="They earn nothing and count as not accepted."),
    Column("open_usd", "open", ",.2f", unit="$", below=True, about="The value of the unscored images."),
    Column("without_inputs", "without inputs", ",.0f", about="Generated without all of their task's input images."),
    Column("refused", "refused by rules", about="Images, and tasks, that only a hard rule refuses."),
    Column("cost_usd", "cost", small_usd, unit="$", about="Of the devices held to generate the images."),
    Column("profit_usd", "profit", ",.2f", unit="$", about="Revenue of the first attempts minus the cost of all."),
    Column("group", "group", about="Models with a common letter do not differ significantly."),
)
PAPER = ("model", "revenue_usd", "low", "high", "share", "tasks", "images", "unscored", "cost_usd", "group")
Row = Mapping[str, Any]


def total_row(total: Total) -> dict[str, Any]:
    """The cells of a sum of tasks; without prices, those of money are empty."""
    requested, value = total.n + total.n_unscored, total.value_micro_usd
    low, high = total.revenue_interval_micro_usd or (None, None)
    row = {
        "tasks": total.task_acceptance,
        "tasks_of": f"{total.n_tasks_accepted:,} / {total.n_tasks:,}",
        "images": total.deliverable_acceptance,
        "images_of": f"{total.n_accepted:,} / {requested:,}",
        "images_low": total.deliverable_acceptance_low,
        "images_high": total.deliverable_acceptance_high,
        "unscored": total.n_unscored,
    }
    if not value:
        return row
    return row | {
        "value_usd": usd_number(value),
        "revenue_usd": usd_number(total.revenue_micro_usd),
        "low": None if low is None else usd_number(low),
        "high": None if high is None else usd_number(high),
        "share": total.share,
        "share_low": None if low is None else low / value,
        "share_high": None if high is None else high / value,
        "whole_usd": usd_number(total.whole_micro_usd),
        "open_usd": usd_number(total.open_micro_usd) if total.open_micro_usd else None,
    }


def model_row(settlement: Settlement) -> dict[str, Any]:
    """The cells of a model, with its costs."""
    cost, profit = settlement.cost_micro_usd, settlement.profit_micro_usd
    return {
        "model": settlement.model,
        **total_row(settlement.total),
        "cost_usd": None if cost is None else usd_number(cost),
        "profit_usd": None if profit is None or not settlement.total.value_micro_usd else usd_number(profit),
    }


def settlement_table(title: str, rows: Sequence[Row], left_out: Sequence[str] = ()) -> Table:
    """The rows of `total_row` and `model_row`, and what is added to them; tasks and images as counts."""
    return table_of(title, [column for column in COLUMNS if column.key not in ("tasks", "images", *left_out)], rows)


def paper_table(title: str, rows: Sequence[Row]) -> Table:
    """The columns that a paper shows; tasks and images as fractions."""
    return table_of(title, [column for column in COLUMNS if column.key in PAPER], rows)


def economics_json(run: RunDir, money: Accounting) -> dict[str, Any] | None:
    """ServImage's table 3 by model and rank, its table 7 by model with the metered cost and with an API's price
    (`api_`), if the config has one, and the break-even points; None if nothing is settled or no task has a price."""
    economics = economics_of(run, money)
    if economics is None:
        return None
    placed = sorted(economics.competition.placed.items(), key=lambda of_model: (of_model[1].rank, of_model[0]))
    reduced = {}
    for model, here, at_api in zip(economics.table.models, economics.by_ledger, economics.by_api, strict=True):
        api = {f"api_{name}": value for name, value in figures_json(at_api).items() if "model_contribution" not in name}
        reduced[model] = figures_json(here) | api
    return {
        "competition": {model: figures_json(ranking) for model, ranking in placed},
        "n_competition_open": economics.competition.n_open,
        "cost_reduction": reduced,
        "break_even": [*map(figures_json, economics.against)],
        **({"notes": economics.notes} if economics.notes else {}),
    }
