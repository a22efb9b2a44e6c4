"""Checkpoints of a training in safetensors: one file that holds everything, so that it is written atomically."""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from local_bench.core import strictjson
from local_bench.core.errors import UserError, WeightsError
from local_bench.core.files import is_file
from local_bench.core.storage import put_in_place, storage_errors
from local_bench.core.tensors import load_tensors, open_tensors

NAME = "checkpoint.safetensors"
_KEY = "progress"


@dataclass(frozen=True)
class Progress:
    """Where a training is. Random numbers follow from the seed, the stage and the step, so no generator is stored."""

    fingerprint: str
    """Digest of everything that determines the result."""
    stage: int = 1
    step: int = 0
    """Optimiser steps done in this stage."""
    best: float | None = None
    """Lowest validation loss in this stage."""
    best_step: int = 0
    waited: int = 0
    """Evaluations since then."""
    finished: bool = False
    history: tuple[dict[str, float], ...] = field(default=())
    """One entry per evaluation: stage, step, training and validation loss."""

    def next_stage(self) -> "Progress":
        return replace(self, stage=self.stage + 1, step=0, best=None, best_step=0, waited=0)


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically. Raises StorageError."""
    temporary = path.with_name(f".{path.name}.writing")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary, metadata)
        os.chmod(temporary, 0o644)
    put_in_place(temporary, path)


def save(
    folder: Path,
    progress: Progress,
    state: dict[str, torch.Tensor],
    best: dict[str, torch.Tensor],
    optimiser: dict[str, torch.Tensor],
) -> None:
    """Write the checkpoint: current weights, best weights of the stage, optimiser state and progress."""
    tensors = {f"state/{name}": value for name, value in state.items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    tensors |= {f"optimiser/{name}": value for name, value in optimiser.items()}
    save_tensors(folder / NAME, tensors, {_KEY: json.dumps(asdict(progress))})


def load(
    folder: Path, fingerprint: str
) -> tuple[Progress, dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]] | None:
    """(progress, state, best weights, optimiser state); None without a checkpoint. UserError if it is damaged, or
    belongs to a training with another fingerprint."""
    path = folder / NAME
    if not is_file(path):
        return None
    try:
        with open_tensors(path) as file:
            text = (file.metadata() or {}).get(_KEY, "")
        data = strictjson.loads(text)
        tensors = load_tensors(path)
        data["history"] = tuple(data["history"])
        progress = Progress(**data)
    except (WeightsError, KeyError, ValueError, TypeError):
        raise UserError(f"{path} is damaged: remove it to train from the start") from None
    if progress.fingerprint != fingerprint:
        raise UserError(
            f"{folder} has an unfinished training with other settings, data, weights or libraries: give a new folder, "
            "or remove it"
        )

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    return progress, part("state/"), part("best/"), part("optimiser/")


def optimiser_state(optimiser: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]]) -> dict[str, torch.Tensor]:
    """AdamW's state by parameter name."""
    return {f"{name}/{key}": value for name, parameter in named for key, value in optimiser.state[parameter].items()}


def restore_optimiser(
    optimiser: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]], state: dict[str, torch.Tensor]
) -> None:
    """Inverse of `optimiser_state`."""
    for name, parameter in named:
        own: dict[str, Any] = {
            key.rpartition("/")[2]: value for key, value in state.items() if key.rpartition("/")[0] == name
        }
        if own:
            optimiser.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in own.items()
            }


def load_constants(path: Path, fingerprint: str) -> dict[str, torch.Tensor]:
    """Tensors of a training by name; empty if the file is damaged or belongs to another one."""
    try:
        with open_tensors(path) as file:
            own = (file.metadata() or {}).get("fingerprint") == fingerprint
        return load_tensors(path) if own else {}
    except WeightsError:
        return {}


def remove(folder: Path, *names: str) -> None:
    """Remove the checkpoint and these files, and the folder if it is then empty."""
    for name in (NAME, *names):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
