"""What a judge is worth where the truth is known: how often its answers are true, and the money that it gets wrong.

Three sums stand beside each other: what the judge's decisions pay; what the same rule would pay if the judge were
faultless; what clients pay who see the truth. The first two differ by the judge's faults, the last two by the rule's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from local_bench.settle.agreement import Agreement, agreement_rate, spearman
from local_bench.settle.intervals import bootstrap_revenue, wilson

ALL = "all models"


@dataclass(frozen=True)
class Answered:
    """One answer beside the true one; None where there is none, or where truth could not be told."""

    judge: str
    rubric: str
    model: str
    given: float | None
    true: float | None


@dataclass(frozen=True)
class Truthfulness:
    """How far one judge's answers to one rubric are true."""

    judge: str
    rubric: str
    model: str
    """`all models` for the sum of them."""
    same: Agreement
    """The share of answers that are the true one."""
    n_yes_for_no: int | None
    """Of a rubric of 0 and 1: answered 1 where 0 is true; None of other rubrics."""
    n_no_for_yes: int | None
    rho: Agreement | None
    """Spearman's, of a rubric with more than two labels."""
    mean_difference: float | None
    """Given less true, in the rubric's points; above 0 the judge is too kind. None where there is no pair."""


def truthfulness(answers: Iterable[Answered]) -> list[Truthfulness]:
    """One row for every judge and rubric over all models, then one for each model, in the order in which they come."""
    groups: dict[tuple[str, str], dict[str, list[Answered]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        groups[answer.judge, answer.rubric][ALL].append(answer)
        groups[answer.judge, answer.rubric][answer.model].append(answer)
    return [_true(*key, model, mine) for key, models in groups.items() for model, mine in models.items()]


def _true(judge: str, rubric: str, model: str, answers: Sequence[Answered]) -> Truthfulness:
    given, true = [a.given for a in answers], [a.true for a in answers]
    pairs = [(g, t) for g, t in zip(given, true, strict=True) if g is not None and t is not None]
    binary = {t for _, t in pairs} <= {0, 1} and {g for g, _ in pairs} <= {0, 1}
    return Truthfulness(
        judge=judge,
        rubric=rubric,
        model=model,
        same=agreement_rate(given, true),
        n_yes_for_no=sum(g > t for g, t in pairs) if binary else None,
        n_no_for_yes=sum(g < t for g, t in pairs) if binary else None,
        rho=None if binary else spearman(given, true),
        mean_difference=fmean(g - t for g, t in pairs) if pairs else None,
    )


@dataclass(frozen=True)
class Paid:
    """One deliverable as it was decided, and as it would be by those who know."""

    model: str
    task_id: str
    part_micro_usd: int
    """What this deliverable pays when it is accepted."""
    judged: bool | None
    """Accepted by the rule, from the judge's answers; None where that is open, which pays nothing."""
    faultless: bool | None
    """Accepted by the same rule, had the judge answered the truth."""
    right: bool | None
    """Whether the client gets what was ordered; None where truth could not be told, or there is no picture."""
    score: float | None
    """The share of the evaluation points that the judge saw met, on the score's scale."""
    true_score: float | None


@dataclass(frozen=True)
class Reckoning:
    """One model's money, by the judge and in truth."""

    model: str
    n: int
    """Deliverables whose truth is known."""
    n_unknown: int
    judged_micro_usd: int
    faultless_micro_usd: int
    true_micro_usd: int
    true_interval_micro_usd: tuple[int, int] | None
    """95 % bootstrap over orders; None for fewer than two."""
    too_much_micro_usd: int
    """Paid for deliverables that are not right."""
    too_little_micro_usd: int
    """Not paid for deliverables that are right."""
    off_micro_usd: int
    """Judged less true."""
    off_interval_micro_usd: tuple[int, int] | None
    n_right: int
    right_low: float
    right_high: float
    decided: Agreement
    """The share of deliverables on which judge and client decide alike."""
    rho: Agreement
    """Spearman's between the judge's score and the true one, over deliverables."""


def reckon(paid: Iterable[Paid]) -> list[Reckoning]:
    """One row a model, in the order in which they come. What truth cannot tell is left out and counted."""
    models: dict[str, list[Paid]] = defaultdict(list)
    for each in paid:
        models[each.model].append(each)
    return [_reckoning(model, mine) for model, mine in models.items()]


def _reckoning(model: str, mine: Sequence[Paid]) -> Reckoning:
    known = [each for each in mine if each.right is not None]
    n_right = sum(each.right is True for each in known)
    low, high = wilson(n_right, len(known))
    return Reckoning(
        model=model,
        n=len(known),
        n_unknown=len(mine) - len(known),
        judged_micro_usd=_sum(known, lambda each: each.judged is True),
        faultless_micro_usd=_sum(known, lambda each: each.faultless is True),
        true_micro_usd=_sum(known, lambda each: each.right is True),
        true_interval_micro_usd=_interval(known, lambda each: int(each.right is True)),
        too_much_micro_usd=_sum(known, lambda each: each.judged is True and not each.right),
        too_little_micro_usd=_sum(known, lambda each: each.judged is not True and each.right is True),
        off_micro_usd=_sum(known, lambda each: each.judged is True) - _sum(known, lambda each: each.right is True),
        off_interval_micro_usd=_interval(known, lambda each: (each.judged is True) - (each.right is True)),
        n_right=n_right,
        right_low=low,
        right_high=high,
        decided=agreement_rate([each.judged for each in known], [each.right for each in known]),
        rho=spearman([each.score for each in known], [each.true_score for each in known]),
    )


def _sum(paid: Iterable[Paid], when: Callable[[Paid], bool]) -> int:
    return sum(each.part_micro_usd for each in paid if when(each))


def _interval(paid: Sequence[Paid], times: Callable[[Paid], int]) -> tuple[int, int] | None:
    """Of the parts, each so many times, over resampled orders."""
    orders: dict[str, list[Paid]] = defaultdict(list)
    for each in paid:
        orders[each.task_id].append(each)
    sums = [sum(times(each) * each.part_micro_usd for each in group) for group in orders.values()]
    return bootstrap_revenue(sums, [sum(each.part_micro_usd for each in group) for group in orders.values()])
