"""What decides whether an image is accepted: the suite's own rule where it has one, else the config's."""

from collections.abc import Mapping

from local_bench.runs.config import RunConfig
from local_bench.suites.registry import suite


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> what it must reach. A suite whose judge says yes or no has `THRESHOLDS` of its own."""
    own: Mapping[str, float] | None = getattr(suite(config.suite.name).load(), "THRESHOLDS", None)
    return config.acceptance.thresholds if own is None else own
