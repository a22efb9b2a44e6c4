"""The metric phase against the way of the official evaluator: one image and one metric at a time, on the same weights.

    .venv/bin/python scripts/bench_metrics.py [--tasks 16] [--models 4] [--repeats 2] [--side 512] [--out FILE]
    .venv/bin/python scripts/bench_metrics.py --batches clip_src:tiny-clip,dino_ref:tiny-dinov2
    .venv/bin/python scripts/bench_metrics.py --batches clip_src --random --tasks 8

First: edit orders, each with a source, a mask, a reference and a caption, and a result of every model, measured by all
that ICE-Bench's edit tasks ask for. `official`: images decoded once an item, then metric after metric, each encoding
what it needs at batch 1. `apart`: our phase, but each metric by itself with nothing kept. `cold`: our phase. `again`:
the same with what the first time kept. Networks are open before the clock starts, the ways alternate, rates are of
sums.
With --batches: images a second by batch size, for choosing.
--random gives the CLIP metrics the real ViT-L/14 at 336 with random weights, made here. Seconds are of this machine on
this day, ratios are the claim. `--device cuda:0` and metrics of real cards (`--metrics clip_cap,clip_src`) are the run
on a GPU.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from PIL import Image
from safetensors.torch import save_file

from local_bench.core.environment import quiet_libraries, versions
from local_bench.core.types import ScoresComputed
from local_bench.generators.numerics import device_name, set_determinism
from local_bench.judges.metrics.base import HostMetric, ImageFile, LoadedSubject, Metric, NetworkMetric, Subject
from local_bench.judges.metrics.evaluator import Evaluator, Wanted
from local_bench.judges.metrics.registry import Weights, make, make_metric
from local_bench.models.cards import card

EDITS = (
    "aes_v2.5:tiny-aesthetic,musiq_koniq:tiny-musiq,clip_cap:tiny-clip,clip_src:tiny-clip,clip_ref:tiny-clip,"
    "dino_ref:tiny-dinov2,style_ref:tiny-csd,face_ref:tiny-faces,l1_raw,ssim"
)
"""What ICE-Bench's edit tasks ask for between them (reference/ice_bench.json), and SSIM, with the small models."""
OF_CLIP = ("clip_cap", "clip_src", "clip_ref")
BATCHES = (1, 2, 4, 8, 16)


def write_image(folder: Path, seed: int, side: int, coarse: int = 16) -> ImageFile:
    """Smooth noise, saved."""
    small = np.random.default_rng(seed).integers(0, 256, (coarse, coarse, 3), dtype=np.uint8)
    path = folder / f"{seed}-{side}.png"
    Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC).save(path, compress_level=1)
    return ImageFile(path)


def edits(folder: Path, n_tasks: int, n_models: int, side: int) -> list[Subject]:
    made = []
    mask = np.zeros((side, side), np.uint8)
    mask[side // 4 : side // 2, side // 4 : side // 2] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    for t in range(n_tasks):
        source, reference = write_image(folder, 10_000 + t, side), write_image(folder, 20_000 + t, side)
        for m in range(n_models):
            result = write_image(folder, t * n_models + m, side)
            named = [ImageFile(p.path, p.sha256) for p in (result, source, ImageFile(folder / "mask.png"), reference)]
            made.append(
                Subject(f"{t}-{m}", named[0], named[1], named[2], (named[3],), f"Make the mug number {t} blue.")
            )
    return made


def opened(names: Sequence[str], device: str, clip: Path | None = None) -> dict[str, Metric]:
    """The metrics, networks of one key shared and open for good; those of CLIP read off the folder `clip`, if given."""
    described = card("clip-vit-l-14-336", "metric")
    metrics = {
        name: make(name, Weights(described, clip, {})) if clip and name in OF_CLIP else make_metric(name)
        for name in names
    }
    networks: dict[Any, Any] = {}
    for metric in metrics.values():
        if isinstance(metric, NetworkMetric):
            network = networks.setdefault(metric.network.key, metric.network)
            metric.network = network
    for network in networks.values():
        network.open(device)
        network.open = lambda device: None
        network.close = lambda: None
    return metrics


def real_clip(folder: Path) -> Path:
    """OpenAI's ViT-L/14 at 336 pixels as open_clip has it, with seeded random weights."""
    name = "ViT-L-14-336-quickgelu"
    torch.manual_seed(0)
    save_file(open_clip.create_model(name).state_dict(), folder / "open_clip_model.safetensors")
    about = {"model_cfg": open_clip.get_model_config(name), "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(about))
    return folder


def official(metrics: dict[str, Metric], subjects: list[Subject]) -> dict[tuple[str, str], float | None]:
    """Item by item and metric by metric, as the benchmark's own evaluator goes."""
    found: dict[tuple[str, str], float | None] = {}
    for subject in subjects:
        seen = LoadedSubject(subject)
        at = {subject.image: seen.image, subject.source: seen.source, subject.references[0]: seen.references[0]}
        at[subject.mask] = subject.mask.load() if subject.mask else None
        for name, metric in metrics.items():
            if isinstance(metric, HostMetric):
                found[subject.key, name] = metric.measure(seen)
                continue
            assert isinstance(metric, NetworkMetric)
            network = metric.network
            arrays = [
                network.run([network.prepare([at[p] for p in one.images], one.text)])[0]
                for one in metric.inputs(subject)
            ]
            try:
                found[subject.key, name] = metric.value(arrays)
            except Exception:  # noqa: BLE001  # no face in a reference
                found[subject.key, name] = None
    return found


def _run(survey: Evaluator, wanted: Sequence[Wanted]) -> Iterator[Any]:
    for group in survey.groups():
        yield from survey.run_group(group, wanted)


def ours(
    metrics: dict[str, Metric], subjects: list[Subject], device: str, kept_as: str
) -> dict[tuple[str, str], float | None]:
    survey = Evaluator(metrics, device, {"bench": kept_as}, io_workers=2)
    steps = _run(survey, [(subject, tuple(metrics)) for subject in subjects])
    return {(key, s.name): s.value for step in steps if isinstance(step, ScoresComputed) for key, s in step.rows}


def race(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    names = given.metrics.split(",")
    subjects = edits(folder, given.tasks, given.models, given.side)
    metrics = opened(names, given.device, real_clip(folder) if given.random else None)
    of_clip = {name: metric for name, metric in metrics.items() if name.startswith("clip_")}
    stamp = f"{os.getpid()}-{time.time_ns()}"
    ours(metrics, subjects[:8], given.device, f"{stamp}-warm")  # kernels and probes are made at the first use
    ways: dict[str, Callable[[int], Any]] = {
        "official": lambda i: official(metrics, subjects),
        "apart": lambda i: [ours({n: m}, subjects, given.device, f"{stamp}-{i}-{n}") for n, m in metrics.items()],
        "cold": lambda i: ours(metrics, subjects, given.device, f"{stamp}-{i}"),
        "again": lambda i: ours(metrics, subjects, given.device, f"{stamp}-{i}"),
        "clip official": lambda i: official(of_clip, subjects),
        "clip apart": lambda i: [ours({n: m}, subjects, given.device, f"{stamp}-c{i}-{n}") for n, m in of_clip.items()],
        "clip cold": lambda i: ours(of_clip, subjects, given.device, f"{stamp}-c{i}"),
    }
    seconds = dict.fromkeys(ways, 0.0)
    last: dict[str, Any] = {}
    for i in range(given.repeats):
        for way, run in ways.items():
            begun = time.perf_counter()
            last[way] = run(i)
            seconds[way] += time.perf_counter() - begun
    differ = max(abs(v - last["cold"][k]) for k, v in last["official"].items() if v is not None)
    n = given.repeats * len(subjects)
    return {
        "images": len(subjects),
        "side": given.side,
        "metrics": names,
        "images_per_s": {way: round(n / s, 2) for way, s in seconds.items()},
        "cold_of_official": round(seconds["official"] / seconds["cold"], 2),
        "again_of_official": round(seconds["official"] / seconds["again"], 2),
        "cold_of_apart": round(seconds["apart"] / seconds["cold"], 2),
        "clip_cold_of_official": round(seconds["clip official"] / seconds["clip cold"], 2),
        "clip_cold_of_apart": round(seconds["clip apart"] / seconds["clip cold"], 2),
        "largest_difference": differ,
    }


def by_batch(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Subjects a second by batch size, host work included; none is filled up."""
    device, n = given.device, 4 * given.tasks
    subjects = edits(folder, n + 1, 1, given.side)
    clip = real_clip(folder) if given.random else None
    rates: dict[str, Any] = {}
    for name in given.batches.split(","):
        metrics = opened([name], device, clip)
        rates[name] = {}
        for size in BATCHES:
            stamp = f"{time.time_ns()}"
            survey = Evaluator(metrics, device, {"bench": stamp}, io_workers=2, batch_size=size)
            list(_run(survey, [(subjects[0], (name,))]))  # the probe
            begun = time.perf_counter()
            list(_run(survey, [(subject, (name,)) for subject in subjects[1:]]))
            rates[name][size] = round(n / (time.perf_counter() - begun), 2)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metrics", default=EDITS)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--models", type=int, default=4, help="results of each task")
    parser.add_argument("--side", type=int, default=512, help="pixels of a picture's side")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--random", action="store_true", help="the real CLIP with random weights")
    parser.add_argument("--batches", metavar="METRICS", help="only: rates by batch size")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out and given.out.resolve()
    quiet_libraries()
    set_determinism(1)
    with tempfile.TemporaryDirectory() as folder:
        if given.batches:
            key, found = "batches", by_batch(given, Path(folder))
        else:
            key, found = "edits", race(given, Path(folder))
    print(json.dumps(found, indent=2))
    if out:
        whole = json.loads(out.read_text()) if out.exists() else {}
        about = {"machine": f"{platform.machine()}, {device_name(torch.device(given.device))}", "packages": versions()}
        out.write_text(json.dumps(whole | about | {key: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
