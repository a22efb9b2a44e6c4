"""Whether the models of several runs can be in one table: the same tasks, judges, rubrics and acceptance rule."""

from collections.abc import Collection, Sequence

from local_bench.analysis.agreement import judge_labels
from local_bench.core.types import canonical_json, digest
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of

TASKS = ("the suite", "the tasks", "the tasks' prices")
JUDGED = ("the judges", "the rubrics", "the acceptance rule")


def comparable(runs: Sequence[RunDir], conditions: Collection[str] = TASKS + JUDGED) -> tuple[list[int], list[str]]:
    """(group of each run, sentences about what differs): runs with equal conditions are in one group."""
    keys = [{name: value for name, value in conditions_of(run).items() if name in conditions} for run in runs]
    numbers: dict[tuple[tuple[str, str], ...], int] = {}
    groups = [numbers.setdefault(tuple(key.items()), len(numbers)) for key in keys]
    differences = []
    for first in (groups.index(group) for group in range(1, len(numbers))):
        what = [name for name in keys[0] if keys[first][name] != keys[0][name]]
        what = [name for name in what if not (name == TASKS[2] and TASKS[1] in what)]  # other tasks, other prices
        differences.append(f"{runs[first].path.name} and {runs[0].path.name} differ in {', '.join(what)}")
    return groups, differences


def rubric_sets(run: RunDir) -> dict[str, tuple[str, str]]:
    """Judge -> (rubric set, sha256 over its rubrics in use), as in the run's provenance; empty before the judge
    phase."""
    provenance = run.store.json_meta("provenance") or {}
    entries = [entry for entry in (provenance.get("judge"), *provenance.get("panel", [])) if entry]
    return {
        str(entry["name"]): (str(entry["rubric_variant"]), digest(entry["rubrics"]))
        for entry in entries
        if {"name", "rubric_variant", "rubrics"} <= entry.keys()
    }


def judging_of(run: RunDir) -> list[str]:
    """The judges' ids and, where it is not the default, how a panel's scores are combined and that sets were shown in
    two orders; empty before the judge phase."""
    judges = sorted(judge_labels(run))
    word = [run.config.panel_word] if len(judges) > 1 and run.config.panel_word != "mean" else []
    in_sets = any(len(task.content["deliverables"]) > 1 for task in run.store.tasks())
    return judges + word + (["order_swap"] if judges and run.config.order_swap and in_sets else [])


def conditions_of(run: RunDir) -> dict[str, str]:
    """What must be equal for two runs to be in one table, by name."""
    tasks = {task.task_id: task.content for task in run.store.tasks()}
    prices = {task_id: content.pop("price_micro_usd") for task_id, content in tasks.items()}
    values = (
        run.config.suite.name,
        digest(sorted(tasks.items())),
        digest(sorted(prices.items())),
        canonical_json(judging_of(run)),
        digest(run.store.rubric_versions()),
        canonical_json([dict(thresholds_of(run.config)), run.config.acceptance.rules]),
    )
    return dict(zip(TASKS + JUDGED, values, strict=True))
