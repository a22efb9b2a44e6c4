"""The family `diffusers` over every text-to-image and editing pipeline of the installed diffusers.

For each pipeline class a small checkpoint with random weights (`tiny_pipelines.yaml`) is written and added with
`models add`. `python -m tests.generators.pipelines NAME` prints a line of JSON with the checks of one, each true or the
first line of what went wrong:

plain     the image has the bytes of the plain call of the pipeline, and another seed gives other bytes
order     a run of the added card in the order of the plan and one in reverse order have equal digests
resume    a run that is killed after its first images and continued has the digest of the first run
device    the pipeline runs on the tests' fake CUDA device, where a tensor left on the CPU is an error
"""

import inspect
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import yaml
from PIL import Image

from local_bench.analysis.digest import digests
from local_bench.cli.main import main as command_line
from local_bench.core.environment import quiet_libraries
from local_bench.generators.adding import add_card
from local_bench.generators.any_pipeline import AnyPipeline, arguments_of
from local_bench.generators.base import EncodedPrompt, GenerationRequest, InputImage, Item, Machine
from local_bench.generators.numerics import set_determinism
from local_bench.generators.registry import Sampler
from local_bench.models.cards import ModelCard, card
from local_bench.runs.rundir import RunDir
from tests.fake_cuda import DEVICE, fake_cuda
from tests.generators.tiny_pipelines import save, table

_OTHER = re.compile(
    "ControlNet|PAG|Onnx|Adapter|SuperRes|Upscal|Prior|Decoder|Video|Audio|I2V|T2V|VACE|Animate|Framepack|Marigold|"
    "ShapE|Wan|LTX|SkyReels|Motif|Kandinsky6|LLaDA|LDM3D|Refiner|StableUnCLIP|AceStep|UnCLIP|DiffusionGemma|Lucy"
)
_OTHER_FOLDERS = ("deprecated", "audioldm2", "rfd4_proteina", "longcat_audio_dit", "latent_diffusion")
"""Not text-to-image or editing with one model: ControlNet, PAG, upscalers, priors, video, audio."""
_EMBEDS = "needs image_embeds of a prior: `Combined` pipelines have both stages"
NOT_RUN = {
    "ChronoEditPipeline": "returns a video: the edited image is its last frame",
    "Cosmos2TextToImagePipeline": "needs a safety checker of the package cosmos_guardrail, which has models of its own",
    "GlmImagePipeline": "top-p sampling of image tokens: its cumsum has no deterministic CUDA kernel",
    "KandinskyImg2ImgPipeline": _EMBEDS,
    "KandinskyInpaintPipeline": _EMBEDS,
    "KandinskyPipeline": _EMBEDS,
    "QwenImageLayeredPipeline": "returns several layers per image",
}
"""Pipeline -> why it is not run."""
_SAMPLED = "`device`: samples an input image's latents there without `generator`; the fake device has no such values"
NOT_ALL = {
    "ChromaInpaintPipeline": "diffusers 0.42.1 reads `guidance_embeds` of its transformer's config, which is not there",
    "CogView4ControlPipeline": _SAMPLED,
    "JoyImageEditPipeline": _SAMPLED,
}
"""Pipeline -> why a check does not hold."""
SIDE, STEPS, SEED = 64, 2, 7
CPU = torch.device("cpu")
BRIEFS = ("A red boot", "A blue cup on a table")
PROMPTS = {
    "BriaFiboEditPipeline": '{{"edit_instruction": "{}"}}',
    "OmniGenPipeline": "<img><|image_1|></img>{}",
}
"""Pipeline -> the format of its prompts."""
TEXT_ONLY = {"OmniGenPipeline", "ZImageOmniPipeline"}
"""Pipelines whose runs have no images: OmniGen's prompts need control tokens, which a run splits; Z-Image-Omni casts
images to bfloat16 whatever its dtype, and these checkpoints are in float32."""
CALLS: dict[str, dict[str, Any]] = {
    "FluxKontextInpaintPipeline": {"_auto_resize": False, "max_area": 64 * 64},
    "FluxKontextPipeline": {"_auto_resize": False, "max_area": 64 * 64},
    "Ideogram4Pipeline": {"guidance_schedule": None, "guidance_scale": 4.0},
    "Kandinsky3Img2ImgPipeline": {"strength": 0.6},
    "KandinskyV22Img2ImgCombinedPipeline": {"strength": 0.6},
    "KolorsImg2ImgPipeline": {"strength": 0.6},
    "LongCatImagePipeline": {"enable_prompt_rewrite": False},
    "PRXPipeline": {"use_resolution_binning": False},
    "PRXPixelPipeline": {"use_resolution_binning": False},
    "QwenImage21Pipeline": {"output_resolution": 128},
    "SanaSprintImg2ImgPipeline": {"use_resolution_binning": False},
    "SanaSprintPipeline": {"use_resolution_binning": False},
    "StableDiffusionXLImg2ImgPipeline": {"strength": 0.6},
}
"""Pipeline -> what is added to the card's `call`: a small image, few steps, no text that a model writes."""
SUITE = {
    "title": "Two briefs",
    "licence": "CC0",
    "source": "tests/generators/pipelines.py",
    "tasks": "pipelines.jsonl",
    "rubrics": {"pipelines": ["good"]},
    "thresholds": {"good": 1},
}
RUBRIC = {
    "id": "pipelines",
    "version": 1,
    "source": "tests/generators/pipelines.py",
    "slots": ["brief"],
    "pictures": {"image": "the image"},
    "layouts": [["image"]],
    "text": '{pictures}\n"good" is 1 if it shows: {brief}\n',
    "answer": [{"good": [0, 1]}],
}


