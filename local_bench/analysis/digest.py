"""Digests of a run's results: equal for equal results, independent of machine and order of execution."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from local_bench.analysis.settlement import deliverables
from local_bench.core import strictjson
from local_bench.core.types import canonical_json, json_lines
from local_bench.runs.rundir import RunDir
from local_bench.runs.store.contents import rows_to_digest
from local_bench.settle.settlement import settle


def digests(run: RunDir) -> dict[str, str]:
    """`candidates`, `verdicts`, `scores` and `settlement`: sha256 over the content in identity order, without clocks,
    costs measured on this machine, or paths."""
    changed: dict[Literal["candidates", "verdicts", "scores"], Callable[[Sequence[Any]], Sequence[Any]]] = {
        "candidates": lambda row: row,
        "verdicts": lambda row: (*row[:-3], *(text and strictjson.stored(text) for text in row[-3:-1]), row[-1]),
        "scores": lambda row: (*row[:-1], bool(row[-1])),
    }
    by_table: dict[str, str] = {
        table: _sha256(
            "\n".join(json_lines(list(map(change, rows)))) + "\n" for rows in rows_to_digest(run.store, table)
        )
        for table, change in changed.items()
    }
    return by_table | {"settlement": _sha256(_settlement(run))}


def _sha256(texts: Iterable[str]) -> str:
    hashed = hashlib.sha256()
    for text in texts:
        hashed.update(text.encode())
    return hashed.hexdigest()


def _settlement(run: RunDir) -> Iterator[str]:
    """Three lines: the rule, the array of decisions, and the models' totals."""
    yield canonical_json(run.config.acceptance.model_dump()) + "\n"
    separator = "["
    for rows in rows_to_digest(run.store, "decisions"):
        yield separator + canonical_json(rows)[1:-1]
        separator = ","
    yield ("]" if separator == "," else "[]") + "\n"
    totals = [
        [s.model, s.total.value_micro_usd, s.total.revenue_micro_usd, s.total.n, s.total.n_accepted, s.total.n_unscored]
        for s in settle(deliverables(run.store), {}, intervals=False)
    ]
    yield canonical_json(totals) + "\n"
