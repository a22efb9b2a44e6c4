"""Selection of rubric variants, and parsing of stored answers to any variant."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from local_bench.core.types import Question
from local_bench.judges.vlm.rubrics import DEFAULT, VARIANTS, Rubric, Variant, rubric
from local_bench.models.cards import ModelCard

HYPE_USABLE = "usable"
"""An additional third criterion for HYPE-EDIT-1 (not from the paper), as an option of `hype_edit`."""


@dataclass(frozen=True)
class RubricSet:
    """All rubrics of one variant, with the selected options."""

    variant: Variant = DEFAULT
    options: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Rubric:
        return rubric(name, self.variant, self.options)

    def shares_requests(self, question: Question) -> bool:
        """Whether other questions can have the same requests."""
        verbatim = self[question.rubric].verbatim
        return verbatim is not None and bool(verbatim.hidden)

    def fitted(self, question: Question) -> Question:
        """The question with the slots of this variant, and the images of its roles in the order of its layout."""
        of_rubric = self[question.rubric]
        order = of_rubric.arranged(question.roles)
        given = {name: text for name, text in question.slots if name in of_rubric.slots}
        named = dict(question.slots)
        defaults = {
            name: text.replace("{point}", named.get("point", ""))
            for name, text in of_rubric.defaults.items()
            if name not in given
        }
        return replace(
            question,
            slots=tuple((given | defaults).items()),
            images=tuple(question.images[i] for i in order) if question.roles else question.images,
            roles=tuple(question.roles[i] for i in order),
        )


DEFAULT_SET = RubricSet()


def rubrics_of(described: ModelCard) -> RubricSet:
    """The default rubric variant of a judge: the one in its card, or `DEFAULT`."""
    return RubricSet(described.rubrics or DEFAULT)


def wordings(name: str) -> list[Rubric]:
    """The rubric of that name in every variant, with and without options, without duplicates."""
    found = [rubric(name, variant, options) for options in ((), (HYPE_USABLE,)) for variant in VARIANTS]
    return list({one.sha256: one for one in found}.values())


def read_stored(name: str, answer: Any) -> tuple[dict[str, Any] | None, str | None]:
    """Parse a stored answer with the first variant of the rubric that it fits, or return why it fits none."""
    read: tuple[dict[str, Any] | None, str | None] = None, f"there is no rubric {name!r}"
    for one in wordings(name):
        read = one.read(answer, {}, labels_only=True)
        if read[0] is not None:
            return read
    return read


def has_probabilities(name: str, labels: Any) -> bool:
    """Whether stored label probabilities fit a variant of the rubric (see `Rubric.has_probabilities`)."""
    return any(one.has_probabilities(labels) for one in wordings(name))


def wording_of(name: str, fields: Iterable[str]) -> Rubric:
    """The first variant of the rubric whose answers can have all of these fields, or else the default variant."""
    required = set(fields)
    variants = wordings(name)
    return next(
        (one for one in variants if required <= {c.field for c in one.criteria} | set(one.evidence)), variants[0]
    )
