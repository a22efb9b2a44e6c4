"""ICE-Bench's composite (supplement, B.1 to B.6, eqs. 1 to 10): six dimensions of 31 tasks, with one table of
weights.

Raw metrics are first averaged over a task's items, then combined; the overall score is the unweighted mean over the
scored tasks (a task that a model does not support is missing, not 0). Where the paper and the official code disagree
the code is followed, because it produced the published numbers: prompt following of Image Colorize is 0.75 x 2 clip_cap
+ 0.25 x colorfulness, while eq. 4 adds the two without weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

Means = Mapping[str, float]
"""Raw metric -> mean over a task's items, in the unit of the metric."""


@dataclass(frozen=True)
class Recipe:
    """Weights of a task's dimensions, and the metrics of the dimensions that differ by task."""

    weights: Mapping[str, float]
    """Dimension -> weight; they add up to 1."""
    prompt: tuple[tuple[str, float], ...]
    """Prompt following (pf) as a weighted sum of raw metrics."""
    reference: str | None = None
    """Reference consistency (rc)."""
    control: str | None = None
    """Controllability (ctrl)."""


_THIRDS = {"aes": 1 / 3, "iqa": 1 / 3, "pf": 1 / 3}
_QUARTERS = {"aes": 0.25, "iqa": 0.25, "pf": 0.25, "rc": 0.25}
_EDITING = {"aes": 0.3, "iqa": 0.3, "pf": 0.3, "sc": 0.1}
_REFERENCE_EDITING = {"aes": 0.25, "iqa": 0.25, "pf": 0.2, "rc": 0.2, "sc": 0.1}
_CONTROL = {"aes": 0.3, "iqa": 0.3, "pf": 0.2, "ctrl": 0.2}

_CAPTION = (("clip_cap", 2.0),)  # eq. 3: the similarity over 0.5
_PROMPT = (("clip_cap", 1.0), ("vllmqa", 0.5))  # eq. 6: (2 clip_cap + vllmqa) / 2

EDITED = (
    *("Color Editing", "Face Editing", "Style Editing", "Texture Editing", "Motion Editing", "Scene Editing"),
    *("Subject Addition", "Subject Change", "Subject Removal", "Text Removal", "Text Render", "Composite Editing"),
    *("Inpainting", "Outpainting", "Local Subject Addition", "Local Subject Removal", "Local Text Render"),
    "Local Text Removal",
)
"""The tasks in which an instruction says what to edit in a source image."""

TASKS: Mapping[str, Recipe] = {
    "Text2Image": Recipe(_THIRDS, _CAPTION),
    "Face Reference Generation": Recipe(_QUARTERS, _CAPTION, "face_ref"),
    "Subject Reference Generation": Recipe(_QUARTERS, _CAPTION, "dino_ref"),
    "Style Reference Generation": Recipe(_QUARTERS, _CAPTION, "style_ref"),
    **{task: Recipe(_EDITING, _PROMPT) for task in EDITED},
    "Virtual Try On": Recipe(_REFERENCE_EDITING, _PROMPT, "dino_ref"),
    "Face Swap": Recipe(_REFERENCE_EDITING, _PROMPT, "face_ref"),
    "Subject-guided Inpainting": Recipe(_REFERENCE_EDITING, _PROMPT, "dino_ref"),
    "Style Reference Editing": Recipe(_REFERENCE_EDITING, _PROMPT, "style_ref"),
    "Pose-guided Generation": Recipe(_CONTROL, _CAPTION, control="l1_pose"),
    "Depth-guided Generation": Recipe(_CONTROL, _CAPTION, control="l1_depth"),
    "Edge-guided Generation": Recipe(_CONTROL, _CAPTION, control="l1_canny"),
    "Image Deblur": Recipe(_CONTROL, (("musiq_koniq", 0.01),), control="ssim"),  # eq. 5
    "Image Colorize": Recipe(_CONTROL, (("clip_cap", 1.5), ("colorfulness", 0.25)), control="l1_colorize"),
}
"""The 31 tasks, by the names in the benchmark's own files."""

RANGES = {"aes_v2.5": (0.0, 10.0), "musiq_koniq": (0.0, 100.0)}
"""Range of a raw metric, if other than 0 to 1."""
_COSINES = ("clip_cap", "clip_src", "clip_ref", "dino_ref", "style_ref", "face_ref", "ssim")
_SHARES = ("vllmqa", "colorfulness", "l1_raw", "l1_pose", "l1_depth", "l1_canny", "l1_colorize")
LIMITS: Mapping[str, tuple[float, float]] = {
    **RANGES,
    **dict.fromkeys(_COSINES, (-1.0, 1.0)),
    **dict.fromkeys(_SHARES, (0.0, 1.0)),
}
"""Smallest and largest possible value of a raw metric: cosines and SSIM may be negative."""
DISTANCES = frozenset({"l1_raw"})
"""Raw metrics where lower is better; the other l1_* are stored as 1 - distance."""


def range_of(metric: str) -> tuple[float, float]:
    """Range of the metric, worse end first."""
    low, high = RANGES.get(metric, (0.0, 1.0))
    return (high, low) if metric in DISTANCES else (low, high)


def dimensions(task: str, means: Means) -> dict[str, float]:
    """Score of each dimension of the task, in [0, 1] for metrics within their ranges."""
    recipe = TASKS[task]
    formulas: dict[str, Callable[[], float]] = {
        "aes": lambda: means["aes_v2.5"] / 10,
        "iqa": lambda: means["musiq_koniq"] / 100,
        "pf": lambda: fsum(weight * means[metric] for metric, weight in recipe.prompt),
        "sc": lambda: (means["clip_src"] + 1 - means["l1_raw"]) / 2,
        "rc": lambda: means[recipe.reference or ""],
        "ctrl": lambda: means[recipe.control or ""],
    }
    return {dimension: formulas[dimension]() for dimension in recipe.weights}


def needed(task: str) -> tuple[str, ...]:
    """Raw metrics needed for a task's score."""
    recipe = TASKS[task]
    source = ("clip_src", "l1_raw") if "sc" in recipe.weights else ()
    names = ("aes_v2.5", "musiq_koniq", *(m for m, _ in recipe.prompt), *source, recipe.reference, recipe.control)
    return tuple(dict.fromkeys(name for name in names if name))


def composite(task: str, means: Means) -> float:
    """Score of a task from the means of its raw metrics, which must contain all of `needed`."""
    scores = dimensions(task, means)
    return fsum(weight * scores[dimension] for dimension, weight in TASKS[task].weights.items())


def item_scores(task: str, items: Sequence[Means]) -> list[float]:
    """Linearised composite of each of a task's n items, for its standard error; their mean is the task's score. An item
    without a metric counts with the metric's mean, and the deviations of the n_m items that have it n / n_m times."""
    values = {name: [item[name] for item in items if name in item] for name in needed(task)}
    means = {name: fsum(numbers) / len(numbers) for name, numbers in values.items()}
    scale = {name: len(items) / len(numbers) for name, numbers in values.items()}
    return [
        composite(task, {m: mean + scale[m] * (item.get(m, mean) - mean) for m, mean in means.items()})
        for item in items
    ]


def overall(tasks: Mapping[str, float | None]) -> float | None:
    """Unweighted mean over the scored tasks; None without any."""
    values = [value for value in tasks.values() if value is not None]
    return fsum(values) / len(values) if values else None
