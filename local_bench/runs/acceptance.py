"""What decides whether an image is accepted: the suite's own rule where it has one, else the config's."""

from collections.abc import Mapping, Sequence

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.settle.acceptance import by_rules, by_threshold
from local_bench.suites.registry import suite


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> what it must reach. A suite whose judge says yes or no has `THRESHOLDS` of its own."""
    own: Mapping[str, float] | None = getattr(suite(config.suite.name).load(), "THRESHOLDS", None)
    return config.acceptance.thresholds if own is None else own


def decision_of(config: RunConfig, scores: Sequence[Score]) -> Decision:
    """The run's decision about an image with these scores, its hard rules included where `acceptance.rules` is set."""
    decision = by_threshold(scores, thresholds_of(config))
    if not config.acceptance.rules:
        return decision
    return by_rules(decision, next((score for score in scores if score.name == RULES), None))
