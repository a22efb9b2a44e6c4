"""Acceptance by thresholds on the scores."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

from local_bench.core.types import Decision, Score

ALL_RULES = 1.0
"""Share of the hard rules that an image must meet."""


def missed(scores: Iterable[Score], thresholds: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Score -> (its value, the threshold), of the scores below their thresholds."""
    return {
        score.name: (score.value, thresholds[score.name])
        for score in scores
        if score.name in thresholds and score.value is not None and score.value < thresholds[score.name]
    }


def by_threshold(scores: Sequence[Score], thresholds: Mapping[str, float]) -> Decision:
    """Accepted when every score named in `thresholds` that applies reaches its threshold.

    A score below its threshold rejects regardless of the others. Otherwise an unscored or missing score leaves the
    decision open, with the reason (invariant 5), and so does a set of thresholds of which none applies.
    """
    by_name = {score.name: score for score in scores}
    if missed(scores, thresholds):
        return Decision(accepted=False)
    if thresholds and all(name in by_name and not by_name[name].applies for name in thresholds):
        return Decision(accepted=None, unscored=f"nothing that decides applies to it ({', '.join(thresholds)})")
    for name in thresholds:
        if name not in by_name:
            return Decision(accepted=None, unscored=f"{name} was not scored")
        if by_name[name].unscored:
            return Decision(accepted=None, unscored=f"{name}: {by_name[name].unscored}")
    return Decision(accepted=True)


def by_rules(decision: Decision, rules: Score | None) -> Decision:
    """Decision of an image that must also meet its task's hard rules: `rules` is the share of them that it meets,
    None or not applicable without rules. An unmet rule rejects; an undecided one leaves an accepted image open."""
    if rules is None or not rules.applies:
        return decision
    if rules.value is not None and rules.value < ALL_RULES:
        return Decision(accepted=False)
    if rules.unscored and decision.accepted:
        return Decision(accepted=None, unscored=f"{rules.name}: {rules.unscored}")
    return decision


def likely(scores: Sequence[Score], thresholds: Mapping[str, float]) -> float | None:
    """Prior probability of human acceptance, before any annotation; None if the scores do not allow one.

    The normal probability of the margin, in points, by which the worst of the deciding scores clears its threshold: a
    judge is assumed to be within one point two times out of three. It only selects images to annotate;
    `settle.predictors` has probabilities fitted to annotations.
    """
    of_deciding = [score for score in scores if score.name in thresholds and score.applies]
    margins = [score.value - thresholds[score.name] for score in of_deciding if score.value is not None]
    complete = len(margins) == len(of_deciding) and {score.name for score in scores} >= set(thresholds)
    if not margins or (not complete and min(margins) >= 0):
        return None
    return NormalDist().cdf(min(margins))
