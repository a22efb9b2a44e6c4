"""The family `diffusers`: bytes of the plain pipeline's call, independent of order; cards of `models add`."""

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import yaml
from safetensors.torch import save_file

from local_bench.analysis.digest import digests
from local_bench.cli.main import main
from local_bench.core.errors import ConfigError, WeightsError
from local_bench.generators.adding import add_card
from local_bench.generators.any_pipeline import AnyPipeline, arguments_of
from local_bench.generators.base import Machine
from local_bench.generators.memory import plan_memory
from local_bench.generators.registry import Sampler, check_lossy
from local_bench.generators.staged import family
from local_bench.models.cards import ModelCard, card
from local_bench.models.tensors import load_tensors
from local_bench.models.weights import resolve
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import make_plan
from local_bench.runs.rundir import RunDir
from tests.fake_cuda import DEVICE, fake_cuda

from . import pipelines, tiny_pipelines

PIPELINES = (
    "ZImagePipeline",
    "QwenImage21Pipeline",  # images with an alpha channel
    "ChromaPipeline",
    "SanaSprintPipeline",
    "StableDiffusionXLPipeline",
    "Krea2Pipeline",  # a list of numbers in its model_index.json
    "FluxInpaintPipeline",  # a mask
    "StableDiffusion3Img2ImgPipeline",
    "FluxControlImg2ImgPipeline",  # two images
    "OmniGenPipeline",  # samples input images with torch's global generator
)
"""Of all, which LOCAL_BENCH_TEST_PIPELINES=1 runs."""
EVERY = pipelines.pipelines() if os.environ.get("LOCAL_BENCH_TEST_PIPELINES") else ()
ROOT = Path(__file__).resolve().parents[2]
MACHINE = Machine(pipelines.CPU, torch.float32, "native")
CARD = {
    "name": "x", "role": "generator", "family": "diffusers", "title": "x", "source": {"folder": "/x"}, "licence": "x",
    "parameters_b": 0, "vram_gb": 1,
}  # fmt: skip
CONFIG = {"name": "x", "suite": {"name": "studio", "limit": 3}, "judge": None, "metrics": []}
CONFIG |= {"models": [{"card": "ours", "height": 64, "width": 64, "num_inference_steps": 2}]}


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, Any]]:
    return tiny_pipelines.table()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def folder_of(name: str, base: str, out: Path) -> Path:
    """The small model as another pipeline of the same components."""
    folder = shutil.copytree(resolve(card(base, "generator")), out / name.lower())
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": name}))
    return folder


@pytest.mark.parametrize("name", PIPELINES)
def test_images_are_those_of_the_plain_call(name, table):
    """Of a card of `models add`; two calls leave torch's and Python's generators as they were."""
    folder, described = pipelines.add(name, table[name])
    random.seed(1)
    before = random.getstate(), torch.get_rng_state()
    assert pipelines.plain(name, folder, described)
    assert random.getstate() == before[0]


@pytest.mark.parametrize("name", EVERY)
def test_every_pipeline_of_diffusers_passes_or_has_a_reason(name, table, tmp_path):
    """In a process of its own, which kills a child."""
    if name in pipelines.NOT_RUN:
        pytest.skip(pipelines.NOT_RUN[name])
    command = [sys.executable, "-m", "tests.generators.pipelines", name]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    failed = {check: why for check, why in row.items() if why is not True}
    if failed and name in pipelines.NOT_ALL:
        pytest.xfail(f"{pipelines.NOT_ALL[name]}: {failed}")
    assert not failed


@pytest.mark.parametrize(
    "name",
    [
        *("StableDiffusionImg2ImgPipeline", "StableDiffusionXLImg2ImgPipeline"),
        *("ZImageImg2ImgPipeline", "ZImageInpaintPipeline"),  # they have `height`, and fail for another one
    ],
)
def test_a_pipeline_without_height_makes_the_planned_size(name, table):
    """Its images are as large as the input image."""
    folder, described = pipelines.add(name, table[name])
    request = pipelines.request_of(name, described)
    wide = replace(request, sampler=replace(request.sampler, height=48, width=80))
    assert pipelines.pixels(pipelines.loaded(described, folder), wide, 7).shape == (1, 48, 80, 3)


