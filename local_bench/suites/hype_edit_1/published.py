"""HYPE-EDIT-1's result columns from its judgements, workflows with retries, and sensitivity to the assumptions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_bench.core.errors import UserError, count
from local_bench.core.table import Column, table_of
from local_bench.settle.attempts import (
    FAIL,
    MISSING,
    NOT_REQUESTED,
    PASS,
    RETRY_CAP,
    REVIEW_SECONDS,
    REVIEW_USD_PER_HOUR,
    UNSCORED,
    AttemptCounts,
    Outcomes,
    WorkflowResult,
    best_of,
    count_attempts,
    intervals,
    retry_until_pass,
    review_usd,
    single_shot,
)
from local_bench.settle.sensitivity import effective_costs, flips
from local_bench.suites.hype_edit_1.results import AttemptScore, Judgement, Judgements
from local_bench.suites.published import (
    Published,
    ScoreOptions,
    by_model,
    dollars,
    grid_json,
    grid_tables,
    listed,
    number,
    percent,
)
from local_bench.suites.task_files import AMOUNTS, is_amount

PROTOCOL_ATTEMPTS = 10
GRID_SECONDS = (5, 10, 20, 40, 80)
GRID_USD_PER_HOUR = (10, 25, 50, 100)
GRID_CAPS = (1, 2, 4, 8)
Requested = Mapping[str, Mapping[str, int]]
"""Model -> task -> the number of attempts that were requested of it."""
UNBIASED = {name: f"{name}_unbiased" for name in ("pass_at_4", "expected_attempts", "effective_cost_usd")}
"""Figure that the paper estimates with bias -> the key of the unbiased estimate, to which the interval belongs."""


@dataclass(frozen=True)
class Review:
    """Cost and duration of one human review, and the maximum number of attempts."""

    usd_per_hour: Fraction = Fraction(REVIEW_USD_PER_HOUR)
    seconds: Fraction = Fraction(REVIEW_SECONDS)
    retry_cap: int = RETRY_CAP

    @property
    def usd(self) -> Fraction:
        return review_usd(self.usd_per_hour, self.seconds)


def review_of(options: ScoreOptions) -> Review:
    default, cap = Review(), options.retry_cap
    return Review(
        _amount("--review-usd-per-hour", options.review_usd_per_hour, default.usd_per_hour),
        _amount("--review-seconds", options.review_seconds, default.seconds),
        default.retry_cap if cap is None else cap,
    )


def _amount(option: str, text: str | None, default: Fraction) -> Fraction:
    """An option's value as an exact number. UserError unless it is one of `AMOUNTS`."""
    if text is None:
        return default
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not is_amount(value):
        raise UserError(f"{option} must be {AMOUNTS}, not {text!r}")
    return Fraction(value)


def published(
    judgements: Judgements,
    costs: Mapping[str, Decimal] | None,
    review: Review,
    ratings: Sequence[AttemptScore] | None = None,
    sensitivity: bool = False,
) -> Published:
    """The figures of every model; with `ratings` also the best of N as selected by that judge."""
    rows_of: dict[str, list[Judgement]] = {}
    for row in judgements.rows:
        rows_of.setdefault(row.model, []).append(row)
    present = [name for name in judgements.models if name in rows_of]
    absent = [name for name in judgements.models if name not in rows_of]
    requested = {name: judgements.requested(name) for name in present}
    attempts = [k for of in requested.values() for k in of.values()]
    usd = {name: Fraction(amount) for name, amount in (costs or {}).items()}
    tables = {name: outcomes(rows_of[name], requested[name]) for name in present}
    counted = {name: count_attempts(table) for name, table in tables.items()}
    judged = {(row.model, row.task_id, row.attempt) for row in judgements.rows}
    matched = None if ratings is None else [r for r in ratings if (r.model, r.task_id, r.attempt) in judged]
    workflows = {name: _workflows(name, tables[name], requested[name], review, matched) for name in present}
    models = {
        name: model_json(counted[name], usd.get(name), review)
        | {"workflows": [_worked_json(w, usd.get(name), review) for w in workflows[name]]}
        for name in present
    }
    data = {
        "suite": "hype-edit-1",
        "models": models,
        "absent_models": absent,
        "n_attempts_a_task": max(attempts, default=0),
    }
    worked = [
        w | {"model": model} | {name: f"{w[f'n_{name}']}/{w['n_tasks']}" for name in ("passed", "passed_high")}
        for model, figures in models.items()
        for w in figures["workflows"]
    ]
    shown = [
        by_model("model", present, models.values(), *_columns(attempts)),
        by_model("unbiased, for tasks like these", present, models.values(), *_interval_columns(attempts)),
        table_of("workflows", _WORKFLOWS, worked),
    ]
    if sensitivity:
        grid = effective_costs(
            {name: c.shown for name, c in counted.items()},
            usd,
            [Fraction(s) for s in GRID_SECONDS],
            [Fraction(h) for h in GRID_USD_PER_HOUR],
            GRID_CAPS,
        )
        base = {
            name: counted[name].shown.effective_cost_usd(usd[name] + review.usd, review.retry_cap)
            for name in present
            if name in usd
        }
        rank_changes = flips(base, grid, lower_is_better=True)
        data["sensitivity"] = grid_json(grid, rank_changes, "effective_cost_usd")
        shown += grid_tables(grid, rank_changes)
    notes = _notes(models, absent, costs, requested)
    if unmatched := len(ratings or ()) - len(matched or ()):
        notes.append(f"{count(unmatched, 'scores belong to no attempt in the judgements and are')} ignored")
    return Published(data, [table for table in shown if table.rows], notes)


