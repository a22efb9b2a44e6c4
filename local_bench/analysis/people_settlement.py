"""Settlement by other decisions than the run's: by annotators, or by a predictor (ServImage, table 9 and sec. G.2)."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from local_bench.analysis.settlement import accounting, attempts, counted_attempt
from local_bench.annotation.ratings import load_annotations
from local_bench.runs.payment import PredictionLine
from local_bench.runs.rundir import RunDir
from local_bench.settle.predictors.models import ExpectedRevenue, expected_revenue
from local_bench.settle.settlement import Settlement, settle
from local_bench.settle.table import parts_micro_usd


@dataclass(frozen=True)
class PeopleSettlement:
    """One model, settled twice. Where the benchmark counts all attempts (HYPE-EDIT-1), each is a deliverable."""

    people: Settlement
    """By the annotators' consensus; images without one are unscored. If there are any, or images that were not made,
    its revenue is a lower bound, and its interval has no meaning."""
    run: Settlement
    """By the run's decisions."""
    not_annotated: Counter[str]
    """Category -> images without a consensus."""
    not_made: Counter[str]
    """Category -> requested images that do not exist, on which nobody can decide."""


@dataclass(frozen=True)
class PredictedSettlement:
    """One model, settled by predictions and by the run's own decisions."""

    predicted: Settlement
    """By the thresholded probabilities, as in table 9; images without a prediction are unscored."""
    expected: ExpectedRevenue
    """Sum of probability times price over the images, another quantity."""
    run: Settlement


def settled_by_people(run: RunDir, people: Path) -> list[PeopleSettlement]:
    """Every model's settlement by the annotations in `people` (`load_annotations`), highest revenue first. UserError if
    they cannot be read."""
    decided, lines = load_annotations(people, run).decisions(), _lines(run, counted_attempt(run.config))
    by_people, by_run = _settled(run, lines, decided)
    undecided: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
    for row in lines[~(lines["made"] & lines["work_id"].isin(decided))].itertuples():
        undecided[row.model, row.made][row.category] += 1
    return [
        PeopleSettlement(s, by_run[s.model], *(undecided[s.model, made] for made in (True, False))) for s in by_people
    ]


def settled_by_predictions(run: RunDir, predictions: Sequence[PredictionLine]) -> list[PredictedSettlement]:
    """Every model's settlement by `predictions`, which has the images of `run`; highest revenue first."""
    predicted, lines = {line.work_id: line for line in predictions}, _lines(run, 1)
    accepted = {work_id: line.accepted for work_id, line in predicted.items() if line.accepted is not None}
    by_prediction, by_run = _settled(run, lines, accepted)
    expected: dict[str, ExpectedRevenue] = {}
    for model in by_run:
        of_model = lines[(lines["model"] == model).to_numpy(bool)]
        of_images = [predicted.get(work_id) for work_id in of_model["work_id"]]  # None: no image was made
        values = np.array([np.nan if p is None or p.probability is None else p.probability for p in of_images])
        tasks = pd.factorize(of_model["task_id"], sort=True)[0]
        expected[model] = expected_revenue(values, parts_micro_usd(of_model), tasks)
    return [PredictedSettlement(s, expected[s.model], by_run[s.model]) for s in by_prediction]


def _lines(run: RunDir, attempt: int | None) -> pd.DataFrame:
    """The deliverables (`settle`) of one attempt of each image, or of all of them, each as a deliverable."""
    rows = attempts(run.store)
    if attempt is not None:
        return rows[rows["attempt"] == attempt]
    of_task = rows.sort_values(["deliverable", "attempt"]).groupby(["model", "task_id"])["attempt"]
    return rows.assign(deliverable=of_task.cumcount() + 1, deliverables=of_task.transform("size"))


def _settled(
    run: RunDir, lines: pd.DataFrame, accepted: Mapping[str, bool]
) -> tuple[list[Settlement], dict[str, Settlement]]:
    """Every model's settlement by the decisions `accepted` (by work id), highest revenue first, and by model that of
    the run. A missing image has the run's decision: nobody can decide on it."""
    costs = {s.model: s.cost_micro_usd for s in accounting(run.store, run.config.settlement).settlements}
    decided = pd.array([accepted.get(work_id) for work_id in lines["work_id"]], dtype="boolean")
    by_run = lines["accepted"].astype("boolean")
    other = lines.assign(accepted=pd.Series(decided, index=lines.index).where(lines["made"], by_run))
    return settle(other, costs), {s.model: s for s in settle(lines, costs)}
