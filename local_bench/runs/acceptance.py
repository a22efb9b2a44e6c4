"""Acceptance: whether an image is paid for, by the suite's own rule where it has one, else by the config's."""

from collections.abc import Mapping, Sequence

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import DecisionRow, OutcomeRow
from local_bench.settle.acceptance import by_rules, by_threshold
from local_bench.suites.registry import suite


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> what it must reach. A suite whose judge answers yes or no has thresholds of its own."""
    own = suite(config.suite.name).thresholds
    return config.acceptance.thresholds if own is None else own


def decision_of(config: RunConfig, scores: Sequence[Score]) -> Decision:
    """The run's decision about an image with these scores, its hard rules included where `acceptance.rules` is set."""
    decision = by_threshold(scores, thresholds_of(config))
    if not config.acceptance.rules:
        return decision
    return by_rules(decision, next((score for score in scores if score.name == RULES), None))


def decide(run: RunDir) -> None:
    """The settle phase: replaces all decisions, in one transaction, by those that follow from the stored scores."""
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
    run.store.replace_decisions(
        DecisionRow(row.candidate.work_id, decision(row), row.price_micro_usd) for row in outcomes
    )
