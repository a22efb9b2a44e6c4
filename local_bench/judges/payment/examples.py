"""The training set of a payment model: annotated images with their tasks, as plain data without a store."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from PIL import Image
from pydantic import TypeAdapter

from local_bench.core.errors import UserError
from local_bench.core.identity import digest
from local_bench.settle.predictors.features import Split

Load = Callable[[str], Image.Image]
"""Returns an RGB image by its pixel digest."""
CONCEPTS = ("brf", "veq_clarity", "veq_realism", "veq_aesthetic", "veq_text", "cns_edit", "cns_set")
DIMENSIONS = ((0,), (1, 2, 3, 4), (5, 6))
"""The indices in CONCEPTS of BRF, VEQ and CNS."""
HIGHEST = 5.0


@dataclass(frozen=True)
class Example:
    """One candidate image with its task, concept scores and payment label."""

    work_id: str
    task_id: str
    """Unique over all suites and runs."""
    split: Split
    image: str
    """Pixel digest of the candidate, as are those of the other images."""
    title: str
    brief: str
    deliverable: str
    """The description of this image in the task."""
    points: tuple[str, ...]
    """The task's evaluation points."""
    price_micro_usd: int
    """Of the task."""
    concepts: tuple[float, ...]
    """(7,) scores from 0 to 5 in the order of CONCEPTS; NaN: not applicable, or not known."""
    accepted: float
    """1, 0, or NaN without an annotation."""
    source: str | None = None
    references: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    """The model's other images for the task."""
    measured: tuple[float, ...] = ()
    """Optional inputs measured by a judge, in the order of `TrainingSet.measured_names`; NaN: not applicable."""

    def __post_init__(self) -> None:
        assert len(self.concepts) == len(CONCEPTS), self.concepts
        assert all(math.isnan(value) or 0 <= value <= HIGHEST for value in self.concepts), self.concepts

    @property
    def known(self) -> bool:
        return not math.isnan(self.accepted)

    @property
    def scored(self) -> bool:
        """Whether it has a concept score."""
        return not all(map(math.isnan, self.concepts))


@dataclass(frozen=True)
class TrainingSet:
    """Examples of one or several runs. UserError if images of one task are in two splits."""

    examples: tuple[Example, ...]
    measured_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        splits: dict[str, str] = {}
        for example in self.examples:
            if splits.setdefault(example.task_id, example.split) != example.split:
                raise UserError(
                    f"the task {example.task_id} has images in the splits {splits[example.task_id]} and "
                    f"{example.split}: assign splits by task"
                )
            assert len(example.measured) == len(self.measured_names)

    def of(self, split: Split) -> list[Example]:
        return [example for example in self.examples if example.split == split]

    @cached_property
    def manifest_sha256(self) -> str:
        """Digest of all examples, independent of their order."""
        as_json = TypeAdapter(Example).dump_json  # NaN as null
        return digest([self.measured_names, *sorted(digest(json.loads(as_json(example))) for example in self.examples)])


def without_labels(examples: Sequence[Example]) -> list[Example]:
    """The same examples without concept scores and annotations: everything that a prediction may use."""
    return [replace(example, concepts=(math.nan,) * len(CONCEPTS), accepted=math.nan) for example in examples]
