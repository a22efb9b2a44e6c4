"""Break-even of generating images on own GPUs with the price of an API call.

Local cost of n images: (once_s + n each_s) GPU-seconds at the hour's price, and the energy of the images. `once_s` is
independent of n (loading, compiling, the batch-invariance check), in GPU-seconds. Marginal cost excludes it, amortised
cost spreads it over the images. With a GPU-hour price that includes electricity, the energy price is 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

SECONDS_PER_HOUR = 3600
JOULES_PER_KWH = 3_600_000


@dataclass(frozen=True)
class Local:
    """Resources used by one model on the devices of the run."""

    each_s: Fraction
    """GPU-seconds per image: wall time times the number of GPUs held."""
    once_s: Fraction = Fraction(0)
    """GPU-seconds before the first image."""
    each_j: Fraction = Fraction(0)
    """Joules per image; 0 where the GPU-hour price includes electricity."""

    def marginal_usd(self, usd_per_hour: Fraction, usd_per_kwh: Fraction = Fraction(0)) -> Fraction:
        """Cost of one more image after loading."""
        return self.each_s * usd_per_hour / SECONDS_PER_HOUR + self.each_j * usd_per_kwh / JOULES_PER_KWH

    def amortised_usd(self, images: int, usd_per_hour: Fraction, usd_per_kwh: Fraction = Fraction(0)) -> Fraction:
        """Cost per image of a job of `images` images."""
        assert images > 0, images
        return self.marginal_usd(usd_per_hour, usd_per_kwh) + self.once_s * usd_per_hour / SECONDS_PER_HOUR / images


def break_even_usd_per_hour(
    local: Local, api_usd: Fraction, images: int | None = None, usd_per_kwh: Fraction = Fraction(0)
) -> Fraction | None:
    """GPU-hour price up to which a job of `images` images (None: unlimited) costs no more than the API.

    None if the energy alone costs more, or the images take no time.
    """
    left = api_usd - local.each_j * usd_per_kwh / JOULES_PER_KWH
    seconds = local.each_s + (local.once_s / images if images else 0)
    return left * SECONDS_PER_HOUR / seconds if seconds and left >= 0 else None


def break_even_images(
    local: Local, api_usd: Fraction, usd_per_hour: Fraction, usd_per_kwh: Fraction = Fraction(0)
) -> int | None:
    """Smallest job size, 1 or more, that costs no more than the API; None: there is none."""
    gain = api_usd - local.marginal_usd(usd_per_hour, usd_per_kwh)
    once = local.once_s * usd_per_hour / SECONDS_PER_HOUR
    if gain <= 0:
        return 1 if gain == 0 and not once else None
    return max(1, -int(-once // gain))  # the next whole number up


@dataclass(frozen=True)
class Point:
    """One point of the curve: a job of `images` images."""

    images: int
    local_usd: Fraction
    """Amortised cost per image."""
    api_usd: Fraction
    """Price per image."""


def curve(
    local: Local,
    api_usd: Fraction,
    usd_per_hour: Fraction,
    usd_per_kwh: Fraction = Fraction(0),
    images: Iterable[int] = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
) -> list[Point]:
    """Cost per image over the size of the job."""
    return [Point(n, local.amortised_usd(n, usd_per_hour, usd_per_kwh), api_usd) for n in images]
