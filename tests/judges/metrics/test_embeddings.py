"""Aesthetics, style and DINO on small models: equal to their authors' paths written out here."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from clip.model import VisionTransformer
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor
from transformers import AutoImageProcessor, AutoModel, SiglipModel

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject, Unscorable
from local_bench.judges.metrics.embeddings import paint_outside
from local_bench.judges.metrics.preferences import LAION_HEAD, V2_5_HEAD, to_height

from .helpers import drawn, make_image, metric_of, noise, read, saved, values, weights_of

AESTHETIC, LAION, CSD, DINO = (
    "aes_v2.5:tiny-aesthetic",
    "laion_aes:tiny-laion",
    "style_ref:tiny-csd",
    "dino_ref:tiny-dinov2",
)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
FINE = np.random.default_rng(0).integers(0, 256, (2048, 2048, 3), dtype=np.uint8)
OF_MODEL = "model_state_dict.module."


def openai_tower(tower, state, prefix, size):
    """OpenAI's own tower with these weights, after its transformation of an image."""
    tower.load_state_dict({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
    prepare = Compose([Resize(size, InterpolationMode.BICUBIC), CenterCrop(size), ToTensor(), Normalize(MEAN, STD)])
    return torch.no_grad()(lambda image: tower.eval()(prepare(image).unsqueeze(0))[0])


def siglips_score(image):
    """The vision tower of the complete SigLIP, the preprocessing by PIL and numpy, the head as it is trained."""
    weights = weights_of("tiny-aesthetic")
    tall = image.resize((int(image.width * 1024 / image.height), 1024), Image.Resampling.BICUBIC)
    small = np.asarray(tall.resize((56, 56), Image.Resampling.BICUBIC), np.float64)
    pixels = torch.from_numpy(((small / 255 - 0.5) / 0.5).transpose(2, 0, 1)).float().unsqueeze(0)
    layers = []
    for width, following, dropped in ((64, 128, 0.5), (128, 64, 0.5), (64, 32, 0.5), (32, 16, 0.2)):
        layers += [torch.nn.Linear(width, following), torch.nn.Dropout(dropped)]
    head = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
    state = load_file(weights.parts["head"] / V2_5_HEAD)
    head.load_state_dict({name.removeprefix("scoring_head."): tensor for name, tensor in state.items()})
    with torch.no_grad():
        seen = SiglipModel.from_pretrained(weights.folder).eval().vision_model(pixel_values=pixels).pooler_output
        return float(head.eval()(seen / seen.norm(dim=-1, keepdim=True)))


def laions_score(image):
    """The embedding at length 1, the layers one by one."""
    weights = weights_of("tiny-laion")
    tower = VisionTransformer(56, 14, 64, 2, 2, 64)  # QuickGELU, as OpenAI's
    state = load_file(weights.folder / "open_clip_model.safetensors")
    x = openai_tower(tower, state, "visual.", 56)(image).numpy()
    x = x / np.linalg.norm(x)
    head = load_file(weights.parts["head"] / LAION_HEAD)
    for place in (0, 2, 4, 6, 7):
        x = head[f"layers.{place}.weight"].numpy() @ x + head[f"layers.{place}.bias"].numpy()
    return float(x[0])


@pytest.mark.parametrize(("name", "by_hand"), [(AESTHETIC, siglips_score), (LAION, laions_score)])
def test_an_aesthetic_score_is_that_of_its_authors(tmp_path, name, by_hand):
    subjects = [Subject(str(i), make_image(tmp_path, i, (96 + 16 * i, 80))) for i in range(3)]
    subjects.append(Subject("fine", saved(Image.fromarray(FINE), tmp_path / "fine.png")))  # to height 1024 first
    scores = values(metric_of(name), subjects)
    assert scores == [pytest.approx(by_hand(subject.image.load()), abs=1e-5) for subject in subjects]
    assert max(scores) - min(scores) > 0.05


@pytest.mark.parametrize("size", [(1, 1100), (100000, 8)])
def test_an_extreme_aspect_ratio_is_unscored(size):
    with pytest.raises(Unscorable, match="too slender"):
        metric_of(AESTHETIC).network.prepare([Image.new("RGB", size)], None)
    high = noise(1, (120, 1024))
    assert to_height(high) is high


def test_the_identity_includes_the_head(tmp_path):
    network, weights = metric_of(LAION).network, weights_of("tiny-laion")
    inputs = [FeatureInput((make_image(tmp_path, 1),))]
    bent = load_file(weights.parts["head"] / LAION_HEAD)
    bent["layers.7.bias"] += 1
    save_file(bent, tmp_path / LAION_HEAD)
    other = type(network)(replace(weights, parts={"head": tmp_path}))
    assert other.identity != network.identity
    assert other.key != network.key
    assert read(other, inputs)[0] == pytest.approx(read(network, inputs)[0] + 1, abs=1e-5)


def style(image):
    """CSD's checkpoint as its authors load it: OpenAI's tower without its projection, then the one for style."""
    state = load_file(weights_of("tiny-csd").folder / "pytorch_model.safetensors")
    content = state[f"{OF_MODEL}last_layer_content"]
    projection = state[f"{OF_MODEL}last_layer_style"]
    assert not torch.equal(projection, content)
    tower = VisionTransformer(224, 32, 128, 2, 2, 64)
    tower.proj = None
    seen = openai_tower(tower, state, f"{OF_MODEL}backbone.", 224)(image) @ projection
    return torch.nn.functional.normalize(seen, dim=0).numpy()


def test_style_is_the_cosine_of_the_openai_tower_with_the_style_projection(tmp_path):
    """With the first reference."""
    images = [make_image(tmp_path, 1, (96, 80)), make_image(tmp_path, 2, (40, 96)), drawn(tmp_path / "a.png")]
    expected = [style(image.load()) for image in images]
    arrays = read(metric_of(CSD).network, [FeatureInput((image,)) for image in images])
    np.testing.assert_allclose(arrays, expected, atol=1e-6)
    subject = Subject("a", images[0], references=tuple(images[1:]))
    assert values(metric_of(CSD), [subject]) == pytest.approx([float(expected[0] @ expected[1])], abs=1e-6)


def dino_likeness(image, reference):
    """transformers' own path: what its Auto classes make of the folder, the mean of all tokens."""
    folder = weights_of("tiny-dinov2").folder
    processor, model = AutoImageProcessor.from_pretrained(folder, use_fast=False), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        seen = model.eval()(**processor(images=[image, reference], return_tensors="pt")).last_hidden_state.mean(1)
    return torch.nn.functional.cosine_similarity(*seen, dim=0).item()


def test_dino_is_transformers_own_embedding_with_the_image_white_outside_the_mask(tmp_path):
    """The reference is complete, and the first counts."""
    image, *references = (make_image(tmp_path, i, size) for i, size in enumerate([(96, 80), (64, 120), (96, 80)]))
    mask = Image.new("L", (96, 80), 0)
    mask.paste(255, (20, 10, 70, 60))
    bare = Subject("bare", image, references=tuple(references))
    masked = Subject("masked", image, mask=saved(mask, tmp_path / "m.png"), references=bare.references)
    pixels = np.array(image.load())
    pixels[np.asarray(mask) == 0] = 255
    expected = [dino_likeness(shown, references[0].load()) for shown in (image.load(), Image.fromarray(pixels))]
    metric = metric_of(DINO)
    assert values(metric, [bare, masked]) == pytest.approx(expected, abs=1e-6)
    assert abs(expected[0] - expected[1]) > 1e-3
    assert metric.inputs(masked)[0].key != metric.inputs(bare)[0].key
    assert metric.inputs(masked)[1] == metric.inputs(bare)[1]
    assert "shortest side to 64 px (PIL bicubic, antialiased), centre crop 56x56" in metric.network.description


def test_a_mask_of_another_size_is_resized():
    image, small = noise(1, (96, 80)), Image.new("L", (48, 40), 0)
    small.paste(255, (10, 5, 30, 25))
    resized = np.asarray(small.resize((96, 80), Image.Resampling.BICUBIC))
    expected = np.where(resized[..., None] > 128, np.asarray(image), 255)
    assert np.array_equal(np.asarray(paint_outside(image, small.convert("RGB"))), expected)
    edge = np.asarray(paint_outside(image, Image.fromarray(np.tile(np.uint8([[128, 129]]), (80, 48)))))
    assert (edge[:, ::2] == 255).all()
    assert np.array_equal(edge[:, 1::2], np.asarray(image)[:, 1::2])


PREPROCESSING = "specifies preprocessing other than"
OTHER_FILES = [
    (AESTHETIC, "model.safetensors", lambda s: s.pop("vision_model.post_layernorm.weight"), "lacks .*post_layernorm"),
    (AESTHETIC, "preprocessor_config.json", lambda s: s.update(resample=2), PREPROCESSING),
    (AESTHETIC, "preprocessor_config.json", lambda s: s.update(do_resize=False), PREPROCESSING),
    (AESTHETIC, "preprocessor_config.json", lambda s: s.update(rescale_factor=1.0), PREPROCESSING),
    (AESTHETIC, "preprocessor_config.json", lambda s: s.update(size={"a": 1}), PREPROCESSING),
    (DINO, "preprocessor_config.json", lambda s: s.update(do_center_crop=False), PREPROCESSING),
    *(
        (CSD, "pytorch_model.safetensors", change, "is not CSD's checkpoint")
        for change in (
            lambda s: s.pop(f"{OF_MODEL}last_layer_style"),
            lambda s: s.pop(f"{OF_MODEL}backbone.ln_post.bias"),
            lambda s: s.update({f"{OF_MODEL}backbone.stranger": torch.ones(1)}),
            lambda s: s.update({f"{OF_MODEL}backbone.positional_embedding": torch.ones(10, 128)}),
            lambda s: s.clear(),
        )
    ),
    *(
        (LAION, LAION_HEAD, change, "is not the expected head")
        for change in (
            lambda s: s.pop("layers.7.bias"),
            lambda s: s.update({"layers.9.weight": torch.ones(1, 1), "layers.9.bias": torch.ones(1)}),
            lambda s: s.update({"layers.7.weight": torch.ones(2, 16), "layers.7.bias": torch.ones(2)}),
            lambda s: s.update({"stranger": torch.ones(1)}),
            lambda s: s.clear(),
        )
    ),
]


@pytest.mark.parametrize(("name", "file", "change", "message"), OTHER_FILES)
def test_weights_of_another_kind_are_refused(tmp_path, name, file, change, message):
    weights = weights_of(name.partition(":")[2])
    folder = weights.parts["head"] if file == LAION_HEAD else weights.folder
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    if file.endswith(".json"):
        config = json.loads((folder / file).read_text())
        change(config)
        (tmp_path / file).write_text(json.dumps(config))
    else:
        state = load_file(folder / file)
        change(state)
        save_file(state, tmp_path / file, {"format": "pt"})
    moved = {"parts": {"head": tmp_path}} if file == LAION_HEAD else {"folder": tmp_path}
    with pytest.raises(WeightsError, match=message):
        type(metric_of(name).network)(replace(weights, **moved)).open("cpu")
