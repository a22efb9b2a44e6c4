"""The numbers that a benchmark publishes, from the run's ledger, for the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from local_bench.analysis.official import format_of, official
from local_bench.runs.rundir import RunDir

_SETTLED = "servimage"
"""Its published numbers are the settlement itself."""


@dataclass(frozen=True)
class BenchmarkView:
    """The numbers of one model, or of all of them together."""

    label: str
    """The model; empty if the benchmark combines all models."""
    tables: Sequence[tuple[Sequence[str], list[list[str]]]]
    """(header, rows)"""
    notes: list[str]


def benchmark_view(run: RunDir) -> list[BenchmarkView]:
    """Empty for a suite that is settled in money, or that defines no published numbers."""
    if format_of(run) in (None, _SETTLED):
        return []
    return [
        BenchmarkView("" if label == "all" else label, found.tables, found.notes)
        for label, found in official(run).items()
    ]
