"""Acceptance: whether a deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections.abc import Mapping, Sequence

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Case
from local_bench.settle.acceptance import ALL_RULES, by_rules, by_threshold
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
    """The settle phase: replace the decisions that do not follow from the stored scores, in one transaction."""
    decisions, complete = decisions_by_case(run)
    if not complete:
        run.store.decide(deciding(run.config), decisions)


def decisions_by_case(run: RunDir) -> tuple[dict[Case, Decision], bool]:
    """The decision on every case of scores, to which the rule is applied once, and whether all decisions that follow
    are stored, and no others."""
    config, thresholds = run.config, thresholds_of(run.config)
    decisions: dict[Case, Decision] = {}
    complete = True
    for row in run.store.cases(deciding(config)):
        if row.case not in decisions:
            decisions[row.case] = decision_of(config, run.store.judge_scores_of(row.work_id), thresholds)
        complete &= row.are_stored(decisions[row.case])
    return decisions, complete and run.store.rest_is_decided()


def deciding(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value, for all scores that a decision depends on."""
    thresholds = thresholds_of(config)
    return {**thresholds, RULES: ALL_RULES} if config.acceptance.rules else thresholds