def test_a_safety_checker_is_not_loaded(table):
    """Its files are not fetched either; it would replace images."""
    name = "StableDiffusionPipeline"
    folder, described = pipelines.add(name, table[name])
    request, images = pipelines.request_of(name, described), []
    index = json.loads((folder / "model_index.json").read_text())
    for checker in ([None, None], ["stable_diffusion", "StableDiffusionSafetyChecker"]):
        text = json.dumps(index | {"safety_checker": checker, "requires_safety_checker": any(checker)})
        (folder / "model_index.json").write_text(text)
        images.append(pipelines.pixels(pipelines.loaded(described, folder), request, 7))
    assert torch.equal(*images)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("text_encoder/model", "lack weights of Qwen3ForCausalLM: model.layers.0.mlp.down_proj.weight, 1 in all"),
        ("transformer/diffusion_pytorch_model", "lack weights of transformer: .*, 1 in all"),
    ],
)
def test_a_checkpoint_that_lacks_a_weight_is_refused(file, sentence, tmp_path):
    """transformers would initialise it at random: an image of nobody's model, another one in each run."""
    folder = folder_of("ZImagePipeline", "tiny-z-image", tmp_path)
    path = folder / f"{file}.safetensors"
    tensors = load_tensors(path)
    assert tensors.pop("lm_head.weight", None) is None or "encoder" in file  # which encodes without it
    save_file(tensors, path, {"format": "pt"})
    staged = family("z_image")(card("tiny-z-image", "generator"), folder, MACHINE)
    staged.load_encoder()
    del tensors[next(key for key in tensors if key.endswith(("down_proj.weight", "to_out.0.weight")))]
    save_file(tensors, path, {"format": "pt"})
    described = ModelCard.model_validate(add_card(str(folder), "ours", tmp_path / "cards").card)
    with pytest.raises(WeightsError, match=rf"zimagepipeline cannot be loaded \(its files {sentence}\): fetch"):
        pipelines.loaded(described, folder)
    with pytest.raises(WeightsError, match=sentence):
        (staged.load_encoder if "encoder" in file else staged.load_denoiser)()


def test_a_quantised_checkpoint_whose_library_is_not_installed_is_an_error(tmp_path):
    folder = folder_of("ZImagePipeline", "tiny-z-image", tmp_path)
    config = folder / "text_encoder/config.json"
    quantised = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    config.write_text(json.dumps(json.loads(config.read_text()) | quantised))
    described = ModelCard.model_validate(add_card(str(folder), "ours", tmp_path / "cards").card)
    with pytest.raises(WeightsError, match=r"zimagepipeline cannot be loaded \(.*bitsandbytes"):
        pipelines.loaded(described, folder)


def test_a_scheduler_whose_noise_is_not_the_image_s_is_refused(tmp_path):
    """It draws from torch's global generator, which only the family `diffusers` seeds for each image."""
    folder = shutil.copytree(resolve(card("tiny-sd3", "generator")), tmp_path / "sd3")
    path = folder / "scheduler/scheduler_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stochastic_sampling": True}))
    staged = family("sd3")(card("tiny-sd3", "generator"), folder, MACHINE)
    with pytest.raises(ConfigError, match="tiny-sd3: `stochastic_sampling` of its scheduler needs the family `diffus"):
        staged.load_denoiser()


def test_an_adapter_is_fused_or_refused(table, tmp_path):
    folder, described = pipelines.add("StableDiffusionPipeline", table["StableDiffusionPipeline"])
    unet = diffusers.UNet2DConditionModel.from_pretrained(folder / "unet")
    layer = next(name for name, _ in unet.named_modules() if name.endswith("attn2.to_v"))
    before = unet.get_submodule(layer).weight
    down, up = torch.ones(2, before.shape[1]), torch.ones(before.shape[0], 2)
    adapted = described.model_copy(update={"parts": {"style": described.source}, "lora": {"style": 0.5}})
    generator = AnyPipeline(adapted, folder, MACHINE, parts={"style": tmp_path})
    save_file({f"unet.{layer}.lora_A.weight": down, f"unet.{layer}.lora_B.weight": up}, tmp_path / "lora.safetensors")
    generator.load_denoiser()
    torch.testing.assert_close(generator.pipe.unet.get_submodule(layer).weight, before + 0.5 * up @ down)
    save_file({"decoder.conv_in.weight": up}, tmp_path / "lora.safetensors")
    with pytest.raises(WeightsError, match="the model's unet does not use 1 of the 1 tensors"):
        generator.load_denoiser()


