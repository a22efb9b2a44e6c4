"""Acceptance: whether a deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections.abc import Iterator, Mapping, Sequence

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import DecisionRow
from local_bench.settle.acceptance import by_rules, by_threshold
from local_bench.suites.registry import suite


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value. Suites with pass/fail judges define their own thresholds."""
    own = suite(config.suite.name).thresholds
    return config.acceptance.thresholds if own is None else own


def decision_of(config: RunConfig, scores: Sequence[Score], thresholds: Mapping[str, float] | None = None) -> Decision:
    """The decision on an image with these scores, including its hard rules if `acceptance.rules` is set. `thresholds`
    are those of `thresholds_of(config)`, for callers that decide many images."""
    decision = by_threshold(scores, thresholds_of(config) if thresholds is None else thresholds)
    if not config.acceptance.rules:
        return decision
    return by_rules(decision, next((score for score in scores if score.name == RULES), None))


def decide(run: RunDir) -> None:
    """The settle phase: recompute all decisions from the stored scores and replace them in one transaction."""
    run.store.replace_decisions(decisions_of(run))


def decisions_of(run: RunDir) -> Iterator[DecisionRow]:
    """The decision on every candidate that follows from the stored scores, by work id."""
    thresholds = thresholds_of(run.config)
    for row, scores in run.store.judged_candidates():
        match row.state:
            case "done":
                decision = decision_of(run.config, scores, thresholds)
            case "unscored":
                decision = Decision(None, row.unscored)
            case _:
                decision = Decision(None, "its image has not been made")
        yield DecisionRow(row.work_id, decision, row.price_micro_usd)
