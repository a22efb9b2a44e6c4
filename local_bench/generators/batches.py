"""Law 2: batches never change bytes. One fixed shape a bucket, short batches padded, a probe that proves it here."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from local_bench.core.identity import seed_of
from local_bench.generators.base import Item
from local_bench.generators.staged import Staged

T = TypeVar("T")
PROBE_STEPS = 2
"""One would do but for Qwen-Image's schedule, which divides by zero then."""


def deal(items: Sequence[T], size: int, order: str) -> list[list[T]]:
    """`items` in batches of at most `size`: in the given order, in reverse, or shuffled (with a fixed seed)."""
    items = list(items)
    if order == "reverse":
        items.reverse()
    elif order == "shuffle":
        random.Random(0).shuffle(items)  # noqa: S311  # an order, not a secret
    return [items[i : i + size] for i in range(0, len(items), size)]


def padded(items: Sequence[T], size: int) -> list[T]:
    """Exactly `size` items: the last is repeated where there are too few."""
    return [*items, *[items[-1]] * (size - len(items))]


def warm_up(generator: Staged, item: Item, batch_size: int) -> None:
    """A first short run of the real model at the real shape: what is compiled or chosen at first use is made here, from
    a prompt of a fixed length where the family's prompts have none."""
    short = generator.canonical(_short(item))
    generator.decode(generator.denoise([short] * batch_size), short.brief.sampler)


def batch_is_neutral(generator: Staged, items: Sequence[Item], batch_size: int) -> bool:
    """Whether an image's bytes are the same in the first and the last slot, beside any neighbours and beside itself.

    Two steps of the real model at the real shape on this machine, latents and decoded pixels compared bit by bit.
    `items` are of one bucket; one is enough.
    """
    canary = replace(_short(items[0]), seed=seed_of("probe"))
    others = [
        replace(_short(items[i % len(items)]), seed=seed_of(f"neighbour {i}")) for i in range(1, 2 * batch_size - 1)
    ]
    alone = [canary] * batch_size
    first = [canary, *others[: batch_size - 1]]
    last = [*others[batch_size - 1 :], canary]
    seen = []
    for batch, slot in ((alone, 0), (first, 0), (last, batch_size - 1)):
        latents = generator.denoise(batch)
        picture = generator.decode(latents, canary.brief.sampler)[slot]
        seen.append((latents[slot].cpu(), picture.tobytes()))
    return all(torch.equal(latents, seen[0][0]) and pixels == seen[0][1] for latents, pixels in seen)


def _short(item: Item) -> Item:
    sampler = replace(item.brief.sampler, num_inference_steps=PROBE_STEPS)
    return replace(item, brief=replace(item.brief, sampler=sampler))