def test_components_are_moved_one_by_one_where_the_sum_does_not_fit(tmp_path):
    """12 GB in all, the largest component 8: on 16 GB they are resident, on 10 GB moved, on 6 GB refused."""
    folder = folder_of("PixArtAlphaPipeline", "tiny-pixart", tmp_path)
    added = add_card(str(folder), "ours", tmp_path / "local-bench/models").card
    sizes = {"encode": 0, "denoise": 12, "decode": 12, "component": 8}
    described = ModelCard.model_validate(added | {"vram_gb": 12, "vram_by_phase_gb": sizes})
    sampler = Sampler(64, 64, 2)
    plans = {gb: plan_memory(described, sampler, capacity_gb=gb, host_gb=64) for gb in (16, 10, 6)}
    placed = {gb: (plan.offload, bool(plan.refused)) for gb, plan in plans.items()}
    assert placed == {16: ((), False), 10: (("denoise",), False), 6: (("denoise",), True)}
    assert "compiled" not in " ".join(plans[10].sentences)  # it never is, so offloading changes no image


@pytest.mark.parametrize("offload", [(), ("denoise",)], ids=["resident", "offloaded"])
@pytest.mark.parametrize("name", ["SanaSprintPipeline", "StableDiffusion3Img2ImgPipeline"])
def test_a_pipeline_runs_on_the_device(name, offload, table):
    """With diffusers' and accelerate's own offloading."""
    folder, described = pipelines.add(name, table[name])
    request = pipelines.request_of(name, described)
    with fake_cuda():
        generator = pipelines.loaded(described, folder, DEVICE, offload=offload)
        resident = {part.device.type for part in generator.pipe.components.values() if hasattr(part, "parameters")}
        assert resident == {"cpu" if offload else "cuda"}
        pixels = pipelines.pixels(generator, request, 7)
    assert pixels.shape == (1, 64, 64, 3)
    assert pixels.dtype == torch.uint8


def test_an_added_model_runs_and_its_images_depend_on_no_order(tmp_path, capsys):
    folder = folder_of("PixArtAlphaPipeline", "tiny-pixart", tmp_path)
    assert main(["models", "add", str(folder), "--name", "ours"]) == 0
    assert "`models: [{card: ours}]`" in capsys.readouterr().out
    assert main(["models", "fetch", "ours"]) == 0
    assert " folder " in capsys.readouterr().out  # of the column `files`: nothing was built
    found = []
    for order in ("plan", "reverse"):
        Path(f"{order}.yaml").write_text(yaml.safe_dump(CONFIG | {"engine": {"batch_order": order, "device": "cpu"}}))
        assert main(["run", f"{order}.yaml", "--run-dir", order]) == 0, capsys.readouterr().err
        with RunDir.open(Path(order)) as run:
            assert run.store.counts().unscored == 0
            found.append(digests(run))
    assert found[0] == found[1]
    assert main(["plan", "plan.yaml"]) == 0


def test_what_the_pipeline_ignores_is_said(tmp_path, capsys, monkeypatch):
    """A size, where it has sizes of its own (HunyuanDiT), and guidance without a negative prompt (Qwen-Image)."""
    folder = folder_of("PixArtAlphaPipeline", "tiny-pixart", tmp_path)
    path = add_card(str(folder), "ours", tmp_path / "local-bench/models").path
    Path("x.yaml").write_text(yaml.safe_dump(CONFIG | {"engine": {"device": "cpu"}}))
    assert main(["generate", "x.yaml", "--run-dir", "as-planned"]) == 0
    assert "a size of its own" not in capsys.readouterr().err
    with monkeypatch.context() as patch:
        pixels = AnyPipeline.pixels
        patch.setattr(AnyPipeline, "pixels", lambda *a: pixels(*a)[:, :32])
        assert main(["generate", "x.yaml", "--run-dir", "other"]) == 0
    said = "ours: the pipeline makes images of a size of its own (of 64 x 32 pixels, not 64 x 64 as planned)"
    assert capsys.readouterr().err.count(said) == 1
    path.write_text(path.read_text().replace("guidance_scale", "true_cfg_scale"))
    note = "ours: true_cfg_scale has no effect without a negative_prompt in its card"
    for more, noted in ((None, True), ({"negative_prompt": ""}, False)):
        if more:
            path.write_text(path.read_text() + yaml.safe_dump({"call": more}))
        plan = make_plan(RunConfig.model_validate(CONFIG), files=False)
        assert any(sentence.startswith(note) for sentence in plan.notes) == noted


