"""Which wording of the rubrics a judge gets, and answers read back whatever wording they were given under."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from local_bench.core.types import Question
from local_bench.judges.vlm.rubrics import DEFAULT, VARIANTS, Rubric, Variant, rubric
from local_bench.models.cards import ModelCard

HYPE_USABLE = "usable"
"""HYPE-EDIT-1's third criterion, ours and not the paper's, as an option of `hype_edit`."""


@dataclass(frozen=True)
class RubricSet:
    """All rubrics in one wording, with the options that are on."""

    variant: Variant = DEFAULT
    options: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Rubric:
        return rubric(name, self.variant, self.options)

    def fitted(self, question: Question) -> Question:
        """The question as this wording has it: the slots that it uses, the images in the order of its layout."""
        asked = self[question.rubric]
        order = asked.arranged(question.roles)
        given = {name: text for name, text in question.slots if name in asked.slots}
        return replace(
            question,
            slots=tuple((given | {name: text for name, text in asked.defaults.items() if name not in given}).items()),
            images=tuple(question.images[i] for i in order) if question.roles else question.images,
            roles=tuple(question.roles[i] for i in order),
        )


DEFAULT_SET = RubricSet()


def rubrics_of(described: ModelCard) -> RubricSet:
    """The wording that a judge answers where nothing else is chosen: the one its card names, else the default."""
    return RubricSet(described.rubrics or DEFAULT)


def wordings(name: str) -> list[Rubric]:
    """The rubric of that name in every wording that answers can have been given under."""
    found = [rubric(name, variant, options) for options in ((), (HYPE_USABLE,)) for variant in VARIANTS]
    return list({one.sha256: one for one in found}.values())


def read_stored(name: str, answer: Any) -> tuple[dict[str, Any] | None, str | None]:
    """A stored answer to the rubric of that name, in whichever wording it fits, or why it fits none."""
    read: tuple[dict[str, Any] | None, str | None] = None, f"there is no rubric {name!r}"
    for one in wordings(name):
        read = one.read(answer, {}, labels_only=True)
        if read[0] is not None:
            return read
    return read


def wording_of(name: str, fields: Iterable[str]) -> Rubric:
    """The first wording of the rubric whose answers can have all of these fields; the default one if none can."""
    wanted = set(fields)
    found = wordings(name)
    return next((one for one in found if wanted <= {c.field for c in one.criteria} | set(one.evidence)), found[0])