def pipelines() -> dict[str, type]:
    """The text-to-image and editing pipelines of the installed diffusers, by name."""
    found = {}
    for name in sorted(name for name in dir(diffusers) if name.endswith("Pipeline") and not _OTHER.search(name)):
        cls = getattr(diffusers, name)
        if not (inspect.isclass(cls) and issubclass(cls, diffusers.DiffusionPipeline)):
            continue
        source, call = inspect.getsource(cls), inspect.signature(cls.__call__).parameters
        video = "frames=" in source and "images=" not in source
        if (
            cls.__module__.split(".")[2] not in _OTHER_FOLDERS
            and {"prompt", "output_type"} <= call.keys()
            and not video
        ):
            found[name] = cls
    return found


def request_of(name: str, of: ModelCard) -> GenerationRequest:
    """A request at 64 x 64 in two steps, with the images that the card takes."""
    sampler = Sampler(**of.sampler.model_dump() | {"height": SIDE, "width": SIDE, "num_inference_steps": STEPS})
    pictures = of.takes.pictures if name in PROMPTS or name not in TEXT_ONLY else 0
    images = tuple(InputImage(f"{i}" * 64, noise(i)) for i in range(pictures))
    mask = InputImage("f" * 64, square()) if of.takes.mask else None
    return GenerationRequest(PROMPTS.get(name, "{}").format(BRIEFS[0]), sampler, images, mask)


