"""The three scenarios of settlement: standard, competition (`compete`) and client savings (`savings`).

Standard: each model is paid for every task independently (ServImage, sec. 3.1, eq. 1; tables 2, 8).

`eq1`: the price of a task is split equally over its deliverables, and an accepted deliverable earns its part:
V_t = sum_i S_ti p_t / Q_t. Undecided deliverables earn nothing and are counted separately.

`as_printed`: what the paper's tables 2, 8 and 9 print, which is not eq. 1 (`AsPrinted`).

Both are evaluated on two kinds of data: `settle` sums the lines of one run in integer micro-USD (the amounts of a run
partition its prices exactly); `earnings` sums tables of outcomes as exact fractions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import pandas as pd

from local_bench.core.money import MICRO
from local_bench.settle.intervals import amounts, rate_interval, share_interval
from local_bench.settle.table import (
    ACCEPTED,
    UNSCORED,
    Ints,
    Mask,
    OutcomeTable,
    Tasks,
    cell_sums,
    decisions,
    exact,
    parts_micro_usd,
)


@dataclass(frozen=True)
class AsPrinted:
    """The settlement in the paper's tables 2, 8 and 9: a task is paid in full once every image is accepted and not
    at all before, the share is of the value of all tasks, and the rates are over the tasks and images with a
    decision. The authors' 251 labels of SeedEdit-3.0 give its printed row so, and another one by eq. 1."""

    revenue_usd: Fraction
    share: Fraction | None
    """Revenue / value of all tasks; None if the value is 0."""
    task_acceptance: Fraction | None
    """Fully accepted tasks / tasks with a decided image; None without any."""
    deliverable_acceptance: Fraction | None
    """Accepted / decided images; None without any."""
    n_tasks: int
    """Tasks with a decided image."""
    n_deliverables: int
    """Decided images."""


def as_printed(
    whole_usd: Fraction, value_usd: Fraction, n_tasks_accepted: int, n_tasks: int, n_accepted: int, n: int
) -> AsPrinted:
    """`whole_usd`: the price of the fully accepted tasks; `n_tasks` and `n`: the tasks and images with a decision."""
    rates = _ratio(whole_usd, value_usd), _ratio(n_tasks_accepted, n_tasks), _ratio(n_accepted, n)
    return AsPrinted(whole_usd, *rates, n_tasks, n)


# ---- one run, in micro-dollars


@dataclass(frozen=True)
class Total:
    """Revenue of one model over a set of tasks, with its uncertainty."""

    value_micro_usd: int
    """Value of the tasks, unscored ones included."""
    revenue_micro_usd: int
    revenue_interval_micro_usd: tuple[int, int] | None
    """95 % interval of the share of tasks like these, times `value_micro_usd`; None for fewer than two tasks."""
    open_micro_usd: int
    """Value of the unscored deliverables."""
    whole_micro_usd: int
    """Price of the tasks with every deliverable accepted."""
    n_tasks: int
    n_tasks_accepted: int
    """Tasks with every deliverable accepted."""
    n_tasks_unscored: int
    """Tasks with an undecided deliverable."""
    n_tasks_decided: int
    """Tasks with a decided deliverable."""
    n: int
    """Decided deliverables."""
    n_accepted: int
    n_unscored: int
    deliverable_acceptance_low: float
    deliverable_acceptance_high: float
    share: float | None
    """Revenue / value, in [0, 1]; None if the value is 0."""
    coverage: float
    """Decided share of the value, or of the deliverables where they have none."""
    task_acceptance: float | None
    deliverable_acceptance: float | None
    """Accepted / all deliverables, unscored ones counted as not accepted; None without any."""

    @property
    def bounds_micro_usd(self) -> tuple[int, int]:
        """The revenue if no unscored deliverable were accepted, and if all were."""
        return self.revenue_micro_usd, self.revenue_micro_usd + self.open_micro_usd

    @property
    def as_printed(self) -> AsPrinted:
        return as_printed(
            Fraction(self.whole_micro_usd, MICRO),
            Fraction(self.value_micro_usd, MICRO),
            self.n_tasks_accepted,
            self.n_tasks_decided,
            self.n_accepted,
            self.n,
        )


@dataclass(frozen=True)
class Settlement:
    """Standard scenario of one model."""

    model: str
    total: Total
    by_category: dict[str, Total]
    cost_micro_usd: int | None
    """Cost of the devices held to generate the images; None without a price."""

    @property
    def profit_micro_usd(self) -> int | None:
        """Revenue, of the first attempts, minus the cost, of all."""
        return None if self.cost_micro_usd is None else self.total.revenue_micro_usd - self.cost_micro_usd


