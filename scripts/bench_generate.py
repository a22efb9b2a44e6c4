"""Compares the generation phase with plain use of diffusers, in one process.

    .venv/bin/python scripts/bench_generate.py --out benchmarks/generate.json                    # CPU, small models
    .venv/bin/python scripts/bench_generate.py --cards flux1-dev,sd35-large --random --size 1024 \\
        --batches 1,2 --compile both --prompts 4 --repeats-of-a-prompt 1 --out benchmarks/generate-h200.json     # a GPU

Three implementations generate the same images (same weights, prompts, seeds, sampler, sizes), alternating:
plain: everything resident, one prompt at a time, one pipeline call each, `image.save`;
bare: the same pipeline called on the batches of the plan, with sliced decoding, nothing stored: the reference of the
overhead;
ours: the generation phase of a run: load, encode once, drop the encoders, probe, denoise, decode, hash, PNG, ledger.
Loading, the probe and compilation, once per run, are measured separately and excluded. Seconds depend on the machine;
the ratios are the result.
"""

import argparse
import gc
import json
import platform
import resource
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from local_bench.core.environment import quiet_libraries, versions
from local_bench.generators.architecture import components
from local_bench.generators.base import Machine
from local_bench.generators.device import attend, compile_regions
from local_bench.generators.numerics import attention_backend, choose_device, device_name, set_determinism
from local_bench.generators.operations import count
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import deal, family
from local_bench.models.cards import card
from local_bench.models.gpus import gpu_of
from local_bench.models.weights import resolve
from local_bench.report.render import aligned
from local_bench.runs.config import RunConfig
from local_bench.runs.executors.base import Executor
from local_bench.runs.generate import generate
from local_bench.runs.plan import RunPlan, enter_plan, make_plan
from local_bench.runs.progress import Quiet
from local_bench.runs.rundir import RunDir

SMALL = ("tiny-flux", "tiny-flux-kontext", "tiny-sd3", "tiny-qwen-image")
WORDS = ("red boot", "white table", "blue box", "by a window", "three birds", "a quiet sea", "at night")


@dataclass
class Case:
    card: str
    size: int
    steps: int
    batch_size: int
    compiled: bool
    images: int
    prompts: int
    bare_batch_s: float
    plain_s: float
    bare_s: float
    ours_s: float
    ours_start_s: float
    ours_images_per_s: float
    times_faster_than_plain: float
    overhead_over_bare: float
    text_encodings_plain: int
    text_encodings_ours: int
    ours_peak_gb: float | None
    plain_peak_gb: float | None
    times_the_floor: float | None
    """Ours, denoising and decoding only, over counted operations at the fastest this GPU could be."""
    same_bytes_in_another_order: bool


class Counted:
    """Counts the calls of the encoder."""

    def __init__(self, owner: Any, name: str) -> None:
        self.calls = 0
        self._owner, self._name, self._real = owner, name, getattr(owner, name)

        def counting(*a: Any, **k: Any) -> Any:
            self.calls += 1
            return self._real(*a, **k)

        setattr(owner, name, counting)

    def undo(self) -> None:
        setattr(self._owner, self._name, self._real)


def orders(folder: Path, prompts: int, size: int, images: bool) -> Path:
    """A task file with one image a task, its source drawn here where the model edits."""
    lines = []
    for i in range(prompts):
        names = [WORDS[(i + k) % len(WORDS)] for k in range(8)]
        line = {
            "task_id": f"order-{i:03}",
            "category": "Product",
            "price_usd": 1,
            "title": f"{i:03}",
            "brief": " ".join(names)[:60].ljust(60, "."),  # of one length, as Qwen-Image's batches need
            "deliverables": ["a picture"],
            "evaluation_points": ["It is there"],
        }
        if images:
            source = Image.merge("RGB", [Image.linear_gradient("L").rotate(90 * (i + k)) for k in range(3)])
            source.resize((size, size)).save(folder / f"{i}.png")
            line["source_image"] = f"{i}.png"
        lines.append(json.dumps(line))
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(lines))
    return path


