"""What settlement needs of all candidates, as columns of numbers: a million candidates take 48 MB."""

from array import array
from collections.abc import Iterable, Sequence

TaskPrice = tuple[str, str, int]
"""A task's id, category and price in micro-USD."""
UNDECIDED = -1
OF_ATTEMPTS = ("tasks", "candidates", "decisions")
"""The tables with these columns."""


class Attempts:
    """Columns with a number for each candidate, by work id."""

    def __init__(self, tasks: Sequence[TaskPrice]) -> None:
        """`tasks`: those of the ledger, by task id."""
        self.tasks = tasks
        self.models: dict[str, int] = {}
        """Name -> number, in no particular order."""
        self.model = array("q")
        self.task = array("q")
        """Index into `tasks`."""
        self.deliverable = array("q")
        self.attempt = array("q")
        self.made = array("q")
        """1 if there is an image, else 0."""
        self.decision = array("q")
        """1 if accepted, 0 if not, UNDECIDED if neither."""
        self._numbers = {task_id: i for i, (task_id, *_) in enumerate(tasks)}

    def task_numbers(self, task_ids: Iterable[str]) -> list[int]:
        """Indices into `tasks`. KeyError with the id of a task that the ledger lacks."""
        return list(map(self._numbers.__getitem__, task_ids))

    def add(
        self,
        model: Sequence[str],
        task: list[int],
        deliverable: list[int],
        attempt: list[int],
        made: list[int],
        decision: list[int],
    ) -> None:
        """Append candidates; `model` are names, the others as in the columns."""
        for name in set(model) - self.models.keys():
            self.models[name] = len(self.models)
        self.model.fromlist(list(map(self.models.__getitem__, model)))
        self.task.fromlist(task)
        self.deliverable.fromlist(deliverable)
        self.attempt.fromlist(attempt)
        self.made.fromlist(made)
        self.decision.fromlist(decision)
