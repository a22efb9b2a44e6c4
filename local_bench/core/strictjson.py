"""JSON as strangers may send it: no constants that JSON has not, no key twice."""

import json
from typing import Any


def loads(text: str, **how: Any) -> Any:
    """As `json.loads`; ValueError also for NaN and Infinity and for an object with a key that stands there twice,
    RecursionError for what is nested too deep."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_twice, **how)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
    return dict(pairs)