def pipeline(config: RunConfig, device: torch.device) -> Any:
    """Everything resident, as `from_pretrained` gives it."""
    described = card(config.models[0].card, "generator")
    kind, dtype = family(described.family), getattr(torch, described.dtype)
    if config.models[0].load == "random":
        pipe = kind.assemble(components(described, device, dtype))
    else:
        pipe = kind.pipeline.from_pretrained(resolve(described), dtype=dtype, local_files_only=True).to(device)
    pipe.set_progress_bar_config(disable=True)
    pipe.vae.enable_slicing()  # as the package: unsliced decoding of a batch gives other bytes
    denoiser = getattr(pipe, kind.denoiser)
    denoiser.set_attention_backend(attention_backend("auto", device, described.dtype, described.attention, kind.masks))
    if config.engine.compile:
        compile_regions(denoiser)
    return pipe


def pinned(config: RunConfig, pipe: Any, device: torch.device) -> AbstractContextManager[None]:
    """The attention kernel that `pipeline` pins, allowed and chosen as in a run."""
    described = card(config.models[0].card, "generator")
    kind = family(described.family)
    attention = attention_backend("auto", device, described.dtype, described.attention, kind.masks)
    machine = Machine(device, getattr(torch, described.dtype), attention)
    return attend(getattr(pipe, kind.denoiser), machine)


def call(pipe: Any, plan: RunPlan, batch: list[Any], inputs: Path) -> list[Image.Image]:
    """One call of the pipeline for a few candidates."""
    (model,) = plan.models
    sampler = dict(batch[0].work["sampler"])
    arguments: dict[str, Any] = {"prompt": [c.prompt for c in batch], **sampler}
    if sampler.get("negative_prompt") is not None:
        arguments["negative_prompt"] = [sampler["negative_prompt"]] * len(batch)
    images = [c.work["pictures"] for c in batch]
    if images[0]:
        assert model.card is not None
        arguments["image"] = [Image.open(inputs / p[0][:2] / f"{p[0]}.png").convert("RGB") for p in images]
        arguments |= {"max_area": sampler["height"] * sampler["width"], "_auto_resize": False}
    generators = [torch.Generator("cpu").manual_seed(c.seed) for c in batch]
    return list(pipe(**arguments, generator=generators).images)


def finish(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak_gb(device: torch.device) -> float | None:
    """The peak of the device; on the CPU two implementations in one process cannot be separated."""
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2) if device.type == "cuda" else None


def clear(device: torch.device) -> None:
    gc.collect()  # a pipeline with a counted encoder refers to itself
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@dataclass
class Ours:
    """Figures from the ledger of one run, in seconds."""

    started_s: float
    """Loading, the probe and compilation before the first image: once per run."""
    making_s: float
    rest_s: float
    encodings: int
    peak_gb: float | None
    pixels: set[str]

    @property
    def work_s(self) -> float:
        return self.making_s + self.rest_s


def run_ours(config: RunConfig, folder: Path, device: torch.device) -> Ours:
    clear(device)
    described = card(config.models[0].card, "generator")
    with RunDir.begin(folder, config) as run:
        plan = make_plan(config, run.path)
        enter_plan(run, plan)
        executor = Executor(run.store, [device], run.logs)
        encoder = Counted(family(described.family), "encode_text")
        begun = finish(device)
        generate(run, plan.models, executor, Quiet())
        total = finish(device) - begun
        encoder.undo()
        executor.end("done")
        rows = run.store.rows("SELECT phase, sum(t1_ns - t0_ns) / 1e9 AS s FROM meter GROUP BY phase")
        phase_s = {row["phase"]: row["s"] for row in rows}
        started, making = phase_s.get("load", 0.0) + phase_s.get("warm-up", 0.0), phase_s["denoise"] + phase_s["decode"]
        pixels = {row["pixels_sha256"] for row in run.store.rows("SELECT pixels_sha256 FROM candidates")}
    return Ours(started, making, total - started - making, encoder.calls, peak_gb(device), pixels)


@dataclass
class Theirs:
    """`plain` and `bare`, in seconds, after loading and warm-up."""

    plain_s: float
    bare_s: float
    encodings: int
    peak_gb: float | None


