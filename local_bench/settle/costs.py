"""Cost of the held devices by phase, from the meter rows (invariant 6); break-even with the price of an API call."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from local_bench.core.money import allocate, held_cost


@dataclass(frozen=True)
class PhaseCost:
    """A period for which a device was held (one meter row), or the sum of several, and its purpose."""

    phase: str
    model: str | None
    """Generator; None for phases that serve the whole run."""
    held_ns: int
    n_items: int
    energy_mj: int | None = None
    """Millijoules from the device's counter; None if it has none."""
    cost_micro_usd: int = 0


def phase_costs(held: Iterable[PhaseCost], micro_usd_per_hour: int) -> list[PhaseCost]:
    """Held time and cost by (phase, model), in order of first appearance; they add up to the totals."""
    rows = merged(held)
    times = [row.held_ns for row in rows]
    costs = allocate(held_cost(sum(times), micro_usd_per_hour), times)
    return [replace(row, cost_micro_usd=cost) for row, cost in zip(rows, costs, strict=True)]


def merged(parts: Iterable[PhaseCost]) -> list[PhaseCost]:
    """The sums by (phase, model), in order of first appearance."""
    groups: dict[tuple[str, str | None], list[PhaseCost]] = defaultdict(list)
    for row in parts:
        groups[row.phase, row.model].append(row)
    return [
        PhaseCost(
            *key,
            sum(row.held_ns for row in rows),
            sum(row.n_items for row in rows),
            energy_mj(rows),
            sum(row.cost_micro_usd for row in rows),
        )
        for key, rows in groups.items()
    ]


def energy_mj(rows: Sequence[PhaseCost]) -> int | None:
    """Sum of the energy counters; None if one of the rows has none."""
    measured = [row.energy_mj for row in rows if row.energy_mj is not None]
    return sum(measured) if len(measured) == len(rows) and measured else None


def generation_costs(costs: Iterable[PhaseCost]) -> dict[str, int]:
    """Cost of each generator's own rows; those of judge, metrics and idle time are not included."""
    sums: dict[str, int] = defaultdict(int)
    for row in costs:
        if row.model is not None:
            sums[row.model] += row.cost_micro_usd
    return dict(sums)


SECONDS_PER_HOUR = 3600
JOULES_PER_KWH = 3_600_000


@dataclass(frozen=True)
class Local:
    """Resources used by one model on the devices of the run. n images cost (once_s + n each_s) GPU-seconds at the
    hour's price, and their energy. The marginal cost excludes `once_s`, the amortised cost spreads it over the images.
    With a GPU-hour price that includes electricity, the energy price is 0."""

    each_s: Fraction
    """GPU-seconds per image: wall time times the number of GPUs held."""
    once_s: Fraction = Fraction(0)
    """GPU-seconds whatever the number of images: loading, compiling, the batch-invariance check."""
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
