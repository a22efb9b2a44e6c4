"""The least that pictures can take: their counted operations at the device's peak. Quicker than that is impossible."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from local_bench.core.errors import LocalBenchError
from local_bench.models.gpus import gpu_of
from local_bench.runs.operations import NOT_COUNTED, kinds_made, operations
from local_bench.runs.store import BusyTime, Store

BUSY = ("denoise", "decode")
"""The phases that a floor is for."""
NO_PEAK = "no floor for this device"
NOT_METERED = "not metered"


@dataclass(frozen=True)
class Timing:
    """What a model's pictures took, beside what they must take."""

    n_images: int
    """That are there now."""
    n_made: int
    """How many were made for that: a lost picture is made anew."""
    busy_ns: int
    """Held to denoise and decode, the sum over devices and sessions."""
    devices: tuple[str, ...]
    flop: int | None = None
    """Counted for `n_images`; None where they cannot be counted."""
    least_flop: int | None = None
    """No honest run of `n_made` pictures does less."""
    peak_flop_per_s: float | None = None
    """Of the devices, in the mean over their held time; None where one is not known."""
    no_floor: str | None = None
    """Why there is none."""

    @property
    def seconds_per_image(self) -> float | None:
        return self.busy_ns / 1e9 / self.n_made if self.n_made else None

    @property
    def flop_per_image(self) -> float | None:
        return None if self.flop is None or not self.n_images else self.flop / self.n_images

    @property
    def floor_s(self) -> float | None:
        """For all `n_made`, on one device after the other."""
        return None if self.least_flop is None or not self.peak_flop_per_s else self.least_flop / self.peak_flop_per_s

    @property
    def floor_s_per_image(self) -> float | None:
        return None if self.floor_s is None or not self.n_made else self.floor_s / max(self.n_made, self.n_images)

    @property
    def times_floor(self) -> float | None:
        return self.busy_ns / 1e9 / self.floor_s if self.floor_s else None

    @property
    def utilisation(self) -> float | None:
        """Model-FLOP utilisation: the counted operations of one picture over what the device could do meanwhile."""
        seconds, flop = self.seconds_per_image, self.flop_per_image
        if not seconds or flop is None or self.peak_flop_per_s is None:
            return None
        return flop / (seconds * self.peak_flop_per_s)


def check_timing(label: str, timing: Timing) -> None:
    """LocalBenchError where the pictures were made in less time than their operations take at the peak."""
    floor_s, measured_s = timing.floor_s, timing.busy_ns / 1e9
    if floor_s is not None and measured_s < floor_s:
        raise LocalBenchError(
            f"{label}: its {timing.n_images} images were denoised and decoded in {measured_s:.3g} s, and their "
            f"operations take at least {floor_s:.3g} s on {' and '.join(timing.devices)}: this is impossible, so the "
            "clock, the device's name or the model is not what it says, and nothing is published"
        )


def check_floor(store: Store, label: str) -> None:
    """Holds what the ledger says of one model against its floor. LocalBenchError where it cannot be true."""
    check_timing(label, timing(store, label))


def check_floors(store: Store) -> None:
    """The same for all models of the run: to be called before anything is published."""
    for model in store.models():
        check_floor(store, model)


def timing(store: Store, label: str) -> Timing:
    """What the ledger says of one model's pictures, over all its sessions and devices."""
    counted, busy = operations(store, label), store.busy_time(label, BUSY)
    made = [(kind, n) for (kind, _), n in kinds_made(store, label, counted).items()]
    plain = Timing(
        n_images=sum(n for _, n in made),
        n_made=sum(row.n_items for row in busy),
        busy_ns=sum(row.held_ns for row in busy),
        devices=tuple(row.device for row in busy),
    )
    if counted.uncounted:
        return replace(plain, no_floor=counted.uncounted)
    if not made or any(kind not in counted.kinds for kind, _ in made):
        return replace(plain, no_floor=NOT_COUNTED)
    # of the pictures that were made besides we do not know which they were: the smallest
    besides = max(0, plain.n_made - plain.n_images) * min(kind.least_flop for kind in counted.kinds.values())
    peak = peak_flop_per_s(busy)
    return replace(
        plain,
        flop=sum(n * counted.kinds[kind].flop for kind, n in made),
        least_flop=besides + sum(n * counted.kinds[kind].least_flop for kind, n in made),
        peak_flop_per_s=peak,
        no_floor=None if peak else NO_PEAK if busy else NOT_METERED,
    )


def peak_flop_per_s(busy: Sequence[BusyTime]) -> float | None:
    """The devices' peak, weighted with the time each was held; None where one is not known, or none was held."""
    known = [gpu_of(row.device) for row in busy]
    peaks = [gpu.peak_tflops * 1e12 for gpu in known if gpu is not None]
    if not busy or len(peaks) < len(busy):
        return None
    held_ns = sum(row.held_ns for row in busy)
    return sum(p * row.held_ns for p, row in zip(peaks, busy, strict=True)) / held_ns if held_ns else max(peaks)
