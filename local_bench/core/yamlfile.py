"""Loads YAML into validated pydantic models; errors contain the file, the line and the closest valid key."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from local_bench.core.errors import ConfigError
from local_bench.core.suggest import hint

Location = tuple[int | str, ...]
MAX_BYTES = 1_000_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times faster, if PyYAML was built with it."""


class Strict(BaseModel):
    """Base class of file models: unknown keys are errors, types are not coerced, instances are immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path) -> tuple[Any, dict[Location, int]]:
    """The plain data of a YAML file and the line (from 1) of every key and item. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES:,} bytes: this is not one of our YAML files")
        text = path.read_text("utf-8")
        loader = _LOADER(text)
        node = loader.get_single_node()
        lines = list(_lines(node, ()))  # before merge keys are resolved into it
        data = None if node is None else loader.construct_document(node)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: check the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: give the YAML file in it") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read ({e}): give a UTF-8 text file") from None
    except (yaml.YAMLError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: this is not valid YAML ({getattr(e, 'problem', e)}): mend it") from None
    first: dict[Location, int] = {}
    for location, line in lines:
        if location in first and not isinstance(location[-1], int):
            raise ConfigError(f"{path}, line {line}: the key {location[-1]!r} stands there a second time: keep one")
        first[location] = line
    return data, first


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


def check(data: Any, model: type[M], source: str, lines: dict[Location, int] | None = None) -> M:
    """Validate `data` as a `model`. Raises ConfigError with the location from `source` and `lines`."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source} must be a mapping of keys to values, not {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise ConfigError(explain(e, model, source, lines or {})) from None


def explain(error: ValidationError, model: type[BaseModel], source: str, lines: dict[Location, int]) -> str:
    """One sentence about the first validation error, with the number of further errors at its end."""
    first = error.errors(include_url=False, include_context=False)[0]
    location: Location = tuple(first["loc"])
    line = next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), None)
    where = f"{source}, line {line}" if line else source
    name = ".".join(map(str, location)) or "the file"
    match first["type"]:
        case "extra_forbidden":
            keys = _keys_at(model, location[:-1])
            suggestion = hint(str(location[-1]), keys, f"the keys here are {', '.join(sorted(keys))}")
            what = f"there is no key {name!r}; {suggestion}"
        case "missing":
            what = f"the key {name!r} is missing: add it"
        case _:
            given = first["input"]
            shown = "" if isinstance(given, dict | list) else f", not {_short(given)}"
            message = first["msg"].removeprefix("Value error, ")
            what = f"{name}: {message[0].lower()}{message[1:]}{shown}"
    more = error.error_count() - 1
    return f"{where}: {what}" + (f" (and {more} more)" if more else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(model: type[BaseModel], location: Location) -> list[str]:
    """The valid keys of `model` at a location inside it."""
    for step in location:
        if isinstance(step, int):
            continue
        field = model.model_fields.get(step)
        inner = next(_models(field.annotation), None) if field else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, list, tuple, dict):
        for inner in get_args(annotation):
            yield from _models(inner)


def finite(value: float) -> float:
    """A pydantic validator that rejects infinities and NaN."""
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value
