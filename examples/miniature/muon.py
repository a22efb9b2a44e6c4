"""Muon: momentum whose update is made orthogonal, for matrices and the filters of convolutions.

Keller Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks": five steps of a quintic
Newton-Schulz iteration. An update has the size that AdamW's would have (0.2 times the root of the longer side). torch's
own takes matrices only, one at a time; here those of one shape are done together, which small models need.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

_QUINTIC = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """`lr` is AdamW's; parameters have two dimensions or more, all but the first count as one."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        assert closure is None
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[torch.nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[p.shape[0], p[0].numel()].append(p)
            for (rows, columns), params in alike.items():
                self._step(params, rows, columns, group["lr"], group["momentum"])

    def _step(self, params: list[torch.nn.Parameter], rows: int, columns: int, lr: float, momentum: float) -> None:
        wanted = []
        for p in params:
            buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
            buffer.lerp_(p.grad, 1 - momentum)
            wanted.append(torch.lerp(p.grad, buffer, momentum).reshape(rows, columns))
        updates = orthogonal(torch.stack(wanted))
        size = lr * 0.2 * max(rows, columns) ** 0.5
        for p, update in zip(params, updates, strict=True):
            p.sub_(update.reshape(p.shape), alpha=size)


def orthogonal(batch: torch.Tensor) -> torch.Tensor:
    """The matrices [n, rows, columns] with all their singular values brought near 1."""
    a, b, c = _QUINTIC
    tall = batch.shape[-2] > batch.shape[-1]
    x = batch.mT if tall else batch
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.is_cuda:  # many CPUs reckon in bfloat16 forty times slower
        x = x.bfloat16()
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()
