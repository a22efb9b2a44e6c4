"""Settlement by the annotators' decisions and by the run's own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from local_bench.analysis.payment import decided_by_people
from local_bench.analysis.settlement import accounting
from local_bench.core.types import Decision
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import OutcomeRow
from local_bench.settle.settlement import Settlement, settle
from local_bench.settle.table import Line

NOT_ANNOTATED = "no annotator has decided it"


@dataclass(frozen=True)
class PeopleSettlement:
    """One model, settled twice."""

    people: Settlement
    """By the annotators' consensus; images without one are unscored and earn nothing."""
    run: Settlement
    """By the run's decisions."""


def settled_by_people(run: RunDir, people: Path) -> list[PeopleSettlement]:
    """Every model's settlement by the annotations in `people` (`load_annotations`), highest revenue first. UserError if
    they cannot be read."""
    decided = decided_by_people(run, people)
    settled, own = settled_with(
        run, lambda row: _decision(decided.get(row.candidate.work_id), row.candidate.image, row.decision)
    )
    return [PeopleSettlement(one, own[one.model]) for one in settled]


def settled_with(
    run: RunDir, decision_of: Callable[[OutcomeRow], Decision]
) -> tuple[list[Settlement], dict[str, Settlement]]:
    """Every model's settlement by other decisions, highest revenue first, and by model that of the run."""
    own = {one.model: one for one in accounting(run.store, run.config.settlement).settlements}
    lines = [
        Line(
            model=row.candidate.model,
            task_id=row.candidate.task_id,
            category=row.category,
            price_micro_usd=row.price_micro_usd,
            deliverable=row.candidate.deliverable,
            deliverables=row.deliverables,
            decision=decision_of(row),
            made=row.candidate.image is not None,
        )
        for row in run.store.outcomes(attempt=1)
    ]
    return settle(lines, {model: one.cost_micro_usd for model, one in own.items()}), own


def _decision(by_people: bool | None, image: str | None, by_run: Decision | None) -> Decision:
    """A missing image has the run's decision: nobody can annotate it."""
    if by_people is not None:
        return Decision(by_people)
    return by_run if image is None and by_run is not None else Decision(None, NOT_ANNOTATED)