def noise(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def square() -> Image.Image:
    mask = Image.new("RGB", (SIDE, SIDE))
    mask.paste((255, 255, 255), (16, 16, 48, 48))
    return mask


def loaded(of: ModelCard, folder: Path, device: torch.device = CPU, **more: Any) -> AnyPipeline:
    generator = AnyPipeline(of, folder, Machine(device, torch.float32, "native", **more))
    generator.load_denoiser()
    return generator


def pixels(generator: AnyPipeline, request: GenerationRequest, seed: int) -> torch.Tensor:
    item = Item(request, EncodedPrompt({}), (), seed)
    return generator.pixels(generator.denoise([item]), request.sampler)


def plain_call(folder: Path, of: ModelCard, request: GenerationRequest) -> np.ndarray:
    """The image of the pipeline's own call, without local-bench; uint8 (height, width, 3)."""
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    takes = arguments_of(type(pipe), of)
    given = {k: v for k, v in vars(request.sampler).items() if v is not None and k in takes.names} | of.call
    names = (takes.image, takes.second_image)
    for key, image in zip(names, request.input_images, strict=False):
        given[key] = [image.pixels] if key in ("images", "input_images") else image.pixels
    if request.mask:
        given[takes.mask] = request.mask.pixels.convert("L")
    torch.manual_seed(SEED)
    made = pipe(prompt=request.prompt, generator=torch.Generator("cpu").manual_seed(SEED), **given)[0]
    image = made[0]
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


def add(name: str, components: Mapping[str, Any]) -> tuple[Path, ModelCard]:
    """Write the checkpoint of a pipeline below the working directory, and add it."""
    folder = save(name, dict(components), Path("weights") / name)
    path = add_card(str(folder), "ours", Path("local-bench/models")).path
    if name in CALLS:
        path.write_text(path.read_text() + yaml.safe_dump({"call": CALLS[name]}))
    return folder, card("ours", "generator")


def plain(name: str, folder: Path, of: ModelCard) -> bool:
    request = request_of(name, of)
    generator = loaded(of, folder)
    image, other = (pixels(generator, request, seed)[0].numpy() for seed in (SEED, SEED + 1))
    assert generator.finite is not None
    assert generator.finite.all(), "values are not finite"
    assert not np.array_equal(image, other), "two seeds give one image"
    assert np.array_equal(image, plain_call(folder, of, request)), "other bytes than the plain call"
    return True


def runs(name: str, of: ModelCard) -> dict[str, Any]:
    """`order` and `resume`: `generate` on a benchmark of two tasks, through the command line."""
    for folder in ("suites", "rubrics"):
        Path("local-bench", folder).mkdir(parents=True, exist_ok=True)
    task = {"category": "any", "price_usd": 0, "title": "Image", "deliverables": ["an image"]}
    if name not in TEXT_ONLY:
        task |= {"source_image": "source.png"} if of.takes.pictures else {}
        task |= {"mask_image": "mask.png"} if of.takes.mask else {}
        task |= {"reference_images": ["reference.png"]} if of.takes.pictures > 1 else {}
    noise(0).save("local-bench/suites/source.png")
    noise(1).save("local-bench/suites/reference.png")
    square().save("local-bench/suites/mask.png")
    written = "{}" if name in TEXT_ONLY else PROMPTS.get(name, "{}")
    orders = [{"task_id": f"t{i}", "brief": written.format(brief), **task} for i, brief in enumerate(BRIEFS)]
    lines = [json.dumps(order) for order in orders]
    Path("local-bench/suites/pipelines.jsonl").write_text("\n".join(lines) + "\n")
    Path("local-bench/suites/pipelines.yaml").write_text(yaml.safe_dump(SUITE))
    Path("local-bench/rubrics/pipelines.yaml").write_text(yaml.safe_dump(RUBRIC))
    settings = {"height": SIDE, "width": SIDE, "num_inference_steps": STEPS}
    config = {"name": "x", "suite": {"name": "pipelines"}, "judge": None, "metrics": [], "acceptance": {}}
    config |= {"models": [{"card": of.name, **settings}]}
    for order in ("plan", "reverse"):
        Path(f"{order}.yaml").write_text(yaml.safe_dump(config | {"engine": {"batch_order": order, "device": "cpu"}}))
    first = generate("plan.yaml", "first")
    pid = os.fork()
    if pid == 0:
        kill_at(2)
        generate("plan.yaml", "killed")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it was not killed"
    return {
        "order": generate("reverse.yaml", "reverse") == first or "other digests in reverse order",
        "resume": generate("plan.yaml", "killed") == first or "other digests after a kill",
    }


def generate(config: str, run: str) -> dict[str, str]:
    """The digests of a run, which must have all its images."""
    status = command_line(["generate", config, "--run-dir", run])
    assert status == 0, f"`generate` ended with {status}"
    with RunDir.open(Path(run)) as opened:
        counts = opened.store.counts()
        assert counts.unscored == 0, f"{counts.unscored} images were not generated"
        return digests(opened)


def kill_at(n: int) -> None:
    """Let this process end by SIGKILL when its `n`-th image is decoded."""
    real, calls = AnyPipeline.pixels, []

    def pixels(self: AnyPipeline, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        calls.append(None)
        if len(calls) == n:
            time.sleep(0.5)  # the first image is written by another thread
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, latents, sampler)

    AnyPipeline.pixels = pixels  # type: ignore[method-assign]


def device(name: str, folder: Path, of: ModelCard) -> bool:
    with fake_cuda():
        found = pixels(loaded(of, folder, DEVICE), request_of(name, of), SEED)
    assert found.dtype == torch.uint8
    return True


def row(name: str, components: Mapping[str, Any]) -> dict[str, Any]:
    """All checks of one pipeline, in the working directory."""
    folder, of = add(name, components)
    found: dict[str, Any] = {}
    tries: list[tuple[tuple[str, ...], Callable[[], Any]]] = [
        (("plain",), lambda: plain(name, folder, of)),
        (("order", "resume"), lambda: runs(name, of)),
        (("device",), lambda: device(name, folder, of)),
    ]
    for checks, call in tries:
        try:
            made = call()
            found |= made if isinstance(made, dict) else dict.fromkeys(checks, made)
        except Exception as e:  # noqa: BLE001 - it is the result of this check
            found |= dict.fromkeys(checks, f"{type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''}")
    return found


if __name__ == "__main__":
    quiet_libraries()
    set_determinism(1)
    name = sys.argv[1]
    pipelines()  # imports all, and the fake CUDA device changes what is imported
    print("\n" + json.dumps(row(name, table()[name])))