def run_theirs(config: RunConfig, plan: RunPlan, folder: Path, batch_size: int, device: torch.device) -> Theirs:
    clear(device)
    candidates, inputs = plan.candidates, folder / "inputs"
    pipe = pipeline(config, device)
    with pinned(config, pipe, device):
        call(pipe, plan, candidates[:1], inputs)  # kernels are chosen and compiled at the first use
        encoder = Counted(pipe, "encode_prompt")
        begun = finish(device)
        for i, candidate in enumerate(candidates):
            call(pipe, plan, [candidate], inputs)[0].save(folder / f"{i}-plain.png")
        plain_s, encodings, peak = finish(device) - begun, encoder.calls, peak_gb(device)
        encoder.undo()
        batches = [batch for batch in deal(candidates, batch_size, "plan") if len(batch) == batch_size]
        call(pipe, plan, batches[0], inputs)
        begun = finish(device)
        for batch in batches:
            call(pipe, plan, batch, inputs)
        bare_s = (finish(device) - begun) * len(candidates) / (len(batches) * batch_size)
    return Theirs(plain_s, bare_s, encodings, peak)


def measure(name: str, batch_size: int, compiled: bool, a: argparse.Namespace, device: torch.device) -> Case:
    described = card(name, "generator")
    edits = described.family == "flux_kontext"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        settings = {"height": a.size, "width": a.size, "batch_size": batch_size, "attempts": a.repeats_of_a_prompt}
        if a.steps:
            settings["num_inference_steps"] = a.steps
        config = RunConfig(
            name="bench",
            suite={"name": "servimage", "path": str(orders(folder, a.prompts, a.size, edits))},
            models=[{"card": name, "load": "random" if a.random else "weights", **settings}],
            metrics=[],
            engine={"device": str(device), "compile": compiled, "workers": 1},
        )
        plan = make_plan(config, folder)
        theirs, ours = [], []
        for repeat in range(a.rounds):
            theirs.append(run_theirs(config, plan, folder, batch_size, device))
            ours.append(run_ours(config, folder / f"ours-{repeat}", device))
        other = config.model_copy(update={"engine": config.engine.model_copy(update={"batch_order": "shuffle"})})
        same = run_ours(other, folder / "again", device).pixels == ours[0].pixels
    n = len(plan.candidates) * a.rounds
    gpu = gpu_of(device_name(device))
    sampler = Sampler(**plan.candidates[0].work["sampler"])
    floor_s = (
        None if gpu is None else count(described, sampler, input_images=int(edits)).total_flop / gpu.peak_tflops / 1e12
    )
    plain_s, bare_s, ours_s = (
        sum(x) for x in ([t.plain_s for t in theirs], [t.bare_s for t in theirs], [o.work_s for o in ours])
    )
    return Case(
        card=name,
        size=a.size,
        steps=sampler.num_inference_steps,
        batch_size=batch_size,
        compiled=compiled,
        images=n,
        prompts=a.prompts,
        bare_batch_s=round(bare_s / n * batch_size, 3),
        plain_s=round(plain_s, 2),
        bare_s=round(bare_s, 2),
        ours_s=round(ours_s, 2),
        ours_start_s=round(sum(o.started_s for o in ours), 2),
        ours_images_per_s=round(n / ours_s, 3),
        times_faster_than_plain=round(plain_s / ours_s, 3),
        overhead_over_bare=round(ours_s / bare_s, 3),
        text_encodings_plain=theirs[0].encodings,
        text_encodings_ours=ours[0].encodings,
        ours_peak_gb=ours[0].peak_gb,
        plain_peak_gb=theirs[0].peak_gb,
        times_the_floor=None if floor_s is None else round(sum(o.making_s for o in ours) / n / floor_s, 2),
        same_bytes_in_another_order=same,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", default=",".join(SMALL))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--random", action="store_true", help="full architectures with random weights, nothing fetched")
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--steps", type=int, help="the card's if left out")
    parser.add_argument("--batches", default="1,4")
    parser.add_argument("--compile", choices=["no", "yes", "both"], default="no")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--repeats-of-a-prompt", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    quiet_libraries()
    set_determinism(1)
    device = choose_device(a.device)
    cases = []
    for name in a.cards.split(","):
        for compiled in {"no": [False], "yes": [True], "both": [False, True]}[a.compile]:
            for batch_size in map(int, a.batches.split(",")):
                cases.append(measure(name, batch_size, compiled, a, device))
                print(json.dumps(asdict(cases[-1])), flush=True)
    result = {
        "command": " ".join(["scripts/bench_generate.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {device_name(device)}",
        "host_peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "packages": versions(),
        "cases": [asdict(case) for case in cases],
    }
    columns = ("card", "batch_size", "compiled", "ours_images_per_s", "times_faster_than_plain", "overhead_over_bare")
    print("\n" + aligned(columns, [[str(getattr(case, column)) for column in columns] for case in cases]))
    if a.out:
        a.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
