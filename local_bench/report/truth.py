"""The judge and its settlement compared with ground truth, which benchmarks of real orders do not have."""

from dataclasses import dataclass

from local_bench.analysis.ground_truth import GroundTruthCheck
from local_bench.core.money import usd
from local_bench.core.types import GroundTruth
from local_bench.report.text import NOT_APPLICABLE, interval, percent
from local_bench.settle.agreement import Agreement
from local_bench.settle.ground_truth import ALL, AnswerAccuracy, RevenueAudit

Cell = tuple[str, str]
"""A figure and the text below it."""


@dataclass(frozen=True)
class AnswerRow:
    """A judge's answers for one model, next to the ground truth."""

    model: str
    n: str
    n_unscored: str
    same: Cell
    yes_for_no: str
    no_for_yes: str
    rho: str
    kinder: str


@dataclass(frozen=True)
class MoneyRow:
    """One model's settlement by the judge and by ground truth."""

    model: str
    judged: str
    faultless: str
    true: Cell
    off: Cell
    too_much: str
    too_little: str
    right: Cell
    decided: Cell
    rho: str


@dataclass(frozen=True)
class TruthView:
    """The content of the section."""

    money: list[MoneyRow]
    answers: dict[str, list[AnswerRow]]
    """By judge and rubric."""
    n_unknown: int
    """Deliverables without ground truth."""


def truth_view(found: GroundTruthCheck | None) -> TruthView | None:
    """None if there is no ground truth to compare with."""
    if found is None or not found.money:
        return None
    answers: dict[str, list[AnswerRow]] = {}
    judges = {row.judge for row in found.answers}
    for row in found.answers:
        name = row.rubric if len(judges) == 1 else f"{row.rubric}, {row.judge}"
        answers.setdefault(name, []).append(_answers(row))
    by_revenue = sorted(found.money, key=lambda row: (-row.judged_micro_usd, row.model))
    return TruthView([_money(row) for row in by_revenue], answers, sum(row.n_unknown for row in found.money))


def truth_sentence(truth: GroundTruth | None) -> str | None:
    """The ground truth of one image as text."""
    if truth is None:
        return None
    return "ground truth: right" if truth.right else f"ground truth: {percent(truth.match)} of what was ordered"


def _answers(row: AnswerAccuracy) -> AnswerRow:
    return AnswerRow(
        model="all" if row.model == ALL else row.model,
        n=f"{row.same.n:,}",
        n_unscored=f"{row.same.n_unscored:,}",
        same=_share(row.same),
        yes_for_no=_count(row.n_yes_for_no),
        no_for_yes=_count(row.n_no_for_yes),
        rho=_rho(row.rho),
        kinder=NOT_APPLICABLE if row.mean_difference is None else f"{row.mean_difference:+.2f}",
    )


def _money(row: RevenueAudit) -> MoneyRow:
    return MoneyRow(
        model=row.model,
        judged=usd(row.judged_micro_usd),
        faultless=usd(row.faultless_micro_usd),
        true=(usd(row.true_micro_usd), _ends(row.true_interval_micro_usd)),
        off=(usd(row.off_micro_usd), _ends(row.off_interval_micro_usd)),
        too_much=usd(row.too_much_micro_usd),
        too_little=usd(row.too_little_micro_usd),
        right=(f"{row.n_right}/{row.n}", interval(row.right_low, row.right_high)),
        decided=_share(row.decided),
        rho=_rho(row.rho),
    )


def _share(agreement: Agreement) -> Cell:
    if agreement.value is None or agreement.low is None or agreement.high is None:
        return NOT_APPLICABLE, ""
    return percent(agreement.value), interval(agreement.low, agreement.high)


def _rho(agreement: Agreement | None) -> str:
    return NOT_APPLICABLE if agreement is None or agreement.value is None else f"{agreement.value:.2f}"


def _count(n: int | None) -> str:
    return NOT_APPLICABLE if n is None else f"{n:,}"


def _ends(ends: tuple[int, int] | None) -> str:
    return "" if ends is None else " to ".join(map(usd, ends))
