"""Rubrics: versioned data that says what the judge is asked and which answers there are."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.identity import canonical_json, digest
from local_bench.core.yamlfile import Strict, load_yaml

_FOLDER = Path(__file__).parent / "rubrics"
Label = bool | int
PICTURES = "{pictures}"
_CONTROL = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response)>)")
"""Where a control token of the Qwen family's chat templates begins: a tokenizer reads it as one wherever it stands."""


class System(Strict):
    """The words before every rubric, and those that close it under each answer protocol."""

    version: int
    text: str
    json_closing: str
    """`{fields}`: the answer's fields, a line each."""
    logit_closing: str
    """`{field}` and `{labels}`."""
    flag_closing: str
    """`{flag}` and `{meaning}`: whether a flag is to be raised, 1 or 0."""


class Flags(Strict):
    """A field whose answer is a list of any of these names."""

    any_of: dict[str, str] = Field(min_length=1)
    """Name -> what it means."""


@dataclass(frozen=True)
class Criterion:
    """What one token can answer: a field, or one flag of a field."""

    field: str
    labels: tuple[Label, ...]
    flag: str | None = None

    @property
    def name(self) -> str:
        return self.flag or self.field

    @property
    def tokens(self) -> tuple[str, ...]:
        """The labels as they are asked for: numbers; 1 and 0 for true and false."""
        return tuple(str(int(label)) for label in self.labels)


