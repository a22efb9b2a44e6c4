"""JSON as strangers may send it: no constants that JSON has not, no key twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_bench.core.errors import UserError

MAX_LINE_BYTES = 1_000_000


def loads(text: str, **how: Any) -> Any:
    """As `json.loads`; ValueError also for NaN and Infinity and for an object with a key that stands there twice,
    RecursionError for what is nested too deep."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_twice, **how)


def objects(
    path: Path, error: type[UserError], what: str, *, missing: str, unreadable: str, **how: Any
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """The objects of a file with one a line, as (line number, "path, line N", object); blank lines are passed over.

    `error` says which line is too long or none, and what such a line is (`what`: "an order"); or that the file is not
    there (`missing` says what to do) or cannot be read (`unreadable`). `how` is for `loads`.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
                where = f"{path}, line {number}"
                if len(line) > MAX_LINE_BYTES:
                    raise error(f"{where}: longer than {MAX_LINE_BYTES:,} bytes: this is no {what.partition(' ')[2]}")
                if line.strip():
                    yield number, where, _object(line, error, where, what, how)
    except FileNotFoundError:
        raise error(f"{path} does not exist: {missing}") from None
    except OSError as e:
        raise error(f"{path} cannot be read ({e.strerror}): {unreadable}") from None


def _object(line: bytes, error: type[UserError], where: str, what: str, how: dict[str, Any]) -> dict[str, Any]:
    try:
        data = loads(line.decode(), **how)
    except (ValueError, RecursionError) as e:
        raise error(f"{where}: this is not one JSON object ({e}): mend the line") from None
    if not isinstance(data, dict):
        raise error(f"{where}: {what} is a JSON object, not {type(data).__name__}: mend the line")
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
    return dict(pairs)