def settle(
    lines: pd.DataFrame, costs_micro_usd: Mapping[str, int | None], *, intervals: bool = True
) -> list[Settlement]:
    """Standard scenario of every model in `lines`, highest revenue first, then by name. Without `intervals`, the
    revenues have none, which is much faster.

    A row is one deliverable of one task by one model: `model`, `task_id`, `category`, `price_micro_usd` (of the whole
    task), `deliverable` (from 1), `deliverables` (of the task for this model), `accepted` (1, 0, or missing if it is
    undecided) and `made` (whether there is an image).
    """
    task, task_ids = pd.factorize(lines["task_id"], sort=True)
    model, models = pd.factorize(lines["model"], sort=True)
    shape, decision, part = (len(models), len(task_ids)), decisions(lines["accepted"]), parts_micro_usd(lines)
    cell = model * shape[1] + task
    n, alike = cell_sums(cell, shape), (decision == ACCEPTED, decision == UNSCORED)
    cells = (
        n,
        *(cell_sums(cell[rows], shape) for rows in alike),
        *(cell_sums(cell[rows], shape, part[rows]) for rows in alike),
    )
    by_task = lines.drop_duplicates("task_id", keep="last").sort_values("task_id")
    category, names = pd.factorize(by_task["category"], sort=True)
    prices = exact(by_task["price_micro_usd"])
    settlements = []
    for m, name in enumerate(models):
        tasks = np.flatnonzero(n[m])
        groups = {group: tasks[category[tasks] == k] for k, group in enumerate(names)}
        by_category = {group: _total(cells, prices, m, of, intervals) for group, of in groups.items() if len(of)}
        total = _total(cells, prices, m, tasks, intervals)
        settlements.append(Settlement(name, total, by_category, costs_micro_usd.get(name)))
    return sorted(settlements, key=lambda s: (-s.total.revenue_micro_usd, s.model))


def _total(cells: Sequence[Ints], prices: Ints, m: int, tasks: Ints, intervals: bool) -> Total:
    """Of some tasks of model `m`, in order of their ids; `cells` are (M, T)."""
    n, accepted, unscored, earned, open_ = (sums[m, tasks] for sums in cells)
    values = prices[tasks]
    acceptance_low, acceptance_high = (intervals and rate_interval(accepted, n)) or (0.0, 1.0)
    value, revenue, still_open = int(values.sum()), int(earned.sum()), int(open_.sum())
    n_all, n_accepted, n_unscored, n_whole = map(int, (n.sum(), accepted.sum(), unscored.sum(), (accepted == n).sum()))
    return Total(
        value_micro_usd=value,
        revenue_micro_usd=revenue,
        revenue_interval_micro_usd=amounts(share_interval(earned, values), value) if intervals else None,
        open_micro_usd=still_open,
        whole_micro_usd=int(values[accepted == n].sum()),
        n_tasks=len(n),
        n_tasks_accepted=n_whole,
        n_tasks_unscored=int((unscored > 0).sum()),
        n_tasks_decided=int((n > unscored).sum()),
        n=n_all - n_unscored,
        n_accepted=n_accepted,
        n_unscored=n_unscored,
        deliverable_acceptance_low=acceptance_low,
        deliverable_acceptance_high=acceptance_high,
        share=revenue / value if value else None,
        coverage=1 - still_open / value if value else (n_all - n_unscored) / n_all if n_all else 1.0,
        task_acceptance=n_whole / len(n) if len(n) else None,
        deliverable_acceptance=n_accepted / n_all if n_all else None,
    )


# ---- tables of outcomes, exact


@dataclass(frozen=True)
class Earnings:
    """What one model earned on some tasks, all of which count, with the names of the JSON; `_high`: were all open
    images accepted; `ci95`: 95 % intervals for tasks like these, None for fewer than two tasks."""

    revenue_usd: Fraction
    revenue_high_usd: Fraction
    value_usd: Fraction
    share: Fraction | None
    """Revenue / value; None if the value is 0."""
    share_high: Fraction | None
    revenue_ci95_low_usd: float | None
    revenue_ci95_high_usd: float | None
    share_ci95_low: float | None
    share_ci95_high: float | None
    task_acceptance: Fraction | None
    """Of the tasks, those whose every image was accepted."""
    task_acceptance_high: Fraction | None
    task_acceptance_interval: list[float]
    deliverable_acceptance: Fraction | None
    deliverable_acceptance_high: Fraction | None
    n_tasks: int
    n_deliverables: int
    n_accepted: int
    n_unscored: int
    n_missing: int
    as_printed: AsPrinted