class Rubric(Strict):
    """One rubric. It scores (`answer`: an object of one of these forms, each field one of its labels), or it has the
    judge write (`writes`: a JSON schema), which never becomes a score."""

    id: str
    version: int
    source: str
    """The paper and the place in it that the criteria, scale and fields are from."""
    slots: list[str] = Field(default=[])
    """What comes from outside: each stands in the text once, in marks of its own."""
    numbers: list[str] = Field(default=[])
    """Those of the slots that are numbers of ours and stand as they are."""
    pictures: dict[str, str] = Field(default={})
    """What an image in each role is; told in the place of `{pictures}`."""
    layouts: list[list[str]] = Field(default=[])
    """The roles that may be shown together, in their order; several images in a row may share one."""
    text: str
    answer: list[dict[str, list[Label] | Flags]] = Field(default=[])
    writes: dict[str, Any] | None = None
    """The JSON schema of what is written; a value "$NAME" is the number in slot NAME."""
    max_tokens: int = 64
    temperature: float = 0
    """Above 0, every repeat has a seed of its own."""
    min_pixels: int | None = None
    max_pixels: int | None = None
    """An image is resized to lie within these, where the judge can take as much; left out: the judge's own budget."""

    @model_validator(mode="after")
    def _holds_together(self) -> "Rubric":
        for slot in self.slots:
            if self.text.count(f"{{{slot}}}") != 1:
                raise ValueError(f"the slot {{{slot}}} must stand once in the text")
        if set(self.numbers) - set(self.slots):
            raise ValueError("numbers must be among the slots")
        if (self.text.count(PICTURES) == 1) != bool(self.pictures):
            raise ValueError(f"{PICTURES} must stand once in the text where there are pictures, and only there")
        if {role for layout in self.layouts for role in layout} != set(self.pictures):
            raise ValueError("the layouts must use each of the pictures' roles and no other")
        if bool(self.answer) == bool(self.writes):
            raise ValueError("a rubric has an answer or writes, not both")
        return self

    @cached_property
    def sha256(self) -> str:
        """Names the rubric by all that it says."""
        return digest(self.model_dump())

    @cached_property
    def criteria(self) -> tuple[Criterion, ...]:
        """Everything that one token can answer, in the order in which it is asked."""
        found: dict[str, list[Label]] = {}
        flags: dict[str, dict[str, str]] = {}
        for form in self.answer:
            for name, labels in form.items():
                if isinstance(labels, Flags):
                    flags[name] = labels.any_of
                else:
                    known = found.setdefault(name, [])
                    known += [label for label in labels if label not in known]
        plain = [Criterion(name, tuple(labels)) for name, labels in found.items()]
        return (*plain, *(Criterion(name, (False, True), flag) for name, of in flags.items() for flag in of))

    def answer_schema(self, slots: Mapping[str, str]) -> dict[str, Any]:
        """The JSON schema of an answer: the union of its forms, or what is to be written."""
        if self.writes is not None:
            return _numbered(self.writes, slots)  # type: ignore[no-any-return]
        forms = [
            {
                "type": "object",
                "properties": {name: _field_schema(labels) for name, labels in form.items()},
                "required": list(form),
                "additionalProperties": False,
            }
            for form in self.answer
        ]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def read(self, answer: Any, slots: Mapping[str, str]) -> tuple[dict[str, Any] | None, str | None]:
        """The answer as it counts (flags once each, in the rubric's order), or why it is none of the forms."""
        if not isinstance(answer, dict):
            return None, "the answer is not a JSON object"
        if self.writes is not None:
            try:
                error = jsonschema.exceptions.best_match(_STRICT(self.answer_schema(slots)).iter_errors(answer))
            except RecursionError:
                return None, f"the answer does not fit {self.id}: it is nested too deeply"
            return (answer, None) if error is None else (None, f"the answer does not fit {self.id}: {_short(error)}")
        forms = [form for form in self.answer if set(form) == set(answer)]
        if not forms:
            fields = ", ".join(sorted(answer))[:200] or "none"
            return None, f"the answer has the fields {fields}, which is no form of {self.id}"
        for form in forms:
            if all(_fits(answer[name], labels) for name, labels in form.items()):
                return {name: _counted(answer[name], labels) for name, labels in form.items()}, None
        misfit = next(name for name, labels in forms[0].items() if not _fits(answer[name], labels))
        return None, f"the answer's {misfit} is out of range for {self.id}"

    def from_labels(self, best: Mapping[str, Label]) -> dict[str, Any]:
        """The answer whose criteria (by name) have these labels: the first form that they fit."""
        answer: dict[str, Any] = {}
        for form in self.answer:
            answer = {
                name: [flag for flag in of.any_of if best[flag]] if isinstance(of, Flags) else best[name]
                for name, of in form.items()
            }
            if all(isinstance(of, Flags) or _fits(answer[name], of) for name, of in form.items()):
                return answer
        raise AssertionError((self.id, best))

    def labels_of(self, answer: Mapping[str, Any]) -> dict[str, Label]:
        """The label of every criterion that `answer` speaks of, by the criterion's name."""
        return {
            c.name: c.flag in answer[c.field] if c.flag else answer[c.field] for c in self.criteria if c.field in answer
        }

    def render(self, slots: Mapping[str, str], roles: Sequence[str] = ()) -> str:
        """The text with its slots filled, each text inside marks that it cannot forge (they hold its own digest)."""
        assert set(slots) == set(self.slots), (self.id, slots)
        parts = []
        rest = self.text.replace(PICTURES, self._legend(roles)).lstrip("\n") if self.pictures else self.text
        for name in sorted(self.slots, key=lambda slot: rest.index(f"{{{slot}}}")):
            before, _, rest = rest.partition(f"{{{name}}}")
            parts += [before, str(int(slots[name])) if name in self.numbers else _marked(name, slots[name])]
        return "".join(parts) + rest

    def _legend(self, roles: Sequence[str]) -> str:
        """`Image 1: what it is.` a line for each run of images of one role."""
        runs = [(role, len(list(run))) for role, run in itertools.groupby(roles)]
        assert [role for role, _ in runs] in self.layouts, (self.id, roles)
        lines, at = [], 1
        for role, n in runs:
            which = f"Image {at}" if n == 1 else f"Images {at} to {at + n - 1}"
            lines.append(f"{which}: {self.pictures[role]}.")
            at += n
        return "\n".join(lines)


