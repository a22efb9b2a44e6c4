"""Rubrics: versioned data with the text of a question and its valid answers.

Their files are shipped, in config folders, or in installed packages; a variant has other texts of the same rubrics.
"""

import hashlib
import importlib.util
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from local_bench.core.environment import entry_points
from local_bench.core.errors import ConfigError, WeightsError, kind
from local_bench.core.files import refuse_own, user_config_dirs
from local_bench.core.types import Question, canonical_json, digest
from local_bench.core.yamlfile import Strict, load_yaml

FOLDER = Path(__file__).parent / "rubrics"
PLUGINS = "local_bench.rubrics"
"""Group of entry points `name = "package"`; the package's folder `rubrics/` has one YAML file per rubric."""


@cache
def shipped_rubric_names() -> tuple[str, ...]:
    """The shipped rubrics' names, the same in every variant."""
    return tuple(sorted({path.stem for path in FOLDER.rglob("[!_]*.yaml")}))


def rubric_names() -> tuple[str, ...]:
    """The names of all rubrics: the shipped ones, then those of config folders and installed packages."""
    return (*shipped_rubric_names(), *_added())


def _added() -> dict[str, Path]:
    """Rubric files that are not shipped, by name: `rubrics/*.yaml` of a lab's config folders, then of the packages that
    entry points name. Shipped rubrics keep their names."""
    folders = [folder / "rubrics" for folder in user_config_dirs()]
    for point in sorted(entry_points(PLUGINS), key=lambda point: point.name):
        try:
            spec = importlib.util.find_spec(point.value)
        except ImportError as e:
            raise ConfigError(f"the rubrics of {point.value} cannot be found ({e}): correct that package") from e
        folders += [Path(folder) / "rubrics" for folder in (spec and spec.submodule_search_locations) or ()]
    paths: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("[!_]*.yaml")):
            if path.stem not in shipped_rubric_names():
                paths.setdefault(path.stem, path)
    return dict(sorted(paths.items()))


Label = bool | int
Variant = Literal["improved", "paper", "miniature", "verbatim"]
VARIANTS: tuple[Variant, ...] = ("improved", "paper", "miniature", "verbatim")
"""`improved`: the default wording, with evidence before the labels and a caption before every image. `paper`: the
criteria and anchors of each benchmark's paper. `miniature`: the wording that the miniature judge was trained on.
`verbatim`: the authors' prompts and answer formats, word for word."""
DEFAULT: Variant = "improved"
LEGEND = "{pictures}"
OPTIONS = "{options}"
_LATER = ("defaults", "evidence", "in_place", "options", "verbatim")
"""Fields that are part of a rubric's digest only if they are set, so that older digests do not change."""
EVIDENCE_CHARACTERS = 400
_CONTROL = re.compile(r"<(?=\||/?(?:think|tool_call|tool_response)>)")
"""The start of a control token of Qwen's chat templates, which the tokenizer recognises anywhere in the text."""


class System(Strict):
    """The system prompt, and the closing text of a rubric for each answer protocol."""

    version: int
    text: str
    json_closing: str
    """Contains `{fields}`: the answer's fields, one per line."""
    logit_closing: str
    """Contains `{field}` and `{labels}`."""
    flag_closing: str
    """Contains `{flag}` and `{meaning}`; the answer is 1 if the flag applies, else 0."""


class Flags(Strict):
    """A field whose value is a list of zero or more of these names."""

    any_of: dict[str, str] = Field(min_length=1)
    """Name -> meaning."""


@dataclass(frozen=True)
class Criterion:
    """A question that one token can answer: a field, or one flag of a field."""

    field: str
    labels: tuple[Label, ...]
    flag: str | None = None
    words: tuple[str, ...] = ()
    """The tokens of an authors' prompt that is answered in words, one per label."""

    @property
    def name(self) -> str:
        return self.flag or self.field

    @property
    def tokens(self) -> tuple[str, ...]:
        """The labels as the judge answers them: `words`, or else `numbers`."""
        return self.words or self.numbers

    @property
    def numbers(self) -> tuple[str, ...]:
        """The labels as they are stored: numbers; 1 and 0 for true and false."""
        return tuple(str(int(label)) for label in self.labels)


