"""ServImage's tables 2, 3, 7 and 8 from human decisions."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from local_bench.core.errors import count
from local_bench.core.table import Column, Table
from local_bench.settle.sensitivity import Point, flips, revenues
from local_bench.settle.settlement import Competition, Earnings, by_category, compete, earnings, savings
from local_bench.settle.table import ACCEPTED, REJECTED, UNSCORED, OutcomeTable, outcome_table, tasks_of
from local_bench.suites.published import (
    Published,
    by_model,
    dollars,
    figures_json,
    grid_json,
    grid_tables,
    listed,
    percent,
)
from local_bench.suites.servimage.results import Image, Parts, Scores

THRESHOLDS = tuple(Fraction(n, 2) for n in range(2, 11))
"""1 to 5 in steps of 0.5."""


def published(parts: Parts, require_success: bool = False, sensitivity: bool = False) -> Published:
    """Settle one table in all three scenarios."""
    images, scores, costs = parts.images, parts.scores, parts.costs
    table = tabulated(parts)
    totals, categories = earnings(table), by_category(table)
    saved = savings(table, {model: Fraction(cost) for model, cost in (costs or {}).items()})
    competition = compete(table, require_success)
    model_data = {
        model: {
            **figures_json(totals[m]),
            **figures_json(saved[m]),
            "by_category": {category: figures_json(earned[m]) for category, earned in categories.items()},
            "as_printed": figures_json(totals[m].as_printed)
            | {
                "by_category": {category: figures_json(earned[m].as_printed) for category, earned in categories.items()}
            },
        }
        for m, model in enumerate(table.models)
    }
    data: dict[str, Any] = {
        "suite": "servimage",
        "models": model_data,
        "competition": {model: figures_json(competition.placed[model]) for model in table.models},
        "n_competition_open": competition.n_open,
    }
    placed = sorted(competition.placed.items(), key=lambda item: item[1].rank)

    def as_printed(title: str, totals: Sequence[Earnings]) -> Table:
        """Full tasks only, rates over what was decided."""
        return by_model(title, table.models, [e.as_printed for e in totals], *_AS_PRINTED)

    tables = [
        by_model("by image (eq. 1)", table.models, totals, *_STANDING),
        as_printed("full tasks (as printed)", totals),
        *([by_model("model first, humans redo", table.models, saved, *_SAVINGS)] if costs is not None else []),
        by_model("competition", dict(placed).keys(), dict(placed).values(), *_PLACES),
        *(by_model(category, table.models, earned, *_MONEY, *_RATES) for category, earned in categories.items()),
        *(as_printed(f"{category}, full tasks (as printed)", earned) for category, earned in categories.items()),
    ]
    if sensitivity and scores is not None:
        grid = _by_threshold(images, table, scores)
        rank_changes = flips(
            {m: e.revenue_usd for m, e in zip(table.models, totals, strict=True)}, grid, lower_is_better=False
        )
        data["sensitivity"] = grid_json(grid, rank_changes, "revenue_usd")
        tables += grid_tables(grid, rank_changes)
    return Published(data, tables, _notes(table, scores, costs, competition))


def tabulated(parts: Parts) -> OutcomeTable:
    """The rows of the files as a table, models in the given order and then in order of their first row."""
    images, requested, scores = parts.images, parts.tasks, parts.scores
    tasks = tasks_of(
        [t.task_id for t in requested],
        [t.category for t in requested],
        [t.price_usd for t in requested],
        [t.deliverables for t in requested],
    )
    codes = {True: ACCEPTED, False: REJECTED, None: UNSCORED}
    totals = {} if scores is None else {(s.model, s.task_id, s.deliverable): s.total for s in scores}
    return outcome_table(
        tasks,
        list(dict.fromkeys([*parts.models, *(image.model for image in images)])),
        [i.model for i in images],
        [i.task_id for i in images],
        np.array([codes[i.accepted] for i in images], dtype=np.int64),
        None if scores is None else [totals.get((i.model, i.task_id, i.deliverable)) for i in images],
    )


def _by_threshold(images: Sequence[Image], table: OutcomeTable, scores: Sequence[Scores]) -> list[Point]:
    """The standard scenario decided by the judge's scores, as a function of the threshold that all scores must
    reach."""
    lowest = {(s.model, s.task_id, s.deliverable): s.lowest for s in scores}
    minima = [lowest.get((i.model, i.task_id, i.deliverable)) for i in images]
    models, tasks = [i.model for i in images], [i.task_id for i in images]
    return revenues(table.tasks, table.models, models, tasks, minima, THRESHOLDS)


_MONEY = (dollars("revenue_usd", "revenue"), Column("share", "share", percent))
_RATES = (Column("task_acceptance", "tasks", percent), Column("deliverable_acceptance", "images", percent))
_STANDING = (
    *(_MONEY[0], dollars("revenue_high_usd", "at best"), _MONEY[1], *_RATES),
    *(Column("n_unscored", "unscored"), Column("n_missing", "missing")),
)
_AS_PRINTED = (*_MONEY, *_RATES, Column("n_tasks", "tasks decided"), Column("n_deliverables", "images decided"))
_SAVINGS = (
    *(dollars("cost_usd", "cost"), Column("cost_savings", "savings", percent)),
    *(Column("model_contribution", "contribution", percent), Column("contribution_ratio", "ratio", ".4f")),
)
_PLACES = (_MONEY[0], Column("rank", "rank"), Column("n_won", "won"), Column("n_shared", "shared"))


def _notes(
    table: OutcomeTable, scores: Sequence[Scores] | None, costs: Mapping[str, Decimal] | None, competition: Competition
) -> list[str]:
    notes = []
    if missing := int(table.missing.sum()):
        rows = count(missing, "images have no row: they count")
        notes.append(f"{rows} as not accepted, and as accepted in values ending in _high")
    if unscored := int(table.unscored.sum()):
        notes.append(
            f"{count(unscored, 'images have no decision: they count')} as not accepted, and as accepted in _high"
        )
    return [*notes, *cost_notes(table.models, costs), *competition_notes(table.models, scores, competition.n_open)]


def cost_notes(models: Sequence[str], costs: Mapping[str, Decimal] | None) -> list[str]:
    """Which models have no cost, and which costs no model; `costs` is None without eqs. 6 to 8."""
    if costs is None:
        return []
    unpriced = [model for model in models if model not in costs]
    unused = [model for model in costs if model not in models]
    return [
        *([f"no cost for {listed(unpriced)}: values that depend on it are null"] if unpriced else []),
        *([f"a cost but no annotation for {listed(unused)}"] if unused else []),
    ]


def competition_notes(models: Sequence[str], scores: Sequence[Scores] | None, n_open: int) -> list[str]:
    """How ties of the competition are decided, and how many of its tasks are open."""
    notes = []
    if scores is None:
        notes.append("without --scores ties of the competition are shared equally")
    elif unused := list(dict.fromkeys(s.model for s in scores if s.model not in models)):
        notes.append(f"scores but no annotation for {listed(unused)}")
    if n_open:
        notes.append(f"{count(n_open, 'tasks of the competition are')} undecided and could go to another model")
    return notes
