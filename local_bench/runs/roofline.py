"""Lower bounds of generation times: counted operations at the device's peak rate. Shorter measured times are
impossible."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from local_bench.models.gpus import gpu_of
from local_bench.runs.operations import NOT_COUNTED, generated_kinds, operations
from local_bench.runs.store import BusyTime, Store

BUSY = ("denoise", "decode")
"""The phases to which the lower bound applies."""
NO_PEAK = "no floor for this device"
NOT_METERED = "not metered"


@dataclass(frozen=True)
class Timing:
    """Measured time of a model's images, and its lower bound."""

    n_images: int
    """Finished images."""
    n_made: int
    """Images generated in total; lost images are generated again."""
    busy_ns: int
    """Device time of denoising and decoding, summed over devices and sessions."""
    devices: tuple[str, ...]
    flop: int | None = None
    """Operations of `n_images`; None if unknown."""
    least_flop: int | None = None
    """Lower bound of the operations of `n_made` images."""
    peak_flop_per_s: float | None = None
    """Mean peak rate of the devices, weighted by device time; None if one is unknown."""
    no_floor: str | None = None
    """Why there is no lower bound."""

    @property
    def seconds_per_image(self) -> float | None:
        return self.busy_ns / 1e9 / self.n_made if self.n_made else None

    @property
    def flop_per_image(self) -> float | None:
        return None if self.flop is None or not self.n_images else self.flop / self.n_images

    @property
    def floor_s(self) -> float | None:
        """Lower bound for all `n_made` images on one device."""
        return None if self.least_flop is None or not self.peak_flop_per_s else self.least_flop / self.peak_flop_per_s

    @property
    def floor_s_per_image(self) -> float | None:
        return None if self.floor_s is None or not self.n_made else self.floor_s / max(self.n_made, self.n_images)

    @property
    def times_floor(self) -> float | None:
        return self.busy_ns / 1e9 / self.floor_s if self.floor_s else None

    @property
    def utilisation(self) -> float | None:
        """Model FLOPs utilisation (MFU): counted operations per second over the device's peak rate."""
        seconds, flop = self.seconds_per_image, self.flop_per_image
        if not seconds or flop is None or self.peak_flop_per_s is None:
            return None
        return flop / (seconds * self.peak_flop_per_s)


def impossible_timings(store: Store) -> list[str]:
    """A sentence for each model whose images took less time than the lower bound."""
    sentences = []
    for label in store.models():
        measured = timing(store, label)
        if measured.floor_s is not None and measured.busy_ns / 1e9 < measured.floor_s:
            sentences.append(
                f"{label}: its {measured.n_images} images were denoised and decoded in {measured.busy_ns / 1e9:.3g} s, "
                f"but their operations take at least {measured.floor_s:.3g} s on {' and '.join(measured.devices)}: the "
                "clock, the device's name or the model is wrong."
            )
    return sentences


def timing(store: Store, label: str) -> Timing:
    """The stored timing of one model's images, over all sessions and devices."""
    counted, busy = operations(store, label), store.busy_time(label, BUSY)
    kinds = [(kind, n) for (kind, _), n in generated_kinds(store, label, counted).items()]
    plain = Timing(
        n_images=sum(n for _, n in kinds),
        n_made=sum(row.n_items for row in busy),
        busy_ns=sum(row.held_ns for row in busy),
        devices=tuple(row.device for row in busy),
    )
    if counted.uncounted:
        return replace(plain, no_floor=counted.uncounted)
    if not kinds or any(kind not in counted.kinds for kind, _ in kinds):
        return replace(plain, no_floor=NOT_COUNTED)
    # the size of images that were generated more than once is unknown: assume the smallest
    repeated = max(0, plain.n_made - plain.n_images) * min(kind.least_flop for kind in counted.kinds.values())
    peak = peak_flop_per_s(busy)
    return replace(
        plain,
        flop=sum(n * counted.kinds[kind].flop for kind, n in kinds),
        least_flop=repeated + sum(n * counted.kinds[kind].least_flop for kind, n in kinds),
        peak_flop_per_s=peak,
        no_floor=None if peak else NO_PEAK if busy else NOT_METERED,
    )


def peak_flop_per_s(busy: Sequence[BusyTime]) -> float | None:
    """The devices' peak rate, weighted by device time; None if one is unknown or there is none."""
    gpus = [gpu_of(row.device) for row in busy]
    peaks = [gpu.peak_tflops * 1e12 for gpu in gpus if gpu is not None]
    if not busy or len(peaks) < len(busy):
        return None
    held_ns = sum(row.held_ns for row in busy)
    return sum(p * row.held_ns for p, row in zip(peaks, busy, strict=True)) / held_ns if held_ns else max(peaks)
