"""Which images were generated without all of their task's input images, and the results on the other tasks."""

from collections import Counter
from dataclasses import dataclass

from local_bench.analysis.settlement import deliverables
from local_bench.core import strictjson
from local_bench.core.errors import ConfigError
from local_bench.runs.rundir import RunDir
from local_bench.settle.settlement import Settlement, settle
from local_bench.suites.registry import suite


@dataclass(frozen=True)
class UnseenInputs:
    """Pairs of model and task where the model does not take all of the task's input images. What an imported model was
    given is not known: it has none."""

    pairs: frozenset[tuple[str, str]]
    """(model, task id)"""
    n_images: dict[str, int]
    """Model -> images (first attempts) that were generated without all input images; models without any are left
    out."""
    common: tuple[Settlement, ...]
    """The standard scenario on the tasks that every model supports and saw completely, without costs; empty if these
    are all tasks, or none."""


def unseen_inputs(run: RunDir) -> UnseenInputs:
    """LedgerError if the ledger cannot be read."""
    return run.store.once("unseen inputs", lambda: _unseen_inputs(run))


def _unseen_inputs(run: RunDir) -> UnseenInputs:
    store = run.store
    fewer = store.with_fewer_inputs()
    tasks = {task.task_id: task for task in store.tasks({task_id for _, task_id, _ in fewer})}
    try:
        entry = suite(run.config.suite.name)
    except ConfigError:  # the suite of a package that is not installed here
        requested = {task_id: set(task.input_images) for task_id, task in tasks.items()}
    else:
        requested = {
            task_id: {sha for deliverable in entry.deliverables(task) for sha in deliverable.input_images}
            for task_id, task in tasks.items()
        }
    seen = ((model, task_id, strictjson.stored(work)) for model, task_id, work in fewer)
    pairs = frozenset(
        (model, task_id)
        for model, task_id, work in seen
        if not requested[task_id] <= {str(work.get("mask")), *map(str, work["pictures"])}
    )
    left_out = {task_id for _, task_id in pairs | store.unsupported()}
    if not left_out:
        return UnseenInputs(pairs, {}, ())
    lines = deliverables(store)
    with_image = lines[lines["made"]]
    blind = Counter(
        model
        for model, task_id in zip(with_image["model"], with_image["task_id"], strict=True)
        if (model, task_id) in pairs
    )
    return UnseenInputs(pairs, dict(blind), tuple(settle(lines[~lines["task_id"].isin(left_out)], {})))
