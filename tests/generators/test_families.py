"""Every family: the stages compared with diffusers' own call, and batch invariance: batches never change bytes."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionModelWithProjection

from local_bench.generators.base import GenerationRequest, InputImage
from local_bench.generators.registry import FAMILIES, traits
from local_bench.generators.staged import batch_is_neutral, family

from .conftest import Ready, encode, mask, small

BATCH = 4
BATCHING = [name for name in FAMILIES if traits(name).max_batch != 1]


def one_shot(ready: Ready, request: GenerationRequest, seed: int) -> bytes:
    """The image of the diffusers pipeline, with all weights loaded and one call."""
    name, sampler = ready.card.family, request.sampler
    unused = {"safety_checker": None} if name == "instruct_pix2pix" else {}
    pipeline = type(ready.generator).pipeline
    pipe = pipeline.from_pretrained(ready.weights, dtype=torch.float32, local_files_only=True, **unused)
    pipe.set_progress_bar_config(disable=True)
    input_images = [image.pixels for image in request.input_images]
    arguments = {name: getattr(sampler, name) for name in ("height", "width", "num_inference_steps")}
    arguments |= {"prompt": request.prompt, "generator": torch.Generator("cpu").manual_seed(seed)}
    settings = ("guidance_scale", "true_cfg_scale", "negative_prompt", "max_sequence_length")
    arguments |= {name: getattr(sampler, name) for name in settings if getattr(sampler, name) is not None}
    match name:
        case "flux_kontext":
            arguments |= {"image": input_images[0], "max_area": sampler.height * sampler.width, "_auto_resize": False}
        case _ if request.mask:
            arguments |= {"image": input_images[0], "mask_image": request.mask.pixels, "strength": 1.0}
        case "flux_control":
            arguments["control_image"] = input_images[0]
        case "flux_ip_adapter":
            adapter = {"weight_name": "ip_adapter.safetensors", "image_encoder_pretrained_model_name_or_path": None}
            pipe.load_ip_adapter(str(ready.weights / "ip_adapter"), **adapter)
            pipe.set_ip_adapter_scale(sampler.adapter_scale)
            arguments["ip_adapter_image"] = input_images[0]
        case "qwen_image_edit":
            arguments["image"] = input_images[0]
        case "qwen_image_edit_plus" | "flux2" | "flux2_klein":
            arguments["image"] = input_images
        case "pixart_sigma":
            arguments |= {"use_resolution_binning": False, "clean_caption": False}
        case "instruct_pix2pix":
            arguments |= {"image": input_images[0], "image_guidance_scale": sampler.image_guidance_scale}
            del arguments["height"], arguments["width"]
        case "omnigen":
            tags = "".join(f"<img><|image_{i}|></img>" for i in range(1, len(input_images) + 1))
            arguments |= {"prompt": tags + request.prompt, "input_images": input_images}
            arguments["img_guidance_scale"] = sampler.image_guidance_scale
            torch.manual_seed(seed)  # its VAE samples from the global generator
    return pipe(**arguments).images[0].tobytes()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_stages_give_the_bytes_of_the_diffusers_pipeline(ready, name):
    mine = ready(name)
    item = mine.items[1]
    assert mine.draw([item]) == [one_shot(mine, item.request, item.seed)]


def test_an_ip_adapter_and_its_encoder_are_read_as_they_are_published(ready, machine, tmp_path):
    """FLUX.1 [dev] without them, the adapter alone, and CLIP with its text model (openai/clip-vit-large-patch14)."""
    mine, base, clip = ready("flux_ip_adapter"), tmp_path / "base", tmp_path / "clip"
    shutil.copytree(mine.weights, base)
    (base / "ip_adapter").rename(tmp_path / "adapter")
    vision = CLIPVisionModelWithProjection.from_pretrained(base / "image_encoder")
    text = CLIPTextConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    sizes = {"vision_config": vision.config.to_dict(), "projection_dim": vision.config.projection_dim}
    both = CLIPModel(CLIPConfig(text_config=text.to_dict(), **sizes))
    both.load_state_dict(vision.state_dict(), strict=False)
    both.save_pretrained(clip)
    (base / "feature_extractor/preprocessor_config.json").rename(clip / "preprocessor_config.json")
    index = json.loads((base / "model_index.json").read_text())
    for name in ("image_encoder", "feature_extractor"):
        shutil.rmtree(base / name)
        del index[name]
    (base / "model_index.json").write_text(json.dumps(index))
    parts = {"adapter": tmp_path / "adapter", "image_encoder": clip}
    generator = family("flux_ip_adapter")(mine.card, base, machine, parts)
    items = encode(generator, [mine.items[0].request])
    generator.load_denoiser()
    assert Ready(mine.card, base, generator, items).draw(items) == mine.draw(mine.items[:1])


@pytest.mark.parametrize("name", FAMILIES)
def test_prompt_seed_and_image_all_matter(ready, name):
    mine = ready(name)
    item, other = mine.items[:2]
    of_prompt = replace(item.request, prompt=other.request.prompt)
    items = [item, replace(item, seed=7), replace(item, text=other.text, request=of_prompt)]
    if item.request.input_images:
        of_images = replace(item.request, input_images=other.request.input_images)
        items.append(replace(item, request=of_images, input_images=other.input_images))
    if item.request.mask:
        items.append(replace(item, request=replace(item.request, mask=other.request.mask)))
    assert len({mine.draw([changed])[0] for changed in items}) == len(items)


@pytest.mark.parametrize("name", [name for name in FAMILIES if small(name)[0].takes.mask])
def test_a_mask_of_another_size_and_one_that_is_all_black_or_all_white_work(ready, name):
    mine, item = ready(name), ready(name).items[0]
    masks = [mask(1, 40, 24), *(InputImage(colour, Image.new("RGB", (8, 8), colour)) for colour in ("black", "white"))]
    assert len({mine.draw([replace(item, request=replace(item.request, mask=m))])[0] for m in masks}) == 3


def alone(mine: Ready, items):
    """The items in a form that can be batched: without images if the family does not batch images."""
    if not mine.generator.traits.unbatched_with_images:
        return items
    return [replace(item, request=replace(item.request, input_images=()), input_images=()) for item in items]


@pytest.mark.parametrize("name", BATCHING)
def test_in_a_fixed_shape_slot_neighbours_and_padding_do_not_change_bytes(ready, name):
    mine = ready(name)
    probed, *others = alone(mine, mine.items)
    expected = mine.draw([probed] * BATCH)[0]
    reseeded = [replace(other, seed=other.seed + 50) for other in others]
    for slot, neighbours in enumerate((others, others[::-1], reseeded, others)):
        assert mine.draw([*neighbours[:slot], probed, *neighbours[slot:]])[slot] == expected
    assert mine.draw([others[0], probed, probed, probed])[1] == expected  # a padded tail


@pytest.mark.parametrize("name", BATCHING)
def test_the_batch_invariance_check_passes(ready, name):
    mine = ready(name)
    assert batch_is_neutral(mine.generator, alone(mine, mine.items), BATCH)


def test_another_batch_shape_changes_bytes(ready):
    """The negative control: without the fixed shape, batches would change bytes."""
    changed = 0
    for mine in map(ready, BATCHING):
        items = alone(mine, mine.items)
        changed += any(mine.draw([item])[0] != mine.draw([item] * BATCH)[0] for item in items)
    assert changed >= 3


def test_the_batch_invariance_check_detects_dependent_slots(ready, monkeypatch):
    mine = ready("flux")
    real = mine.generator.denoise

    def leaking(items):
        latents = real(items)
        return latents + 1e-3 * latents.mean(dim=0, keepdim=True)

    monkeypatch.setattr(mine.generator, "denoise", leaking)
    assert not batch_is_neutral(mine.generator, mine.items, BATCH)


@pytest.mark.parametrize("name", ["qwen_image", "qwen_image_edit"])
def test_qwens_transformer_receives_no_mask_and_lengths_are_not_batched_together(ready, name, monkeypatch):
    mine, masks = ready(name), []
    transformer, name_of_mask = mine.generator.pipe.transformer, "encoder_hidden_states_mask"
    real = transformer.forward
    monkeypatch.setattr(transformer, "forward", lambda *a, **k: masks.append(k[name_of_mask]) or real(*a, **k))
    mine.draw(mine.items[:2])
    assert set(masks) == {None}
    longer = replace(mine.items[0].request, prompt=mine.items[0].request.prompt + " and another")
    (item,) = encode(type(mine.generator)(mine.card, mine.weights, mine.generator.machine), [longer])
    assert item.shape != mine.items[0].shape


def test_qwen_is_guided_by_its_negative_prompt(ready):
    """Without one the pipeline warns and applies no guidance."""
    _, sampler = small("qwen_image")
    assert sampler.negative_prompt == " "
    mine = ready("qwen_image")
    stronger = replace(mine.items[0].request, sampler=replace(sampler, true_cfg_scale=9.0))
    assert mine.draw([replace(mine.items[0], request=stronger)]) != mine.draw([mine.items[0]])


def test_an_image_is_encoded_once(ready, monkeypatch):
    mine, calls = ready("qwen_image_edit"), []
    pipeline = type(mine.generator.pipe)
    read = pipeline._encode_vae_image
    monkeypatch.setattr(pipeline, "_encode_vae_image", lambda self, **k: calls.append(1) or read(self, **k))
    fresh = type(mine.generator)(mine.card, mine.weights, mine.generator.machine)
    fresh.load_denoiser()
    for seed in (1, 5):
        fresh.denoise([replace(mine.items[0], seed=seed)])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("name", "limit", "lost"),
    [("flux", 64, {"clip": 0, "t5": 0}), ("flux", 5, {"clip": 0, "t5": 3}), ("pixart_sigma", 5, {"t5": 3})],
)
def test_truncated_tokens_are_counted(ready, name, limit, lost):
    mine = ready(name)
    sampler = replace(mine.sampler, max_sequence_length=limit)
    fresh = type(mine.generator)(mine.card, mine.weights, mine.generator.machine)
    (item,) = encode(fresh, [GenerationRequest("a door", sampler)])
    assert item.text.truncated_tokens == lost