@cache
def rubric(name: str) -> Rubric:
    """The shipped rubric of that name. ConfigError where there is none."""
    if name not in rubric_names():
        raise ConfigError(f"there is no rubric {name!r}: there are {', '.join(rubric_names())}")
    loaded = load_yaml(_FOLDER / f"{name}.yaml", Rubric)
    assert loaded.id == name
    return loaded


@cache
def rubric_names() -> tuple[str, ...]:
    """The shipped rubrics' names."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("[!_]*.yaml")))


@cache
def system() -> System:
    """The judge's system message."""
    return load_yaml(_FOLDER / "_system.yaml", System)


def closing_json(asked: Rubric) -> str:
    """The words that ask for the whole answer as one JSON object."""
    return system().json_closing.replace("{fields}", "\n".join(_field_lines(asked)))


def closing_logit(asked: Rubric, criterion: Criterion) -> str:
    """The words that ask for one criterion's label and nothing else."""
    if criterion.flag is None:
        labels = ", ".join(criterion.tokens)
        if isinstance(criterion.labels[0], bool):
            labels += " (1 is true, 0 is false)"
        return system().logit_closing.replace("{labels}", labels).replace("{field}", criterion.field)
    meanings = next(of.any_of for form in asked.answer for of in form.values() if isinstance(of, Flags))
    return system().flag_closing.replace("{flag}", criterion.flag).replace("{meaning}", meanings[criterion.flag])


def _field_lines(asked: Rubric) -> Iterator[str]:
    if asked.writes is not None:
        yield from (f'"{name}": as told above' for name in asked.writes["properties"])
    for i, form in enumerate(asked.answer):
        if i:
            yield "or"
        for name, of in form.items():
            if isinstance(of, Flags):
                yield f'"{name}": a list of those that are plainly there, empty if none:'
                yield from (f'  "{flag}": {meaning}' for flag, meaning in of.any_of.items())
            else:
                yield f'"{name}": {", ".join(canonical_json(label) for label in of)}'


def _marked(name: str, text: str) -> str:
    """The text between marks that hold its digest; a control token in it is broken up, for all to see."""
    mark = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"[{name} {mark}]\n{_CONTROL.sub('< ', text)}\n[end {name} {mark}]"


def _field_schema(labels: list[Label] | Flags) -> dict[str, Any]:
    if isinstance(labels, Flags):
        return {"type": "array", "items": {"enum": list(labels.any_of)}, "maxItems": len(labels.any_of)}
    return {"enum": labels}


def _fits(given: Any, labels: list[Label] | Flags) -> bool:
    if isinstance(labels, Flags):
        return isinstance(given, list) and all(isinstance(flag, str) and flag in labels.any_of for flag in given)
    return any(type(given) is type(label) and given == label for label in labels)


def _counted(given: Any, labels: list[Label] | Flags) -> Any:
    return [flag for flag in labels.any_of if flag in given] if isinstance(labels, Flags) else given


def _numbered(schema: Any, slots: Mapping[str, str]) -> Any:
    if isinstance(schema, dict):
        return {key: _numbered(value, slots) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_numbered(value, slots) for value in schema]
    return int(slots[schema[1:]]) if isinstance(schema, str) and schema.startswith("$") else schema


def _whole_pattern(_validator: Any, pattern: str, given: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(given, str) and not re.fullmatch(pattern, given):
        yield jsonschema.ValidationError(f"{given!r} does not match {pattern!r}")


_extend: Any = jsonschema.validators.extend  # its stub has no types
_STRICT = _extend(
    jsonschema.Draft202012Validator,
    {"pattern": _whole_pattern},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, given: type(given) is int),
)
"""JSON schema as the grammar has it: 1.0 and true are no integers, and a pattern leaves no newline over at the end."""


def _short(error: jsonschema.ValidationError) -> str:
    where = "/".join(str(step) for step in error.absolute_path)
    return f"{where or 'the object'}: {error.message[:120]}"
