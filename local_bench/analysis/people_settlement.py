"""Settlement by the annotators' decisions and by the run's own."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from local_bench.analysis.payment import decided_by_people
from local_bench.analysis.settlement import NOT_SETTLED, accounting, counted_attempt
from local_bench.core.types import Decision
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import OutcomeRow
from local_bench.settle.settlement import Settlement, settle

NOT_ANNOTATED = "no annotator has decided it"


@dataclass(frozen=True)
class PeopleSettlement:
    """One model, settled twice. Where the benchmark counts all attempts (HYPE-EDIT-1), each is a deliverable."""

    people: Settlement
    """By the annotators' consensus; images without one are unscored. If there are any, its revenue is a lower bound,
    and its interval has no meaning."""
    run: Settlement
    """By the run's decisions."""
    not_annotated: Mapping[str, int]
    """Category -> images without a consensus, only categories with any; missing images do not count."""

    @property
    def n_not_annotated(self) -> int:
        return sum(self.not_annotated.values())


def settled_by_people(run: RunDir, people: Path) -> list[PeopleSettlement]:
    """Every model's settlement by the annotations in `people` (`load_annotations`), highest revenue first. UserError if
    they cannot be read."""
    decided, attempt = decided_by_people(run, people), counted_attempt(run.config)
    not_annotated: dict[str, Counter[str]] = defaultdict(Counter)

    def decision(row: OutcomeRow) -> Decision:
        of = row.candidate
        if of.image is not None and of.work_id not in decided:
            not_annotated[of.model][row.category] += 1
        return _decision(decided.get(of.work_id), of.image, row.decision)

    settled, own = settled_with(run, decision, attempt)
    return [PeopleSettlement(one, own[one.model], not_annotated[one.model]) for one in settled]


def settled_with(
    run: RunDir, decision_of: Callable[[OutcomeRow], Decision], attempt: int | None = 1
) -> tuple[list[Settlement], dict[str, Settlement]]:
    """Every model's settlement by other decisions, highest revenue first, and by model that of the run; of one attempt
    of each image, or of all of them, each as a deliverable."""
    own = {one.model: one for one in accounting(run.store, run.config.settlement).settlements}
    costs = {model: one.cost_micro_usd for model, one in own.items()}
    rows = list(run.store.outcomes(attempt))
    if attempt is None:
        by_run = _lines(rows, lambda row: row.decision or Decision(None, NOT_SETTLED))
        own = {one.model: one for one in settle(by_run, costs)}
    return settle(_lines(rows, decision_of), costs), own


def _lines(rows: Sequence[OutcomeRow], decision_of: Callable[[OutcomeRow], Decision]) -> pd.DataFrame:
    lines = pd.DataFrame(
        {
            "model": [row.candidate.model for row in rows],
            "task_id": [row.candidate.task_id for row in rows],
            "category": [row.category for row in rows],
            "price_micro_usd": [row.price_micro_usd for row in rows],
            "image": [(row.candidate.deliverable, row.candidate.attempt) for row in rows],
            "accepted": pd.array([decision_of(row).accepted for row in rows], dtype="boolean"),
            "made": pd.array([row.candidate.image is not None for row in rows], dtype="bool"),
        }
    ).sort_values("image", kind="stable")
    of_task = lines.groupby(["model", "task_id"])["image"]
    return lines.assign(deliverable=of_task.cumcount() + 1, deliverables=of_task.transform("size"))


def _decision(by_people: bool | None, image: str | None, by_run: Decision | None) -> Decision:
    """A missing image has the run's decision: nobody can annotate it."""
    if by_people is not None:
        return Decision(by_people)
    return by_run if image is None and by_run is not None else Decision(None, NOT_ANNOTATED)
