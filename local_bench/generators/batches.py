"""Law 2: batches never change bytes. One fixed shape a bucket, short batches padded, a probe that proves it here."""

import random
from collections.abc import Sequence
from typing import TypeVar

import torch

from local_bench.core.identity import seed_of
from local_bench.generators.base import Conditioning, Generator, Sampler

T = TypeVar("T")
PROBE_STEPS = 1


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


def batch_is_neutral(
    generator: Generator, conditionings: Sequence[Conditioning], sampler: Sampler, batch_size: int
) -> bool:
    """Whether an image's bytes are the same in the first and the last slot, beside any neighbours and beside itself.

    One step of the real model at the real shape on this machine, latents and decoded pixels compared bit by bit.
    """
    if batch_size == 1:
        return True
    short = Sampler(sampler.height, sampler.width, PROBE_STEPS, sampler.guidance_scale, sampler.max_sequence_length)
    canary = (conditionings[0], generator.noise(seed_of("probe"), short))
    others = [
        (conditionings[i % len(conditionings)], generator.noise(seed_of(f"neighbour {i}"), short))
        for i in range(1, 2 * batch_size)
    ]
    alone = [canary] * batch_size
    first = [canary, *others[: batch_size - 1]]
    last = [*others[batch_size - 1 : 2 * batch_size - 2], canary]
    seen = []
    for batch, slot in ((alone, 0), (first, 0), (last, batch_size - 1)):
        latents = generator.denoise([c for c, _ in batch], torch.cat([n for _, n in batch]), short)
        picture = generator.decode(latents, short)[slot]
        seen.append((latents[slot].cpu(), picture.tobytes()))
    return all(torch.equal(latents, seen[0][0]) and pixels == seen[0][1] for latents, pixels in seen)
