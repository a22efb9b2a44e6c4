"""Law 1: a piece of work is named by what decides its bytes, and its seed follows from that name."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, UTF-8, no NaN (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def full_identity(work_id: str, numerics: dict[str, Any]) -> str:
    """The identity of a piece of work on a machine with that numerics signature: same identity, same bytes."""
    return digest({"work": work_id, "numerics": numerics})


def seed_of(work_id: str) -> int:
    """The 63-bit seed of a piece of work, from its machine-independent identity.

    The run's own seed is part of that identity, so it decides this one too.
    """
    return int.from_bytes(hashlib.sha256(f"seed:{work_id}".encode()).digest()[:8], "big") >> 1