def open_votes(rows: Sequence[Judgement]) -> list[str]:
    """A note on the attempts that the raters' votes leave undecided."""
    names = listed([f"attempt {row.attempt} of {row.task_id} by {row.model}" for row in rows])
    them = count(len(rows), "attempts have no majority of their raters and are")
    return [f"{them} unscored: {names}"] if rows else []


def outcomes(rows: Sequence[Judgement], requested: Mapping[str, int]) -> Outcomes:
    """One model's judgements as a table; MISSING if a requested attempt has none, or no image."""
    attempts = np.array([*requested.values()], dtype=np.int64)[:, None]
    table = np.where(np.arange(attempts.max(initial=0)) < attempts, MISSING, NOT_REQUESTED).astype(np.int8)
    index = {task_id: t for t, task_id in enumerate(requested)}
    for row in rows:
        verdict = PASS if row.passed else FAIL if row.passed is False else UNSCORED if row.made else MISSING
        table[index[row.task_id], row.attempt - 1] = verdict
    return table


def _workflows(
    model: str, table: Outcomes, requested: Mapping[str, int], review: Review, ratings: Sequence[AttemptScore] | None
) -> list[WorkflowResult]:
    table = table[:, : min(requested.values(), default=0)]  # the attempts that every task has
    workflows = [single_shot(table), retry_until_pass(table, review.retry_cap)]
    if ratings is not None:
        scores: NDArray[np.float64] = np.full(table.shape, np.nan)
        index = {task_id: t for t, task_id in enumerate(requested)}
        for row in ratings:
            if row.model == model and row.score is not None and row.attempt <= table.shape[1]:
                scores[index[row.task_id], row.attempt - 1] = row.score
        workflows += [
            best_of(table, scores, n) for n in sorted({min(review.retry_cap, table.shape[1]), table.shape[1]})
        ]
    return workflows


def model_json(counted: AttemptCounts, usd: Fraction | None, review: Review) -> dict[str, Any]:
    shown, best, cap = counted.shown, counted.at_best, review.retry_cap
    gap, each = counted.hype_gap_ends, None if usd is None else usd + review.usd
    ends_by_figure = intervals(shown, each, cap)
    return {
        "pass_rate": number(shown.pass_rate),
        "pass_rate_high": number(best.pass_rate),
        "pass_at_4": number(shown.pass_at(4)),
        "pass_at_4_high": number(best.pass_at(4)),
        "pass_at_4_unbiased": number(shown.pass_at_unbiased(4)),
        "pass_at_10": number(shown.pass_at_unbiased(PROTOCOL_ATTEMPTS)),
        "pass_at_10_high": number(best.pass_at_unbiased(PROTOCOL_ATTEMPTS)),
        "pass_at_any": number(shown.pass_at_any),
        "pass_at_any_high": number(best.pass_at_any),
        "pass_at_first": number(shown.pass_at_first),
        "pass_at_first_high": number(best.pass_at_first),
        "expected_attempts": number(shown.expected_attempts(cap)),
        "expected_attempts_unbiased": number(shown.expected_attempts_unbiased(cap)),
        "expected_attempts_low": number(best.expected_attempts(cap)),
        "effective_cost_usd": number(shown.effective_cost_usd(each, cap)),
        "effective_cost_usd_unbiased": number(shown.effective_cost_usd_unbiased(each, cap)),
        "effective_cost_low_usd": number(best.effective_cost_usd(each, cap)),
        "hype_gap": number(shown.hype_gap),
        "hype_gap_low": number(gap and gap[0]),
        "hype_gap_high": number(gap and gap[1]),
        "n_tasks": shown.n_tasks,
        "n": counted.n,
        "n_unscored": counted.n_unscored,
        "n_missing": counted.n_missing,
        "intervals": {name: None if ends is None else list(ends) for name, ends in ends_by_figure.items()},
        **{
            f"{UNBIASED.get(name, name)}_ci95_{end}": None if ends is None else ends[i]
            for name, ends in ends_by_figure.items()
            for i, end in enumerate(("low", "high"))
        },
    }


