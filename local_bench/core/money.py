"""Exact money (invariant 6): amounts are integers in micro-USD, computed without floats."""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from local_bench.core.errors import short

MICRO = 1_000_000
NS_PER_HOUR = 3_600_000_000_000
MAX_USD = 10**9
"""Larger amounts are errors of input; every sum of a run's amounts fits 64 bits."""
_MAX_EXPONENT = 30
"""Of ten, in an amount as it is written."""


def micro_usd(amount: str | int | float | Decimal) -> int:
    """Convert US dollars to micro-USD; a float by its shortest decimal form. Raises ValueError for fractions of it."""
    micro = _in_micro(amount)
    if micro != micro.to_integral_value():
        raise ValueError(f"{short(amount)} is not a whole number of micro-dollars")
    return int(micro)


def nearest_micro_usd(amount: str | Decimal | int) -> int:
    """Round US dollars to micro-USD (half-even), for prices with more digits. Raises ValueError if not a number."""
    return int(_in_micro(amount).to_integral_value(ROUND_HALF_EVEN))


def _in_micro(amount: str | int | float | Decimal) -> Decimal:
    try:
        exact = Decimal(str(amount))
    except (ArithmeticError, ValueError):
        raise ValueError(f"{short(amount)} is not an amount of money") from None
    exponent = exact.as_tuple().exponent  # no integer for infinities and NaN
    # A fraction with an exponent of millions would fill the memory; `abs` would round, and overflow.
    if not isinstance(exponent, int) or abs(exponent) > _MAX_EXPONENT or not -MAX_USD <= exact <= MAX_USD:
        raise ValueError(f"{short(amount)} is not an amount of money of at most {MAX_USD:,} US dollars")
    return exact * MICRO


def usd(micro: int) -> str:
    """Format an amount rounded to the cent (half-even): `$1,234.50`."""
    cents = (Decimal(micro) / MICRO).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
    return f"-${-cents:,}" if cents < 0 else f"${abs(cents):,}"


def usd_fine(micro: int) -> str:
    """Format an amount with six decimals: `$0.000123`."""
    return f"{'-' if micro < 0 else ''}${abs(micro) // MICRO:,}.{abs(micro) % MICRO:06d}"


def usd_exact(micro: int) -> str:
    """Format a price as configured: with cents, or six decimals where it has a fraction of a cent."""
    return usd_fine(micro) if micro % (MICRO // 100) else usd(micro)


def usd_number(micro: int) -> float:
    """US dollars as the nearest float."""
    return float(Decimal(micro) / MICRO)


def split(micro: int, parts: int) -> tuple[int, ...]:
    """Split `micro` into `parts` integer shares that differ by at most 1; the first shares are the larger ones."""
    return tuple(part_of(micro, parts, i) for i in range(parts))


def part_of(micro: Any, parts: Any, index: Any) -> Any:
    """Share number `index` (from 0) of `split(micro, parts)`; for integers, or elementwise for integer arrays."""
    return micro // parts + (index < micro % parts)


def held_cost(held_ns: int, micro_per_hour: int) -> int:
    """Cost of a device for `held_ns` at `micro_per_hour`, rounded to a micro-dollar (half-even)."""
    return int((Decimal(held_ns) * micro_per_hour / NS_PER_HOUR).to_integral_value(ROUND_HALF_EVEN))


def allocate(micro: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Split `micro` in proportion to integer `weights` by the largest-remainder method; the parts sum to `micro`."""
    total = sum(weights)
    if total == 0:
        return split(micro, len(weights)) if weights else ()
    parts = [divmod(micro * w, total) for w in weights]
    remainder = micro - sum(share for share, _ in parts)
    order = sorted(range(len(weights)), key=lambda i: (-parts[i][1], i))[:remainder]
    return tuple(share + (i in order) for i, (share, _) in enumerate(parts))
