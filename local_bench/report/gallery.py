"""The gallery: every order with each model's images and their verdicts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from local_bench.analysis.agreement import judge_labels
from local_bench.core.money import usd
from local_bench.core.types import GroundTruth, Task
from local_bench.report.candidate import CandidateView, candidate_view, given
from local_bench.report.images import InlineImage, inline_image
from local_bench.report.scores import decimals
from local_bench.report.truth import truth_sentence
from local_bench.report.view import model_order
from local_bench.runs.acceptance import deciding
from local_bench.runs.rundir import RunDir

T = TypeVar("T")
MAX_ORDERS = 200


@dataclass(frozen=True)
class DeliverableView:
    index: int
    what: str
    prompt: str | None
    """The common prompt of all models; None if they differ."""
    candidates: list[CandidateView]
    several_attempts: bool


@dataclass(frozen=True)
class OrderView:
    task: Task
    price: str
    given: list[tuple[str, InlineImage | None]]
    """The input images of the order: (description, image or None if it is missing)."""
    deliverables: list[DeliverableView]


def gallery(run: RunDir, truths: Mapping[str, GroundTruth] | None = None) -> list[OrderView]:
    """The first MAX_ORDERS orders, in the suite's order; `truths`: work id -> ground truth of the image. LedgerError if
    the ledger has an invalid task."""
    store = run.store
    candidates = _grouped(store.outcomes(first_tasks=MAX_ORDERS), lambda row: row.candidate.task_id)
    scores = _grouped(store.scores(first_tasks=MAX_ORDERS), lambda row: row.work_id)
    verdicts = _grouped(store.verdicts(first_tasks=MAX_ORDERS), lambda row: row.work_id)
    places, rule = decimals(run), deciding(run.config)
    models, judges = model_order(run), judge_labels(run)
    orders = []
    for task in store.tasks(MAX_ORDERS):
        views: dict[int, list[CandidateView]] = {i: [] for i in range(1, len(task.deliverables) + 1)}
        of_task = candidates[task.task_id]
        for row in sorted(of_task, key=lambda row: (models.index(row.candidate.model), row.candidate.attempt)):
            work_id = row.candidate.work_id
            truth = truth_sentence((truths or {}).get(work_id))
            view = candidate_view(run, task, row, places, rule, scores[work_id], verdicts[work_id], judges, truth)
            views.setdefault(row.candidate.deliverable, []).append(view)
        deliverables = [_deliverable(task, index, mine) for index, mine in sorted(views.items())]
        orders.append(OrderView(task, usd(task.price_micro_usd), _given(run, task), deliverables))
    return orders


def n_orders(run: RunDir) -> int:
    """The run's total number of orders."""
    return run.store.task_totals()[0]


def _grouped(rows: Iterable[T], key: Callable[[T], str]) -> defaultdict[str, list[T]]:
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _deliverable(task: Task, index: int, views: list[CandidateView]) -> DeliverableView:
    prompts = {view.prompt for view in views}
    return DeliverableView(
        index=index,
        what=task.deliverables[index - 1] if 1 <= index <= len(task.deliverables) else "not in the order",
        prompt=prompts.pop() if len(prompts) == 1 else None,
        candidates=views,
        several_attempts=any(view.attempt > 1 for view in views),
    )


def _given(run: RunDir, task: Task) -> list[tuple[str, InlineImage | None]]:
    return [(what, inline_image(run.image_store.load_input, sha256)) for what, sha256 in given(task)]
