"""Suggestions for a name that does not exist."""

import difflib
from collections.abc import Iterable

_SHOWN = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The shortest known name that begins with `name`, else the longest that `name` begins with, else the most similar
    ones, which are equally similar; empty if none is similar."""
    names = list(known)
    lower = name.lower()
    if lower:
        longer = [one for one in names if one.lower().startswith(lower)]
        shorter = [one for one in names if len(one) > 2 and lower.startswith(one.lower())]
        if longer or shorter:
            return [min(longer, key=len) if longer else max(shorter, key=len)]
    folded = {one.lower(): one for one in reversed(names)}
    close = difflib.get_close_matches(lower, folded, _SHOWN, 0.5)
    ratios = [difflib.SequenceMatcher(None, one, lower).ratio() for one in close]
    return sorted(folded[one] for one, ratio in zip(close, ratios, strict=True) if ratio == ratios[0])


def hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean 'NEAREST'?`, or `otherwise`."""
    near = nearest(name, known)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise
