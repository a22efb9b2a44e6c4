"""Digests of a run's results: equal for equal results, independent of machine and order of execution."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from local_bench.analysis.settlement import deliverables
from local_bench.core import strictjson
from local_bench.core.identity import canonical_json, json_lines
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.runs.store.contents import rows_to_digest
from local_bench.settle.settlement import settle


def digests(run: RunDir) -> dict[str, str]:
    """`candidates`, `verdicts`, `scores` and `settlement`: sha256 over the content in identity order, without clocks,
    costs measured on this machine, or paths."""
    return {
        "candidates": _sha256(map(_lines, rows_to_digest(run.store, "candidates"))),
        "verdicts": _sha256(_verdicts(run.store)),
        "scores": _sha256(_scores(run.store)),
        "settlement": _sha256(_settlement(run)),
    }


def _sha256(texts: Iterable[str]) -> str:
    hashed = hashlib.sha256()
    for text in texts:
        hashed.update(text.encode())
    return hashed.hexdigest()


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    return "\n".join(json_lines(rows)) + "\n"


def _verdicts(store: Store) -> Iterator[str]:
    for rows in rows_to_digest(store, "verdicts"):
        yield _lines(
            [
                (*columns, answer and strictjson.stored(answer), labels and strictjson.stored(labels), unscored)
                for *columns, answer, labels, unscored in rows
            ]
        )


def _scores(store: Store) -> Iterator[str]:
    for rows in rows_to_digest(store, "scores"):
        yield _lines([(*columns, bool(applies)) for *columns, applies in rows])


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
