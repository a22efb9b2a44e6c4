"""Acceptance: whether a deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections.abc import Mapping, Sequence

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import DecisionRow, OutcomeRow
from local_bench.settle.acceptance import by_rules, by_threshold
from local_bench.suites.registry import suite


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value. Suites with pass/fail judges define their own thresholds."""
    own = suite(config.suite.name).thresholds
    return config.acceptance.thresholds if own is None else own


def decision_of(config: RunConfig, scores: Sequence[Score]) -> Decision:
    """The decision on an image with these scores, including its hard rules if `acceptance.rules` is set."""
    decision = by_threshold(scores, thresholds_of(config))
    if not config.acceptance.rules:
        return decision
    return by_rules(decision, next((score for score in scores if score.name == RULES), None))


def decide(run: RunDir) -> None:
    """The settle phase: recompute all decisions from the stored scores and replace them in one transaction."""
    run.store.replace_decisions(decisions_of(run))


def decisions_of(run: RunDir) -> list[DecisionRow]:
    """The decision on every candidate that follows from the stored scores, by work id."""
    scores = run.store.scores_by_candidate("judge")

    def decision(row: OutcomeRow) -> Decision:
        match row.candidate.state:
            case "done":
                return decision_of(run.config, list(scores.get(row.candidate.work_id, {}).values()))
            case "unscored":
                return Decision(None, row.candidate.unscored)
            case _:
                return Decision(None, "its image has not been made")

    outcomes = sorted(run.store.outcomes(), key=lambda row: row.candidate.work_id)
    return [DecisionRow(row.candidate.work_id, decision(row), row.price_micro_usd) for row in outcomes]
