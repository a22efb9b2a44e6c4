"""A run's deliverables one by one: the specification of what `settle` computes on frames."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from local_bench.core.money import split
from local_bench.core.types import Decision
from local_bench.runs.store import Store


@dataclass(frozen=True)
class Line:
    """One deliverable of one order by one model."""

    model: str
    task_id: str
    category: str
    price_micro_usd: int
    deliverable: int
    deliverables: int
    decision: Decision
    made: bool = True

    @property
    def part_micro_usd(self) -> int:
        return split(self.price_micro_usd, self.deliverables)[self.deliverable - 1]

    @property
    def revenue_micro_usd(self) -> int:
        return self.part_micro_usd if self.decision.accepted else 0


def frame(lines: Iterable[Line]) -> pd.DataFrame:
    """The input of `settle`."""
    names = ("model", "task_id", "category", "price_micro_usd", "deliverable", "deliverables")
    rows = [[*(getattr(line, name) for name in names), line.decision.accepted, line.made] for line in lines]
    return pd.DataFrame(rows, columns=[*names, "accepted", "made"]).astype({"accepted": "boolean", "made": bool})


def lines(store: Store) -> list[Line]:
    """One line per deliverable (its first attempt), in order of work ids."""
    return [
        Line(
            model=row.candidate.model,
            task_id=row.candidate.task_id,
            category=row.category,
            price_micro_usd=row.price_micro_usd,
            deliverable=row.candidate.deliverable,
            deliverables=row.deliverables,
            decision=row.decision or Decision(None, "it has not been settled"),
            made=row.candidate.image is not None,
        )
        for row in sorted(store.outcomes(1), key=lambda row: row.candidate.work_id)
    ]
