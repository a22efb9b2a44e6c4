"""Accuracy of a judge against ground truth: its answers, and the revenue error that they cause.

Three sums are compared: revenue by the judge's decisions; revenue by the same rule with correct answers; revenue by
ground truth. The first two differ by the judge's errors, the last two by those of the rule.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from local_bench.settle.agreement import Agreement, agreement_rate, mean_difference, spearman
from local_bench.settle.intervals import amounts, rate_interval, share_interval, task_sums
from local_bench.settle.table import exact

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
    for (judge, rubric), models in groups.items():
        in_all = {x for answer in models[ALL] for x in (answer.given, answer.true)}
        for model, mine in models.items():
            given, true = [a.given for a in mine], [a.true for a in mine]
            pairs = [(g, t) for g, t in zip(given, true, strict=True) if g is not None and t is not None]
            differences: dict[str, list[float]] = defaultdict(list)
            for answer in mine:
                if answer.given is not None and answer.true is not None:
                    differences[answer.task_id].append(answer.given - answer.true)
            mean, ends = mean_difference(differences, (0.0, 1.0) if in_all <= {0, 1, None} else scale)
            binary = {x for pair in pairs for x in pair} <= {0, 1}
            rows.append(
                AnswerAccuracy(
                    judge=judge,
                    rubric=rubric,
                    model=model,
                    same=agreement_rate(given, true, [a.task_id for a in mine]),
                    n_yes_for_no=sum(g > t for g, t in pairs) if binary else None,
                    n_no_for_yes=sum(g < t for g, t in pairs) if binary else None,
                    rho=None if binary else spearman(given, true),
                    mean_difference=mean,
                    interval=ends,
                )
            )
    return rows


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
    audits = []
    for model, mine in models.items():
        labelled = [each for each in mine if each.right is not None]
        decided, truth = [each.judged for each in labelled], [each.right for each in labelled]
        task_of = [each.task_id for each in labelled]
        judged, right = np.array([value is True for value in decided], dtype=bool), np.array(truth, dtype=bool)
        part, much, little = exact([each.part_micro_usd for each in labelled]), judged & ~right, ~judged & right
        task, tasks = pd.factorize(np.array(task_of, dtype=object))
        columns = np.array(
            [part, part * right, part * much, part * little, right, np.ones(len(part))], dtype=np.float64
        )
        values, true, too_much, too_little, n_right, n = task_sums(task, columns.T, len(tasks)).T
        total = float(values.sum())
        over, under = share_interval(too_much, values, 0.975), share_interval(too_little, values, 0.975)
        off = None if over is None or under is None else (over[0] - under[1], over[1] - under[0])
        low, high = rate_interval(n_right, n) or (0.0, 1.0)
        audits.append(
            RevenueAudit(
                model=model,
                n=len(labelled),
                n_unknown=len(mine) - len(labelled),
                value_micro_usd=int(part.sum()),
                judged_micro_usd=int(part[judged].sum()),
                faultless_micro_usd=sum(each.part_micro_usd for each in labelled if each.faultless),
                true_micro_usd=int(part[right].sum()) if labelled else None,
                true_interval_micro_usd=amounts(share_interval(true, values), total),
                too_much_micro_usd=int(part[much].sum()),
                too_little_micro_usd=int(part[little].sum()),
                off_micro_usd=int(part[judged].sum()) - int(part[right].sum()),
                off_interval_micro_usd=amounts(off, total),
                n_right=int(right.sum()),
                right_low=low,
                right_high=high,
                decided=agreement_rate(decided, truth, task_of),
                rho=spearman([each.score for each in labelled], [each.true_score for each in labelled]),
            )
        )
    return audits
