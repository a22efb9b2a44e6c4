"""Accuracy of a judge against ground truth: its answers, and the revenue error that they cause.

Three sums are compared: revenue by the judge's decisions; revenue by the same rule with correct answers; revenue by
ground truth. The first two differ by the judge's errors, the last two by those of the rule.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.agreement import Agreement, agreement_rate, mean_difference, spearman
from local_bench.settle.intervals import Floats, amounts, rate_interval, share_interval

ALL = "all models"


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer and the correct one; None without an answer, or without ground truth."""

    judge: str
    rubric: str
    model: str
    task_id: str
    given: float | None
    true: float | None


@dataclass(frozen=True)
class AnswerAccuracy:
    """Accuracy of one judge's answers to one rubric."""

    judge: str
    rubric: str
    model: str
    """`all models` for the total."""
    same: Agreement
    """Share of correct answers."""
    n_yes_for_no: int | None
    """False positives of a rubric with labels 0 and 1; None for other rubrics."""
    n_no_for_yes: int | None
    rho: Agreement | None
    """Spearman's rho, for a rubric with more than two labels."""
    mean_difference: float | None
    """Mean of answer - ground truth, in rubric points; above 0 the judge is too lenient. None without a pair."""
    interval: tuple[float, float] | None
    """95 % interval of the mean difference over tasks; None for fewer than two."""


def answer_accuracy(answers: Iterable[JudgedAnswer], scale: tuple[float, float] | None = None) -> list[AnswerAccuracy]:
    """For every judge and rubric one row over all models, then one per model, in order of first appearance. `scale` has
    the ends of answers that are not all 0 or 1."""
    groups: dict[tuple[str, str], dict[str, list[JudgedAnswer]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        groups[answer.judge, answer.rubric][ALL].append(answer)
        groups[answer.judge, answer.rubric][answer.model].append(answer)
    rows = []
    for models in groups.values():
        binary = {x for answer in models[ALL] for x in (answer.given, answer.true)} <= {0, 1, None}
        rows += [_true(model, mine, (0.0, 1.0) if binary else scale) for model, mine in models.items()]
    return rows


def _true(model: str, answers: Sequence[JudgedAnswer], scale: tuple[float, float] | None) -> AnswerAccuracy:
    answered, true = [a.given for a in answers], [a.true for a in answers]
    pairs = [(g, t) for g, t in zip(answered, true, strict=True) if g is not None and t is not None]
    differences: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        if answer.given is not None and answer.true is not None:
            differences[answer.task_id].append(answer.given - answer.true)
    mean, ends = mean_difference(differences, scale)
    binary = {t for _, t in pairs} <= {0, 1} and {g for g, _ in pairs} <= {0, 1}
    return AnswerAccuracy(
        judge=answers[0].judge,
        rubric=answers[0].rubric,
        model=model,
        same=agreement_rate(answered, true, [a.task_id for a in answers]),
        n_yes_for_no=sum(g > t for g, t in pairs) if binary else None,
        n_no_for_yes=sum(g < t for g, t in pairs) if binary else None,
        rho=None if binary else spearman(answered, true),
        mean_difference=mean,
        interval=ends,
    )


@dataclass(frozen=True)
class JudgedDeliverable:
    """One deliverable with its decision and its ground truth."""

    model: str
    task_id: str
    part_micro_usd: int
    """Revenue of this deliverable if accepted."""
    judged: bool | None
    """Accepted by the rule on the judge's answers; None if open, which earns nothing."""
    faultless: bool | None
    """Accepted by the same rule on correct answers."""
    right: bool | None
    """Whether the image is what was ordered; None without ground truth, or without an image."""
    score: float | None
    """Score from the judge's answers."""
    true_score: float | None


@dataclass(frozen=True)
class RevenueAudit:
    """Revenue of one model by judge and by ground truth."""

    model: str
    n: int
    """Deliverables with ground truth."""
    n_unknown: int
    value_micro_usd: int
    """Price of the deliverables with ground truth, of which all amounts are."""
    judged_micro_usd: int
    faultless_micro_usd: int
    true_micro_usd: int | None
    """None without a deliverable with ground truth."""
    true_interval_micro_usd: tuple[int, int] | None
    """95 % interval for tasks like these; None for fewer than two."""
    too_much_micro_usd: int
    """Revenue of wrong deliverables."""
    too_little_micro_usd: int
    """Revenue missed on correct deliverables."""
    off_micro_usd: int
    """Judged - true."""
    off_interval_micro_usd: tuple[int, int] | None
    """At least 95 %: from 97.5 % intervals of the shares paid too much and too little."""
    n_right: int
    right_low: float
    right_high: float
    decided: Agreement
    """Share of deliverables with the same decision by judge and ground truth."""
    rho: Agreement
    """Spearman's between the judge's score and the true one, over deliverables."""


def audit_revenue(paid: Iterable[JudgedDeliverable]) -> list[RevenueAudit]:
    """One row per model, in order of first appearance. Deliverables without ground truth are excluded and counted."""
    models: dict[str, list[JudgedDeliverable]] = defaultdict(list)
    for each in paid:
        models[each.model].append(each)
    return [_reckoning(model, mine) for model, mine in models.items()]


def _reckoning(model: str, mine: Sequence[JudgedDeliverable]) -> RevenueAudit:
    labelled = [each for each in mine if each.right is not None]
    tasks = {task_id: i for i, task_id in enumerate(dict.fromkeys(each.task_id for each in labelled))}
    index = np.array([tasks[each.task_id] for each in labelled], dtype=np.intp)
    part = np.array([each.part_micro_usd for each in labelled], dtype=np.float64)
    judged = np.array([each.judged is True for each in labelled], dtype=bool)
    right = np.array([each.right for each in labelled], dtype=bool)

    def of_tasks(which: NDArray[np.bool_] | None = None, unit: Floats | float = part) -> Floats:
        """Sums by task."""
        weights = np.where(True if which is None else which, unit, 0.0)
        return np.asarray(np.bincount(index, np.broadcast_to(weights, len(index)), len(tasks)), dtype=np.float64)

    def paid(which: Iterable[object]) -> int:
        """The exact sum."""
        return sum(compress((each.part_micro_usd for each in labelled), which))

    values = of_tasks()
    total = float(values.sum())
    much, little = (share_interval(of_tasks(which), values, 0.975) for which in (judged & ~right, ~judged & right))
    low, high = rate_interval(of_tasks(right, 1.0), of_tasks(unit=1.0)) or (0.0, 1.0)
    return RevenueAudit(
        model=model,
        n=len(labelled),
        n_unknown=len(mine) - len(labelled),
        value_micro_usd=paid(repeat(True)),
        judged_micro_usd=paid(judged),
        faultless_micro_usd=paid(each.faultless is True for each in labelled),
        true_micro_usd=paid(right) if labelled else None,
        true_interval_micro_usd=amounts(share_interval(of_tasks(right), values), total),
        too_much_micro_usd=paid(judged & ~right),
        too_little_micro_usd=paid(~judged & right),
        off_micro_usd=paid(judged) - paid(right),
        off_interval_micro_usd=amounts((much[0] - little[1], much[1] - little[0]) if much and little else None, total),
        n_right=int(right.sum()),
        right_low=low,
        right_high=high,
        decided=agreement_rate(
            [each.judged for each in labelled], [each.right for each in labelled], [each.task_id for each in labelled]
        ),
        rho=spearman([each.score for each in labelled], [each.true_score for each in labelled]),
    )
