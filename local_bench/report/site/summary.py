"""The summary of a site: runs, leaderboard and the conditions under which runs are comparable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.comparability import comparable
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.money import usd_number
from local_bench.report import scores as score_tables
from local_bench.report import view
from local_bench.report.site.significance import significance
from local_bench.runs.contents import root
from local_bench.runs.rundir import RunDir
from local_bench.settle.settlement import Settlement, Total


@dataclass(frozen=True)
class ScoreMean:
    """A score of one model over its images."""

    name: str
    kind: str
    mean: float | None
    low: float | None
    """Of the 95 % interval for tasks like these; None for fewer than two."""
    high: float | None
    n: int
    n_unscored: int


def accounts_of(runs: Sequence[RunDir]) -> list[Accounting]:
    return [accounting(run.store, run.config.settlement) for run in runs]


def summary(runs: Sequence[RunDir], accounts: Sequence[Accounting]) -> dict[str, Any]:
    """The leaderboard and the other data of the start page, as JSON. Without clocks and absolute paths."""
    groups, differences = comparable(runs)
    return {
        "runs": [_run(run, found) for run, found in zip(runs, accounts, strict=True)],
        "models": [
            _model(i, run, one, groups[i])
            for i, (run, found) in enumerate(zip(runs, accounts, strict=True))
            for one in found.settlements
        ],
        "groups": groups,
        "differences": differences,
        "significance": significance(runs, groups),
        "better": {name: word for run in runs for name, word in score_tables.better(run).items()},
    }


def _run(run: RunDir, found: Accounting) -> dict[str, Any]:
    n_tasks, value = run.store.task_totals()
    counts = run.store.counts()
    return {
        "name": run.name,
        "suite": run.config.suite.name,
        "seed": run.config.seed,
        "n_tasks": n_tasks,
        "value_usd": usd_number(value),
        "n_images": counts.done,
        "n_unscored": counts.unscored,
        "n_planned": counts.candidates - counts.done - counts.unscored,
        "judges": list(judge_labels(run).values()),
        "thresholds": view.thresholds(run),
        "decimals": score_tables.decimals(run),
        "root": root(run.store),
        "warnings": view.warnings(run, found.settlements),
    }


def _model(index: int, run: RunDir, one: Settlement, group: int) -> dict[str, Any]:
    unseen = unseen_inputs(run)
    common = next((found.total for found in unseen.common if found.model == one.model), None)
    return {
        "run": index,
        "group": group,
        "name": one.model,
        "total": _total(one.total),
        "without_inputs": unseen.n_images.get(one.model, 0),
        "common": None if common is None else _total(common),
        "cost_usd": None if one.cost_micro_usd is None else usd_number(one.cost_micro_usd),
        "categories": {name: _total(total) for name, total in one.by_category.items()},
        "scores": [vars(score) for score in _scores(run, one.model)],
    }


def _total(total: Total) -> dict[str, Any]:
    low, high = total.revenue_interval_micro_usd or (None, None)
    return {
        "value_usd": usd_number(total.value_micro_usd),
        "revenue_usd": usd_number(total.revenue_micro_usd),
        "low_usd": None if low is None else usd_number(low),
        "high_usd": None if high is None else usd_number(high),
        "n_tasks": total.n_tasks,
        "n_tasks_accepted": total.n_tasks_accepted,
        "n": total.n,
        "n_accepted": total.n_accepted,
        "n_unscored": total.n_unscored,
        "acceptance_low": total.deliverable_acceptance_low,
        "acceptance_high": total.deliverable_acceptance_high,
    }


def _scores(run: RunDir, model: str) -> list[ScoreMean]:
    intervals = score_tables.score_intervals(run)
    found = {row.name: row for row in run.store.score_summaries() if row.model == model}
    means = []
    for name in score_tables.score_names(run):
        row = found.get(name)
        if row is None:
            continue
        low, high = intervals.get((name, model), (None, None))
        means.append(ScoreMean(name, row.kind, row.mean, low, high, row.n, row.n_unscored))
    return means