class Verbatim(Strict):
    """What an authors' prompt has besides its text. It is sent without the system prompt, the delimiters of slots and
    the closing text, and answered in the authors' format."""

    licence: str
    """The licence under which the prompt is included, and its attribution."""
    texts: list[str] = Field(default=[])
    """The prompt for each of the rubric's layouts, where they differ."""
    twice: bool = False
    """Whether the text also precedes the first image."""
    hidden: list[str] = Field(default=[])
    """Slots that the prompt does not have: numbers for `reply` and `at`. Questions that differ only in these share one
    request."""
    reply: dict[str, Any] | None = None
    """The JSON schema of the answer, where "$NAME" is the number in slot NAME; {each: "$NAME", items: …} is an array of
    that length, with "$position" for each entry's number, from 0. None: one label and nothing else."""
    at: dict[str, list[str | dict[str, str]]] = Field(default={})
    """Field -> its path in the answer: keys; "$NAME", the element with the 1-based number in slot NAME; {KEY: "$NAME"},
    the only element whose KEY is that number, counted from 0."""
    labels: dict[str, Label] = Field(default={})
    """Word of the answer -> label. Without `reply`: the answers to the rubric's only field, each one token, which are
    read by their probabilities under either protocol."""

    def field(self, name: str, reply: Any, slots: Mapping[str, str]) -> Any:
        """The label or labels of a field in an answer of the schema. LookupError where it has none."""
        value = reply
        for step in self.at[name]:
            if isinstance(step, dict):
                ((key, number),) = step.items()
                matching = [entry for entry in value if entry[key] == int(slots[number[1:]]) - 1]
                if len(matching) != 1:
                    raise LookupError(key)
                value = matching[0]
            else:
                value = value[int(slots[step[1:]]) - 1 if step.startswith("$") else step]
        return self.labels.get(value, value) if isinstance(value, str) else value


