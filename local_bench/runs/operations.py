"""Operation counts per kind of image (size and input images) of a model, counted once and kept in the store.

Only denoising and decoding are counted, the phases that run for each image. Modules are counted at a default size and
scaled to the kind's size. Work grows at most with the square of the number of tokens, so for smaller sizes the squared
ratio is a lower bound. The lower bound counts an unpadded prompt as one token.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from local_bench.core.errors import LedgerError
from local_bench.core.hardrules import size_like
from local_bench.core.images import image_path, load_verified
from local_bench.core.yamlfile import Strict
from local_bench.runs.store import Store
from local_bench.runs.work import WorkOrder

if TYPE_CHECKING:
    from local_bench.generators.registry import Sampler

NOT_COUNTED = "not counted"
SKIPS = {"first_block_cache": "no floor: its cache skips work"}
"""Lossy settings that execute fewer operations than are counted."""
_TOKEN_SIDE = 16
_MARGIN = 0.9
"""Factor of a lower bound that follows from counts of other sizes."""
_MEGAPIXEL = 1024 * 1024
_QWEN_MULTIPLE = 32


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
    skipping = next((SKIPS[key] for key in order.lossy if key in SKIPS), None)
    if not order.card.architecture:
        counted = OperationCounts(uncounted=NOT_COUNTED)
    else:
        counted = _count(store, order).model_copy(update={"uncounted": skipping})
    store.set_meta(f"operations:{order.label}", counted.model_dump_json())


def _count(store: Store, order: WorkOrder) -> OperationCounts:
    from local_bench.generators.registry import Sampler

    works = [row.work for row in store.candidates(order.label) if row.state != "unscored"]
    counted = OperationCounts(picture_tokens=_input_tokens(order, {sha for work in works for sha in work["pictures"]}))
    kinds: dict[str, ImageKind] = {}
    for work in works:
        sampler, input_images = Sampler(**work["sampler"]), work["pictures"]
        kind = counted.kind(sampler.height, sampler.width, input_images)
        if kind not in kinds:
            kinds[kind] = _kind(order, sampler, [counted.picture_tokens.get(sha) for sha in input_images])
    return counted.model_copy(update={"kinds": kinds})


def _kind(order: WorkOrder, sampler: "Sampler", input_images: Sequence[int | None]) -> ImageKind:
    """`input_images` are the tokens of the input images; None for one that takes the output size."""
    from local_bench.generators.operations import usual_size

    # a configured batch size is always filled
    plan = order.memory(sampler, len(input_images), attempts=order.batch_size or order.attempts, offload=None)
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


# ---- input images: the size at which model families read them


def _input_tokens(order: WorkOrder, input_images: set[str]) -> dict[str, int]:
    input_size = _INPUT_SIZE.get(order.card.family)
    if input_size is None:
        return {}
    return {
        sha: _tokens(input_size(*load_verified(image_path(order.inputs, sha), sha).size))
        for sha in sorted(input_images)
    }


def _max_one_megapixel(width: int, height: int) -> tuple[int, int]:
    share = min(1.0, (_MEGAPIXEL / (width * height)) ** 0.5)
    return int(height * share), int(width * share)


def _max_1024_per_side(width: int, height: int) -> tuple[int, int]:
    share = min(1.0, 1024 / max(width, height))
    return int(height * share), int(width * share)


def _one_megapixel(width: int, height: int) -> tuple[int, int]:
    return size_like(width, height, _MEGAPIXEL, _QWEN_MULTIPLE)


_INPUT_SIZE: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "flux2": _max_one_megapixel,
    "flux2_klein": _max_one_megapixel,
    "omnigen": _max_1024_per_side,
    "qwen_image_edit": _one_megapixel,
    "qwen_image_edit_plus": _one_megapixel,
}
"""Maps (width, height) of an input image to the (height, width) at which the family reads it; other families use the
output size."""