def earnings(table: OutcomeTable, mask: Mask | None = None) -> list[Earnings]:
    """Earnings of each model on the tasks in a (T,) mask (default: all), in table order."""
    tasks = table.tasks
    mask = np.ones(len(tasks.task_ids), dtype=np.bool_) if mask is None else mask
    revenue = revenue_usd(tasks, table.accepted, mask)
    revenue_high = revenue_usd(tasks, table.at_best, mask)
    whole = table.accepted == tasks.deliverables
    whole_usd = revenue_usd(tasks, np.where(whole, tasks.deliverables, 0), mask)
    cells = whole, table.at_best == tasks.deliverables, table.accepted, table.unscored, table.missing
    counts = [of[:, mask].sum(axis=1) for of in (*cells, table.made > table.unscored)]
    prices = tasks.price[mask].astype(np.float64)
    parts = (table.accepted / tasks.deliverables)[:, mask].astype(np.float64) * prices
    value, n_tasks = Fraction(int(tasks.price[mask].sum()), tasks.units_per_usd), int(mask.sum())
    n_deliverables = int(tasks.deliverables[mask].sum())
    result = []
    for m in range(len(table.models)):
        n_whole, whole_high, accepted, unscored, missing, n_decided = (int(count[m]) for count in counts)
        labelled = n_deliverables - unscored - missing
        low, high = share_interval(parts[m], prices) or (None, None)
        result.append(
            Earnings(
                revenue_usd=revenue[m],
                revenue_high_usd=revenue_high[m],
                value_usd=value,
                share=_ratio(revenue[m], value),
                share_high=_ratio(revenue_high[m], value),
                revenue_ci95_low_usd=None if low is None else low * float(value),
                revenue_ci95_high_usd=None if high is None else high * float(value),
                share_ci95_low=low,
                share_ci95_high=high,
                task_acceptance=_ratio(n_whole, n_tasks),
                task_acceptance_high=_ratio(whole_high, n_tasks),
                task_acceptance_interval=list(rate_interval(whole[m, mask], np.ones(n_tasks)) or (0.0, 1.0)),
                deliverable_acceptance=_ratio(accepted, n_deliverables),
                deliverable_acceptance_high=_ratio(n_deliverables - labelled + accepted, n_deliverables),
                n_tasks=n_tasks,
                n_deliverables=n_deliverables,
                n_accepted=accepted,
                n_unscored=unscored,
                n_missing=missing,
                as_printed=as_printed(whole_usd[m], value, n_whole, n_decided, accepted, labelled),
            )
        )
    return result


def by_category(table: OutcomeTable) -> dict[str, list[Earnings]]:
    """`earned` by category (table 8)."""
    tasks = table.tasks
    return {name: earnings(table, tasks.category == i) for i, name in enumerate(tasks.categories)}


def revenue_usd(tasks: Tasks, accepted: Ints, mask: Mask | Literal[True] = True) -> list[Fraction]:
    """Eq. 1 summed over the tasks in `mask`, for every row of an (M, T) table of accepted images."""
    totals = [Fraction(0)] * len(accepted)
    for q in np.unique(tasks.deliverables[mask]):  # tasks with the same number of deliverables share the divisor
        those = mask & (tasks.deliverables == q)
        sums = accepted[:, those] @ tasks.price[those]
        totals = [t + Fraction(int(s), int(q) * tasks.units_per_usd) for t, s in zip(totals, sums, strict=True)]
    return totals


def _ratio(part: Fraction | int, all_of: Fraction | int) -> Fraction | None:
    return Fraction(part) / all_of if all_of else None


@dataclass(frozen=True)
class Ranking:
    """Result of one model."""

    revenue_usd: Fraction
    rank: int
    """1 + the number of models that earn strictly more."""
    revenue_low_usd: Fraction
    """With every open image decided against this model and for its competitors."""
    revenue_high_usd: Fraction
    n_won: int
    """Tasks won alone."""
    n_shared: int
    """Tasks shared with others."""


@dataclass(frozen=True)
class Competition:
    placed: dict[str, Ranking]
    """By model, in table order."""
    n_open: int
    """Tasks that an open image or a missing score could give to other models."""


def compete(table: OutcomeTable, require_success: bool = False) -> Competition:
    """Crowdsourcing competition: every task is open to all models, the best submission is paid (ServImage, sec. 5.3).

    The winner of a task has the most accepted images; a tie goes to the highest sum of BRF, VEQ and CNS over the task's
    images; a remaining tie is shared equally. The winner takes the task's full price, even with nothing accepted,
    because the paper's table 3 adds up to the whole budget. `require_success` pays only for tasks accepted in full.

    A model without an image for a task does not compete for it. A leading model with an unscored image cannot be ranked
    among the tied leaders: it shares with the best ranked one (invariant 5: a missing score is not 0), and the task is
    counted as open.
    """
    tasks = table.tasks
    here = table.made > 0
    most = np.where(here, table.accepted, -1).max(axis=0, initial=-1)
    leads: Mask = here & (table.accepted == most)
    unrated = leads & (table.rated < table.made)
    rated = leads & ~unrated
    best = np.where(rated, table.score, -1).max(axis=0, initial=-1)
    wins: Mask = unrated | (rated & (table.score == best))
    paid = wins.sum(axis=0) > 0
    if require_success:
        paid &= most == tasks.deliverables
    wins &= paid
    shares = wins.sum(axis=0)
    revenue = [_revenue(tasks, np.where(won, shares, 0)) for won in wins]
    low, high = (_end(table, here, require_success, at_best) for at_best in (False, True))
    placed = {
        model: Ranking(
            revenue_usd=revenue[m],
            revenue_low_usd=_revenue(tasks, low[m]),
            revenue_high_usd=_revenue(tasks, high[m]),
            rank=1 + sum(other > revenue[m] for other in revenue),
            n_won=int((wins[m] & (shares == 1)).sum()),
            n_shared=int((wins[m] & (shares > 1)).sum()),
        )
        for m, model in enumerate(table.models)
    }
    return Competition(placed, int((low != high).any(axis=0).sum()))


