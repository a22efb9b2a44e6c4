"""Who would pay: a stated rule over the scores, until there is a better predictor."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

from local_bench.core.types import Decision, Score


def by_threshold(scores: Sequence[Score], thresholds: Mapping[str, float]) -> Decision:
    """Accepted when every score named in `thresholds` that applies reaches its threshold.

    One that misses its threshold rejects whatever the others say. Otherwise a score that is unscored, or not there,
    leaves the decision open, with the reason (law 5); so it stays where none of them applies.
    """
    by_name = {score.name: score for score in scores}
    open_reason = None
    if thresholds and all(name in by_name and not by_name[name].applies for name in thresholds):
        return Decision(accepted=None, unscored=f"nothing that decides applies to it ({', '.join(thresholds)})")
    for name, threshold in thresholds.items():
        score = by_name.get(name)
        if score is None:
            open_reason = open_reason or f"{name} was not scored"
        elif score.value is not None and score.value < threshold:
            return Decision(accepted=False)
        elif score.unscored:
            open_reason = open_reason or f"{name}: {score.unscored}"
    return Decision(accepted=None, unscored=open_reason) if open_reason else Decision(accepted=True)


def by_rules(decision: Decision, rules: Score | None) -> Decision:
    """The decision where an image must also meet its order's hard rules: `rules` is the share of them that it meets,
    None or not applicable where there are none. One that is not met rejects, one that cannot be told leaves an accepted
    image open."""
    if rules is None or not rules.applies:
        return decision
    if rules.value is not None and rules.value < 1:
        return Decision(accepted=False)
    if rules.unscored and decision.accepted:
        return Decision(accepted=None, unscored=f"{rules.name}: {rules.unscored}")
    return decision


def likely(scores: Sequence[Score], thresholds: Mapping[str, float]) -> float | None:
    """How likely people's acceptance is, as a guess before any of them was asked; None where nothing can be said.

    The normal probability of the margin, in points, by which the worst of the deciding scores clears its threshold: a
    judge is supposed to be a point off two times of three. It is only to say whom to ask; `settle.predictors` has
    probabilities that labels have taught.
    """
    of_deciding = [score for score in scores if score.name in thresholds and score.applies]
    margins = [score.value - thresholds[score.name] for score in of_deciding if score.value is not None]
    complete = len(margins) == len(of_deciding) and {score.name for score in scores} >= set(thresholds)
    if not margins or (not complete and min(margins) >= 0):
        return None
    return NormalDist().cdf(min(margins))
