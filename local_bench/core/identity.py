"""Identities and seeds of work items (invariant 1): the digest of everything that determines an item's bytes."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""Created once: `json.dumps` creates an encoder per call, which takes longer than encoding a small value."""
canonical_json: Callable[[Any], str] = _ENCODER.encode
"""The canonical JSON text of a value: sorted keys, no spaces, UTF-8. Raises ValueError for NaN and infinities."""


def json_lines(rows: Sequence[Sequence[Any]], encode: Callable[[Any], str] = canonical_json) -> list[str]:
    """The compact JSON text of each row, a list or tuple; by default the canonical one. One call of the encoder for all
    rows is several times faster than one for each."""
    lines = encode(rows)[1:-1].replace("],[", "]\n[").split("\n")  # JSON text has no newline of its own
    return lines if len(lines) == len(rows) else [encode(row) for row in rows]  # "],[" also occurs within a row


def digest(value: Any) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def full_identity(work_id: str, numerics: dict[str, Any]) -> str:
    """The identity of a work item on a machine with this numerics signature: equal identities mean equal bytes."""
    return digest({"work": work_id, "numerics": numerics})


def seed_of(work_id: str) -> int:
    """The 63-bit seed of a work item, derived from its machine-independent identity.

    The run's seed is part of that identity, so the result depends on it.
    """
    return int.from_bytes(hashlib.sha256(f"seed:{work_id}".encode()).digest()[:8], "big") >> 1