def test_arguments_of_a_card_are_part_of_an_image(tmp_path):
    folder = folder_of("PixArtAlphaPipeline", "tiny-pixart", tmp_path)
    path = add_card(str(folder), "ours", tmp_path / "local-bench/models").path
    config = RunConfig.model_validate({"name": "x", "models": [{"card": "ours"}], "metrics": []})
    before = {one.work_id for one in make_plan(config, files=False).candidates}
    path.write_text(path.read_text() + "call: {clean_caption: false}\n")
    assert not before & {one.work_id for one in make_plan(config, files=False).candidates}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"call": {"strenght": 0.5}}, "PixArtAlphaPipeline has no strenght; its arguments are .*clean_caption"),
        ({"call": {"height": 8}}, "call: height is set for each image"),
        ({"call": {"num_inference_steps": 8}}, "call: num_inference_steps is set for each image"),
        ({"call": {"guidance_scale": 2.0}, "sampler": {"guidance_scale": 4.5}}, "call: guidance_scale is set for each"),
        ({"sampler": {"true_cfg_scale": 2.0}}, "has no true_cfg_scale"),
        ({"sampler": {"image_guidance_scale": 2.0}}, "has no image_guidance_scale"),
        ({"takes": {"pictures": 1}}, "takes no input image"),
        ({"takes": {"mask": True}}, "takes no mask"),
    ],
)
def test_a_setting_that_the_pipeline_lacks_is_an_error(changes, sentence):
    with pytest.raises(ConfigError, match=r"lossy.weights: the family diffusers supports no lossy setting: remove it"):
        check_lossy(["weights"], "diffusers")
    with pytest.raises(ConfigError, match=sentence):
        arguments_of(diffusers.PixArtAlphaPipeline, ModelCard.model_validate(CARD | changes))


def test_a_pipeline_that_needs_the_result_of_another_one_is_refused():
    for pipeline in (diffusers.KandinskyPipeline, diffusers.KandinskyImg2ImgPipeline):
        with pytest.raises(ConfigError, match="needs image_embeds, negative_image_embeds, which other pipelines"):
            arguments_of(pipeline, ModelCard.model_validate(CARD))


def test_a_pipeline_of_several_images_is_an_error(table, monkeypatch):
    """Layers or frames of one prompt."""
    folder, described = pipelines.add("ZImagePipeline", table["ZImagePipeline"])
    generator = pipelines.loaded(described, folder)
    one = type(generator.pipe).__call__
    monkeypatch.setattr(type(generator.pipe), "__call__", lambda *a, **k: ([*one(*a, **k)[0]] * 2,))
    with pytest.raises(ConfigError, match="ZImagePipeline returns several images"):
        pipelines.pixels(generator, pipelines.request_of("ZImagePipeline", described), 7)


def test_what_cannot_be_added_is_refused(tmp_path, monkeypatch):
    folder, cards = folder_of("QwenImagePipeline", "tiny-qwen-image", tmp_path), tmp_path / "local-bench/models"
    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        assert add_card(".", "dot", Path("cards")).card["title"] == folder.name
    for target, name, error, sentence in (
        ("empty", None, WeightsError, "has no model_index.json"),
        ("nowhere", None, ConfigError, "neither a folder nor a Hub repository"),
        ("./nowhere", None, ConfigError, "neither a folder nor a Hub repository"),
        (str(folder), "tiny-flux", ConfigError, "there is already a card 'tiny-flux'"),
        (str(folder), "a b", ConfigError, "cannot be a model's name"),
    ):
        with pytest.raises(error, match=sentence):
            add_card(target, name, cards)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"transformer": ["transformer_of_ours", "Ours"]}))
    (folder / "transformer/transformer_of_ours.py").write_text("class Ours: pass")
    with pytest.raises(WeightsError, match="from code in the repository"):
        add_card(str(folder), None, cards)
    assert not cards.exists()
