"""Acceptance: whether a deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections.abc import Iterator, Mapping, Sequence

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import DecidedRow
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
    """The settle phase: compute all decisions from the stored scores, and replace those that differ in one
    transaction."""
    run.store.replace_decided(decisions_of(run))


def decisions_of(run: RunDir) -> Iterator[list[DecidedRow]]:
    """The decision on every candidate that follows from the stored scores, by work id, some hundred at a time. The
    rule is applied once to all candidates whose deciding scores compare with the thresholds in the same way."""
    thresholds = thresholds_of(run.config)
    deciding = {**thresholds, RULES: ALL_RULES} if run.config.acceptance.rules else thresholds
    by_case: dict[int | str | None, tuple[int | None, str | None]] = {}
    for rows in run.store.candidates_to_decide(deciding):
        decided: list[DecidedRow] = []
        for work_id, state, unscored, price, case in rows:
            if state == "done":
                found = by_case.get(case)
                if found is None:
                    decision = decision_of(run.config, run.store.judge_scores_of(work_id), thresholds)
                    found = None if decision.accepted is None else int(decision.accepted), decision.unscored
                    by_case[case] = found
            else:
                found = None, unscored if state == "unscored" else "its image has not been made"
            decided.append((work_id, *found, price))
        yield decided
