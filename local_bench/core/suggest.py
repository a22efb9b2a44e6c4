"""Suggestions for a name that does not exist."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The shortest known name that begins with `name`, else the longest that `name` begins with, else the most similar
    one; None if none is similar."""
    names = list(known)
    lower = name.lower()
    if lower:
        longer = [one for one in names if one.lower().startswith(lower)]
        shorter = [one for one in names if len(one) > 2 and lower.startswith(one.lower())]
        if longer or shorter:
            return min(longer, key=len) if longer else max(shorter, key=len)
    folded = {one.lower(): one for one in reversed(names)}
    close = difflib.get_close_matches(lower, folded, 1, 0.5)
    return folded[close[0]] if close else None


def hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean 'NEAREST'?`, or `otherwise`."""
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean {near!r}?"
