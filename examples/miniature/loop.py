"""The loop that every stage goes through: so many steps, a checkpoint once a minute, and on from it.

A step's randomness is drawn from (seed of the stage, number of the step), so a run that was interrupted sees what an
uninterrupted one would have seen.
"""

import copy
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from examples.miniature.muon import Muon

Loss = tuple[torch.Tensor, Mapping[str, float]]
EVERY_S = 60
_REPORT = 50


@dataclass(frozen=True)
class Machine:
    """Where and how far to train."""

    work: Path
    """Checkpoints (`STAGE.pt`) and what stages hand on to each other."""
    device: torch.device
    scale: float = 1.0
    """Times the steps of every stage."""
    limit: int | None = None
    """Stop after that many steps of this call, for a try."""
    bf16: bool = False
    """Of use on a GPU; a CPU without AVX-512 BF16 or AMX is forty times slower in it."""


@dataclass(frozen=True)
class Stage:
    """What is fixed about one stage."""

    name: str
    seed: int
    steps: int
    lr_muon: float
    lr_adam: float
    ema: float = 0.998
    adam_only: tuple[str, ...] = ("embed", "shared", "relative", "position", "proj_out", "lm_head")
    """Parts of names whose matrices Muon leaves to AdamW."""
    snapshots: tuple[float, ...] = ()
    """Shares of the steps at which the averaged weights are kept beside, as `NAME@SHARE.pt`."""
    masters: bool = True
    """A copy in bfloat16 is run, weights in float32 are trained; else the models are run as they are (autocast)."""


class Models:
    """The modules in training, by name: `run` is what a loss is to call."""

    def __init__(self, stage: Stage, machine: Machine, modules: Mapping[str, nn.Module]) -> None:
        self.stage, self.machine = stage, machine
        self.trained = {name: module.to(machine.device).train() for name, module in modules.items()}
        self.doubled = stage.masters and machine.bf16
        self.run = {n: copy.deepcopy(m).bfloat16() if self.doubled else m for n, m in self.trained.items()}
        named = [(f"{n}.{k}", p) for n, m in self.trained.items() for k, p in m.named_parameters()]
        self.params = [p for _, p in named]
        self.running = [p for m in self.run.values() for p in m.parameters()]
        self.average = [p.detach().clone() for p in self.params]
        by_muon = [p for n, p in named if p.ndim >= 2 and not any(part in n for part in stage.adam_only)]
        left = [p for p in self.params if all(p is not q for q in by_muon)]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(by_muon, lr=stage.lr_muon),
            torch.optim.AdamW(left, lr=stage.lr_adam, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]

    def update(self, step: int, steps: int) -> None:
        """One step of the optimisers with the gradients that lie on the running weights."""
        if self.doubled:
            for p, q in zip(self.params, self.running, strict=True):
                p.grad = None if q.grad is None else q.grad.float()
                q.grad = None
        nn.utils.clip_grad_norm_(self.params, 1.0)
        share = step / steps
        rate = min(1.0, (step + 1) / 60) * (1.0 if share < 0.5 else max(0.02, 2 * (1 - share)))
        for optimiser, base in zip(self.optimisers, (self.stage.lr_muon, self.stage.lr_adam), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * rate
            optimiser.step()
        for p in self.params:
            p.grad = None
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.params, 1 - min(self.stage.ema, (step + 1) / (step + 20)))
            if self.doubled:
                torch._foreach_copy_(self.running, self.params)

    def averaged(self) -> dict[str, nn.Module]:
        """Copies with the averaged weights, in float32, ready to be looked at."""
        found = {name: copy.deepcopy(module).eval() for name, module in self.trained.items()}
        with torch.no_grad():
            for p, q in zip((p for m in found.values() for p in m.parameters()), self.average, strict=True):
                p.copy_(q)
        return found

    def state(self) -> dict[str, object]:
        return {
            "params": [p.detach() for p in self.params],
            "average": self.average,
            "optimisers": [o.state_dict() for o in self.optimisers],
        }

    def load(self, state: Mapping[str, list]) -> None:
        with torch.no_grad():
            for mine, kept in ((self.params, state["params"]), (self.average, state["average"])):
                torch._foreach_copy_(mine, [p.to(self.machine.device) for p in kept])
            if self.doubled:
                torch._foreach_copy_(self.running, self.params)
        for optimiser, kept in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)


def train(models: Models, loss: Callable[[int, int], Loss]) -> bool:
    """Runs the stage's steps (from its checkpoint, where there is one); False where it was stopped before its end.

    `loss(step, steps)` returns the loss and what to report.
    """
    stage, machine = models.stage, models.machine
    steps = max(1, round(stage.steps * machine.scale))
    path = machine.work / f"{stage.name}.pt"
    first = 0
    if path.exists():
        kept = torch.load(path, map_location="cpu", weights_only=True)
        models.load(kept["models"])
        first = kept["step"]
    last = steps if machine.limit is None else min(steps, first + machine.limit)
    snapshots = {round(share * steps): share for share in stage.snapshots}
    seen: dict[str, list[float]] = defaultdict(list)
    saved, cpu = time.monotonic(), time.process_time()
    every = min(_REPORT, max(1, (last - first) // 4))
    for step in range(first, last):
        torch.manual_seed(stage.seed * 1_000_003 + step)
        found, told = loss(step, steps)
        found.backward()
        models.update(step, steps)
        for name, value in {"loss": float(found.detach()), **told}.items():
            seen[name].append(value)
        if step + 1 in snapshots:
            save({n: m.state_dict() for n, m in models.averaged().items()}, _beside(path, snapshots[step + 1]))
        if (step + 1) % every == 0:
            means = " ".join(f"{name} {np.mean(values[-every:]):.4f}" for name, values in seen.items())
            each_s = (time.process_time() - cpu) / (step + 1 - first)
            print(f"{stage.name} {step + 1}/{steps}: {means} ({each_s:.3f} CPU s a step)", flush=True)
        if time.monotonic() - saved > EVERY_S or step + 1 == last:
            save({"step": step + 1, "models": models.state()}, path)
            saved = time.monotonic()
    return last == steps


def finished(machine: Machine, stage: Stage) -> bool:
    """Whether the checkpoint of that stage has all its steps."""
    path = machine.work / f"{stage.name}.pt"
    if not path.exists():
        return False
    kept = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return bool(kept["step"] >= max(1, round(stage.steps * machine.scale)))


def save(what: object, path: Path) -> None:
    """Written aside, then renamed: a file of that name is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".writing")
    with aside.open("wb") as file:
        torch.save(what, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _beside(path: Path, share: float) -> Path:
    return path.with_name(f"{path.stem}@{share:g}.pt")


def rng_of(stage: Stage, step: int) -> np.random.Generator:
    """The step's generator."""
    return np.random.default_rng([stage.seed, step])
