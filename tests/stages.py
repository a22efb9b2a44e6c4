"""Runs the stages of a run in this process."""

from pathlib import Path
from typing import Any

from local_bench.runs.config import RunConfig
from local_bench.runs.stages import Outcome, ran


def run_stages(config: RunConfig, run_dir: Path, *arguments: Any, **more: Any) -> Outcome:
    """As `ran`; the run is closed."""
    with ran(config, run_dir, *arguments, **more) as run:
        return Outcome(run.store.counts(), run.store.unscored_items())
