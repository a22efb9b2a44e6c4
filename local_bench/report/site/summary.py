"""What a report says of its runs together: the models with their results, and which runs are comparable;
and in a few sentences which model earned most, whether that is significant, and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from local_bench.analysis.comparability import comparable
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.errors import count
from local_bench.core.money import usd, usd_fine
from local_bench.report.site.significance import ALPHA, Pair, label, significance
from local_bench.report.text import amount, duration, interval, percent
from local_bench.report.view import better, score_intervals, score_names
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


@dataclass(frozen=True)
class Summary:
    names: Sequence[str]
    """Of the runs."""
    models: list[Model]
    """As on the leaderboard: comparable runs together, the highest revenue first."""
    differences: list[str]
    """Why runs are not comparable, one sentence each."""
    significance: list[Pair]
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
        labels = {model.label for model in models}
        pairs = [pair for pair in self.significance if {pair.a, pair.b} <= labels]
        return replace(self, models=models, significance=pairs)

    def sentences(self, accounts: Sequence[Accounting]) -> list[str]:
        """The results of comparable runs in a few sentences (`overview`)."""
        money = [accounts[run] for run in dict.fromkeys(model.run for model in self.models)]
        settlements = [replace(model.settlement, model=model.label) for model in self.models]
        common = [replace(model.common, model=model.label) for model in self.models if model.common]
        costs = [row for account in money for row in account.costs]
        prices = [account.price for account in money if account.costs]
        several = any(m.n_images > m.settlement.total.n + m.settlement.total.n_unscored for m in self.models)
        together = Accounting(settlements, costs, prices[0] if all(prices) and prices else None)
        return overview(together, self.significance, common, "first attempt" if several else "image", len(money))


def accounts_of(runs: Sequence[RunDir]) -> list[Accounting]:
    return [accounting(run.store, run.config.settlement) for run in runs]


def summary(runs: Sequence[RunDir], accounts: Sequence[Accounting]) -> Summary:
    groups, differences = comparable(runs)
    models = [
        model
        for i, (run, money) in enumerate(zip(runs, accounts, strict=True))
        for model in _models(i, run, money, groups[i], len(runs) > 1)
    ]
    models.sort(key=lambda m: (m.group, -m.settlement.total.revenue_micro_usd, -m.settlement.total.n_accepted))
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
            label(run, settlement.model, several),
            settlement,
            common.get(settlement.model),
            unseen.n_images.get(settlement.model, 0),
            n_images[settlement.model],
            {name: stored[settlement.model, name] for name in names if (settlement.model, name) in stored},
            {name: intervals[name, settlement.model] for name in names if (name, settlement.model) in intervals},
        )
        for settlement in money.settlements
    ]


def overview(
    money: Accounting, pairs: Sequence[Pair], common: Sequence[Settlement] = (), noun: str = "image", n_runs: int = 1
) -> list[str]:
    """The sentences, most important first; `pairs` are the paired differences of `significance`, `common` the results
    on the tasks that all models support, `noun` what is decided. Empty before the run is settled."""
    ranked = _ranked(money.settlements)
    if not ranked or not ranked[0].total.n + ranked[0].total.n_unscored:
        return []
    lines = [_first(ranked, noun)]
    if len(ranked) > 1 and (ranked[0].total.revenue_micro_usd or ranked[0].total.n_accepted):
        lines += _differences(ranked, pairs)
    if common:
        n_tasks = count(common[0].total.n_tasks, "tasks")
        lines.append(f"On the {n_tasks} that all models support with all input images: {_first(_ranked(common), noun)}")
    lines.append(_certainty(ranked, noun))
    if held_ns := sum(row.held_ns for row in money.costs):
        cost = "" if money.cost_micro_usd is None else f", which cost {usd_fine(money.cost_micro_usd)}"
        runs = "The run held its" if n_runs == 1 else f"The {n_runs} runs held their"
        lines.append(f"{runs} devices for {duration(held_ns)}{cost}.")
    return lines


def _ranked(settlements: Sequence[Settlement]) -> list[Settlement]:
    return sorted(settlements, key=lambda s: (-s.total.revenue_micro_usd, -s.total.n_accepted, s.model))


def _tied(ranked: Sequence[Settlement]) -> list[str]:
    best = ranked[0].total
    by_money = bool(best.value_micro_usd)
    return [
        s.model
        for s in ranked
        if s.total.revenue_micro_usd == best.revenue_micro_usd and (by_money or s.total.n_accepted == best.n_accepted)
    ]


def _first(ranked: Sequence[Settlement], noun: str) -> str:
    best, tied = ranked[0], _tied(ranked)
    total, names, has, equally = best.total, best.model, "has", ""
    if len(tied) > 1:
        names, has, equally = f"{', '.join(tied[:-1])} and {tied[-1]}", "have", ", equally"
    images = total.n + total.n_unscored
    if not any(s.total.n for s in ranked):
        worth = f"the {usd(total.value_micro_usd)} that the tasks are worth"
        each = f"{count(images, f'{noun}s')} of each model"
        return f"Nothing was decided of {worth if total.value_micro_usd else each}."
    if not total.value_micro_usd and not total.n_accepted:
        return f"No {noun} was accepted: each model has {count(images, f'{noun}s')}."
    if not total.value_micro_usd:
        ends = interval(total.deliverable_acceptance_low, total.deliverable_acceptance_high)
        return (
            f"{names} {has} the most {noun}s accepted{equally}: {total.n_accepted:,} of {images:,} "
            f"({percent(total.n_accepted / images)}; 95 % interval {ends})."
        )
    if not total.revenue_micro_usd:
        return f"No model earned anything of the {usd(total.value_micro_usd)} that the tasks are worth."
    ends_usd = total.revenue_interval_micro_usd
    between = "" if ends_usd is None else f"; 95 % interval {usd(ends_usd[0])} to {usd(ends_usd[1])}"
    cost = ""
    if best.cost_micro_usd is not None and len(tied) == 1:
        cost = f" Its images cost {amount(best.cost_micro_usd)} to generate."
    return (
        f"{names} earned the most{equally}: {usd(total.revenue_micro_usd)} of {usd(total.value_micro_usd)} "
        f"({percent(total.share)}{between}).{cost}"
    )


def _differences(ranked: Sequence[Settlement], pairs: Sequence[Pair]) -> list[str]:
    """Whether the lead of the best models over the others is significant; empty if there are no others."""
    tied = _tied(ranked)
    sure = {  # (better, worse): on the tasks of both, the model that earned less can be the better one
        (a, b)
        for pair in pairs
        for a, b, sign in ((pair.a, pair.b, 1), (pair.b, pair.a, -1))
        if pair.p_holm is not None and pair.p_holm < ALPHA and sign * (pair.estimate or 0) > 0
    }
    others = [s.model for s in ranked if s.model not in tied]
    if not others:
        return []
    not_sure = [other for other in others if not all((best, other) in sure for best in tied)]
    test = "(paired test over tasks, corrected for all pairs of models)"
    n, its = len(others), "Its" if len(tied) == 1 else "Their"
    if not not_sure:
        return [f"{its} lead over {'the other model' if n == 1 else f'all {n} other models'} is significant {test}."]
    named = ", ".join(not_sure[:5]) + (f" and {len(not_sure) - 5} more" if len(not_sure) > 5 else "")
    over = f"is significant over {n - len(not_sure)} of {n} other models, but not over {named}"
    return [f"{its} lead {over if len(not_sure) < n else f'over {named} is not significant'} {test}."]


def _certainty(ranked: Sequence[Settlement], noun: str) -> str:
    unscored = sum(s.total.n_unscored for s in ranked)
    if not unscored:
        return f"All {sum(s.total.n for s in ranked):,} requested {noun}s were decided."
    worst = min(ranked, key=lambda s: s.total.coverage)
    open_ = max(s.total.open_micro_usd for s in ranked)
    could = f", and could add up to {usd(open_)} to a model's revenue" if open_ else ""
    return (
        f"{count(unscored, f'{noun}s')} could not be decided{could}; the least coverage is that of {worst.model}, "
        f"{percent(worst.total.coverage)} of {'the value' if worst.total.value_micro_usd else f'its {noun}s'}."
    )
