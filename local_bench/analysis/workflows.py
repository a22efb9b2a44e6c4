"""Workflows with several attempts (`settle.attempts`), evaluated on a run's attempts."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from local_bench.analysis.economics import summed_scores, usd_per_image
from local_bench.analysis.settlement import Accounting
from local_bench.runs.store import OutcomeRow, Store
from local_bench.settle.attempts import (
    FAIL,
    MISSING,
    PASS,
    RETRY_CAP,
    UNSCORED,
    Outcomes,
    WorkflowResult,
    best_of,
    retry_until_pass,
    single_shot,
)


@dataclass(frozen=True)
class Workflow:
    """The result of one workflow with one model; a deliverable passes or fails."""

    model: str
    result: WorkflowResult
    revenue_micro_usd: int
    """Revenue of the passing images: their shares of the tasks' prices."""
    images_usd: Fraction | None
    """Cost of the images that the workflow generates, at this run's cost per image; None if unknown."""


def workflow_results(store: Store, money: Accounting, always: bool = False) -> list[Workflow]:
    """Results by model, in order: the first attempt, retries until one passes (at most RETRY_CAP attempts), and the
    best by summed scores of RETRY_CAP and of all attempts. A model with one attempt has none, or with `always` only
    the first."""
    if not always and (store.frame("candidates", ["attempt"])["attempt"] == 1).all():
        return []
    scores = summed_scores(store)
    costs = usd_per_image(store, money)
    by_model = defaultdict(list)
    for row in store.outcomes():
        by_model[row.candidate.model].append(row)
    workflows: list[Workflow] = []
    for model, rows in by_model.items():
        attempts = max(row.candidate.attempt for row in rows)
        if attempts == 1 and not always:
            continue
        outcomes, summed, pays = _tables(rows, attempts, scores)
        results = [single_shot(outcomes)]
        if attempts > 1:
            few = min(RETRY_CAP, attempts)
            picks = [best_of(outcomes, summed, n) for n in sorted({few, attempts})]
            results += [retry_until_pass(outcomes, few), *picks]
        usd = costs.get(model)
        workflows += [
            Workflow(model, w, int(pays[w.passed].sum()), None if usd is None else usd * w.n_images) for w in results
        ]
    return workflows


def outcome_of(row: OutcomeRow) -> int:
    decided = UNSCORED if row.accepted is None else PASS if row.accepted else FAIL
    return decided if row.candidate.state == "done" else MISSING


def _tables(
    rows: Sequence[OutcomeRow], attempts: int, scores: Mapping[str, Decimal]
) -> tuple[Outcomes, NDArray[np.float64], NDArray[np.int64]]:
    """Per deliverable of one model: outcomes and summed scores of all attempts, and the revenue of a passing one."""
    keys = dict.fromkeys((row.candidate.task_id, row.candidate.deliverable) for row in rows)
    indices = dict(zip(keys, range(len(keys)), strict=True))
    outcomes: Outcomes = np.full((len(indices), attempts), MISSING, dtype=np.int8)
    summed = np.full((len(indices), attempts), np.nan)
    pays = np.zeros(len(indices), dtype=np.int64)
    for row in rows:
        candidate = row.candidate
        index = indices[candidate.task_id, candidate.deliverable], candidate.attempt - 1
        outcomes[index] = outcome_of(row)
        summed[index] = float(scores.get(candidate.work_id, np.nan))
        pays[index[0]] = row.part_micro_usd
    return outcomes, summed, pays