def _revenue(tasks: Tasks, shares: Ints) -> Fraction:
    """Sum of the prices of T tasks, each divided by its `shares`; 0 is no share."""
    sums = ((int(k), int(tasks.price[shares == k].sum())) for k in np.unique(shares[shares > 0]))
    return sum((Fraction(total, k * tasks.units_per_usd) for k, total in sums), Fraction(0))


def _end(table: OutcomeTable, here: Mask, require_success: bool, at_best: bool) -> Ints:
    """(M, T) number of models that share the price, 0 where the model gets nothing, with everything open decided for
    the model of the row and against the others (`at_best`), or the reverse.

    Among models with equal counts, one whose images do not all have scores is above all others, or below.
    """
    values, ranks = np.unique(table.score, return_inverse=True)
    rank, top = 1 + ranks.reshape(table.score.shape), len(values) + 1
    unknown = table.rated < table.tasks.deliverables
    low, high = np.where(unknown, 0, rank), np.where(unknown, top, rank)
    worst = np.where(here, table.accepted, -1) * (top + 1) + low
    best = table.at_best * (top + 1) + high
    own, others = (best, worst) if at_best else (worst, best)
    shares = np.zeros_like(table.accepted)
    for m in range(len(own)):
        rivals = np.delete(others, m, axis=0)
        first = rivals.max(axis=0, initial=-1)
        equal = 1 + (rivals == first).sum(axis=0)
        shares[m] = np.where(own[m] > first, 1, np.where(own[m] == first, equal, 0))
    least = table.tasks.deliverables if require_success else 0
    return np.where(own // (top + 1) >= least, shares, 0)


@dataclass(frozen=True)
class ClientSavings:
    """Eqs. 6 to 8 for one model, as fractions; None with an unknown cost or a denominator of 0. `_high`: with all open
    images accepted."""

    cost_usd: Fraction | None
    cost_savings: Fraction | None
    cost_savings_high: Fraction | None
    model_contribution: Fraction | None
    model_contribution_high: Fraction | None
    contribution_ratio: Fraction | None
    contribution_ratio_high: Fraction | None


def savings(table: OutcomeTable, usd_per_image: Mapping[str, Fraction]) -> list[ClientSavings]:
    """Client savings of each model, in table order, if people redo the tasks that it fails (ServImage, sec. 5.4, eqs. 5
    to 8; table 7); `usd_per_image` by model. Every generated image is charged.

    B is the value of the tasks; a task succeeds if all its images are accepted:
    S = 1 - cost/B - sum_t Price(t) (1 - Success(t)) / B, M = sum_t Price(t) Success(t) / B and
    R = sum_t Price(t) Success(t) / (cost + sum_t Price(t) (1 - Success(t))), which is M / (1 - S).
    """
    costs = [
        None if model not in usd_per_image else usd_per_image[model] * int(table.made[m].sum())
        for m, model in enumerate(table.models)
    ]
    n = table.tasks.deliverables
    done, at_best = (
        revenue_usd(table.tasks, np.where(accepted == n, n, 0)) for accepted in (table.accepted, table.at_best)
    )  # sum_t Price(t) Success(t) for every model
    budget, saved = table.tasks.value_usd, []
    for cost, low, high in zip(costs, done, at_best, strict=True):
        shares = _ratio(low, budget), _ratio(high, budget)
        s, s_high = (None if cost is None or share is None else share - cost / budget for share in shares)
        ratios = (
            None if share is None or saving is None else contribution_ratio(share, saving)
            for share, saving in zip(shares, (s, s_high), strict=True)
        )
        saved.append(ClientSavings(cost, s, s_high, *shares, *ratios))
    return saved


def contribution_ratio(contribution: Fraction, savings: Fraction) -> Fraction | None:
    """R = M / (1 - S) (eqs. 6 to 8); None if nothing is spent."""
    return contribution / (1 - savings) if savings != 1 else None
