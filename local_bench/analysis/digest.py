"""Digests of a run's results: equal for equal results, independent of machine and order of execution."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from local_bench.analysis.settlement import lines
from local_bench.core import strictjson
from local_bench.core.identity import canonical_json
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.settle.settlement import settle


def digests(run: RunDir) -> dict[str, str]:
    """`candidates`, `verdicts`, `scores` and `settlement`: sha256 over the content in identity order, without clocks,
    costs measured on this machine, or paths."""
    return {
        "candidates": _sha256(run.store.rows_to_digest("candidates")),
        "verdicts": _sha256(_verdicts(run.store)),
        "scores": _sha256(_scores(run.store)),
        "settlement": _sha256(_settlement(run)),
    }


def _sha256(rows: Iterable[Any]) -> str:
    lines_ = hashlib.sha256()
    for row in rows:
        lines_.update(canonical_json(row if isinstance(row, dict) else list(row)).encode() + b"\n")
    return lines_.hexdigest()


def _verdicts(store: Store) -> Iterator[list[Any]]:
    for *columns, answer, labels, unscored in store.rows_to_digest("verdicts"):
        yield [*columns, answer and strictjson.stored(answer), labels and strictjson.stored(labels), unscored]


def _scores(store: Store) -> Iterator[list[Any]]:
    for *columns, applies in store.rows_to_digest("scores"):
        yield [*columns, bool(applies)]


def _settlement(run: RunDir) -> list[Any]:
    decisions = [list(row) for row in run.store.rows_to_digest("decisions")]
    totals = [
        [s.model, s.total.value_micro_usd, s.total.revenue_micro_usd, s.total.n, s.total.n_accepted, s.total.n_unscored]
        for s in settle(lines(run.store), {}, intervals=False)
    ]
    return [run.config.acceptance.model_dump(), decisions, totals]
