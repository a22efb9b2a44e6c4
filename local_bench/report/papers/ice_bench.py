"""The tables of ICE-Bench's supplement: which tasks a model supports, and the raw metrics by task and model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from local_bench.analysis.official import image_results, run_results
from local_bench.core.table import Column, Table
from local_bench.report.papers.inputs import Request, once
from local_bench.suites.ice_bench.results import Item, read_eval_result, results_by_model
from local_bench.suites.ice_bench.tasks import METRICS_OF

NUMBERED = (
    *("Text2Image", "Face Reference Generation", "Style Reference Generation", "Subject Reference Generation"),
    *("Color Editing", "Motion Editing", "Face Editing", "Texture Editing", "Style Editing", "Scene Editing"),
    *("Subject Addition", "Subject Removal", "Subject Change", "Text Render", "Text Removal", "Composite Editing"),
    *("Inpainting", "Outpainting", "Local Subject Addition", "Local Subject Removal", "Local Text Removal"),
    *("Local Text Render", "Pose-guided Generation", "Edge-guided Generation", "Depth-guided Generation"),
    *("Image Colorize", "Image Deblur", "Style Reference Editing", "Subject-guided Inpainting", "Virtual Try On"),
    "Face Swap",
)
"""The 31 tasks in the order of table 2, by the names in the benchmark's files."""
_KINDS = {1: "No-ref Creating", 4: "Ref Creating", 16: "Global Editing", 22: "Local Editing", 27: "Controllable"}
"""The last task of each category; the tasks after it are editing with a reference."""


@dataclass(frozen=True)
class _Raw:
    """A column of raw metrics: the first of `metrics` that a task has."""

    key: str
    name: str
    metrics: tuple[str, ...]
    of: Callable[[float], float] = float

    def metrics_of(self, tasks: Sequence[str]) -> list[str]:
        """The metric of each of the tasks that has one, without repetition."""
        of_tasks = (next((name for name in self.metrics if name in METRICS_OF[task]), None) for task in tasks)
        return list(dict.fromkeys(name for name in of_tasks if name))


_CONTROLS = ("l1_pose", "l1_canny", "l1_depth", "l1_colorize")
_COMMON = (
    _Raw("aesthetic", "Aesthetic Score\N{UPWARDS ARROW}", ("aes_v2.5",)),
    _Raw("imaging", "Imaging Score\N{UPWARDS ARROW}", ("musiq_koniq",)),
    _Raw("clip_cap", "CLIP-cap\N{UPWARDS ARROW}", ("clip_cap",)),
)
_VLLM_QA = _Raw("vllm_qa", "VLLM-QA\N{UPWARDS ARROW}", ("vllmqa",))
_SOURCE = (
    _Raw("clip_src", "CLIP-src\N{UPWARDS ARROW}", ("clip_src",)),
    _Raw("l1_src", "L1-src\N{DOWNWARDS ARROW}", ("l1_raw",)),
)
_REFERENCES = tuple(
    _Raw(f"{key}_ref", f"{name}-ref\N{UPWARDS ARROW}", (f"{key}_ref",))
    for key, name in (("face", "Face"), ("style", "Style"), ("dino", "DINO"))
)
_CONTROL = (
    _Raw("l1_src", "L1-src\N{DOWNWARDS ARROW}", _CONTROLS, lambda stored: 1 - stored),
    _Raw("color", "Color Score\N{UPWARDS ARROW}", ("colorfulness",)),
    _Raw("ssim", "SSIM\N{UPWARDS ARROW}", ("ssim",)),
)
_EDITING = (*_COMMON, _VLLM_QA, *_SOURCE)
_TABLES: Mapping[int, tuple[tuple[int, int], tuple[_Raw, ...]]] = {
    3: ((1, 1), _COMMON),
    4: ((23, 27), (*_COMMON, *_CONTROL)),
    5: ((28, 31), (*_COMMON, _VLLM_QA, *_REFERENCES, *_SOURCE)),
    6: ((2, 4), (*_COMMON, *_REFERENCES)),
    7: ((5, 16), _EDITING),
    8: ((17, 22), _EDITING),
}
"""Table -> its first and last task, and its columns."""


def _gathered(request: Request) -> dict[str, Sequence[Item]]:
    """Model -> items; a file is that of the method whose folder it is in (METHOD/eval_result.txt)."""
    if request.runs:
        of_runs = [(run.path, results_by_model(run_results(run))) for run in request.runs]
        once(of_runs)
        return {model: items for _, models in of_runs for model, items in models.items()}
    named = [(path, path.absolute().parent.name) for path in request.files]
    once([(path, [name]) for path, name in named], "the method")
    return {name: read_eval_result(path) for path, name in named}


