"""Many questions about the same images as one row, each seeing only itself.

Questions share how they begin: the system's words, the images, a rubric, an order. What is shared is read once; a row
is a tree, a token sees its own ancestors, and its position is its depth, so that every question is, to the last digit,
what it would be alone.
"""

from dataclasses import dataclass

import numpy as np
import torch

_NOTHING = -100


@dataclass(frozen=True)
class Asked:
    """One question as tokens: the prompt with its images' marks spread, and the answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    weights: tuple[float, ...]
    """What each token of the answer counts."""
    kind: str
    deciding: int = 0
    """Which token of the answer tells whether it is right."""
    early: tuple[int, int] | None = None
    """A token of the prompt, and the label that shall be known there already."""


@dataclass(frozen=True)
class Row:
    """A tree of questions, laid flat."""

    ids: np.ndarray
    depths: np.ndarray
    sees: np.ndarray
    """bool [tokens, tokens]: what each sees."""
    labels: np.ndarray
    """What follows each token, where that is asked."""
    weights: np.ndarray
    kinds: list[tuple[int, str]]
    """(token before the one that decides, kind)."""


def packed(questions: list[Asked]) -> Row:
    """The questions of one row; of several with the same prompt the first is kept."""
    distinct = {asked.prompt: asked for asked in reversed(questions)}
    ids: list[int] = []
    depths: list[int] = []
    spans: list[tuple[int, int, list[int]]] = []
    labels: dict[int, tuple[int, float]] = {}
    kinds: list[tuple[int, str]] = []
    before: list[int] = []
    path: list[int] = []
    for asked in sorted(distinct.values(), key=lambda asked: asked.prompt):
        tokens = [*asked.prompt, *asked.answer]
        shared = 0
        most = min(len(before), len(asked.prompt))
        while shared < most and before[shared] == tokens[shared]:
            shared += 1
        start = len(ids)
        path = [*path[:shared], *range(start, start + len(tokens) - shared)]
        spans.append((start, len(path) - shared, path[:shared]))
        ids += tokens[shared:]
        depths += range(shared, len(tokens))
        for i, (token, weight) in enumerate(zip(asked.answer, asked.weights, strict=True)):
            labels[path[len(asked.prompt) + i - 1]] = token, weight
        kinds.append((path[len(asked.prompt) + asked.deciding - 1], asked.kind))
        if asked.early is not None:
            labels[path[asked.early[0]]] = asked.early[1], 1.0
            kinds.append((path[asked.early[0]], "early"))
        before = list(asked.prompt)
    sees = np.zeros((len(ids), len(ids)), bool)
    for start, length, ancestors in spans:
        rows = slice(start, start + length)
        sees[rows, ancestors] = True
        sees[rows, rows] = np.tril(np.ones((length, length), bool))
    wanted, weights = np.full(len(ids), _NOTHING), np.zeros(len(ids))
    for at, (token, weight) in labels.items():
        wanted[at], weights[at] = token, weight
    return Row(np.array(ids), np.array(depths), sees, wanted, weights, kinds)


@dataclass(frozen=True)
class Batch:
    """Rows beside each other, filled up to the longest."""

    ids: torch.Tensor
    mask: torch.Tensor
    """float32 [rows, 1, tokens, tokens]: 0 where a token is seen, else very low."""
    depths: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    kinds: list[tuple[int, int, str]]


def collated(rows: list[Row], pad: int, device: torch.device) -> Batch:
    """A batch; what is filled in sees itself only."""
    longest = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), longest), pad)
    depths = np.zeros((len(rows), longest), np.int64)
    labels = np.full((len(rows), longest), _NOTHING)
    weights = np.zeros((len(rows), longest), np.float32)
    sees = np.broadcast_to(np.eye(longest, dtype=bool), (len(rows), longest, longest)).copy()
    kinds = []
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n], depths[i, :n], labels[i, :n], weights[i, :n] = row.ids, row.depths, row.labels, row.weights
        sees[i, :n, :n] = row.sees
        kinds += [(i, at, kind) for at, kind in row.kinds]
    mask = torch.zeros(sees.shape).masked_fill_(~torch.from_numpy(sees), torch.finfo(torch.float32).min)[:, None]
    tensors = (torch.from_numpy(array).to(device) for array in (ids, depths, labels, weights))
    ids_t, depths_t, labels_t, weights_t = tensors
    return Batch(ids_t, mask.to(device), depths_t, labels_t, weights_t, kinds)
