"""The header and settlement tables of the report, with every cell formatted as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from local_bench.analysis.settlement import Accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.money import usd
from local_bench.models.cards import cards
from local_bench.report.costs import cost_text
from local_bench.report.judging import judge_warnings
from local_bench.report.text import amount, count, interval, percent
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.roofline import impossible_timings
from local_bench.runs.rundir import RunDir
from local_bench.settle.settlement import Settlement, Total


@dataclass(frozen=True)
class SettlementRow:
    """Revenue of one model over a set of orders."""

    model: str
    value: str
    revenue: str
    revenue_interval: str
    share: str
    bar: tuple[float, float, float] | None
    """Low end, estimate and high end of the revenue as fractions of the value, at most 1; None if the value is 0."""
    tasks: str
    deliverables: str
    deliverables_interval: str
    unscored: str
    open: str
    cost: str = ""
    profit: str = ""


def model_order(run: RunDir) -> list[str]:
    """Return the models in config order, then any other models in the ledger by name."""
    labels = [m.label for m in run.config.models]
    return labels + [model for model in run.store.models() if model not in labels]


def thresholds(run: RunDir) -> dict[str, float]:
    """The acceptance rule's thresholds by score name."""
    return dict(thresholds_of(run.config))


def size_line(run: RunDir) -> str:
    """Return the size of the run: `12 tasks worth $1,234.50, 2 models, 32 images`."""
    n_tasks, value = run.store.task_totals()
    worth = count(n_tasks, "task") + (f" worth {usd(value)}" if value else "")
    return f"{worth}, {count(len(model_order(run)), 'model')}, {count(run.store.counts().done, 'image')}"


def warnings(run: RunDir, settlements: list[Settlement]) -> list[str]:
    """Return one warning per problem: small models, judges, impossible times, low coverage, unfinished work."""
    known = cards()
    small = [
        known[name]
        for name in dict.fromkeys([*(m.card for m in run.config.models), *(j.card for j in run.config.judges)])
        if name in known and known[name].source.build
    ]
    found = [
        f"{card.name} is a small model with random weights for testing: its outputs are meaningless."
        for card in small
        if card.source.random
    ]
    trained = [card.name for card in small if not card.source.random]
    if trained:
        found.append(
            f"{', '.join(trained)}: small models trained only on the synthetic printshop images. Their results "
            "are valid for these images only and do not apply to large models."
        )
    decided = run.config.judges or any(s.total.n for s in settlements)
    if not run.config.judges:
        found.append("The run has no judge" + ("." if decided else ": no image has a decision."))
    found += judge_warnings(run) + impossible_timings(run.store)
    unseen = unseen_inputs(run)
    requested = {s.model: s.total.n + s.total.n_unscored for s in settlements}
    blind = ", ".join(f"{model} {n:,} of {count(requested[model], 'image')}" for model, n in unseen.n_images.items())
    if blind:
        found.append(
            "Generated without all of their task's input images, which the model does not take (suite.unsupported): "
            f"{blind}. Judges and metrics compare them with the source all the same."
        )
    found += [
        f"{', '.join(models)} have the same pixels in {count(n, 'image')} of the same deliverables: if one was copied, "
        "it is judged and paid once per model."
        for models, n in run.store.shared_images().items()
    ]
    least = run.config.settlement.coverage_min
    for s in settlements:
        if decided and s.total.coverage < least:
            what = "tasks' value could be settled" if s.total.value_micro_usd else "images could be decided"
            found.append(
                f"{s.model}: {percent(s.total.coverage)} of the {what}, less than the required {percent(least)} "
                "(settlement.coverage_min)."
            )
    progress = run.store.progress()
    for row in progress:
        if row.n_planned:
            found.append(f"{row.model}: {row.n_planned:,} of {count(row.n, 'image')} have not been generated yet.")
        if row.n_undecided:
            found.append(
                f"{row.model}: {row.n_undecided:,} of {count(row.n_first, 'deliverable')} have no decision yet "
                "and count as unscored."
            )
    planned = {row.model for row in progress}
    return found + [f"{model}: no images are planned yet." for model in model_order(run) if model not in planned]


def settlement_rows(run: RunDir, accounting: Accounting) -> list[SettlementRow]:
    """Return one row per model over all orders, highest revenue first."""
    imported = {m.label for m in run.config.models if m.imported is not None}
    rows = []
    for s in accounting.settlements:
        cost = cost_text(accounting.price, s.cost_micro_usd, s.model in imported)
        profit = cost if s.profit_micro_usd is None else amount(s.profit_micro_usd)
        rows.append(_row(s.model, s.total, cost, profit))
    return rows


def rows_of(settlements: Sequence[Settlement]) -> list[SettlementRow]:
    """One row per model, without costs."""
    return [_row(s.model, s.total) for s in settlements]


def category_rows(settlements: list[Settlement]) -> dict[str, list[SettlementRow]]:
    """Return one row per model for every category."""
    categories = sorted({category for s in settlements for category in s.by_category})
    return {c: [_row(s.model, s.by_category[c]) for s in settlements if c in s.by_category] for c in categories}


def _row(model: str, t: Total, cost: str = "", profit: str = "") -> SettlementRow:
    ends = t.revenue_interval_micro_usd
    low, high = ends or (t.revenue_micro_usd, t.revenue_micro_usd)
    value = t.value_micro_usd
    bar = (low / value, t.revenue_micro_usd / value, high / value) if value else None
    return SettlementRow(
        model=model,
        value=usd(t.value_micro_usd),
        revenue=usd(t.revenue_micro_usd),
        revenue_interval=" to ".join(map(usd, ends)) if ends else "no interval",
        share=percent(t.share),
        bar=bar,
        tasks=f"{t.n_tasks_accepted:,}/{t.n_tasks:,}",
        deliverables=f"{t.n_accepted:,}/{t.n + t.n_unscored:,}",
        deliverables_interval=interval(t.deliverable_acceptance_low, t.deliverable_acceptance_high),
        unscored=f"{t.n_unscored:,}",
        open=f"{usd(t.open_micro_usd)} open" if t.n_unscored else "",
        cost=cost,
        profit=profit,
    )
