"""A run that asked its models more than once, as one could have worked with them: `settle.workflows` on its ledger."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from local_bench.analysis.economics import Attempt, summed_scores, usd_per_image
from local_bench.analysis.settlement import Accounting
from local_bench.runs.store import OutcomeRow, Store
from local_bench.settle.hype import FAIL, MISSING, PASS, RETRY_CAP, UNSCORED, Outcomes
from local_bench.settle.workflows import Worked, best_of, retry_until_pass, single_shot


@dataclass(frozen=True)
class Workflow:
    """One model, worked with in one way; what is asked for once, a deliverable, is what passes or does not."""

    model: str
    worked: Worked
    revenue_micro_usd: int
    """The parts of their orders' prices that the images which pass are paid."""
    images_usd: Fraction | None
    """What the images cost that the way takes, at what one cost in this run; None where that is not known."""


def ways(store: Store, money: Accounting, always: bool = False) -> list[Workflow]:
    """By model, in their order: the first attempt alone, again until one passes (RETRY_CAP times at the most), and the
    best by the summed scores of as many and of all. A model that was asked once has none, or with `always` its first
    attempt alone."""
    scores = summed_scores(store)
    costs = usd_per_image(store, money)
    by_model = defaultdict(list)
    for row in store.outcomes():
        by_model[row.candidate.model].append(row)
    found: list[Workflow] = []
    for model, own in by_model.items():
        attempts = max(row.candidate.attempt for row in own)
        if attempts == 1 and not always:
            continue
        outcomes, said, pays = _tables(own, attempts, scores)
        worked = [single_shot(outcomes)]
        if attempts > 1:
            few = min(RETRY_CAP, attempts)
            worked.append(retry_until_pass(outcomes, few))
            worked += [best_of(outcomes, said, n) for n in sorted({few, attempts})]
        one = costs.get(model)
        found += [
            Workflow(model, w, int(pays[w.passed].sum()), None if one is None else one * w.n_images) for w in worked
        ]
    return found


def _tables(
    rows: Sequence[OutcomeRow], attempts: int, scores: Mapping[Attempt, Decimal]
) -> tuple[Outcomes, NDArray[np.float64], NDArray[np.int64]]:
    """By what was asked of one model: the outcomes and summed scores of all attempts, and what one that passes pays."""
    keys = dict.fromkeys((row.candidate.task_id, row.candidate.deliverable) for row in rows)
    asked = {key: n for n, key in enumerate(keys)}
    outcomes: Outcomes = np.full((len(asked), attempts), MISSING, dtype=np.int8)
    said = np.full((len(asked), attempts), np.nan)
    pays = np.zeros(len(asked), dtype=np.int64)
    for row in rows:
        candidate = row.candidate
        place = asked[candidate.task_id, candidate.deliverable], candidate.attempt - 1
        outcomes[place] = UNSCORED if row.accepted is None else PASS if row.accepted else FAIL
        score = scores.get(candidate.key)
        said[place] = np.nan if score is None else float(score)
        pays[place[0]] = row.part_micro_usd
    return outcomes, said, pays
