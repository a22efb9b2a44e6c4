"""A run's deliverables one by one: the row-wise form of what `analysis.settlement.line_table` reads as columns."""

from local_bench.analysis.settlement import NOT_SETTLED
from local_bench.core.types import Decision
from local_bench.runs.store import Store
from local_bench.settle.table import Line


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
            decision=row.decision or Decision(None, NOT_SETTLED),
            made=row.candidate.image is not None,
        )
        for row in sorted(store.outcomes(1), key=lambda row: row.candidate.work_id)
    ]
