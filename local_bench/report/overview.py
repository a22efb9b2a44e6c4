"""A run's results in a few sentences: which model earned most, whether that is significant, and what it cost."""

from collections.abc import Sequence
from typing import Any

from local_bench.analysis.settlement import Accounting
from local_bench.core.money import usd
from local_bench.report.text import amount, count, duration, interval, percent
from local_bench.report.view import cost_text
from local_bench.settle.settlement import Settlement

ALPHA = 0.05


def overview(money: Accounting, pairs: Sequence[dict[str, Any]], common: Sequence[Settlement] = ()) -> list[str]:
    """The sentences, most important first; `pairs` are the paired differences of `significance`, `common` the results
    on the tasks that all models support. Empty before the run is settled."""
    ranked = _ranked(money.settlements)
    if not ranked or not ranked[0].total.n + ranked[0].total.n_unscored:
        return []
    lines = [_first(ranked[0])]
    if len(ranked) > 1 and (ranked[0].total.revenue_micro_usd or ranked[0].total.n_accepted):
        lines.append(_differences(ranked, pairs))
    if common:
        n_tasks = count(common[0].total.n_tasks, "task")
        lines.append(f"On the {n_tasks} that all models support with all input images: {_first(_ranked(common)[0])}")
    lines.append(_certainty(ranked))
    if held_ns := sum(row.held_ns for row in money.costs):
        cost = "" if money.price is None else f", which cost {cost_text(money.price, money.cost_micro_usd)}"
        lines.append(f"The run held its devices for {duration(held_ns)}{cost}.")
    return lines


def _ranked(settlements: Sequence[Settlement]) -> list[Settlement]:
    return sorted(settlements, key=lambda s: (-s.total.revenue_micro_usd, -s.total.n_accepted, s.model))


def _first(best: Settlement) -> str:
    total = best.total
    images = total.n + total.n_unscored
    if not total.value_micro_usd and not total.n_accepted:
        return f"No image was accepted: each model has {count(images, 'image')}."
    if not total.value_micro_usd:
        ends = interval(total.deliverable_acceptance_low, total.deliverable_acceptance_high)
        return (
            f"{best.model} has the most images accepted: {total.n_accepted:,} of {images:,} "
            f"({percent(total.n_accepted / images)}; 95 % interval {ends})."
        )
    if not total.n:
        return f"Nothing was decided of the {usd(total.value_micro_usd)} that the tasks are worth."
    if not total.revenue_micro_usd:
        return f"No model earned anything of the {usd(total.value_micro_usd)} that the tasks are worth."
    ends_usd = total.revenue_interval_micro_usd
    between = "" if ends_usd is None else f"; 95 % interval {usd(ends_usd[0])} to {usd(ends_usd[1])}"
    cost = "" if best.cost_micro_usd is None else f" Its images cost {amount(best.cost_micro_usd)} to generate."
    return (
        f"{best.model} earned the most: {usd(total.revenue_micro_usd)} of {usd(total.value_micro_usd)} "
        f"({percent(total.share)}{between}).{cost}"
    )


def _differences(ranked: Sequence[Settlement], pairs: Sequence[dict[str, Any]]) -> str:
    best = ranked[0].model
    p = {}
    for pair in pairs:
        if best in (pair["a"][1], pair["b"][1]):
            p[pair["b"][1] if pair["a"][1] == best else pair["a"][1]] = pair["p_holm"]
    not_sure = [s.model for s in ranked[1:] if (p.get(s.model) is None or p[s.model] >= ALPHA)]
    test = "(paired test over tasks, corrected for all pairs of models)"
    n = len(ranked) - 1
    if not not_sure:
        return f"Its lead over {'the other model' if n == 1 else f'all {n} other models'} is significant {test}."
    others = ", ".join(not_sure[:5]) + (f" and {len(not_sure) - 5} more" if len(not_sure) > 5 else "")
    over = f"is significant over {n - len(not_sure)} of {n} other models, but not over {others}"
    return f"Its lead {over if len(not_sure) < n else f'over {others} is not significant'} {test}."


def _certainty(ranked: Sequence[Settlement]) -> str:
    unscored = sum(s.total.n_unscored for s in ranked)
    if not unscored:
        return f"All {sum(s.total.n for s in ranked):,} requested images were decided."
    worst = min(ranked, key=lambda s: s.total.coverage)
    open_ = max(s.total.open_micro_usd for s in ranked)
    could = f", and could add up to {usd(open_)} to a model's revenue" if open_ else ""
    return (
        f"{count(unscored, 'image')} could not be decided{could}; the least coverage is that of {worst.model}, "
        f"{percent(worst.total.coverage)} of {'the value' if worst.total.value_micro_usd else 'its images'}."
    )
