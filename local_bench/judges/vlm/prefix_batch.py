"""Batched prefill and decoding of questions with a common prefix, for `local`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache


@dataclass(frozen=True)
class Prefix:
    """The KV cache after the system message and the images, shared by all questions about these images."""

    ids: list[int]
    cache: DynamicCache
    next_position: int
    """Position of the first token after the prefix; less than its length, because an image has few positions."""


class PrefixBatch:
    """A left-padded batch of questions after one prefix, each with its own positions."""

    def __init__(self, model: Any, device: torch.device, prefix: Prefix, suffixes: Sequence[list[int]]) -> None:
        self._model, self._device = model, device
        width = max(map(len, suffixes))
        blank = [width - len(ids) for ids in suffixes]
        self._next = [[0] * n + ids for n, ids in zip(blank, suffixes, strict=True)]
        self._positions = torch.arange(width) + prefix.next_position - torch.tensor(blank)[:, None]  # (rows, width)
        self._mask: torch.Tensor | None = None
        if any(blank):
            seen = torch.arange(width) >= torch.tensor(blank)[:, None]
            self._mask = torch.cat([torch.ones(len(suffixes), len(prefix.ids), dtype=torch.bool), seen], dim=1).long()
        self._cache = DynamicCache()
        for i, layer in enumerate(prefix.cache.layers):
            spread = (layer.keys.expand(len(suffixes), -1, -1, -1), layer.values.expand(len(suffixes), -1, -1, -1))
            self._cache.update(*spread, i)

    def read(self) -> torch.Tensor:
        """Logits for the token after each row, (rows, vocabulary), float32 on the CPU."""
        out = self._model(
            input_ids=torch.tensor(self._next, device=self._device),
            position_ids=self._positions.clamp(min=0).expand(3, -1, -1).to(self._device),
            attention_mask=None if self._mask is None else self._mask.to(self._device),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].float().cpu()  # type: ignore[no-any-return]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """As `read`, after one more token in each row."""
        self._next = [[token] for token in tokens]
        self._positions = self._positions[:, -1:] + 1
        if self._mask is not None:
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        return self.read()


def pick(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    """The most probable token (ties: the lowest id), or a token sampled with the generator. `logits`: (vocabulary)."""
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator))
