"""Formats values for display: untrusted text with hidden characters made visible, and numbers with their units."""

import math
import re
from typing import Any

from local_bench.core.money import MICRO, usd, usd_fine

NOT_APPLICABLE = "n/a"
_SCALES = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))

# Controls but tab and newline, soft hyphen, zero-width and bidirectional marks, separators, lone surrogates,
# non-characters, tags. Joiners (U+200C, U+200D) and variation selectors stay: scripts and emoji need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def clean(value: Any) -> Any:
    """Text with its hidden characters made visible (`⟨U+202E⟩`); values that are not text, or have none, unchanged."""
    if not isinstance(value, str) or not _HIDDEN.search(value):
        return value
    return _HIDDEN.sub(lambda m: f"⟨U+{ord(m[0]):04X}⟩", value.replace("\r\n", "\n"))


def percent(fraction: float | None) -> str:
    """`61.2 %`, or n/a."""
    return NOT_APPLICABLE if fraction is None else f"{100 * fraction:z.1f} %"


def p_value(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def interval(low: float, high: float) -> str:
    """The ends of an interval of a proportion: `40.1 % to 78.9 %`."""
    return f"{percent(low)} to {percent(high)}"


def amount(micro: int) -> str:
    """An amount of any size: with micro-dollars below one dollar, else with cents."""
    return usd_fine(micro) if 0 < abs(micro) < MICRO else usd(micro)


def usd_fraction(dollars: float) -> str:
    """`amount` of US dollars."""
    return amount(round(dollars * MICRO))


def small_usd(dollars: float) -> str:
    """Dollars in fixed notation, without their sign: three significant digits below $10, cents above."""
    decimals = 2 - math.floor(math.log10(abs(dollars))) if dollars else 2
    return f"{dollars:,.{max(2, decimals)}f}"


def significant(value: float) -> str:
    """A measured number with three significant digits, without decimals from 100 on: `0.0362`, `4.40`, `1,234`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".removesuffix(".")


def operations(flop: float) -> str:
    """A number of operations in its largest unit: `2.10 PFLOP`."""
    scale, unit = next(((s, u) for s, u in _SCALES if flop >= s), _SCALES[-1])
    return f"{significant(flop / scale)} {unit}"


def duration(ns: int) -> str:
    """A stretch of time in its two largest units: `2 h 05 min`, `3 min 09 s`, `4.2 s`, `310 ms`."""
    if ns < 1_000_000_000:
        return f"{ns / 1e6:.0f} ms"
    if ns < 60_000_000_000:
        return f"{ns / 1e9:.1f} s"
    minutes, seconds = divmod(round(ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def energy(mj: int) -> str:
    """Millijoules as joules or watt-hours."""
    return f"{mj / 3.6e6:,.2f} Wh" if mj >= 36_000 else f"{mj / 1000:.1f} J"
