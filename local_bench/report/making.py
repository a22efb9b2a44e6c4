"""What making the pictures took, for people: one row a system, the cut prompts, the batches that had to be smaller."""

from dataclasses import dataclass

from local_bench.core.gpus import gpu_of
from local_bench.core.money import usd_fine
from local_bench.report.text import NOT_APPLICABLE, count, percent
from local_bench.runs.performance import Cut, Making

_SCALES = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
NO_COUNTER = "no counter"


@dataclass(frozen=True)
class MakingRow:
    """One system. A cell of two is (figure, what stands below it)."""

    model: str
    images: tuple[str, str]
    elsewhere: bool
    size: tuple[str, str]
    seconds: str
    floor: tuple[str, str]
    utilisation: str
    no_floor: str | None
    """Stands in the place of floor and utilisation."""
    per_hour: str
    operations: str
    cost: tuple[str, str]
    energy: tuple[str, str]


def making_rows(makings: list[Making], priced: bool) -> list[MakingRow]:
    """One row a system, in the given order."""
    return [_row(m, priced) for m in makings]


def peak_sentence(makings: list[Making]) -> str | None:
    """At which peak the floors stand; None where there is none."""
    names = sorted({device for m in makings if m.timing.floor_s is not None for device in m.timing.devices})
    gpus = {gpu.name: gpu for gpu in map(gpu_of, names) if gpu is not None}
    if not gpus:
        return None
    peaks = " and ".join(f"{gpu.peak_tflops:g} TFLOP/s of {gpu.title}" for gpu in gpus.values())
    return f"Floors and utilisation (MFU) stand against a peak of {peaks}, dense bfloat16."


def hour(makings: list[Making]) -> str:
    """What an hour of these devices is called."""
    return "CPU-hour" if all(device == "cpu" for m in makings for device in m.timing.devices) else "GPU-hour"


def batch_sentences(makings: list[Making]) -> list[str]:
    """Where fewer images were made at once than planned, and what is known of the reason."""
    found = []
    for m in makings:
        for (planned, used), n in m.halved.items():
            how = (
                f"halved to {used}, as memory ran out"
                if used > 1
                else "made one by one: a larger batch changed bytes here, or memory ran out"
            )
            found.append(f"{m.model}: batches of {planned} were planned; {count(n, 'image')} {_was(n)} {how}.")
        if m.n_out_of_memory:
            times = count(m.n_out_of_memory, "batch", "batches")
            found.append(f"{m.model}: {times} did not fit and {_was(m.n_out_of_memory)} made anew, smaller.")
    return found


def cut_rows(cuts: list[Cut]) -> list[tuple[str, str, str, str, str]]:
    """(model, encoder, prompts, how many were cut, most tokens lost)"""
    return [(c.model, c.encoder, f"{c.n_prompts:,}", f"{c.n_cut:,}", f"{c.most_tokens:,}") for c in cuts]


def _row(m: Making, priced: bool) -> MakingRow:
    t = m.timing
    floor = "" if t.floor_s_per_image is None else f"{figure(t.floor_s_per_image)} s"
    times = "" if t.times_floor is None else f"took {t.times_floor:.2f} times that"
    made = f"made {t.n_made:,} times" if t.n_made > t.n_images else ""
    return MakingRow(
        model=m.model,
        images=(f"{m.n_images:,}", made),
        elsewhere=m.imported,
        size=(_size(m), _batches(m)),
        seconds=NOT_APPLICABLE if t.seconds_per_image is None else f"{figure(t.seconds_per_image)} s",
        floor=(floor, times),
        utilisation=percent(t.utilisation),
        no_floor=t.no_floor,
        per_hour=NOT_APPLICABLE if m.images_per_gpu_hour is None else f"{m.images_per_gpu_hour:,.0f}",
        operations=NOT_APPLICABLE if t.flop_per_image is None else operations(t.flop_per_image),
        cost=_cost(m, priced),
        energy=_energy(m),
    )


def _size(m: Making) -> str:
    if not m.sizes:
        return NOT_APPLICABLE
    (height, width), *others = m.sizes
    return f"{width}x{height}" + (f" and {len(others)} more" if others else "")


def _batches(m: Making) -> str:
    if len(m.batch_sizes) == 1:
        return f"batches of {next(iter(m.batch_sizes))}"
    sizes = ", ".join(f"{size} ({n:,})" for size, n in m.batch_sizes.items())
    return f"batches of {sizes}" if sizes else ""


def _cost(m: Making, priced: bool) -> tuple[str, str]:
    if m.image_micro_usd is None:
        return ("not told" if m.imported else "not metered" if priced else "no price"), ""
    marginal = m.marginal_image_micro_usd
    return _fine(m.image_micro_usd), "" if marginal is None else f"{_fine(marginal)} marginal"


def _fine(micro: int) -> str:
    return usd_fine(micro) if micro else "under $0.000001"


def _energy(m: Making) -> tuple[str, str]:
    if m.imported:
        return NOT_APPLICABLE, ""
    if m.wh_per_image is None:
        return NO_COUNTER, ""
    marginal = m.marginal_wh_per_image
    return f"{figure(m.wh_per_image)} Wh", "" if marginal is None else f"{figure(marginal)} marginal"


def _was(n: int) -> str:
    return "was" if n == 1 else "were"


def figure(value: float) -> str:
    """A measured number to three digits, whole from a hundred on: `0.0362`, `4.40`, `1,234`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".")


def operations(flop: float) -> str:
    """A number of operations in its largest unit: `2.10 PFLOP`."""
    scale, unit = next(((s, u) for s, u in _SCALES if flop >= s), _SCALES[-1])
    return f"{figure(flop / scale)} {unit}"
