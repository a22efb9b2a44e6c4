"""Labels of ServImage_Dataset, ServImage's training set: one deliverable a line, with its concepts and its decision.

The data are not in the authors' public repository; their form is that of its reader (`SerImageModel/data/dataset.py` at
commit 4772db7, "unified" form): `model`, `task_id` (`portrait-001` or `task_001`), `category`, `subtask_idx` (from 0),
`label` (0 or 1), and seven scores, each a number, null or "N/A".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.types import Score
from local_bench.core.yamlfile import check

CONCEPTS = {
    "brf_overall_score": "brf",
    "veq_clarity": "veq_clarity",
    "veq_realism": "veq_realism",
    "veq_aesthetic": "veq_aesthetic",
    "veq_text": "veq_text",
    "cns_edit_consistency": "cns_edit",
    "cns_set_consistency": "cns_set",
}
"""The file's name of a score -> its name here."""
NOT_APPLICABLE = "N/A"
_TOP = 5
_NUMBER = re.compile(r"(?:[A-Za-z]+-|task_)(\d{1,6})")


@dataclass(frozen=True)
class Sample:
    """One deliverable."""

    model: str
    category: str
    task: str
    """`category/number`: `task_001` is in every category, and `portrait-001` is the same task as its `task_001`."""
    deliverable: int
    """From 1."""
    accepted: bool
    scores: tuple[Score, ...]
    """The seven concepts; one that is absent is unscored."""

    @property
    def key(self) -> str:
        return f"{self.model}/{self.task}/{self.deliverable}"


@dataclass
class Dataset:
    """The samples of all files, and what was left out."""

    samples: list[Sample]
    n_lines: int = 0
    n_unlabelled: int = 0
    """Lines without a decision."""
    n_duplicates: int = 0
    """Lines that repeat a deliverable with the same decision; the first counts."""
    contradictory: list[str] = field(default_factory=list)
    """Deliverables with both decisions, which are left out."""


def _concept(value: Any) -> float | str | None:
    if value is None or value == NOT_APPLICABLE:
        return NOT_APPLICABLE if value else None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _TOP:
        return float(value)
    raise ValueError(f'write a number from 0 to {_TOP}, null or "{NOT_APPLICABLE}"')


_Concept = Annotated[float | str | None, PlainValidator(_concept)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(min_length=1)
    task_id: str
    category: str = Field(min_length=1)
    subtask_idx: int = Field(0, ge=0, lt=10_000)
    label: Literal[0, 1] | None = None
    brf_overall_score: _Concept = None
    veq_clarity: _Concept = None
    veq_realism: _Concept = None
    veq_aesthetic: _Concept = None
    veq_text: _Concept = None
    cns_edit_consistency: _Concept = None
    cns_set_consistency: _Concept = None


def read_dataset(files: Sequence[Path]) -> Dataset:
    """Read label files. Contradictory deliverables are left out. UserError names file, line and reason, and is raised
    for files without a decision."""
    dataset = Dataset([])
    first: dict[str, Sample] = {}
    contradictory: dict[str, None] = {}
    hint = "give a JSON Lines file of ServImage_Dataset"
    for file in files:
        for _, where, data in strictjson.objects(file, UserError, "a sample", missing=hint, unreadable=hint):
            dataset.n_lines += 1
            sample = _sample(data, where)
            if sample is None:
                dataset.n_unlabelled += 1
            elif sample.key not in first:
                first[sample.key] = sample
            elif first[sample.key].accepted != sample.accepted:
                contradictory[sample.key] = None
            else:
                dataset.n_duplicates += 1
    dataset.samples = [sample for key, sample in first.items() if key not in contradictory]
    dataset.contradictory = list(contradictory)
    if not dataset.samples:
        raise UserError(f"{files[0]} has no sample with a decision (`label`): {hint}")
    return dataset


def _sample(data: dict[str, Any], where: str) -> Sample | None:
    line = check(data, _Line, where, error=UserError)
    number = _NUMBER.fullmatch(line.task_id)
    if number is None:
        raise UserError(f"{where}: the task id {line.task_id!r} is not like portrait-001 or task_001: correct it")
    if line.label is None:
        return None
    return Sample(
        model=line.model,
        category=line.category,
        task=f"{line.category}/{int(number[1])}",
        deliverable=line.subtask_idx + 1,
        accepted=line.label == 1,
        scores=tuple(_score(name, getattr(line, theirs)) for theirs, name in CONCEPTS.items()),
    )


def _score(name: str, value: float | str | None) -> Score:
    if value is None:
        return Score(name, None, "the dataset has no value")
    return Score(name, None, applies=False) if isinstance(value, str) else Score(name, value)
