"""Hostile values and files: what a grammar of tests puts in the place of valid ones."""

import copy
import json
from collections.abc import Iterator
from typing import Any

LITERALS = [
    *("null", "true", "false", "0", "-1", "-0.0", "1.5", "1e308", "-1e308", "1e999999", "1e-320", "NaN", "Infinity"),
    *("9" * 19, "9" * 400, "9" * 5000, "1" + "0" * 30, '"NaN"', '"1e999999"', '"-1"', '"inf"', '"' + "9" * 5000 + '"'),
    *("[]", "{}", "[[]]", "[null]", '{"a": 1}', "3", '""', '" "', '"a"', '"/etc/passwd"', '"../../x"', '"~/x"'),
    *('"a\\u0000b"', '"\\ud800"', '"\\u202e\\u001b[31m"', '"=cmd|x"', '"' + "x" * 300 + '"', '"' + "é" * 5000 + '"'),
    *(
        '"http://u:secret@h/"',
        '"\\n"',
        '["a", "a"]',
        '"os:system"',
        '"{{7*7}}"',
        '"%s%n"',
        '"\\\\"',
        "1e400",
        "1E+1000",
    ),
    *('"1e999999999"', '"-1e999999999"', '"\N{SUPERSCRIPT TWO}"'),
    *("99999999", "1e15", "9.2e12", '"1.7976931348623157e309"', '"0x10"', '"1_000"', '"٣"', '" 1 "', '"+1"'),
]
"""JSON texts, some of them refused by strict parsers."""

RAW: dict[str, bytes] = {"empty": b"", "blank": b"\n\n \n", "nul": b"\0", "nuls": b"\0" * 4096}
RAW |= {"binary": bytes(range(256)) * 4, "three": b"3", "null": b"null", "true": b"true", "string": b'"abcdef"'}
RAW |= {"array": b"[]", "object": b"{}", "arrays": b"[[[]]]", "open": b'{"a": [1, 2', "deep array": b"[" * 100_000}
RAW |= {"deep closed": b"[" * 20_000 + b"]" * 20_000, "deep object": b'{"a":' * 20_000}
RAW |= {"deep 900": b"[" * 900 + b"]" * 900, "twice": b'{"a": 1, "a": 2}', "nan": b'{"a": NaN}', "digits": b"9" * 5000}
RAW |= {"float digits": b"0." + b"9" * 100_000, "exponent": b"1e999999999", "surrogate": b'"\\ud800"'}
RAW |= {"latin-1": '{"é": "ü"}'.encode("latin-1"), "utf-16": '{"a": 1}'.encode("utf-16")}
RAW |= {"utf-16-le": '{"a": 1}'.encode("utf-16-le"), "utf-32": '{"a": 1}'.encode("utf-32"), "bom": b"\xef\xbb\xbf{}"}
RAW |= {"cut utf-8": b'{"a": "\xe2\x82', "overlong": b'{"a": "\xc0\xaf"}'}
RAW |= {"long line": b'{"a": "' + b"x" * 1_100_000 + b'"}', "long plain line": b"x" * 2_000_000}
RAW |= {"crlf": b"{}\r\n{}\r\n", "cr": b"{}\r{}\r", "escapes": b"\x1b]0;title\x07\x1b[31mred"}
RAW |= {"yaml date": b"2024-13-45", "yaml date value": b"name: 2024-13-45\n", "yaml tag": b"name: !!int x\n"}
RAW |= {"yaml python": b"name: !!python/object/apply:os.system ['true']\n", "yaml self": b"name: &a [*a]\n"}
RAW |= {"yaml self map": b"&a {*a : 1}\n"}
RAW |= {
    "yaml bomb": b"".join(
        b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9) if i else b"x") for i in range(10)
    )
}
RAW |= {"yaml merge": b"a: &a {b: 1}\nname:\n  <<: [*a, *a, 3]\n", "yaml merge text": b"<<: x\n"}
RAW |= {"yaml binary": b"name: !!binary =\n", "yaml set": b"name: !!set {a, b}\n"}
RAW |= {"yaml float": b"name: .nan\nseed: -.inf\n", "yaml sexagesimal": b"seed: 190:20:30\n"}
RAW |= {"yaml octal": b"seed: 0o777\n", "yaml digits": b"seed: " + b"9" * 5000 + b"\n"}
RAW |= {"yaml key list": b"? [a, b]\n: 1\n", "yaml key null": b"~: 1\n", "yaml key int": b"1: 2\n"}
RAW |= {"yaml documents": b"a: 1\n---\nb: 2\n", "yaml directive": b"%YAML 9.9\n---\na: 1\n"}
RAW |= {"yaml tab": b"a:\n\tb: 1\n", "yaml deep": b"a: " + b"[" * 3000}
RAW |= {"yaml deep flow": b"a: " + b"[" * 1500 + b"]" * 1500 + b"\n"}
RAW |= {"yaml deep block": b"".join(b" " * i + b"a:\n" for i in range(300)), "yaml unknown alias": b"a: *b\n"}
RAW |= {"yaml twice": b"name: a\nname: b\n", "yaml control": b"name: \x01\n"}
RAW |= {"yaml escape": b'name: "\\e[31m\\u202e"\n', "csv quote": b'a,"b\n', "csv nul": b"a,\0,b\n"}
RAW |= {"csv wide": b"a," * 200_000 + b"\n", "csv field": b'"' + b"x" * 200_000 + b'"\n'}
RAW |= {"pickle": b"\x80\x04\x95\x1b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."}
RAW |= {"sqlite": b"SQLite format 3\0" + b"\0" * 84, "png": b"\x89PNG\r\n\x1a\n" + b"\0" * 40}
RAW |= {"zip": b"PK\x03\x04" + b"\0" * 40, "gzip": b"\x1f\x8b\x08\x00" + b"\0" * 20}
"""Files that no reader expects."""


Place = tuple[Any, ...]
"""The keys and indices that lead to a value."""
_MARK = "\ue000"


def places_of(data: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """(place, value) of every value in `data`, itself included."""
    yield at, data
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, inner in items:
        yield from places_of(inner, (*at, key))


def with_literal(data: Any, at: Place, literal: str) -> str:
    """`data` as JSON text with `literal` in one place."""
    if not at:
        return literal
    changed = copy.deepcopy(data)
    _parent(changed, at)[at[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), literal)


def texts_of(data: Any) -> Iterator[tuple[str, str]]:
    """(name, JSON text): `data` with every value in turn replaced by each literal, left out, or under another name."""
    for at, value in places_of(data):
        name = ".".join(map(str, at)) or "whole"
        for literal in LITERALS:
            yield f"{name} = {literal[:40]}", with_literal(data, at, literal)
        if at:
            changed = copy.deepcopy(data)
            del _parent(changed, at)[at[-1]]
            yield f"{name} left out", json.dumps(changed)
        if at and isinstance(at[-1], str):
            _parent(changed, at)[f"{at[-1]}\u202e\u001b"] = value
            yield f"{name} renamed", json.dumps(changed)


def _parent(data: Any, at: Place) -> Any:
    for step in at[:-1]:
        data = data[step]
    return data
