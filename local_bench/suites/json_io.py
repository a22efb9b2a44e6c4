"""Reads JSON files of benchmarks and of prices, with the line number in error messages."""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError, UserError, kind
from local_bench.core.files import read_text

MAX_BYTES = 500_000_000
HINT = "give a file with one JSON object"


def read_object(path: Path, what: str, error: type[UserError] = ResultFileError) -> tuple[dict[str, Any], str]:
    """(the JSON object in the file, its text), with decimal numbers as Decimal. Raises `error` if it is not an
    object."""
    data, text = read_json(path, what, error)
    if not isinstance(data, dict):
        raise error(f"{path}: a {what} must be a JSON object, not {kind(data)}: {HINT}")
    return data, text


def read_list(path: Path, what: str, error: type[UserError] = ResultFileError) -> tuple[list[Any], str]:
    """(the JSON array in the file, its text), with decimal numbers as Decimal. Raises `error` if it is not an array."""
    data, text = read_json(path, what, error)
    if not isinstance(data, list):
        raise error(f"{path}: a {what} must be a JSON array, not {kind(data)}: give a file with one JSON array")
    return data, text


def read_json(path: Path, what: str, error: type[UserError]) -> tuple[Any, str]:
    """(the contents of the file, its text), with decimal numbers as Decimal. Raises `error` if it is not valid JSON."""
    text = read_text(path, error, missing=f"give the {what}", max_bytes=MAX_BYTES)
    try:
        return strictjson.loads(text, parse_float=Decimal), text
    except json.JSONDecodeError as e:
        raise error(f"{path}, line {e.lineno}: invalid JSON ({e.msg}): correct the line") from None
    except (ValueError, RecursionError) as e:
        raise error(f"{path}: invalid JSON ({e}): correct the file") from None


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line (from 1) of the last of nested `keys`, as far as a text search can determine it."""
    at = 0
    for key in keys:
        forms = (f"{json.dumps(key)}", f"{json.dumps(key, ensure_ascii=False)}")
        positions = [i for i in (text.find(form, at) for form in forms) if i >= 0]
        at = min(positions, default=at)
    return text.count("\n", 0, at) + 1


def read_costs(path: Path) -> dict[str, Decimal]:
    """{model: US dollars per image}. ResultFileError names the file, the line and the reason."""
    data, text = read_object(path, "file of costs")
    costs = {}
    for model, amount in data.items():
        if isinstance(amount, bool) or not isinstance(amount, int | Decimal) or not is_amount(Decimal(amount)):
            where = f"{path}, line {line_of(text, [model])}"
            raise ResultFileError(f"{where}: the cost of {model!r} in US dollars per image must be {AMOUNTS}")
        costs[model] = Decimal(amount)
    return costs


AMOUNTS = "0 or a number from 1e-30 to 1,000,000,000"


def is_amount(amount: Decimal) -> bool:
    """Whether it is one of `AMOUNTS`, whose fractions have few digits."""
    return amount.is_finite() and 0 <= amount <= 10**9 and amount.adjusted() >= -30
