"""HYPE-EDIT-1's columns from its judgements."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from local_bench.report.published.answer import Published, dollars, figure, listed, number, percent
from local_bench.settle.hype import FAIL, MISSING, PASS, RETRY_CAP, UNSCORED, Outcomes, Reliability, Tried, tried
from local_bench.suites.hype_edit_1.results import Judgement, Judgements

PROTOCOL_ATTEMPTS = 10


def published(
    judgements: Judgements,
    costs: Mapping[str, Decimal] | None,
    review_usd: Fraction,
    cap: int = RETRY_CAP,
) -> Published:
    """Every model's figures; `review_usd` is what a look at one image costs, `cap` the most tries of a patient user."""
    models = {}
    rows = []
    by_model: dict[str, list[Judgement]] = {}
    for row in judgements.rows:
        by_model.setdefault(row.model, []).append(row)
    attempts = judgements.attempts
    for model in [name for name in judgements.models if name in by_model]:
        counted = tried(outcomes(by_model[model], judgements.task_ids, attempts))
        cost = None if costs is None or model not in costs else Fraction(costs[model]) + review_usd
        models[model] = _model(counted, cost, cap)
        rows.append(_row(model, counted.shown, cost, cap))
    absent = [name for name in judgements.models if name not in by_model]
    data = {"suite": "hype-edit-1", "models": models, "absent_models": absent, "n_attempts_a_task": attempts}
    header = ["model", "pass rate", "pass@4", "unbiased", f"pass@{attempts}", "attempts", "a success", "hype gap"]
    return Published(data, [(header, rows)], _notes(models, absent, costs, attempts))


def outcomes(rows: Sequence[Judgement], task_ids: Sequence[str], attempts: int) -> Outcomes:
    """One model's judgements as a table, MISSING where there is none."""
    table = np.full((len(task_ids), attempts), MISSING, dtype=np.int8)
    place = {task_id: t for t, task_id in enumerate(task_ids)}
    for row in rows:
        verdict = UNSCORED if row.passed is None else PASS if row.passed else FAIL
        table[place[row.task_id], row.attempt - 1] = verdict
    return table


def _model(counted: Tried, cost: Fraction | None, cap: int) -> dict[str, Any]:
    shown, best = counted.shown, counted.at_best
    gap = counted.hype_gap_ends
    return {
        "pass_rate": number(shown.pass_rate),
        "pass_rate_high": number(best.pass_rate),
        "pass_at_4": number(shown.pass_at(4)),
        "pass_at_4_high": number(best.pass_at(4)),
        "pass_at_4_unbiased": number(shown.pass_at_unbiased(4)),
        "pass_at_10": number(shown.pass_at_any),
        "pass_at_10_high": number(best.pass_at_any),
        "pass_at_first": number(shown.pass_at_first),
        "pass_at_first_high": number(best.pass_at_first),
        "expected_attempts": number(shown.expected_attempts(cap)),
        "expected_attempts_low": number(best.expected_attempts(cap)),
        "effective_cost_usd": _cost(shown, cost, cap),
        "effective_cost_low_usd": _cost(best, cost, cap),
        "hype_gap": number(shown.hype_gap),
        "hype_gap_low": number(gap and gap[0]),
        "hype_gap_high": number(gap and gap[1]),
        "n_tasks": shown.n_tasks,
        "n": shown.n_tasks * shown.attempts - counted.n_unscored - counted.n_missing,
        "n_unscored": counted.n_unscored,
        "n_missing": counted.n_missing,
    }


def _cost(of: Reliability, usd_per_attempt: Fraction | None, cap: int) -> float | None:
    return None if usd_per_attempt is None else number(of.effective_cost_usd(usd_per_attempt, cap))


def _row(model: str, r: Reliability, cost: Fraction | None, cap: int) -> list[str]:
    return [
        *(model, percent(r.pass_rate), percent(r.pass_at(4)), percent(r.pass_at_unbiased(4)), percent(r.pass_at_any)),
        figure(r.expected_attempts(cap)),
        "-" if cost is None else dollars(r.effective_cost_usd(cost, cap)),
        percent(r.hype_gap),
    ]


def _notes(
    models: Mapping[str, Any], absent: Sequence[str], costs: Mapping[str, Decimal] | None, attempts: int
) -> list[str]:
    notes = []
    if attempts != PROTOCOL_ATTEMPTS:
        notes.append(
            f"the file goes up to attempt {attempts}, the protocol to {PROTOCOL_ATTEMPTS}: rates are over {attempts}"
        )
    left = sum(model["n_unscored"] + model["n_missing"] for model in models.values())
    if left:
        notes.append(f"{left} attempts have no verdict: they count as not passed, and as passed in _high and cost _low")
    if absent:
        notes.append(f"nothing was judged of {listed(absent)}")
    if costs is None:
        notes.append("without --costs there is no effective cost")
    elif unpriced := [model for model in models if model not in costs]:
        notes.append(f"there is no cost for {listed(unpriced)}: its effective cost is null")
    return notes
