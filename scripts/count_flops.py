"""Counts what the models of configs/models take and prints it as a table: operations, memory, times by GPU.

    scripts/count_flops.py                     the table
    scripts/count_flops.py --json FILE         … and writes it to FILE
    scripts/count_flops.py --check             compares the cards' own figures with the counted ones (exit 1 if off)
    scripts/count_flops.py --write             counts what configs/operations.json lacks and writes it anew

Nothing is loaded or fetched: the models run on meta tensors.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from local_bench.core.paths import configs_dir
from local_bench.core.process import quiet_libraries
from local_bench.generators.arithmetic import count, counts_key, shipped_kinds, usual_input_images
from local_bench.generators.memory import plan_memory
from local_bench.generators.sampler import Sampler
from local_bench.generators.shapes import sizes
from local_bench.models.cards import ModelCard, cards
from local_bench.models.gpus import gpus

TOLERANCE = 0.03
SPEEDS = ("h200", "a100-80", "a6000")
ROWS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("flux1-schnell", {}, 0),
    ("flux1-dev", {}, 0),
    ("flux1-kontext-dev", {}, 1),
    ("flux1-depth-dev", {}, 1),
    ("flux1-canny-dev", {}, 1),
    ("flux1-dev-ip-adapter", {}, 1),
    ("sd3-medium", {}, 0),
    ("sd35-medium", {"num_inference_steps": 28}, 0),
    ("sd35-medium", {}, 0),
    ("sd35-large", {}, 0),
    ("sd35-large-turbo", {}, 0),
    ("qwen-image", {"height": 1024, "width": 1024}, 0),
    ("qwen-image", {}, 0),
    ("qwen-image-2512", {}, 0),
    ("qwen-image-edit", {}, 1),
    ("qwen-image-edit-2509", {}, 1),
    ("qwen-image-edit-2509", {}, 2),
    ("qwen-image-edit-2511", {}, 1),
    ("flux2-dev", {}, 0),
    ("flux2-dev", {}, 1),
    ("flux2-klein-4b", {}, 0),
    ("flux2-klein-9b", {}, 0),
    ("pixart-sigma", {}, 0),
    ("instruct-pix2pix", {}, 1),
    ("magicbrush", {}, 1),
    ("omnigen", {}, 0),
    ("omnigen", {}, 1),
)
"""Card, what differs from its sampler, input images."""


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--json", type=Path, metavar="FILE")
    asked.add_argument("--check", action="store_true")
    asked.add_argument("--write", action="store_true")
    arguments = asked.parse_args()
    quiet_libraries()
    known = {name: card for name, card in cards().items() if card.role == "generator"}
    if arguments.write:
        write_shipped(known.values())
        return 0
    if arguments.check:
        wrong = [sentence for card in known.values() for sentence in differences(card)]
        print("\n".join(wrong) or f"{len(known)} cards agree with what is counted")
        return bool(wrong)
    rows = [row(known[name], other, images) for name, other, images in ROWS]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def row(card: ModelCard, other: dict[str, Any], images: int) -> dict[str, Any]:
    """One model at one setting."""
    sampler = replace(Sampler(**card.sampler.model_dump()), **other)
    counted, shape = count(card, sampler, images), sizes(card, sampler, images)
    memory = plan_memory(card, sampler, batch_size=1, input_images=images)
    return {
        "model": card.name,
        "size": f"{sampler.width}x{sampler.height}",
        "pictures": images,
        "text_tokens": shape.text,
        "transformer_parameters_b": counted.transformer_parameters / 1e9,
        "forward_tflop": counted.forward_flop / 1e12,
        "steps": counted.steps,
        "passes": counted.passes,
        "encode_tflop": counted.encode_flop / 1e12,
        "picture_tflop": counted.picture_flop / 1e12,
        "decode_tflop": counted.decode_flop / 1e12,
        "pflop_per_image": counted.pflop,
        "floor_s": {name: counted.total_flop / gpus()[name].peak_tflops / 1e12 for name in SPEEDS},
        "gb": {name: phase.total_gb for name, phase in memory.phases.items()},
        "all_resident_gb": memory.all_resident_gb,
    }


def write_shipped(known: Iterable[ModelCard]) -> None:
    """Writes configs/operations.json: the cards at their own sizes, with every number of input images that ships."""
    found = {}
    for card in known:
        sampler = Sampler(**card.sampler.model_dump())
        for images in shipped_kinds(card) if card.architecture else ():
            counted = replace(count(card, sampler, images), steps=1)
            found[counts_key(card, sizes(card, sampler, images))] = asdict(counted)
    lines = [f'  "{key}": {json.dumps(found[key])}' for key in sorted(found)]
    (configs_dir() / "operations.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(found)} counts")


def show(rows: list[dict[str, Any]]) -> None:
    header = ("model", "size", "pict", "text", "params", "TF/fwd", "steps", "PFLOP", *(f"s {name}" for name in SPEEDS))
    print("| " + " | ".join((*header, "encode GB", "denoise GB", "decode GB", "all GB")) + " |")
    print("|---" * (len(header) + 4) + "|")
    for r in rows:
        cells = (
            r["model"],
            r["size"],
            str(r["pictures"]),
            str(r["text_tokens"]),
            f"{r['transformer_parameters_b']:.2f}B",
            f"{r['forward_tflop']:.1f}",
            f"{r['steps']}x{r['passes']}",
            f"{r['pflop_per_image']:.3g}",
            *(f"{seconds:.3g}" for seconds in r["floor_s"].values()),
            *(f"{gb:.1f}" for gb in r["gb"].values()),
            f"{r['all_resident_gb']:.1f}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)


def differences(card: ModelCard) -> Iterator[str]:
    """What a card says of itself that is not what is counted."""
    sampler = Sampler(**card.sampler.model_dump())
    memory = plan_memory(card, sampler, batch_size=1, input_images=usual_input_images(card))
    counted = memory.operations
    total = counted.encoder_parameters + counted.transformer_parameters + counted.vae_parameters
    figures = {"parameters_b": total / 1e9, "pflop_per_image": counted.pflop, "vram_gb": memory.peak_gb}
    figures |= {f"vram_by_phase_gb.{name}": phase.total_gb for name, phase in memory.phases.items()}
    said = {**card.model_dump(), **{f"vram_by_phase_gb.{n}": gb for n, gb in card.vram_by_phase_gb.items()}}
    for name, figure in figures.items():
        if said.get(name) is None or abs(said[name] - figure) > TOLERANCE * max(figure, 1e-9):
            yield f"{card.name}: {name} is {said.get(name)}, and {figure:.3g} is counted"


if __name__ == "__main__":
    raise SystemExit(main())
