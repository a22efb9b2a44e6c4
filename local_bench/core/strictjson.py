"""Strict parsing of untrusted JSON: no NaN or infinities, no duplicate keys, no lone surrogates."""

import codecs
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from local_bench.core.errors import LedgerError, UserError, kind
from local_bench.core.files import open_regular, read_text

MAX_LINE_BYTES = 1_000_000
MAX_INTEGER_DIGITS = 300
"""Every integer that is accepted has a finite value as a float."""
_NATURAL = re.compile(r"[0-9]{1,9}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str, *, constants: bool = False, **how: Any) -> Any:
    """As `json.loads`. Raises ValueError also for NaN and Infinity (with `constants` they are their names), duplicate
    keys, integers of more than `MAX_INTEGER_DIGITS` digits, lone surrogates (which have no UTF-8 encoding) and JSON
    that is nested too deeply."""
    constant = str if constants else _no_constant
    try:
        data = json.loads(text, parse_constant=constant, parse_int=_integer, object_pairs_hook=_unique_keys, **how)
    except ArithmeticError:  # Decimal's, as parse_float
        raise ValueError("a number's exponent is too large") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(text):
        refuse_values(data)
    return data


def natural(text: str) -> int | None:
    """The number that one to nine digits of ASCII spell; None for any other text. (`str.isdigit` is true for characters
    that `int` refuses, such as a superscript, and `int` refuses thousands of digits.)"""
    return int(text) if _NATURAL.fullmatch(text) else None


def objects(
    path: Path, error: type[UserError], what: str, *, missing: str, unreadable: str | None = None, **how: Any
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file as (line number, "path, line N", object); blank lines are skipped.

    Raises `error` for a line that is too long or not an object (`what` describes a line: "a task"), for a missing
    file (`missing` is the advice) and for an unreadable one (`unreadable`, or the same). `how` is passed to `loads`.
    """
    with open_regular(path, error, missing=missing, unreadable=missing if unreadable is None else unreadable) as file:
        yield from lines_of(file, path, error, what, **how)


def read(path: Path, error: type[UserError], *, missing: str, **how: Any) -> Any:
    """The value in a JSON file. Raises `error` for a file that cannot be read or is not JSON; `missing` is the
    advice."""
    text = read_text(path, error, missing=missing)
    try:
        return loads(text, **how)
    except ValueError as e:
        raise error(f"{path}: this is not JSON ({e}): {missing}") from None


def stored(text: str | bytes | None) -> Any:
    """The value of a JSON text in a ledger or another file written by local-bench. Raises LedgerError if it is not
    JSON: such a file may come from someone else."""
    try:
        return json.loads(text or "", parse_constant=_no_constant, parse_int=_integer, parse_float=_finite)
    except (ValueError, RecursionError):
        raise LedgerError(
            "the run has a value that is not JSON: `local-bench verify` lists what differs, `recover` restores a backup"
        ) from None


def stored_object(text: str | bytes | None) -> dict[str, Any]:
    """As `stored`; LedgerError also if it is not an object."""
    value = stored(text)
    if not isinstance(value, dict):
        raise LedgerError(
            f"the run has {kind(value)} where local-bench writes an object: it was changed by hand; repeat the run"
        )
    return value


def lines_of(
    file: BinaryIO, path: Path, error: type[UserError], what: str, **how: Any
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """As `objects`, of an open file with the content of `path`."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
        where = f"{path}, line {number}"
        if len(line) > MAX_LINE_BYTES:
            raise error(f"{where}: longer than {MAX_LINE_BYTES:,} bytes, too long for {what}: correct the line")
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.strip():
            try:
                data = loads(text.decode(), **how)
            except UnicodeDecodeError:
                raise error(f"{where}: this is not UTF-8 text: save the file as UTF-8") from None
            except ValueError as e:
                remedy = "correct the line" if text[:1] == b"{" else 'give JSON Lines, one {"key": value, …} per line'
                raise error(f"{where}: this is not one JSON object ({e}): {remedy}") from None
            if not isinstance(data, dict):
                raise error(f"{where}: {what} is a JSON object, not {kind(data)}: correct the line")
            yield number, where, data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is too large")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits, more than {MAX_INTEGER_DIGITS}")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} is duplicated")
    return unique


def refuse_values(data: Any) -> None:
    """ValueError for an integer with too many digits in `data`, and for text that has no UTF-8 encoding."""
    match data:
        case dict():
            for key, value in data.items():
                refuse_values(key)
                refuse_values(value)
        case list() | tuple() | set():
            for value in data:
                refuse_values(value)
        case int() if not -(10**MAX_INTEGER_DIGITS) < data < 10**MAX_INTEGER_DIGITS:
            raise ValueError(f"an integer has more than {MAX_INTEGER_DIGITS} digits")
        case str() if not data.isascii() and any("\ud800" <= c <= "\udfff" for c in data):
            raise ValueError("a string contains an unpaired surrogate")