def _columns(attempts: Sequence[int]) -> list[Column]:
    every = attempts[0] if len(set(attempts)) == 1 else "any"
    of_every = "any of 4" if every == 4 else f"pass@{every}"  # pass@4 is the plug-in estimate
    return [
        *(Column("pass_rate", "pass rate", percent), Column("pass_at_4", "pass@4", percent)),
        *(Column("pass_at_4_unbiased", "unbiased", percent), Column("pass_at_any", of_every, percent)),
        *(Column("expected_attempts", "attempts", ".2f"), dollars("effective_cost_usd", "per success")),
        Column("hype_gap", "hype gap", percent),
    ]


def _interval_columns(attempts: Sequence[int]) -> list[Column]:
    columns = []
    for column in _columns(attempts):
        if column.name != "unbiased":
            key = UNBIASED.get(column.key, column.key)
            columns.append(replace(column, key=key))
            columns += [
                Column(f"{key}_ci95_{end}", end, column.form, "95 %", unit=column.unit, below=True)
                for end in ("low", "high")
            ]
    return columns


_WORKFLOWS = (
    *(Column("way", "workflow"), Column("model", "model"), Column("passed", "passed")),
    *(Column("passed_high", "at best"), Column("n_images", "images"), Column("n_reviews", "reviews")),
    dollars("usd_per_success", "per success"),
)


def _worked_json(w: WorkflowResult, usd: Fraction | None, review: Review) -> dict[str, Any]:
    counts = {name: getattr(w, name) for name in ("n_tasks", "n_passed", "n_passed_high", "n_images", "n_reviews")}
    each = None if usd is None else w.usd_per_success(usd, review.usd)
    return {"way": w.way, "success": number(w.success), **counts, "usd_per_success": number(each)}


def differing(requested: Requested) -> list[str]:
    """A note where models have different tasks, or numbers of attempts differ."""
    if len({(frozenset(of), k) for of in requested.values() for k in set(of.values())}) < 2:
        return []
    sizes = {m: " + ".join(f"{n} x {k}" for k, n in Counter(of.values()).items()) for m, of in requested.items()}
    counts = ", ".join(f"{model} {size}" for model, size in sizes.items())
    return [
        f"tasks or attempts differ (tasks x attempts: {counts}): each model's figures are over its own, and "
        "pass_at_any and hype_gap grow with the attempts"
    ]


def _notes(
    models: Mapping[str, Any], absent: Sequence[str], costs: Mapping[str, Decimal] | None, requested: Requested
) -> list[str]:
    notes = differing(requested)
    attempts = max((k for of in requested.values() for k in of.values()), default=0)
    if attempts != PROTOCOL_ATTEMPTS:
        of_ten = "null" if attempts < PROTOCOL_ATTEMPTS else "the unbiased estimate"
        notes.append(
            f"the file has {count(attempts, 'attempts')} per task, the protocol {PROTOCOL_ATTEMPTS}: rates, "
            f"pass_at_any and hype_gap are over {attempts}, and pass_at_10 is {of_ten}"
        )
    left = sum(model["n_unscored"] + model["n_missing"] for model in models.values())
    if left:
        them = count(left, "attempts have no verdict: they count")
        notes.append(f"{them} as failed, and as passed in _high and in cost _low")
    if absent:
        notes.append(f"no judgements of {listed(absent)}")
    if costs is None:
        notes.append("the cost per image is not known (give it to `score` with --costs), so there is no effective cost")
    elif unpriced := [model for model in models if model not in costs]:
        notes.append(f"no cost for {listed(unpriced)}: the effective cost is null")
    return notes
