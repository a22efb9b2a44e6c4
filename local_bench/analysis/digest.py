"""What a run found, as four digests: the same for every machine and every way through that gives the same results."""

import hashlib
import json
from typing import Any

from local_bench.analysis.settlement import lines
from local_bench.core.identity import canonical_json
from local_bench.runs.ledger import Ledger
from local_bench.runs.rundir import RunDir
from local_bench.settle.standard import settle


def digests(run: RunDir) -> dict[str, str]:
    """`candidates`, `verdicts`, `scores` and `settlement`: sha256 over the content in identity order, without clocks,
    costs measured on this machine, or paths."""
    return {
        "candidates": _sha256(_candidates(run.ledger)),
        "verdicts": _sha256(_verdicts(run.ledger)),
        "scores": _sha256(_scores(run.ledger)),
        "settlement": _sha256(_settlement(run)),
    }


def _sha256(rows: list[Any]) -> str:
    lines_ = hashlib.sha256()
    for row in rows:
        lines_.update(canonical_json(row).encode() + b"\n")
    return lines_.hexdigest()


def _candidates(ledger: Ledger) -> list[Any]:
    rows = ledger.rows("SELECT work_id, model, state, pixels_sha256, unscored FROM candidates ORDER BY work_id")
    return [[r["work_id"], r["model"], r["state"], r["pixels_sha256"], r["unscored"]] for r in rows]


def _verdicts(ledger: Ledger) -> list[Any]:
    rows = ledger.rows("SELECT * FROM verdicts ORDER BY work_id, judge, rubric, point, repeat")
    return [
        [
            r["work_id"],
            r["rubric"],
            r["point"],
            r["repeat"],
            r["rubric_sha256"],
            r["judge"],
            r["answer"] and json.loads(r["answer"]),
            r["labels"] and json.loads(r["labels"]),
            r["unscored"],
        ]
        for r in rows
    ]


def _scores(ledger: Ledger) -> list[Any]:
    rows = ledger.rows("SELECT * FROM scores ORDER BY work_id, name")
    return [[r["work_id"], r["name"], r["value"], r["unscored"], bool(r["applies"])] for r in rows]


def _settlement(run: RunDir) -> list[Any]:
    decided = run.ledger.rows("SELECT * FROM decisions ORDER BY work_id")
    decisions = [[r["work_id"], r["accepted"], r["unscored"], r["price_micro_usd"]] for r in decided]
    totals = [
        [s.model, s.total.value_micro_usd, s.total.revenue_micro_usd, s.total.n, s.total.n_accepted, s.total.n_unscored]
        for s in settle(lines(run.ledger), {})
    ]
    return [run.config.acceptance.model_dump(), decisions, totals]
