"""The order of examples, learning rates and seeds of a training, as pure functions of the seed and the step."""

import math
from collections.abc import Sequence

import torch

from local_bench.core.identity import digest
from local_bench.judges.payment.config import Stage
from local_bench.judges.payment.examples import Example


def steps_per_epoch(n_examples: int, stage: Stage) -> int:
    """Optimiser steps; the examples of an incomplete step are left out, others in each epoch."""
    return max(1, n_examples // stage.effective_batch)


def total_steps(n_examples: int, stage: Stage) -> int:
    return stage.epochs * steps_per_epoch(n_examples, stage)


def step_examples(n_examples: int, stage: Stage, stage_number: int, step: int, seed: int) -> list[int]:
    """The indices of the examples of an optimiser step, from 0; every epoch has its own permutation."""
    epoch, position = divmod(step, steps_per_epoch(n_examples, stage))
    generator = torch.Generator().manual_seed(seed_at(seed, stage_number, epoch, "order"))
    order = torch.randperm(n_examples, generator=generator).tolist()
    start = position * stage.effective_batch
    return [order[i % n_examples] for i in range(start, start + stage.effective_batch)]


def learning_rate(stage: Stage, step: int, total: int) -> float:
    """Linear warm-up, then a cosine to 0."""
    warm = math.ceil(stage.warmup * total)
    if step < warm:
        return stage.learning_rate * (step + 1) / warm
    return stage.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def seed_at(*what: object) -> int:
    """A 63-bit seed for a place in the training."""
    return int(digest([str(one) for one in what])[:16], 16) >> 1


def oversampled(examples: Sequence[Example]) -> list[Example]:
    """The examples with those of the rarer class repeated in order until both classes are equally frequent."""
    paid = [one for one in examples if one.accepted == 1]
    rest = [one for one in examples if one.accepted == 0]
    rare, often = sorted((paid, rest), key=len)
    if not rare:
        return list(examples)
    return [*often, *(rare[i % len(rare)] for i in range(len(often)))]
