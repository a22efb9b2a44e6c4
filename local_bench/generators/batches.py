"""Batches of one fixed shape, and the check that batching does not change an image's bytes (batch invariance)."""

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
"""Qwen-Image's schedule divides by zero with one step."""


def deal(items: Sequence[T], size: int, order: str) -> list[list[T]]:
    """Split `items` into batches of at most `size`: in the given order, in reverse, or shuffled with a fixed seed."""
    items = list(items)
    if order == "reverse":
        items.reverse()
    elif order == "shuffle":
        random.Random(0).shuffle(items)  # noqa: S311  # an order, not a secret
    return [items[i : i + size] for i in range(0, len(items), size)]


def padded(items: Sequence[T], size: int) -> list[T]:
    """Pad `items` to `size` by repeating the last one."""
    return [*items, *[items[-1]] * (size - len(items))]


def warm_up(generator: Staged, item: Item, batch_size: int) -> None:
    """Run the model for a few steps on the canonical form of `item`, so that its blocks are compiled here."""
    for short in generator.compiled_forms(_short(item)):
        latents = generator.denoise([short] * batch_size)
    generator.decode(latents, short.request.sampler)


def batch_is_neutral(generator: Staged, items: Sequence[Item], batch_size: int) -> bool:
    """Whether an image's bytes are independent of its position in the batch and of the other images (batch invariance).

    Runs two steps of the real model at the real shape on this machine and compares latents and decoded pixels bit for
    bit. All `items` must have one shape; one item is enough.
    """
    probe = replace(_short(items[0]), seed=seed_of("probe"))
    others = [
        replace(_short(items[i % len(items)]), seed=seed_of(f"neighbour {i}")) for i in range(1, 2 * batch_size - 1)
    ]
    repeated = [probe] * batch_size
    first = [probe, *others[: batch_size - 1]]
    last = [*others[batch_size - 1 :], probe]
    results = []
    for batch, slot in ((repeated, 0), (first, 0), (last, batch_size - 1)):
        latents = generator.denoise(batch)
        image = generator.decode(latents, probe.request.sampler)[slot]
        results.append((latents[slot].cpu(), image.tobytes()))
    return all(torch.equal(latents, results[0][0]) and pixels == results[0][1] for latents, pixels in results)


def _short(item: Item) -> Item:
    sampler = replace(item.request.sampler, num_inference_steps=PROBE_STEPS)
    return replace(item, request=replace(item.request, sampler=sampler))
