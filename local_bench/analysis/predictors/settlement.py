"""Settlement of a run by predicted decisions (ServImage, table 9 and sec. G.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from local_bench.analysis.people_settlement import settled_with
from local_bench.analysis.predictors.predictions import NO_IMAGE
from local_bench.core.types import Decision
from local_bench.runs.prediction_file import PredictionLine
from local_bench.runs.rundir import RunDir
from local_bench.settle.predictors.revenue import ExpectedRevenue, Probabilities
from local_bench.settle.settlement import Settlement


@dataclass(frozen=True)
class PredictedSettlement:
    """One model, settled by predictions and by the run's own decisions."""

    predicted: Settlement
    """By the thresholded probabilities, as in table 9; images without a prediction are unscored."""
    expected: ExpectedRevenue
    """Sum of probability times price over the images, another quantity."""
    run: Settlement


def settled_by_predictions(run: RunDir, lines: Sequence[PredictionLine]) -> list[PredictedSettlement]:
    """Every model's settlement by `lines`, which has the images of `run`; highest revenue first."""
    predicted = {line.work_id: line for line in lines}
    settled, own = settled_with(run, lambda row: _decision(predicted[row.candidate.work_id], row.decision))
    rows = [(row, predicted[row.candidate.work_id]) for row in run.store.outcomes(attempt=1)]
    expected: dict[str, ExpectedRevenue] = {}
    for model in own:
        of = [(row, line) for row, line in rows if row.candidate.model == model and row.candidate.image]
        values = np.array([np.nan if line.probability is None else line.probability for _, line in of], np.float64)
        unscored = {i: line.unscored or "" for i, (_, line) in enumerate(of) if line.probability is None}
        pays = np.array([row.part_micro_usd for row, _ in of], dtype=np.int64)
        tasks = np.unique([row.candidate.task_id for row, _ in of], return_inverse=True)[1]
        expected[model] = Probabilities(values, unscored).expected_revenue(pays, tasks)
    return [PredictedSettlement(one, expected[one.model], own[one.model]) for one in settled]


def _decision(line: PredictionLine, by_run: Decision | None) -> Decision:
    """A missing image has the run's decision: it cannot be predicted."""
    if line.accepted is not None:
        return Decision(line.accepted)
    if line.unscored == NO_IMAGE and by_run is not None:
        return by_run
    return Decision(None, line.unscored or NO_IMAGE)
