"""The form of all messages: printable characters, a bounded length, no numbers of system errors, no class names."""

import difflib
import json
import os
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

MAX_CHARACTERS = 600
MAX_LINES = 40
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_KEPT_END = 200
"""Characters kept from the end of a message, which states what to do."""
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_URL_USER = re.compile(r"(\w+://)[^/\s@'\"]+@")
MIN_SECRET = 6
KINDS = {
    "NoneType": "null",
    "dict": "an object",
    "list": "a list",
    "str": "a text",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "Decimal": "a number",
    "date": "a date",
    "datetime": "a time",
    "bytes": "binary data",
    "set": "a set",
}


def kind(value: object) -> str:
    """The type of a value from a file, for a message: `a list`, `null`."""
    return KINDS.get(type(value).__name__, "another kind of value")


def short(value: object, most: int = 60) -> str:
    """A value from a file as JSON has it (null, true, the digits of a Decimal), a text as its `repr`; at most `most`
    characters long."""
    words = {"None": "null", "True": "true", "False": "false"}
    try:
        if isinstance(value, dict | list):
            text = json.dumps(value, ensure_ascii=False, default=str)
        else:
            text = str(value) if isinstance(value, Decimal | bool | None) else repr(value)
        text = words.get(text, text)
    except ValueError:  # an integer with more digits than Python prints
        return "a number with thousands of digits"
    return text if len(text) <= most else text[: most - 3] + "..."


def escaped(text: str) -> str:
    """`text` with control, format and bidirectional characters and unpaired surrogates in visible form (`\\x1b`); line
    breaks and tabs are kept."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _is_control(c) else _visible(c) for c in text)


def escaped_json(text: str) -> str:
    """JSON text with those characters as `\\uXXXX`; they can only be inside its strings."""
    if text.isascii():
        return text if "\x7f" not in text else text.replace("\x7f", "\\u007f")
    return "".join(_json_form(c) if c != "\n" and _is_control(c) else c for c in text)


def sentence(text: str) -> str:
    """A message as it is printed: escaped, without secrets, every line at most MAX_CHARACTERS long."""
    lines = _ERRNO.sub("", without_secrets(escaped(text))).split("\n")
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 10], "…", *lines[-10:]]
    return "\n".join(map(_shortened, lines))


def without_secrets(text: str) -> str:
    """`text` without the users of URLs, and without the values of environment variables that hold keys."""
    text = _URL_USER.sub(r"\1", text)
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET and _SECRET_NAME.search(name) and not os.path.exists(value):
            text = text.replace(value, f"<{name}>")
    return text


def _shortened(line: str) -> str:
    if len(line) <= MAX_CHARACTERS:
        return line
    return f"{line[: MAX_CHARACTERS - _KEPT_END - 3]} … {line[-_KEPT_END:]}"


def _is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _visible(c: str) -> str:
    return c.encode("unicode_escape").decode() if not "\ud800" <= c <= "\udfff" else f"\\u{ord(c):04x}"


def _json_form(c: str) -> str:
    code = ord(c)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


_SHOWN = 3


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The shortest known name that begins with `name`, else the longest that `name` begins with, else the most similar
    ones, which are equally similar; empty if none is similar."""
    names = list(names)
    lower = name.lower()
    if lower:
        longer = [candidate for candidate in names if candidate.lower().startswith(lower)]
        shorter = [candidate for candidate in names if len(candidate) > 2 and lower.startswith(candidate.lower())]
        if longer or shorter:
            return [min(longer, key=len) if longer else max(shorter, key=len)]
    folded = {candidate.lower(): candidate for candidate in reversed(names)}
    close = difflib.get_close_matches(lower, folded, _SHOWN, 0.5)
    ratios = [difflib.SequenceMatcher(None, candidate, lower).ratio() for candidate in close]
    return sorted(folded[candidate] for candidate, ratio in zip(close, ratios, strict=True) if ratio == ratios[0])


def hint(name: str, names: Iterable[str], otherwise: str) -> str:
    """`did you mean 'NEAREST'?`, or `otherwise`."""
    near = nearest(name, names)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise
