"""When making an image on one's own GPUs beats the price of an API call.

Local cost of n images: (once_s + n each_s) GPU-seconds at the hour's price, and the energy of the images. `once_s` is
what is paid whatever n is (loading, compiling, the probe), in GPU-seconds. Marginal cost leaves it out, amortised cost
spreads it over the images. An hour's price that already holds the electricity goes with an energy price of 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

SECONDS_PER_HOUR = 3600
JOULES_PER_KWH = 3_600_000


@dataclass(frozen=True)
class Local:
    """What a model takes on the devices at hand."""

    each_s: Fraction
    """GPU-seconds an image: wall time times the GPUs held."""
    once_s: Fraction = Fraction(0)
    """GPU-seconds before the first image."""
    each_j: Fraction = Fraction(0)
    """Joules an image; 0 where the hour's price holds the electricity."""

    def marginal_usd(self, usd_per_hour: Fraction, usd_per_kwh: Fraction = Fraction(0)) -> Fraction:
        """One image more, once everything is loaded."""
        return self.each_s * usd_per_hour / SECONDS_PER_HOUR + self.each_j * usd_per_kwh / JOULES_PER_KWH

    def amortised_usd(self, images: int, usd_per_hour: Fraction, usd_per_kwh: Fraction = Fraction(0)) -> Fraction:
        """An image's part of a job of so many."""
        assert images > 0, images
        return self.marginal_usd(usd_per_hour, usd_per_kwh) + self.once_s * usd_per_hour / SECONDS_PER_HOUR / images


def break_even_usd_per_hour(
    local: Local, api_usd: Fraction, images: int | None = None, usd_per_kwh: Fraction = Fraction(0)
) -> Fraction | None:
    """The GPU-hour price up to which a job of so many images (None: endlessly many) is no dearer than the API.

    None where the energy alone costs more, or where the images take no time at all.
    """
    left = api_usd - local.each_j * usd_per_kwh / JOULES_PER_KWH
    seconds = local.each_s + (local.once_s / images if images else 0)
    return left * SECONDS_PER_HOUR / seconds if seconds and left >= 0 else None


def break_even_images(
    local: Local, api_usd: Fraction, usd_per_hour: Fraction, usd_per_kwh: Fraction = Fraction(0)
) -> int | None:
    """From how many images on a job is no dearer than the API, 1 or more; None: never."""
    gain = api_usd - local.marginal_usd(usd_per_hour, usd_per_kwh)
    once = local.once_s * usd_per_hour / SECONDS_PER_HOUR
    if gain <= 0:
        return 1 if gain == 0 and not once else None
    return max(1, -int(-once // gain))  # the next whole number up


@dataclass(frozen=True)
class Point:
    """One place on the curve: a job of so many images."""

    images: int
    local_usd: Fraction
    """An image, amortised."""
    api_usd: Fraction
    """An image."""


def curve(
    local: Local,
    api_usd: Fraction,
    usd_per_hour: Fraction,
    usd_per_kwh: Fraction = Fraction(0),
    images: Iterable[int] = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
) -> list[Point]:
    """Cost an image over the size of the job."""
    return [Point(n, local.amortised_usd(n, usd_per_hour, usd_per_kwh), api_usd) for n in images]
