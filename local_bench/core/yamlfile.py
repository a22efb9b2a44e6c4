"""Loads YAML into validated pydantic models; errors contain the file, the line and the closest valid key."""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from local_bench.core.errors import ConfigError, UserError, hint, kind, short
from local_bench.core.files import read_text
from local_bench.core.money import MAX_USD, micro_usd, nearest_micro_usd
from local_bench.core.strictjson import refuse_values

Location = tuple[int | str, ...]
MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 100_000
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times faster, if PyYAML was built with it."""

_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(?:0|[1-9][0-9]*|[1-9][0-9]{0,2}(?:_[0-9]{3})+)",
    "tag:yaml.org,2002:float": r"[-+]?(?:(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?|\.inf)|\.nan",
}
_FORMS = {
    letter: [(tag, re.compile(f"(?:{_NUMBERS[tag]})\\Z") if tag in _NUMBERS else form) for tag, form in forms]
    for letter, forms in _FASTEST.yaml_implicit_resolvers.items()
}
_LOADER: Any = type("_Loader", (_FASTEST,), {"yaml_implicit_resolvers": _FORMS})
"""Plain values that YAML 1.1 also reads as numbers stay text: 007, 0012 (octal, 10), 12:30 (750), 2024_01 (202401)."""


class Strict(BaseModel):
    """Base class of file models: unknown keys are errors, types are not coerced, numbers are finite, instances are
    immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _decimal(value: Any) -> Any:
    """A number as the decimal that was written; anything else unchanged."""
    return format(Decimal(repr(value)), "f") if type(value) in (int, float) else value


def _amount(read: Callable[[str], int], form: str, text: str) -> str:
    try:
        valid = read(text) >= 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"must be an amount in US dollars from 0 to {MAX_USD:,}, {form}")
    return text


Amount = Annotated[str, BeforeValidator(_decimal), AfterValidator(partial(_amount, nearest_micro_usd, "such as 0.04"))]
"""An amount of money as decimal text; in a file it may be a number or a text."""
ExactAmount = Annotated[
    str, BeforeValidator(_decimal), AfterValidator(partial(_amount, micro_usd, "with at most six decimals"))
]
"""As `Amount`, in whole micro-USD."""
M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path) -> tuple[Any, dict[Location, int]]:
    """The plain data of a YAML file and the line (from 1) of every key and item. Raises ConfigError."""
    text = read_text(
        path,
        ConfigError,
        max_bytes=MAX_BYTES,
        missing="check the path",
        unreadable="give a UTF-8 text file",
        folder="give the YAML file in it",
    )
    try:
        _check_bounds(text)
        loader = _LOADER(text)
        node = loader.get_single_node()
        lines = list(_lines(node, ()))  # before merge keys are resolved into it
        data = None if node is None else loader.construct_document(node)
        refuse_values(data)
    except _FAULTS as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: this is not valid YAML ({yaml_fault(e)}): correct it") from None
    first: dict[Location, int] = {}
    for location, line in lines:
        if location in first and not isinstance(location[-1], int):
            raise ConfigError(f"{path}, line {line}: the key {location[-1]!r} is duplicated: keep one")
        first[location] = line
    return data, first


def yaml_value(text: str) -> Any:
    """The plain data of a short YAML text. Raises ValueError, whose message is the reason."""
    try:
        _check_bounds(text)
        data = yaml.load(text, _LOADER)  # noqa: S506 - a safe loader
        refuse_values(data)
    except _FAULTS as e:
        raise ValueError(yaml_fault(e)) from None
    return data


def yaml_text(data: Any, **how: Any) -> str:
    """`data` as YAML."""
    text: str = yaml.safe_dump(data, allow_unicode=True, **how)
    return text


def yaml_line(value: Any) -> str:
    """A value as one line of YAML."""
    return yaml_text(value, default_flow_style=True).removesuffix("...\n").strip()


def yaml_fault(error: Exception) -> str:
    """What is wrong with a YAML text, in a few words."""
    problem = getattr(error, "problem", None)
    if isinstance(problem, str):
        return problem
    if isinstance(error, yaml.YAMLError):
        return str(getattr(error, "reason", "")) or "a character that is not allowed"
    return str(error) if type(error) is ValueError else "a value that its tag or form does not allow"


_FAULTS = (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError, KeyError, IndexError, ArithmeticError)
"""PyYAML's constructors raise Python's own errors for values that match a form, but do not exist (2024-13-45)."""