def table_2(request: Request) -> Table:
    """Which tasks of the runs each model supports."""
    once([(run.path, {row.model for row in image_results(run)}) for run in request.runs])
    supported: dict[str, dict[str, bool | None]] = {}
    for run in request.runs:
        imported = {model.label for model in run.config.models if model.imported is not None}
        for row in image_results(run):
            of_model = supported.setdefault(row.model, {})
            supports = (row.pixels_sha256 is not None or None) if row.model in imported else row.supported
            of_model[row.task.category] = of_model.get(row.task.category) or supports
    columns = (
        *(Column("kind", "Kind"), Column("number", "No.", "d"), Column("task", "Evaluation Task")),
        *(Column(model, model) for model in supported),
    )
    rows = tuple(
        (_kind(n), n, task, *(tasks.get(task) for tasks in supported.values())) for n, task in enumerate(NUMBERED, 1)
    )
    notes = (
        "a dash is a task of which the runs have no item, or no image was imported",
        "tasks have the names of the benchmark's files",
    )
    return Table("ICE-Bench, supplement, table 2: task-model correspondence", columns, rows, notes)


def _kind(number: int) -> str:
    return next((kind for last, kind in _KINDS.items() if number <= last), "Ref Editing")


def raw(request: Request, number: str) -> Table:
    """Tables 3 to 8: means over a task's items that have the metric, for the models that have any item of the task.

    Where no item has a metric but a variant with another model was computed (`clip_cap:tiny-clip`), the column shows
    the variant, and its header and a note name it."""
    (first, last), metrics = _TABLES[int(number)]
    items_of = _gathered(request)
    variants = _variants(items_of)
    tasks = NUMBERED[first - 1 : last]
    used = {metric: [v for name in metric.metrics_of(tasks) if (v := variants.get(name))] for metric in metrics}
    columns = (
        *(Column("number", "Task", "d"), Column("task", "Name"), Column("model", "Models")),
        *(Column(m.key, f"{m.name} ({', '.join(used[m])})" if used[m] else m.name, ".3f") for m in metrics),
        Column("n", "n", "d"),
    )
    rows, fewer = [], []
    for n, task in enumerate(tasks, first):
        for model, items in items_of.items():
            task_items = [item for item in items if item.task == task]
            if not task_items:
                continue
            values = {metric: _values(task_items, task, metric, variants) for metric in metrics}
            n_measured = len({i for by_id in values.values() for i in by_id})
            cells = (metric.of(fmean(by_id.values())) if by_id else None for metric, by_id in values.items())
            rows.append((n, task, model, *cells, n_measured))
            fewer += [
                f"{m.name} of {model} in {task}: {len(by_id)}"
                for m, by_id in values.items()
                if 0 < len(by_id) < n_measured
            ]
    stand_ins = list(dict.fromkeys(name for names in used.values() for name in names))
    notes = [
        "metrics are means over the items that have them; n is the number of items with any",
        *([f"metrics of fewer items: {'; '.join(fewer)}"] if fewer else []),
        *(["L1-src of the tasks 23 to 26 is 1 less the stored value, as the paper prints it"] if number == "4" else []),
    ]
    if stand_ins:
        notes.append(
            "computed with other models than the benchmark's, whose metrics no item has, so not comparable with the "
            f"paper: {', '.join(stand_ins)}"
        )
    return Table(f"ICE-Bench, supplement, table {number}: raw metrics", columns, tuple(rows), tuple(notes))


def _variants(models: Mapping[str, Sequence[Item]]) -> dict[str, str]:
    """Metric -> its variant with another model, for metrics that no item has; the first by name of several."""
    measured = {
        name for items in models.values() for item in items for name, value in item.metrics.items() if value is not None
    }
    of_metric = {name.partition(":")[0]: name for name in sorted(measured, reverse=True) if ":" in name}
    return {metric: name for metric, name in of_metric.items() if metric not in measured}


def _values(items: Sequence[Item], task: str, metric: _Raw, variants: Mapping[str, str]) -> dict[str, float]:
    """Item -> its value of the column's metric."""
    names = metric.metrics_of((task,))
    name = variants.get(names[0], names[0]) if names else ""
    return {item.item_id: value for item in items if (value := item.metrics.get(name)) is not None}
