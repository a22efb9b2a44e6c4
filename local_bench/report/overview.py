"""A run's results in a few sentences: which model earned most, whether that is significant, and what it cost."""

from collections.abc import Sequence
from typing import Any

from local_bench.analysis.settlement import Accounting
from local_bench.core.money import usd
from local_bench.report.site.significance import ALPHA
from local_bench.report.text import amount, count, duration, interval, percent
from local_bench.report.view import cost_text
from local_bench.settle.settlement import Settlement

Pairs = Sequence[dict[str, Any]]


def overview(
    money: Accounting, pairs: Pairs, common: Sequence[Settlement] = (), noun: str = "image", n_runs: int = 1
) -> list[str]:
    """The sentences, most important first; `pairs` are the paired differences of `significance`, `common` the results
    on the tasks that all models support, `noun` what is decided. Empty before the run is settled."""
    ranked = _ranked(money.settlements)
    if not ranked or not ranked[0].total.n + ranked[0].total.n_unscored:
        return []
    lines = [_first(ranked)]
    if len(ranked) > 1 and (ranked[0].total.revenue_micro_usd or ranked[0].total.n_accepted):
        lines += _differences(ranked, pairs)
    if common:
        n_tasks = count(common[0].total.n_tasks, "task")
        lines.append(f"On the {n_tasks} that all models support with all input images: {_first(_ranked(common))}")
    lines.append(_certainty(ranked, noun))
    if held_ns := sum(row.held_ns for row in money.costs):
        cost = "" if money.price is None else f", which cost {cost_text(money.price, money.cost_micro_usd)}"
        runs = "The run held its" if n_runs == 1 else f"The {n_runs} runs held their"
        lines.append(f"{runs} devices for {duration(held_ns)}{cost}.")
    return lines


def _ranked(settlements: Sequence[Settlement]) -> list[Settlement]:
    return sorted(settlements, key=lambda s: (-s.total.revenue_micro_usd, -s.total.n_accepted, s.model))


def _tied(ranked: Sequence[Settlement]) -> list[str]:
    """The models with the best result."""
    best = ranked[0].total
    by_money = bool(best.value_micro_usd)
    return [
        s.model
        for s in ranked
        if s.total.revenue_micro_usd == best.revenue_micro_usd and (by_money or s.total.n_accepted == best.n_accepted)
    ]


def _first(ranked: Sequence[Settlement]) -> str:
    best, tied = ranked[0], _tied(ranked)
    total, names, has, equally = best.total, best.model, "has", ""
    if len(tied) > 1:
        names, has, equally = f"{', '.join(tied[:-1])} and {tied[-1]}", "have", ", equally"
    images = total.n + total.n_unscored
    if not any(s.total.n for s in ranked):
        worth = f"the {usd(total.value_micro_usd)} that the tasks are worth"
        each = f"{count(images, 'image')} of each model"
        return f"Nothing was decided of {worth if total.value_micro_usd else each}."
    if not total.value_micro_usd and not total.n_accepted:
        return f"No image was accepted: each model has {count(images, 'image')}."
    if not total.value_micro_usd:
        ends = interval(total.deliverable_acceptance_low, total.deliverable_acceptance_high)
        return (
            f"{names} {has} the most images accepted{equally}: {total.n_accepted:,} of {images:,} "
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


def _differences(ranked: Sequence[Settlement], pairs: Pairs) -> list[str]:
    """Whether the lead of the best models over the others is significant; empty if there are no others."""
    tied = _tied(ranked)
    sure = {  # (better, worse): on the tasks of both, the model that earned less can be the better one
        (pair[a][1], pair[b][1])
        for pair in pairs
        for a, b, sign in (("a", "b", 1), ("b", "a", -1))
        if pair["p_holm"] is not None and pair["p_holm"] < ALPHA and sign * (pair["difference"] or 0) > 0
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
        f"{count(unscored, noun)} could not be decided{could}; the least coverage is that of {worst.model}, "
        f"{percent(worst.total.coverage)} of {'the value' if worst.total.value_micro_usd else f'its {noun}s'}."
    )
