"""The command: one stage or all of them."""

import argparse
from importlib import import_module
from pathlib import Path

import torch

from examples.miniature.loop import Machine

STAGES = (
    "text",
    "vae",
    "flow",
    "edits",
    "sd3",
    "gallery",
    "eye",
    "judge",
    "drill",
    "compare",
    "fine",
    "clip",
    "musiq",
    "export",
    "score",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.miniature", description=__doc__)
    parser.add_argument("stage", choices=("all", *STAGES))
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and what stages hand on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="times the steps of every stage")
    parser.add_argument("--limit", type=int, help="stop each stage after that many steps")
    parser.add_argument("--bf16", action="store_true", help="of use on a GPU")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)  # two processes of one thread each do far more than one of two
    given.work.mkdir(parents=True, exist_ok=True)
    machine = Machine(given.work, torch.device(given.device), given.scale, given.limit, given.bf16)
    for name in STAGES if given.stage == "all" else (given.stage,):
        done = import_module(f"examples.miniature.{name}").run(machine)
        if not done:
            print(f"{name}: stopped before its end; the same command goes on", flush=True)


if __name__ == "__main__":
    main()
