"""How many operations each kind of a model's pictures takes, counted once by generators and kept in the run's ledger.

Only denoising and decoding are counted here, the phases that are held for each picture. Modules are counted at a usual
size; a kind's own is a share of that. Work grows at most with the square of the tokens, so the square of a share below
one bounds it from below. The least count takes a prompt that nothing pads as one token.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from local_bench.core.errors import LedgerError
from local_bench.core.images import image_path, load_verified
from local_bench.core.sizes import size_like
from local_bench.core.yamlfile import Strict
from local_bench.runs.store import Store
from local_bench.runs.work import WorkOrder

if TYPE_CHECKING:
    from local_bench.generators.sampler import Sampler
    from local_bench.generators.shapes import Sizes

NOT_COUNTED = "not counted"
SKIPS = {"first_block_cache": "no floor: its cache skips work"}
"""Lossy settings under which fewer operations are done than are counted."""
_TOKEN_SIDE = 16
_MEGAPIXEL = 1024 * 1024
_QWEN_MULTIPLE = 32


class Kind(Strict):
    """One image of some size, with input pictures of some sizes."""

    flop: int = Field(ge=0)
    """For a prompt of usual length."""
    least_flop: int = Field(ge=0)
    """No honest run does less."""
    planned_batch_size: int = Field(ge=1)
    """Before memory or the probe had a say."""


class Counted(Strict):
    """What stands in the ledger under `operations:<label>`."""

    kinds: dict[str, Kind] = Field(default={})
    picture_tokens: dict[str, int] = Field(default={})
    """Of the input pictures (by pixel digest) that are read in a size of their own, and not in the result's."""
    uncounted: str | None = None
    """Why nothing can be said."""

    def kind(self, height: int | None, width: int | None, pictures: Iterable[str]) -> str:
        """A picture's kind: `1024x1024`, and `+tokens` or `+same` for each input picture."""
        return f"{height}x{width}" + "".join(f"+{self.picture_tokens.get(sha, 'same')}" for sha in pictures)


def operations(store: Store, label: str) -> Counted:
    """What was counted for the model. LedgerError where the ledger holds something else there."""
    text = store.meta(f"operations:{label}")
    if text is None:
        return Counted(uncounted=NOT_COUNTED)
    try:
        return Counted.model_validate_json(text)
    except ValidationError as e:
        raise LedgerError(
            f"{store.path}: the counted operations of {label!r} are not such ({e.errors()[0]['msg']}): "
            "the run directory was changed by hand or made by another release, make the run again"
        ) from None


def kinds_made(store: Store, label: str, counted: Counted) -> Counter[tuple[str, int | None]]:
    """How many pictures of the model are there, by kind and by the batch size that they were made with."""
    return Counter(
        (counted.kind(row.height, row.width, row.work.get("pictures", [])), row.batch_size)
        for row in store.candidates(label)
        if row.state == "done"
    )


def note_operations(store: Store, order: WorkOrder) -> None:
    """Counts what each kind of picture takes that `order.label` is to make in this run, and keeps it in the ledger.

    Seconds at first for a large model, then remembered on this machine. Imports torch.
    """
    skipping = next((SKIPS[key] for key in order.lossy if key in SKIPS), None)
    if not order.card.architecture:
        counted = Counted(uncounted=NOT_COUNTED)
    else:
        counted = _count(store, order).model_copy(update={"uncounted": skipping})
    store.set_meta(f"operations:{order.label}", counted.model_dump_json())


def _count(store: Store, order: WorkOrder) -> Counted:
    from local_bench.generators.sampler import Sampler

    works = [row.work for row in store.candidates(order.label) if row.state != "unscored"]
    counted = Counted(picture_tokens=_tokens_as_read(order, {sha for work in works for sha in work["pictures"]}))
    kinds: dict[str, Kind] = {}
    for work in works:
        sampler, pictures = Sampler(**work["sampler"]), work["pictures"]
        kind = counted.kind(sampler.height, sampler.width, pictures)
        if kind not in kinds:
            kinds[kind] = _kind(order, sampler, [counted.picture_tokens.get(sha) for sha in pictures])
    return counted.model_copy(update={"kinds": kinds})


def _kind(order: WorkOrder, sampler: "Sampler", pictures: Sequence[int | None]) -> Kind:
    """`pictures` are the tokens of the input pictures; None for one that is read in the result's size."""
    from local_bench.generators.arithmetic import usual_size
    from local_bench.generators.memory import plan_memory
    from local_bench.generators.shapes import sizes

    plan = plan_memory(
        order.card,
        sampler,
        batch_size=order.batch_size,
        capacity_gb=order.capacity_gb,
        pictures=len(pictures),
        attempts=order.batch_size or order.attempts,  # a size that is asked for is made whole
        lossy=order.lossy,
    )
    counted = sizes(order.card, usual_size(order.card, sampler), len(pictures))
    least = sizes(order.card, sampler, len(pictures), text_tokens=1)
    area = min(1.0, _tokens(least.result) / _tokens(counted.result))

    def share(text: int) -> float:
        tokens = (text + _sequence(least, pictures)) / (counted.text + _sequence(counted))
        return tokens if tokens > 1 else tokens**2

    denoise_flop, decode_flop = plan.operations.denoise_flop, plan.operations.decode_flop * area**2
    return Kind(
        flop=int(denoise_flop * share(counted.text) + decode_flop),
        least_flop=int(denoise_flop * min(1.0, share(least.text)) + decode_flop),
        planned_batch_size=plan.batch_size,
    )


def _sequence(s: "Sizes", pictures: Sequence[int | None] = ()) -> int:
    """Tokens of the result and of the pictures that follow it in the transformer's sequence."""
    own = [*pictures, *[None] * len(s.in_sequence)]
    read = zip(s.in_sequence, own, strict=False)
    return _tokens(s.result) + sum(_tokens(size) if tokens is None else tokens for size, tokens in read)


def _tokens(size: tuple[int, int]) -> int:
    return size[0] // _TOKEN_SIDE * (size[1] // _TOKEN_SIDE)


# ---- input pictures: how large their families read them


def _tokens_as_read(order: WorkOrder, pictures: set[str]) -> dict[str, int]:
    as_read = _AS_READ.get(order.card.family)
    if as_read is None:
        return {}
    return {sha: _tokens(as_read(*load_verified(image_path(order.inputs, sha), sha).size)) for sha in sorted(pictures)}


def _at_most_a_megapixel(width: int, height: int) -> tuple[int, int]:
    share = min(1.0, (_MEGAPIXEL / (width * height)) ** 0.5)
    return int(height * share), int(width * share)


def _at_most_1024_a_side(width: int, height: int) -> tuple[int, int]:
    share = min(1.0, 1024 / max(width, height))
    return int(height * share), int(width * share)


def _a_megapixel(width: int, height: int) -> tuple[int, int]:
    return size_like(width, height, _MEGAPIXEL, _QWEN_MULTIPLE)


_AS_READ: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "flux2": _at_most_a_megapixel,
    "flux2_klein": _at_most_a_megapixel,
    "omnigen": _at_most_1024_a_side,
    "qwen_image_edit": _a_megapixel,
    "qwen_image_edit_plus": _a_megapixel,
}
"""(width, height) of a picture to (height, width) as it is read; in all other families it takes the result's size."""
