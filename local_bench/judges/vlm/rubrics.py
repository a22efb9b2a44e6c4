"""Rubrics: versioned data that says what the judge is asked and which answers there are."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import jsonschema
from pydantic import Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.identity import canonical_json, digest
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.judges.vlm.rubric_files import FOLDER, rubric_file

Label = bool | int
Variant = Literal["improved", "paper", "miniature"]
VARIANTS: tuple[Variant, ...] = ("improved", "paper", "miniature")
"""`improved`: our wording, with evidence before the labels and every image labelled in place. `paper`: each benchmark's
own criteria and anchors. `miniature`: the wording that the trained miniature judge was taught."""
DEFAULT: Variant = "improved"
PICTURES = "{pictures}"
OPTIONS = "{options}"
_LATER = ("defaults", "evidence", "in_place", "options")
"""Fields that are part of a rubric's digest only where they are set, so that older digests hold."""
EVIDENCE_CHARACTERS = 400
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
    defaults: dict[str, str] = Field(default={})
    """Slots that a question may leave out -> the text that it has then."""
    numbers: list[str] = Field(default=[])
    """Those of the slots that are numbers of ours and stand as they are."""
    pictures: dict[str, str] = Field(default={})
    """What an image in each role is; told in the place of `{pictures}`, or before each image (`in_place`)."""
    in_place: bool = False
    """Whether each image has its number, role and description as text right before it, in place of a legend."""
    layouts: list[list[str]] = Field(default=[])
    """The roles that may be shown together, in their order; several images in a row may share one."""
    text: str
    answer: list[dict[str, list[Label] | Flags]] = Field(default=[])
    evidence: dict[str, str] = Field(default={}, max_length=1)
    """A field with text and what it says: under `json` the judge writes it before the labels. Never a score."""
    options: dict[str, str] = Field(default={})
    """Further criteria, true or false, that are off unless a run's config turns them on: name -> the text about it,
    which takes the place of `{options}`."""
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
        if (set(self.numbers) | set(self.defaults)) - set(self.slots):
            raise ValueError("numbers and defaults must be among the slots")
        if self.text.count(PICTURES) != bool(self.pictures and not self.in_place):
            raise ValueError(f"{PICTURES} must be in the text once where there are pictures with a legend, else not")
        if self.text.count(OPTIONS) != bool(self.options):
            raise ValueError(f"{OPTIONS} must be in the text once where there are options, else not")
        if {role for layout in self.layouts for role in layout} != set(self.pictures):
            raise ValueError("the layouts must use each of the pictures' roles and no other")
        if bool(self.answer) == bool(self.writes):
            raise ValueError("a rubric has an answer or writes, not both")
        return self

    @cached_property
    def sha256(self) -> str:
        """Names the rubric by all that it says."""
        said = self.model_dump()
        return digest({name: value for name, value in said.items() if name not in _LATER or value})

    def with_options(self, names: Sequence[str]) -> "Rubric":
        """The rubric with those of its options as further criteria of every form, and without the others."""
        if not self.options:
            return self
        chosen = [name for name in self.options if name in names]
        said = self.model_dump() | {"options": {}}
        said["text"] = self.text.replace(f"{OPTIONS}\n", "".join(self.options[name] for name in chosen))
        said["answer"] = [form | {name: [False, True] for name in chosen} for form in said["answer"]]
        return Rubric.model_validate(said)

    def arranged(self, roles: Sequence[str]) -> list[int]:
        """The places of images with these roles in the order of the layout that has the same roles."""
        layout = next((one for one in self.layouts if set(one) == set(roles)), None)
        return (
            list(range(len(roles)))
            if layout is None
            else sorted(range(len(roles)), key=lambda i: layout.index(roles[i]))
        )

    def captions(self, roles: Sequence[str]) -> tuple[str, ...]:
        """The text right before each image; none where the images have a legend or no roles."""
        if not self.in_place:
            return ()
        self._check_layout(roles)
        return tuple(f"Image {i} ({role}): {self.pictures[role]}.\n" for i, role in enumerate(roles, 1))

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
                "properties": dict.fromkeys(self.evidence, _EVIDENCE)
                | {name: _field_schema(labels) for name, labels in form.items()},
                "required": [*self.evidence, *form],
                "additionalProperties": False,
            }
            for form in self.answer
        ]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def read(
        self, answer: Any, slots: Mapping[str, str], labels_only: bool = False
    ) -> tuple[dict[str, Any] | None, str | None]:
        """The answer as it counts (flags once each, in the rubric's order), or why it is none of the forms. With
        `labels_only` the evidence may be absent, as in answers under `logit`."""
        if not isinstance(answer, dict):
            return None, "the answer is not a JSON object"
        if self.writes is not None:
            try:
                error = jsonschema.exceptions.best_match(_STRICT(self.answer_schema(slots)).iter_errors(answer))
            except RecursionError:
                return None, f"the answer does not fit {self.id}: it is nested too deeply"
            return (answer, None) if error is None else (None, f"the answer does not fit {self.id}: {_short(error)}")
        said = {name: answer[name] for name in self.evidence if name in answer}
        wanted = set() if labels_only else set(self.evidence)
        forms = [form for form in self.answer if set(form) == set(answer) - set(said) and wanted <= set(said)]
        if not forms:
            fields = ", ".join(sorted(answer))[:200] or "none"
            return None, f"the answer has the fields {fields}, which is no form of {self.id}"
        if not all(isinstance(text, str) and len(text) <= EVIDENCE_CHARACTERS for text in said.values()):
            return None, f"the answer's evidence is not a text of at most {EVIDENCE_CHARACTERS} characters"
        for form in forms:
            if all(_fits(answer[name], labels) for name, labels in form.items()):
                return said | {name: _counted(answer[name], labels) for name, labels in form.items()}, None
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
        rest = self.text
        if self.pictures and not self.in_place:
            rest = rest.replace(PICTURES, self._legend(roles)).lstrip("\n")
        for name in sorted(self.slots, key=lambda slot: rest.index(f"{{{slot}}}")):
            before, _, rest = rest.partition(f"{{{name}}}")
            parts += [before, str(int(slots[name])) if name in self.numbers else _marked(name, slots[name])]
        return "".join(parts) + rest

    def _legend(self, roles: Sequence[str]) -> str:
        """`Image 1: what it is.` a line for each run of images of one role."""
        runs = self._check_layout(roles)
        lines, at = [], 1
        for role, n in runs:
            which = f"Image {at}" if n == 1 else f"Images {at} to {at + n - 1}"
            lines.append(f"{which}: {self.pictures[role]}.")
            at += n
        return "\n".join(lines)

    def _check_layout(self, roles: Sequence[str]) -> list[tuple[str, int]]:
        """The roles with how many images in a row have each."""
        runs = [(role, len(list(run))) for role, run in itertools.groupby(roles)]
        assert [role for role, _ in runs] in self.layouts, (self.id, roles)
        return runs


@cache
def rubric(name: str, variant: Variant = DEFAULT, options: tuple[str, ...] = ()) -> Rubric:
    """The rubric of that name and variant, with these of its options. ConfigError where there is none.

    Rubrics that have the judge write, and those that are not shipped, are the same in all variants.
    """
    path = rubric_file(name, variant)
    loaded = load_yaml(path, Rubric)
    if loaded.id != name:
        raise ConfigError(f"{path}: the rubric's id {loaded.id!r} must be the file's name")
    return loaded.with_options(options)


@cache
def system() -> System:
    """The judge's system message."""
    return load_yaml(FOLDER / "_system.yaml", System)


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
        yield from (
            f'"{name}": written first, at most {EVIDENCE_CHARACTERS} characters: {what}'
            for name, what in asked.evidence.items()
        )
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


_EVIDENCE = {"type": "string", "minLength": 1, "maxLength": EVIDENCE_CHARACTERS}


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
