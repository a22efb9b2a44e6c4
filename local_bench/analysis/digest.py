"""Digests of a run's results: equal for equal results, independent of machine and order of execution."""

import hashlib
import json
from typing import Any

from local_bench.analysis.settlement import lines
from local_bench.core.identity import canonical_json
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.settle.settlement import settle


def digests(run: RunDir) -> dict[str, str]:
    """`candidates`, `verdicts`, `scores` and `settlement`: sha256 over the content in identity order, without clocks,
    costs measured on this machine, or paths."""
    return {
        "candidates": _sha256(_candidates(run.store)),
        "verdicts": _sha256(_verdicts(run.store)),
        "scores": _sha256(_scores(run.store)),
        "settlement": _sha256(_settlement(run)),
    }


def _sha256(rows: list[Any]) -> str:
    lines_ = hashlib.sha256()
    for row in rows:
        lines_.update(canonical_json(row).encode() + b"\n")
    return lines_.hexdigest()


def _candidates(store: Store) -> list[Any]:
    rows = sorted(store.candidates(), key=lambda row: row.work_id)
    return [[r.work_id, r.model, r.state, r.pixels_sha256, r.unscored] for r in rows]


def _verdicts(store: Store) -> list[Any]:
    return [
        [
            r.work_id,
            r.rubric,
            r.point,
            r.repeat,
            r.rubric_sha256,
            r.judge,
            r.answer_json and json.loads(r.answer_json),
            r.labels_json and json.loads(r.labels_json),
            r.unscored,
        ]
        for r in store.verdicts()
    ]


def _scores(store: Store) -> list[Any]:
    return [[r.work_id, r.score.name, r.score.value, r.score.unscored, r.score.applies] for r in store.scores()]


def _settlement(run: RunDir) -> list[Any]:
    decisions = [
        [
            row.work_id,
            None if row.decision.accepted is None else int(row.decision.accepted),
            row.decision.unscored,
            row.price_micro_usd,
        ]
        for row in run.store.decisions()
    ]
    totals = [
        [s.model, s.total.value_micro_usd, s.total.revenue_micro_usd, s.total.n, s.total.n_accepted, s.total.n_unscored]
        for s in settle(lines(run.store), {}, intervals=False)
    ]
    return [run.config.acceptance.model_dump(), decisions, totals]
