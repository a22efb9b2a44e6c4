"""Lower bounds of generation times: counted operations at the device's peak rate. Shorter measured times are
impossible.

Operations are counted once per kind of image (size and input images) of a model, and kept in the store. Only denoising
and decoding are counted, the phases that run for each image. Modules are counted at a default size and scaled to the
kind's size. Work grows at most with the square of the number of tokens, so for smaller sizes the squared ratio is a
lower bound. The lower bound counts an unpadded prompt as one token.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from local_bench.core.errors import LedgerError, count
from local_bench.core.images import image_path, load_verified
from local_bench.core.yamlfile import Strict
from local_bench.models.gpus import gpu_of
from local_bench.runs.store import BusyTime, Store
from local_bench.runs.work import WorkOrder

if TYPE_CHECKING:
    from local_bench.generators.registry import Sampler

NOT_COUNTED = "not counted"
SKIPS = {"first_block_cache": "no floor: its cache skips work"}
"""Lossy settings that execute fewer operations than are counted."""
_TOKEN_SIDE = 16
_MARGIN = 0.9
"""Factor of a lower bound that follows from counts of other sizes."""


class ImageKind(Strict):
    """Operations of one image with a given size and given input images."""

    flop: int = Field(ge=0)
    """For a prompt of default length."""
    least_flop: int = Field(ge=0)
    """Lower bound."""
    planned_batch_size: int = Field(ge=1)
    """Before any reduction for memory or batch invariance."""


class OperationCounts(Strict):
    """The operation counts of a model, stored under `operations:<label>`."""

    kinds: dict[str, ImageKind] = Field(default={})
    picture_tokens: dict[str, int] = Field(default={})
    """Tokens of input images (by pixel digest) that are resized independently of the output size."""
    uncounted: str | None = None
    """Why operations could not be counted."""

    def kind(self, height: int | None, width: int | None, input_images: Iterable[str]) -> str:
        """The kind's key: `1024x1024`, followed by `+tokens` or `+same` for each input image."""
        return f"{height}x{width}" + "".join(f"+{self.picture_tokens.get(sha, 'same')}" for sha in input_images)


def operations(store: Store, label: str) -> OperationCounts:
    """The stored counts of a model. LedgerError if they cannot be read."""
    text = store.meta(f"operations:{label}")
    if text is None:
        return OperationCounts(uncounted=NOT_COUNTED)
    try:
        return OperationCounts.model_validate_json(text)
    except ValidationError as e:
        raise LedgerError(
            f"{store.path}: the operation counts of {label!r} cannot be read ({e.errors()[0]['msg']}): "
            "the run directory was changed by hand or written by another release; repeat the run"
        ) from None


def generated_kinds(store: Store, label: str, counted: OperationCounts) -> Counter[tuple[str, int | None]]:
    """Number of the model's finished images by kind and batch size."""
    kinds: Counter[tuple[str, int | None]] = Counter()
    for row in store.generated():
        if row.model == label:
            kinds[counted.kind(row.height, row.width, row.input_images), row.batch_size] += row.n
    return kinds


def store_operations(store: Store, order: WorkOrder) -> None:
    """Count the operations of each kind of image of `order.label` in this run and store them.

    Takes seconds for a large model; the result is cached on this machine. Imports torch.
    """
    from local_bench.generators.registry import traits

    if not order.card.architecture:
        store.set_meta(f"operations:{order.label}", OperationCounts(uncounted=NOT_COUNTED).model_dump_json())
        return
    rows = [row for row in store.candidates(order.label) if row.state != "unscored"]
    input_size, tokens = traits(order.card.family).input_size, {}
    if input_size is not None:
        for sha in sorted({sha for row in rows for sha in row.input_images}):
            tokens[sha] = _tokens(input_size(*load_verified(image_path(order.inputs, sha), sha).size))
    counted = OperationCounts(picture_tokens=tokens)
    kinds: dict[str, ImageKind] = {}
    for row in rows:
        kind = counted.kind(row.height, row.width, row.input_images)
        if kind not in kinds:
            kinds[kind] = _kind(order, row.sampler, [counted.picture_tokens.get(sha) for sha in row.input_images])
    skipping = next((SKIPS[key] for key in order.model.config.lossy.settings if key in SKIPS), None)
    counted = counted.model_copy(update={"kinds": kinds, "uncounted": skipping})
    store.set_meta(f"operations:{order.label}", counted.model_dump_json())


def _kind(order: WorkOrder, sampler: "Sampler", input_images: Sequence[int | None]) -> ImageKind:
    """`input_images` are the tokens of the input images; None for one that takes the output size."""
    from local_bench.generators.operations import usual_size

    # a configured batch size is always filled
    model = order.model
    most = model.config.batch_size or order.engine.batch_size or model.config.attempts
    plan = model.memory(order.engine, sampler, len(input_images), attempts=most, capacity_gb=order.capacity_gb)
    counted, usual = plan.operations, usual_size(order.card, sampler)
    size, usual_tokens = (sampler.height, sampler.width), _tokens((usual.height, usual.width))
    area = min(1.0, _tokens(size) / usual_tokens)
    sequence = _tokens(size)
    if counted.input_tokens:
        sequence += sum(_tokens(size) if tokens is None else tokens for tokens in input_images)

    def share(text: int) -> float:
        tokens = (text + sequence) / (counted.text_tokens + usual_tokens + counted.input_tokens)
        return tokens if tokens > 1 else tokens**2

    margin = 1.0 if counted.exact else _MARGIN
    denoise_flop, decode_flop = counted.denoise_flop, counted.decode_flop * area**2
    return ImageKind(
        flop=int(denoise_flop * share(counted.text_tokens) + decode_flop),
        least_flop=int((denoise_flop * min(1.0, share(counted.least_text_tokens)) + decode_flop) * margin),
        planned_batch_size=plan.batch_size,
    )


def _tokens(size: tuple[int, int]) -> int:
    return size[0] // _TOKEN_SIDE * (size[1] // _TOKEN_SIDE)


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
            # without an exponent
            taken, least = (f"{Decimal(f'{s:.3g}'):,f}" for s in (measured.busy_ns / 1e9, measured.floor_s))
            sentences.append(
                f"{label}: its {count(measured.n_images, 'images were')} denoised and decoded in {taken} s, but their "
                f"operations take at least {least} s on {' and '.join(measured.devices)}: the "
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
    peaks = [gpu.peak_tflops * 1e12 for row in busy if (gpu := gpu_of(row.device)) is not None]
    if not busy or len(peaks) < len(busy):
        return None
    held_ns = sum(row.held_ns for row in busy)
    return sum(p * row.held_ns for p, row in zip(peaks, busy, strict=True)) / held_ns if held_ns else max(peaks)
