"""What a report says of its runs together: the models with their results, and which runs are comparable."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from local_bench.analysis.comparability import comparable
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.report.overview import overview
from local_bench.report.scores import better, score_intervals, score_names
from local_bench.report.site.significance import significance
from local_bench.runs.rundir import RunDir
from local_bench.runs.store.rows import ScoreSummary
from local_bench.settle.settlement import Settlement


@dataclass(frozen=True)
class Model:
    """A model in one run."""

    run: int
    group: int
    """Of comparable runs."""
    label: str
    """Its name; with the run's name if there are several runs."""
    settlement: Settlement
    common: Settlement | None
    """The results on the tasks that all models of the run support."""
    without_inputs: int
    """Images generated without all of their task's input images."""
    n_images: int
    """Requested, of all attempts; the settlement is of the first ones."""
    scores: dict[str, ScoreSummary]
    intervals: dict[str, tuple[float, float]]
    """Score -> 95 % interval of its mean over tasks."""

    @property
    def key(self) -> tuple[int, str]:
        return self.run, self.settlement.model


@dataclass(frozen=True)
class Summary:
    names: Sequence[str]
    """Of the runs."""
    models: list[Model]
    """As on the leaderboard: comparable runs together, the highest revenue first."""
    differences: list[str]
    """Why runs are not comparable, one sentence each."""
    significance: list[dict[str, Any]]
    lower_is_better: frozenset[str]
    """Names of scores."""

    @property
    def groups(self) -> list[int]:
        return list(dict.fromkeys(model.group for model in self.models))

    @property
    def priced(self) -> bool:
        return any(model.settlement.total.value_micro_usd for model in self.models)

    def of_group(self, group: int) -> "Summary":
        models = [model for model in self.models if model.group == group]
        keys = {model.key for model in models}
        pairs = [pair for pair in self.significance if {tuple(pair["a"]), tuple(pair["b"])} <= keys]
        return replace(self, models=models, significance=pairs)

    def sentences(self, accounts: Sequence[Accounting]) -> list[str]:
        """The results of comparable runs in a few sentences (`overview`)."""
        labels = {model.key: model.label for model in self.models}
        pairs = [p | {end: [p[end][0], labels[tuple(p[end])]] for end in ("a", "b")} for p in self.significance]
        money = [accounts[run] for run in dict.fromkeys(model.run for model in self.models)]
        settlements = [replace(model.settlement, model=model.label) for model in self.models]
        common = [replace(model.common, model=model.label) for model in self.models if model.common]
        costs = [row for account in money for row in account.costs]
        prices = [account.price for account in money if account.costs]
        several = any(m.n_images > m.settlement.total.n + m.settlement.total.n_unscored for m in self.models)
        together = Accounting(settlements, costs, prices[0] if all(prices) and prices else None)
        return overview(together, pairs, common, "first attempt" if several else "image", len(money))


def accounts_of(runs: Sequence[RunDir]) -> list[Accounting]:
    return [accounting(run.store, run.config.settlement) for run in runs]


def summary(runs: Sequence[RunDir], accounts: Sequence[Accounting]) -> Summary:
    groups, differences = comparable(runs)
    models = [
        model
        for i, (run, money) in enumerate(zip(runs, accounts, strict=True))
        for model in _models(i, run, money, groups[i], len(runs) > 1)
    ]
    totals = {model.key: model.settlement.total for model in models}
    models.sort(key=lambda m: (m.group, -totals[m.key].revenue_micro_usd, -totals[m.key].n_accepted))
    lower = frozenset(name for run in runs for name, words in better(run).items() if "low" in words)
    return Summary([run.name for run in runs], models, differences, significance(runs, groups), lower)


def _models(index: int, run: RunDir, money: Accounting, group: int, several: bool) -> list[Model]:
    unseen, intervals, n_images = unseen_inputs(run), score_intervals(run), run.store.n_candidates()
    stored = {(row.model, row.name): row for row in run.store.score_summaries()}
    common = {settlement.model: settlement for settlement in unseen.common}
    names = score_names(run)
    return [
        Model(
            index,
            group,
            f"{settlement.model} ({run.name})" if several else settlement.model,
            settlement,
            common.get(settlement.model),
            unseen.n_images.get(settlement.model, 0),
            n_images[settlement.model],
            {name: stored[settlement.model, name] for name in names if (settlement.model, name) in stored},
            {name: intervals[name, settlement.model] for name in names if (name, settlement.model) in intervals},
        )
        for settlement in money.settlements
    ]
