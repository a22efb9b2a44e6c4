"""Stage `export`: all models as folders that their classes load, weights in float16; and how much there is to ship.

Generators share autoencoder and encoders, mini-flux and mini-kontext the transformer too: files of the same bytes count
once, and are links to one another here.
"""

import copy
import hashlib
import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from examples.miniature import cards, clip, judge_model, musiq, pipelines
from examples.miniature.loop import Machine
from local_bench.judges.metrics.pyiqa_store import HUB, Store
from local_bench.models.convert import write_converted
from local_bench.models.shipped import INDEX

FOLDER = "models"
SHIPPED = "weights"
"""What goes into the repository as it is: each distinct file once, and the index that `models.shipped` reads."""
_MUSIQ_URL = f"{HUB}/chaofengc/IQA-PyTorch-Weights/resolve/main/musiq_koniq_ckpt-e95806b9.pth"


def run(machine: Machine) -> bool:
    """Writes `models/NAME/` for every model that is trained so far; prints the sum of their distinct weights."""
    target = machine.work / FOLDER
    for name, (_, file) in pipelines.CALLS.items():
        if (machine.work / file).exists():
            pipe = pipelines.built(name, machine)
            pipe.to(dtype=torch.float16).save_pretrained(target / name)
    if (machine.work / "fine.trained.pt").exists():
        _judge(machine, target / "mini-judge")
    if (machine.work / "clip.trained.pt").exists():
        _clip(machine, target / "mini-clip")
    if (machine.work / "musiq.trained.pt").exists():
        _musiq(machine, target / "mini-musiq")
    cards.write(target)
    distinct = _linked(target)
    for digest, (path, size) in sorted(distinct.items(), key=lambda item: -item[1][1]):
        print(f"{size / 1e6:6.2f} MB {digest[:12]} {path.relative_to(target)}")
    print(f"{sum(size for _, size in distinct.values()) / 1e6:6.2f} MB of safetensors in all", flush=True)
    _ship(target, machine.work / SHIPPED)
    return True


def _judge(machine: Machine, folder: Path) -> None:
    processor, model = judge_model.taught(machine.work, "fine")
    copy.deepcopy(model).half().save_pretrained(folder)
    processor.save_pretrained(folder)


def _clip(machine: Machine, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = clip.tokenizer(machine.work / "clip")
    words.save_pretrained(folder)
    kept = torch.load(machine.work / "clip.trained.pt", map_location="cpu", weights_only=True)["clip"]
    save_file(
        {name: tensor.half().contiguous() for name, tensor in kept.items()}, folder / "open_clip_model.safetensors"
    )
    clip.write_config(folder, words)


def _musiq(machine: Machine, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept = torch.load(machine.work / "musiq.trained.pt", map_location="cpu", weights_only=True)["musiq"]
    name = "musiq_koniq_ckpt-e95806b9.safetensors"
    write_converted({key: t.half() if t.is_floating_point() else t for key, t in kept.items()}, folder / name)
    Store("musiq", folder, musiq.OPTIONS, {_MUSIQ_URL: name}).write(folder)


def _ship(models: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    index: dict[str, dict[str, dict[str, str]]] = {}
    kept: dict[str, str] = {}
    for folder in sorted(path for path in models.iterdir() if path.name in cards.CARDS):
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in kept:
                kept[digest] = path.relative_to(models).as_posix()
                (target / kept[digest]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / kept[digest])
            entry = {"file": kept[digest], "sha256": digest}
            index.setdefault(folder.name, {})[path.relative_to(folder).as_posix()] = entry
    (target / INDEX).write_text(json.dumps(index, indent=1) + "\n")


def _linked(target: Path) -> dict[str, tuple[Path, int]]:
    """The distinct safetensors by sha256; files of the same bytes become one on the disk."""
    distinct: dict[str, tuple[Path, int]] = {}
    for path in sorted(target.rglob("*.safetensors")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in distinct and not path.samefile(distinct[digest][0]):
            path.unlink()
            os.link(distinct[digest][0], path)
        distinct.setdefault(digest, (path, path.stat().st_size))
    return distinct
