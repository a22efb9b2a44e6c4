"""Law 6: money is exact. Amounts are integers of micro-USD; nothing here touches a float."""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

MICRO = 1_000_000
NS_PER_HOUR = 3_600_000_000_000


def micro_usd(amount: str | int | float | Decimal) -> int:
    """US dollars as micro-USD. A float is read by its shortest form. ValueError if finer than a micro-dollar."""
    try:
        micro = Decimal(str(amount)) * MICRO
    except InvalidOperation:
        raise ValueError(f"{amount!r} is not an amount of money") from None
    if not micro.is_finite() or micro != micro.to_integral_value():
        raise ValueError(f"{amount!r} is not a whole number of micro-dollars")
    return int(micro)


def nearest_micro_usd(amount: str | Decimal | int) -> int:
    """US dollars as the nearest micro-USD (half-even), for prices that are published finer. ValueError if no amount."""
    try:
        return int((Decimal(amount) * MICRO).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError, OverflowError):
        raise ValueError(f"{amount!r} is not an amount of money") from None


def usd(micro: int) -> str:
    """An amount for people, to the cent (half-even): `$1,234.50`."""
    cents = (Decimal(micro) / MICRO).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
    return f"-${-cents:,}" if cents < 0 else f"${abs(cents):,}"


def usd_fine(micro: int) -> str:
    """A small amount for people, to the micro-dollar: `$0.000123`."""
    return f"{'-' if micro < 0 else ''}${abs(micro) // MICRO:,}.{abs(micro) % MICRO:06d}"


def usd_number(micro: int) -> float:
    """US dollars as the nearest JSON number."""
    return float(Decimal(micro) / MICRO)


def split(micro: int, parts: int) -> tuple[int, ...]:
    """`micro` in `parts` equal integer shares that add up to it; the first shares carry the remainder."""
    whole, rest = divmod(micro, parts)
    return tuple(whole + (i < rest) for i in range(parts))


def held_cost(held_ns: int, micro_per_hour: int) -> int:
    """What holding a device for `held_ns` costs at `micro_per_hour`, to the nearest micro-dollar (half-even)."""
    return int((Decimal(held_ns) * micro_per_hour / NS_PER_HOUR).to_integral_value(ROUND_HALF_EVEN))


def allocate(micro: int, weights: Sequence[int]) -> tuple[int, ...]:
    """`micro` shared out in proportion to integer `weights`; the parts add up to it (largest remainder)."""
    total = sum(weights)
    if total == 0:
        return split(micro, len(weights)) if weights else ()
    parts = [divmod(micro * w, total) for w in weights]
    left = micro - sum(whole for whole, _ in parts)
    order = sorted(range(len(weights)), key=lambda i: (-parts[i][1], i))[:left]
    return tuple(whole + (i in order) for i, (whole, _) in enumerate(parts))