class Rubric(Strict):
    """One rubric: either it scores (`answer`: the alternative forms of the answer, each field with its labels), or the
    judge generates text (`writes`: its JSON schema), which is never a score."""

    id: str
    version: int
    source: str
    """The paper and the section of it that defines the criteria, scale and fields."""
    slots: list[str] = Field(default=[])
    """Untrusted inputs: each occurs in the text once and is filled in between its own delimiters."""
    defaults: dict[str, str] = Field(default={})
    """Optional slots -> their default text."""
    numbers: list[str] = Field(default=[])
    """Slots with trusted numbers, filled in without delimiters."""
    pictures: dict[str, str] = Field(default={})
    """Role -> description of its images, inserted at `{pictures}`, or before each image with `in_place`."""
    in_place: bool = False
    """Whether each image is preceded by its number, role and description, instead of a legend."""
    layouts: list[list[str]] = Field(default=[])
    """The valid sequences of roles; consecutive images may share a role."""
    text: str
    answer: list[dict[str, Annotated[list[Label], Field(min_length=1)] | Flags]] = Field(default=[])
    evidence: dict[str, str] = Field(default={}, max_length=1)
    """A text field -> its description: with `json` the judge generates it before the labels. Never a score."""
    options: dict[str, str] = Field(default={})
    """Optional boolean criteria that a run's config can enable: name -> the text inserted at `{options}`."""
    writes: dict[str, Any] | None = None
    """The JSON schema of the generated text; a value "$NAME" is the number in slot NAME."""
    verbatim: Verbatim | None = None
    max_tokens: int = Field(64, ge=1)
    temperature: float = Field(0, ge=0)
    """If above 0, every repeat has its own seed."""
    min_pixels: int | None = Field(None, ge=1)
    max_pixels: int | None = Field(None, ge=1)
    """Images are resized to this range, as far as the judge's limit permits; None: the judge's own budget."""

    @model_validator(mode="after")
    def _check_consistency(self) -> "Rubric":
        for slot in self.slots:
            if self.verbatim is None and self.text.count(f"{{{slot}}}") != 1:
                raise ValueError(f"the slot {{{slot}}} must occur once in the text")
        if (set(self.numbers) | set(self.defaults)) - set(self.slots):
            raise ValueError("numbers and defaults must be among the slots")
        if self.verbatim is None and self.text.count(LEGEND) != bool(self.pictures and not self.in_place):
            raise ValueError(f"{LEGEND} must occur in the text once if the images have a legend, and not otherwise")
        if self.text.count(OPTIONS) != bool(self.options):
            raise ValueError(f"{OPTIONS} must occur in the text once if the rubric has options, and not otherwise")
        if {role for layout in self.layouts for role in layout} != set(self.pictures):
            raise ValueError("the layouts must use exactly the roles in pictures")
        if bool(self.answer) == bool(self.writes):
            raise ValueError("a rubric has an answer or writes, not both")
        fields = ((name, labels) for form in self.answer for name, labels in form.items() if isinstance(labels, list))
        twice = next((name for name, labels in fields if len({int(label) for label in labels}) < len(labels)), None)
        if twice is not None:
            raise ValueError(f"answer: two labels of {twice} are one number: give each its own")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError("min_pixels is more than max_pixels: exchange them")
        return self

    @cached_property
    def sha256(self) -> str:
        """The digest of the rubric's content."""
        return digest({name: value for name, value in self.model_dump().items() if name not in _LATER or value})

    def captions(self, roles: Sequence[str], slots: Mapping[str, str]) -> tuple[str, ...]:
        """The text before each image; empty if the rubric has a legend instead, or none."""
        if not self.in_place:
            return ()
        self._check_layout(roles)
        if self.verbatim is not None:
            first = f"{self._filled(self.text, slots)}\n" if self.verbatim.twice else ""
            texts = (f"{self._filled(self.pictures[role], slots)}\n" for role in roles)
            return tuple(
                (first if i == 0 else "") + text.replace("{n}", str(roles[: i + 1].count(roles[i])))
                for i, text in enumerate(texts)
            )
        return tuple(f"Image {i} ({role}): {self.pictures[role]}.\n" for i, role in enumerate(roles, 1))

    @cached_property
    def criteria(self) -> tuple[Criterion, ...]:
        """All criteria of the rubric, in the order of their requests."""
        labels_of: dict[str, list[Label]] = {}
        flags: dict[str, dict[str, str]] = {}
        for form in self.answer:
            for name, labels in form.items():
                if isinstance(labels, Flags):
                    flags[name] = labels.any_of
                else:
                    so_far = labels_of.setdefault(name, [])
                    so_far += [label for label in labels if label not in so_far]
        of_words = self.verbatim.labels if self.verbatim is not None and self.verbatim.reply is None else {}
        words = {label: word for word, label in of_words.items()}
        plain = [
            Criterion(name, tuple(labels), words=tuple(words[label] for label in labels if words))
            for name, labels in labels_of.items()
        ]
        return (*plain, *(Criterion(name, (False, True), flag) for name, of in flags.items() for flag in of))

    def answer_schema(self, slots: Mapping[str, str]) -> dict[str, Any]:
        """The JSON schema of an answer: the union of its forms, the authors' format, or that of the generated text."""
        written = self.verbatim.reply if self.verbatim is not None else self.writes
        if written is not None:
            return _numbered(written, slots)  # type: ignore[no-any-return]
        forms = [
            {
                "type": "object",
                "properties": dict.fromkeys(self.evidence, _EVIDENCE)
                | {
                    name: {"type": "array", "items": {"enum": [*labels.any_of]}, "maxItems": len(labels.any_of)}
                    if isinstance(labels, Flags)
                    else {"enum": labels}
                    for name, labels in form.items()
                },
                "required": [*self.evidence, *form],
                "additionalProperties": False,
            }
            for form in self.answer
        ]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def from_reply(self, reply: Any, slots: Mapping[str, str]) -> tuple[Any, str | None]:
        """The answer in an authors' format as one of the rubric's forms, or None and the reason; other rubrics' replies
        are their answers."""
        if self.verbatim is None:
            return reply, None
        try:
            fault = _mismatch(self.answer_schema(slots), reply)
            if fault is not None:
                return None, f"the answer does not have the authors' format for {self.id}: {fault}"
            values = {name: self.verbatim.field(name, reply, slots) for name in self.verbatim.at}
        except (LookupError, RecursionError):
            return None, f"the answer does not have the authors' format for {self.id}: an entry is missing or repeated"
        if self.writes is not None:
            return values, None
        forms = [form for form in self.answer if all(_fits(values[name], labels) for name, labels in form.items())]
        return {name: values[name] for name in (forms or self.answer)[0]}, None

    def read(
        self, answer: Any, slots: Mapping[str, str], labels_only: bool = False
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Validate and normalize an answer (flags without duplicates, in the rubric's order).

        Returns (answer, None), or (None, reason) if it fits none of the forms. With `labels_only` the evidence may be
        absent, as in answers under `logit`.
        """
        if not isinstance(answer, dict):
            return None, "the answer is not a JSON object"
        if self.writes is not None:
            try:
                fault = _mismatch(_numbered(self.writes, slots), answer)
            except RecursionError:
                fault = "it is nested too deeply"
            return (answer, None) if fault is None else (None, f"the answer does not fit {self.id}: {fault}")
        evidence = {name: answer[name] for name in self.evidence if name in answer}
        required = set() if labels_only else set(self.evidence)
        forms = [form for form in self.answer if set(form) == set(answer) - set(evidence) and required <= set(evidence)]
        if not forms:
            fields = ", ".join(sorted(answer))[:200] or "none"
            return None, f"the answer has the fields {fields}, which is no form of {self.id}"
        if not all(isinstance(text, str) and len(text) <= EVIDENCE_CHARACTERS for text in evidence.values()):
            return None, f"the answer's evidence is not a text of at most {EVIDENCE_CHARACTERS} characters"
        for form in forms:
            if all(_fits(answer[name], labels) for name, labels in form.items()):
                return evidence | {name: _normalized(answer[name], labels) for name, labels in form.items()}, None
        misfit = next(name for name, labels in forms[0].items() if not _fits(answer[name], labels))
        return None, f"the answer's {misfit} is {_misfit(answer[misfit], forms[0][misfit])} for {self.id}"

    def from_labels(self, best: Mapping[str, Label]) -> dict[str, Any]:
        """The answer with these labels (by criterion name), in the first form that they fit."""
        answer: dict[str, Any] = {}
        for form in self.answer:
            answer = {
                name: [flag for flag in values.any_of if best[flag]] if isinstance(values, Flags) else best[name]
                for name, values in form.items()
            }
            if all(isinstance(values, Flags) or _fits(answer[name], values) for name, values in form.items()):
                return answer
        raise AssertionError((self.id, best))

    def labels_of(self, answer: Mapping[str, Any]) -> dict[str, Label]:
        """The label of every criterion in `answer`, by the criterion's name."""
        return {
            c.name: c.flag in answer[c.field] if c.flag else answer[c.field] for c in self.criteria if c.field in answer
        }

    def has_probabilities(self, labels: Any) -> bool:
        """Whether `labels` is criterion -> label -> probability, for criteria and labels of this rubric, and the
        probabilities of each criterion sum to 1."""
        tokens = {c.name: c.numbers for c in self.criteria}
        return isinstance(labels, dict) and all(
            name in tokens
            and isinstance(probabilities, dict)
            and set(probabilities) == set(tokens[name])
            and all(type(p) in (int, float) and 0 <= p <= 1 for p in probabilities.values())
            and abs(sum(probabilities.values()) - 1) < 1e-3  # they are rounded
            for name, probabilities in labels.items()
        )

    def render(self, slots: Mapping[str, str], roles: Sequence[str] = ()) -> str:
        """Fill the slots. Each text is between delimiters that contain its digest, so that it cannot forge them, and
        control tokens in it are split by a visible space."""
        if absent := set(self.slots) - set(slots):
            raise ConfigError(
                f"the rubric {self.id!r} has the slot {min(absent)!r}, which its suite does not fill: correct it"
            )
        if self.verbatim is not None:
            texts = self.verbatim.texts
            layout = [role for role, _ in self._check_layout(roles)] if texts else []
            return self._filled(texts[self.layouts.index(layout)] if texts else self.text, slots)
        parts = []
        rest = self.text
        if self.pictures and not self.in_place:
            lines, at = [], 1  # of consecutive images with the same role
            for role, n in self._check_layout(roles):
                which = f"Image {at}" if n == 1 else f"Images {at} to {at + n - 1}"
                lines.append(f"{which}: {self.pictures[role]}.")
                at += n
            rest = rest.replace(LEGEND, "\n".join(lines)).lstrip("\n")
        for name in sorted(self.slots, key=lambda slot: rest.index(f"{{{slot}}}")):
            before, _, rest = rest.partition(f"{{{name}}}")
            filled = str(int(slots[name])) if name in self.numbers else ""
            if not filled:
                mark = hashlib.sha256(slots[name].encode()).hexdigest()[:12]
                filled = f"[{name} {mark}]\n{_CONTROL.sub('< ', slots[name])}\n[end {name} {mark}]"
            parts += [before, filled]
        return "".join(parts) + rest

    def _check_layout(self, roles: Sequence[str]) -> list[tuple[str, int]]:
        """The run-length encoding of the roles."""
        runs = [(role, len(list(run))) for role, run in itertools.groupby(roles)]
        if (layout := [role for role, _ in runs]) not in self.layouts:
            shown = f"[{', '.join(layout)}], the images of a question of its suite"
            raise ConfigError(f"the rubric {self.id!r} has no layout {shown}: add it, or correct the roles")
        return runs

    def _filled(self, text: str, slots: Mapping[str, str]) -> str:
        """A verbatim text with its slots; control tokens in them are split by a visible space."""
        return re.sub(r"\{(\w+)\}", lambda at: _CONTROL.sub("< ", slots[at[1]]) if at[1] in slots else at[0], text)


@cache
def rubric(name: str, variant: Variant = DEFAULT, options: tuple[str, ...] = ()) -> Rubric:
    """Load the rubric of that name and variant, with these options. Raises ConfigError for an unknown name.

    Rubrics with generated text (besides `deliverables` in `verbatim`), and those that are not shipped, are the same in
    all variants.
    """
    if name in shipped_rubric_names():
        refuse_own(f"rubrics/{name}.yaml", "rubric")
        path = FOLDER / variant / f"{name}.yaml"
        path = path if path.is_file() else FOLDER / f"{name}.yaml"
    elif name in (added := _added()):
        path = added[name]
    else:
        raise ConfigError(f"unknown rubric {name!r}: use one of {', '.join((*shipped_rubric_names(), *added))}")
    loaded = load_yaml(path, Rubric)
    if loaded.id != name:
        raise ConfigError(f"{path}: the rubric's id {loaded.id!r} must be the file's name")
    if not loaded.options:
        return loaded
    chosen = [name for name in loaded.options if name in options]  # additional criteria of every form
    content = loaded.model_dump() | {"options": {}}
    content["text"] = loaded.text.replace(f"{OPTIONS}\n", "".join(loaded.options[name] for name in chosen))
    content["answer"] = [form | {name: [False, True] for name in chosen} for form in content["answer"]]
    return Rubric.model_validate(content)


@cache
def system() -> System:
    """The system prompt and closing texts."""
    return load_yaml(FOLDER / "_system.yaml", System)


def closing_json(of_rubric: Rubric) -> str:
    """The closing text that requests the answer as one JSON object."""
    properties = {} if of_rubric.writes is None else of_rubric.writes["properties"]
    lines = [f'"{name}": as told above' for name in properties]
    for i, form in enumerate(of_rubric.answer):
        lines += ["or"] * bool(i)
        lines += [
            f'"{name}": written first, at most {EVIDENCE_CHARACTERS} characters: {what}'
            for name, what in of_rubric.evidence.items()
        ]
        for name, values in form.items():
            if isinstance(values, Flags):
                lines.append(f'"{name}": a list of those that are plainly there, empty if none:')
                lines += [f'  "{flag}": {meaning}' for flag, meaning in values.any_of.items()]
            else:
                lines.append(f'"{name}": {", ".join(canonical_json(label) for label in values)}')
    return system().json_closing.replace("{fields}", "\n".join(lines))


def closing_logit(of_rubric: Rubric, criterion: Criterion) -> str:
    """The closing text that requests only one criterion's label."""
    if criterion.flag is None:
        labels = ", ".join(criterion.tokens)
        if isinstance(criterion.labels[0], bool):
            labels += " (1 is true, 0 is false)"
        return system().logit_closing.replace("{labels}", labels).replace("{field}", criterion.field)
    meanings = next(of.any_of for form in of_rubric.answer for of in form.values() if isinstance(of, Flags))
    return system().flag_closing.replace("{flag}", criterion.flag).replace("{meaning}", meanings[criterion.flag])


_EVIDENCE = {"type": "string", "minLength": 1, "maxLength": EVIDENCE_CHARACTERS}


def _fits(value: Any, labels: list[Label] | Flags) -> bool:
    if isinstance(labels, Flags):
        return isinstance(value, list) and all(isinstance(flag, str) and flag in labels.any_of for flag in value)
    return any(kind(value) == kind(label) and value == label for label in labels)


def _normalized(value: Any, labels: list[Label] | Flags) -> Any:
    """Flags in the rubric's order; a whole number, such as 5.0, as an integer."""
    if isinstance(labels, Flags):
        return [flag for flag in labels.any_of if flag in value]
    return int(value) if isinstance(value, float) else value


def _misfit(value: Any, labels: list[Label] | Flags) -> str:
    wanted = {"a list"} if isinstance(labels, Flags) else {kind(label) for label in labels}
    if kind(value) in wanted:
        return "out of range"
    return f"{kind(value)}, not {' or '.join(sorted(wanted))},"


def _numbered(schema: Any, slots: Mapping[str, str]) -> Any:
    if isinstance(schema, dict) and "each" in schema:
        n = int(slots[schema["each"][1:]])
        entries = [_numbered(schema["items"], {**slots, "position": str(i)}) for i in range(n)]
        return {"type": "array", "prefixItems": entries, "items": False, "minItems": n, "maxItems": n}
    if isinstance(schema, dict):
        return {key: _numbered(value, slots) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_numbered(value, slots) for value in schema]
    return int(slots[schema[1:]]) if isinstance(schema, str) and schema.startswith("$") else schema


@cache
def _strict() -> Callable[[Any, Any], Any]:
    """Finds the worst error of a value by the grammar's rules: 1.0 and true are no integers, patterns match in full."""
    import jsonschema

    def whole(_validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
        if isinstance(value, str) and not re.fullmatch(pattern, value):
            yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")

    plain = jsonschema.Draft202012Validator
    kinds = plain.TYPE_CHECKER.redefine("integer", lambda _, given: type(given) is int)
    strict = jsonschema.validators.extend(plain, {"pattern": whole}, type_checker=kinds)  # type: ignore[no-untyped-call]
    return lambda schema, value: jsonschema.exceptions.best_match(strict(schema).iter_errors(value))


def _mismatch(schema: dict[str, Any], value: Any) -> str | None:
    """Where `value` differs most from the schema; None if it does not."""
    error = _strict()(schema, value)
    if error is None:
        return None
    where = "/".join(str(step) for step in error.absolute_path)
    return f"{where or 'the object'}: {error.message[:120]}"


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
        """The question with the slots of this variant, and the images that fill its largest layout, in its order."""
        of_rubric, roles = self[question.rubric], question.roles
        possible = [layout for layout in of_rubric.layouts if set(layout) <= set(roles)]
        layout = max(possible, key=len) if possible else list(dict.fromkeys(roles))
        order = [i for wanted in layout for i, role in enumerate(roles) if role == wanted]
        slots = {name: text for name, text in question.slots if name in of_rubric.slots}
        named = dict(question.slots)
        defaults = {
            name: text.replace("{point}", named.get("point", ""))
            for name, text in of_rubric.defaults.items()
            if name not in slots
        }
        return replace(
            question,
            slots=tuple((slots | defaults).items()),
            images=tuple(question.images[i] for i in order) if roles else question.images,
            roles=tuple(roles[i] for i in order),
        )


DEFAULT_SET = RubricSet()


def wordings(name: str) -> list[Rubric]:
    """The rubric of that name in every variant, with and without options, without duplicates."""
    every = [rubric(name, variant, options) for options in ((), (HYPE_USABLE,)) for variant in VARIANTS]
    return list({wording.sha256: wording for wording in every}.values())


def read_stored(name: str, answer: Any) -> tuple[dict[str, Any] | None, str | None]:
    """Parse a stored answer with the first variant of the rubric that it fits, or return why it fits none."""
    for wording in wordings(name):
        read = wording.read(answer, {}, labels_only=True)
        if read[0] is not None:
            break
    return read


def has_probabilities(name: str, labels: Any) -> bool:
    """Whether stored label probabilities fit a variant of the rubric (see `Rubric.has_probabilities`)."""
    return any(wording.has_probabilities(labels) for wording in wordings(name))


def wording_of(name: str, fields: Iterable[str]) -> Rubric:
    """The first variant of the rubric whose answers can have all of these fields, or else the default variant."""
    required, variants = set(fields), wordings(name)
    return next((r for r in variants if required <= {c.field for c in r.criteria} | set(r.evidence)), variants[0])


def single_tokens(weights: Path, labels: Iterable[str]) -> list[str]:
    """The labels that the tokenizer in `weights` does not encode as one unique token that decodes to the label.

    In order, without duplicates. Raises WeightsError if the tokenizer cannot be loaded.
    """
    encode, decode = _tokenizer(weights)
    tokens = {label: encode(label) for label in labels}
    owners = Counter(ids[0] for ids in tokens.values() if len(ids) == 1)
    return [
        label for label, ids in tokens.items() if len(ids) != 1 or owners[ids[0]] > 1 or decode(ids).strip() != label
    ]


def check_labels(card_name: str, weights: Path) -> None:
    """Raise ConfigError unless the judge of that card has a single token for every label of all rubrics."""
    labels = dict.fromkeys(label for name in rubric_names() for c in rubric(name).criteria for label in c.numbers)
    bad = single_tokens(weights, labels)
    if bad:
        raise ConfigError(
            f"judge.protocol: logit needs a single token for each label, and the tokenizer of {card_name} has none for "
            f"{', '.join(bad)}: set judge.protocol=json"
        )


def check_words(card_name: str, weights: Path, rubrics: Iterable[str]) -> None:
    """Raise ConfigError unless the judge of that card has a single token for every word that answers a rubric."""
    for name in sorted(set(rubrics)):
        words = [word for criterion in rubric(name).criteria for word in criterion.words]
        if words and (bad := single_tokens(weights, words)):
            raise ConfigError(
                f"the answers to {name} need a single token each, and the tokenizer of {card_name} has none for "
                f"{', '.join(bad)}: remove these questions (suite.questions_from) or choose another judge"
            )


def _tokenizer(weights: Path) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """The tokenizer's encode and decode functions; `tokenizer.json` avoids the slow import of transformers."""
    file = weights / "tokenizer.json"
    try:
        if file.is_file():
            from tokenizers import Tokenizer

            fast = Tokenizer.from_file(str(file))
            return lambda text: fast.encode(text, add_special_tokens=False).ids, fast.decode
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(weights, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # the tokenizers library raises nothing narrower
        raise WeightsError(
            f"the tokenizer in {weights} cannot be read ({e}): fetch it or give the judge's complete folder"
        ) from e
    return lambda text: slow.encode(text, add_special_tokens=False), slow.decode
