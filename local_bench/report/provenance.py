"""Provenance of the run: `provenance.json` and the sessions, unmodified."""

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.report.text import duration
from local_bench.runs.rundir import RunDir

Node: TypeAlias = "str | list[tuple[str, Node]]"
"""A value to show, or a table of names and values."""
MAX_DEPTH = 6
MAX_BYTES = 5_000_000


@dataclass(frozen=True)
class Session:
    number: int
    started_utc: str
    device: str
    held: str
    ended: str


def sessions(run: RunDir) -> list[Session]:
    """The sessions of the run, in order."""
    return [
        Session(row.session, row.started_utc, row.device, duration(row.held_ns), row.ended or "did not end")
        for row in run.store.sessions()
    ]


def provenance(run: RunDir) -> Node:
    """The content of `provenance.json` as nested tables, or one sentence if there is none."""
    path = run.path / "provenance.json"
    if not path.is_file():
        return "This run directory contains no provenance.json."
    if path.stat().st_size > MAX_BYTES:
        return f"provenance.json is larger than {MAX_BYTES:,} bytes and is not shown."
    try:
        return tree(strictjson.read(path, UserError, missing="restore it"))
    except UserError:
        return "provenance.json cannot be read as JSON."


def tree(value: Any, depth: int = 0) -> Node:
    """Plain data as nested tables, MAX_DEPTH deep; deeper levels are shown as JSON."""
    if isinstance(value, dict | list) and not value:
        return "none"
    if isinstance(value, dict | list) and depth >= MAX_DEPTH:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return [(str(key), tree(inner, depth + 1)) for key, inner in value.items()]
    if isinstance(value, list):
        if not any(isinstance(inner, dict | list) for inner in value):
            return ", ".join(_scalar(inner) for inner in value)
        return [(str(i), tree(inner, depth + 1)) for i, inner in enumerate(value, 1)]
    return _scalar(value)


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
