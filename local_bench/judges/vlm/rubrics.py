"""Rubrics: versioned data that says what the judge is asked and which answers there are."""

import hashlib
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from local_bench.core.identity import canonical_json, digest
from local_bench.core.yamlfile import Strict, load_yaml

_FOLDER = Path(__file__).parent / "rubrics"
Label = bool | int | str


class System(Strict):
    """The words before every rubric."""

    version: int
    text: str


class Rubric(Strict):
    """One rubric. An answer is an object of one of the forms in `answer`: its fields, each with one of its labels."""

    id: str
    version: int
    slots: list[str]
    text: str
    answer: list[dict[str, list[Label]]] = Field(min_length=1)

    @model_validator(mode="after")
    def _slots_stand_in_text(self) -> "Rubric":
        for slot in self.slots:
            if self.text.count(f"{{{slot}}}") != 1:
                raise ValueError(f"the slot {{{slot}}} must stand once in the text")
        return self

    @cached_property
    def sha256(self) -> str:
        """Names the rubric by all that it says."""
        return digest(self.model_dump())

    @cached_property
    def answer_schema(self) -> dict[str, Any]:
        """The JSON schema of an answer: the union of its forms."""
        forms = [
            {
                "type": "object",
                "properties": {name: {"enum": labels} for name, labels in form.items()},
                "required": list(form),
                "additionalProperties": False,
            }
            for form in self.answer
        ]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def fault(self, answer: Any) -> str | None:
        """Why `answer` is none of the forms, or None where it is one."""
        if not isinstance(answer, dict):
            return "the answer is not a JSON object"
        given = canonical_json(sorted(answer))
        forms = [form for form in self.answer if canonical_json(sorted(form)) == given]
        if not forms:
            return f"the answer has the fields {', '.join(sorted(answer)) or 'none'}, which is no form of {self.id}"
        for form in forms:
            if all(any(type(answer[k]) is type(label) and answer[k] == label for label in form[k]) for k in form):
                return None
        return f"the answer {canonical_json(answer)[:100]} is out of range for {self.id}"

    def render(self, slots: Mapping[str, str]) -> str:
        """The text with its slots filled, each text inside marks that it cannot forge (they hold its own digest)."""
        assert set(slots) == set(self.slots), (self.id, slots)
        parts = []
        rest = self.text
        for name in sorted(self.slots, key=lambda slot: self.text.index(f"{{{slot}}}")):
            before, _, rest = rest.partition(f"{{{name}}}")
            mark = hashlib.sha256(slots[name].encode()).hexdigest()[:12]
            parts += [before, f"[{name} {mark}]\n{slots[name]}\n[end {name} {mark}]"]
        return "".join(parts) + rest


@cache
def rubric(name: str) -> Rubric:
    """The shipped rubric of that name."""
    loaded = load_yaml(_FOLDER / f"{name}.yaml", Rubric)
    assert loaded.id == name
    return loaded


@cache
def system() -> System:
    """The judge's system message."""
    return load_yaml(_FOLDER / "_system.yaml", System)
