"""The image generation section of the report: one row per model, truncated prompts, and reduced batches."""

from dataclasses import dataclass

from local_bench.analysis.performance import GenerationStats, PromptTruncation
from local_bench.core.money import usd_fine
from local_bench.models.gpus import gpu_of
from local_bench.report.text import NOT_APPLICABLE, count, percent

_SCALES = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
NO_COUNTER = "no counter"


@dataclass(frozen=True)
class MakingRow:
    """One model. A cell with two strings is (value, text below it)."""

    model: str
    images: tuple[str, str]
    """Number of images, and their size."""
    elsewhere: bool
    at_once: str
    time: str
    floor: str
    operations: str
    utilisation: tuple[str, str]
    """MFU, and time divided by the floor."""
    no_floor: str | None
    """Reason why there is no floor; shown instead of floor and utilisation."""
    per_hour: str
    cost: tuple[str, str]
    """And the marginal one."""
    energy: tuple[str, str]
    """And the marginal one."""


def making_rows(generation_stats: list[GenerationStats], priced: bool) -> list[MakingRow]:
    """Return one row per model, in the given order."""
    return [_row(m, priced) for m in generation_stats]


def peak_sentence(generation_stats: list[GenerationStats]) -> str | None:
    """Return a sentence with the peak throughput used for the floors; None if no floor is known."""
    names = sorted({device for m in generation_stats if m.timing.floor_s is not None for device in m.timing.devices})
    gpus = {gpu.name: gpu for gpu in map(gpu_of, names) if gpu is not None}
    if not gpus:
        return None
    peaks = " and ".join(f"{gpu.peak_tflops:g} TFLOP/s of {gpu.title}" for gpu in gpus.values())
    return f"Floors and utilisation (MFU) are relative to a peak of {peaks} (dense bfloat16)."


def hour(generation_stats: list[GenerationStats]) -> str:
    """Return the name of an hour of device time."""
    return "CPU-hour" if all(device == "cpu" for m in generation_stats for device in m.timing.devices) else "GPU-hour"


def batch_sentences(generation_stats: list[GenerationStats]) -> list[str]:
    """Return one sentence per model and reason for reduced batches or repeated images."""
    found = []
    for m in generation_stats:
        for (planned, used), n in m.halved.items():
            how = (
                f"in batches of {used}, as memory ran out"
                if used > 1
                else "one by one, as larger batches changed bytes here or memory ran out"
            )
            found.append(f"{m.model}: batches of {planned} were planned, and {count(n, 'image')} {_was(n)} made {how}.")
        if m.timing.n_made > m.n_images and not m.imported:
            anew = m.timing.n_made - m.n_images
            found.append(
                f"{m.model}: {count(anew, 'image')} {_was(anew)} generated again, because of lost or interrupted work."
            )
        if m.n_out_of_memory:
            times = count(m.n_out_of_memory, "batch", "batches")
            found.append(
                f"{m.model}: {times} did not fit in memory and {_was(m.n_out_of_memory)} "
                "generated again in smaller batches."
            )
    return found


def cut_rows(prompt_truncations: list[PromptTruncation]) -> list[tuple[str, str, str, str, str]]:
    """(model, encoder, prompts, truncated prompts, maximum number of truncated tokens)"""
    return [(c.model, c.encoder, f"{c.n_prompts:,}", f"{c.n_cut:,}", f"{c.most_tokens:,}") for c in prompt_truncations]


def _row(m: GenerationStats, priced: bool) -> MakingRow:
    t = m.timing
    return MakingRow(
        model=m.model,
        images=(f"{m.n_images:,}", _size(m)),
        elsewhere=m.imported,
        at_once=", ".join(map(str, m.batch_sizes)) or NOT_APPLICABLE,
        time=_seconds(t.seconds_per_image),
        floor=_seconds(t.floor_s_per_image),
        operations="" if t.flop_per_image is None else operations(t.flop_per_image),
        utilisation=(percent(t.utilisation), "" if t.times_floor is None else figure(t.times_floor)),
        no_floor=t.no_floor,
        per_hour=NOT_APPLICABLE if m.images_per_gpu_hour is None else f"{m.images_per_gpu_hour:,.0f}",
        cost=_cost(m, priced),
        energy=_energy(m),
    )


def _size(m: GenerationStats) -> str:
    if not m.sizes:
        return ""
    (height, width), *others = m.sizes
    return f"{width}x{height}" + (f", {len(others)} more" if others else "")


def _seconds(value: float | None) -> str:
    return NOT_APPLICABLE if value is None else f"{figure(value)} s"


def _cost(m: GenerationStats, priced: bool) -> tuple[str, str]:
    if m.image_micro_usd is None:
        return ("not reported" if m.imported else "not metered" if priced else "no price"), ""
    marginal = m.marginal_image_micro_usd
    return _fine(m.image_micro_usd), "" if marginal is None else _fine(marginal)


def _fine(micro: int) -> str:
    return usd_fine(micro) if micro else "<$0.000001"


def _energy(m: GenerationStats) -> tuple[str, str]:
    if m.imported:
        return NOT_APPLICABLE, ""
    if m.wh_per_image is None:
        return NO_COUNTER, ""
    marginal = m.marginal_wh_per_image
    return f"{figure(m.wh_per_image)} Wh", "" if marginal is None else f"{figure(marginal)} Wh"


def _was(n: int) -> str:
    return "was" if n == 1 else "were"


def figure(value: float) -> str:
    """A measured number with three significant digits, without decimals from 100 on: `0.0362`, `4.40`, `1,234`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".")


def operations(flop: float) -> str:
    """A number of operations in its largest unit: `2.10 PFLOP`."""
    scale, unit = next(((s, u) for s, u in _SCALES if flop >= s), _SCALES[-1])
    return f"{figure(flop / scale)} {unit}"