def _check_bounds(text: str) -> None:
    """ValueError if the YAML text is nested too deeply or, with its aliases expanded, has too many values. Only the
    parser's events are read, because loaders recurse (libyaml's crashes the process)."""
    open_sizes: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    size = 0
    for event in yaml.parse(text, _LOADER):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            open_sizes.append((anchor, size))
            if len(open_sizes) > MAX_DEPTH:
                raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_sizes.pop()
            if name is not None:
                sizes[name] = size - before
        elif isinstance(event, yaml.ScalarEvent):
            size += 1
            if anchor is not None:
                sizes[anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if anchor in (name for name, _ in open_sizes):
                raise ValueError(f"the alias *{anchor} contains itself")
            size += sizes.get(str(anchor), 1)
        if size > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES:,} values")


def _lines(node: yaml.Node | None, at: Location) -> Iterator[tuple[Location, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield (*at, i), item.start_mark.line + 1
            yield from _lines(item, (*at, i))


def load_yaml(path: Path, model: type[M]) -> M:
    """Load the YAML file at `path` as a `model`. Raises ConfigError with the line and the expected input."""
    data, lines = read_yaml(path)
    return check(data, model, str(path), lines)


def check(
    data: Any,
    model: type[M],
    source: str,
    lines: Mapping[Location, int | str] | None = None,
    error: type[UserError] = ConfigError,
) -> M:
    """Validate `data` as a `model`. Raises `error` with the location of each mistake from `source` and `lines`: the
    line, or a text that replaces both."""
    if not isinstance(data, dict):
        raise error(f"{source} must be a mapping of keys to values, not {kind(data)}: correct it")
    try:
        return model.model_validate(data)
    except ValidationError as e:
        faults = e.errors(include_url=False, include_context=False)
        first, *others = dict.fromkeys(_sentence(fault, data, model, source, lines or {}) for fault in faults)
        if error is ConfigError:  # written by hand: all of its mistakes are shown at once
            raise error("\n".join([first, *others])) from None
        raise error(f"{first} (and {len(others)} more)" if others else first) from None


_PLAIN = {
    "is_instance_of": "input should be a number",  # a Decimal
    "dict_type": "input should be a mapping of keys to values",
    "model_type": "input should be a mapping of keys to values",
}
"""pydantic's messages with names of Python's types, by the type of the error."""


_EXPONENT = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+")


def _sentence(
    error: ErrorDetails, data: Any, model: type[BaseModel], source: str, lines: Mapping[Location, int | str]
) -> str:
    location = _inside(data, error["loc"], missing=error["type"] == "missing")
    place = next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), None)
    where = source if place is None else place if isinstance(place, str) else f"{source}, line {place}"
    name = ".".join(map(str, location)) or "the file"
    match error["type"]:
        case "extra_forbidden":
            keys = _keys_at(model, location[:-1])
            suggestion = hint(str(location[-1]), keys, f"the keys here are {', '.join(sorted(keys))}")
            if elsewhere := _paths(model, str(location[-1])):
                suggestion = f"did you mean {' or '.join(map(repr, elsewhere))}?"
            what = f"there is no key {name!r}; {suggestion}"
        case "missing":
            what = f"the key {name!r} is missing: add it"
        case _:
            value = error["input"]
            shown = "" if isinstance(value, dict | list) else f", not {short(value)}"
            message = _PLAIN.get(error["type"], error["msg"].removeprefix("Value error, "))
            what = f"{name}: {message[0].lower()}{message[1:]}{shown}"
            if error["type"] == "string_type" and shown and value is not None:
                what += " (put it in quotes)"
            if error["type"] == "float_type" and isinstance(value, str) and _EXPONENT.fullmatch(value):
                what += " (YAML needs a point and a sign before an exponent, as in 1.0e-3)"
    return f"{where}: {what}"


def _inside(data: Any, location: Location, missing: bool) -> Location:
    """The steps of a location that are in `data`, or whose last one is `missing`: pydantic adds the types of unions."""
    steps: list[int | str] = []
    for i, step in enumerate(location):
        if isinstance(data, dict) and (step in data or (missing and i == len(location) - 1)):
            steps.append(step)
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            steps.append(step)
            data = data[step]
    return tuple(steps)


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """The valid keys of `model` at a location inside it."""
    of_dict = False
    for step in location:
        if isinstance(step, int) or of_dict:
            of_dict = False
            continue
        field = model.model_fields.get(step)
        of_dict = field is not None and get_origin(field.annotation) is dict
        inner = next(_models(field.annotation), None) if field else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _paths(model: type[BaseModel], name: str) -> list[str]:
    """Where else `model` has the key `name`: at its top, or one level below."""
    inner = [
        (key, field.annotation, part) for key, field in model.model_fields.items() for part in _models(field.annotation)
    ]
    step: dict[Any, str] = {list: ".0", dict: ".NAME"}
    below = [f"{key}{step.get(get_origin(a), '')}.{name}" for key, a, part in inner if name in part.model_fields]
    return [*([name] if name in model.model_fields else []), *below]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, list, tuple, dict):
        for inner in get_args(annotation):
            yield from _models(inner)
