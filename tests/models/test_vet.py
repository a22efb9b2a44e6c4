"""What is never loaded, and what does no harm."""

import json

import pytest

from local_bench.core.errors import WeightsError
from local_bench.models.cards import card
from local_bench.models.vet import listing_of, vet
from local_bench.models.weights import resolve

DIFFUSERS = ["diffusers", "FluxTransformer2DModel"]


@pytest.fixture
def model(tmp_path):
    """Writes a pipeline with one transformer, changed as the test wants; None takes a file away."""

    def make(index=None, **changes):
        files = {
            "model_index.json": json.dumps({"_class_name": "FluxPipeline", "transformer": DIFFUSERS} | (index or {})),
            "transformer/config.json": "{}",
            "transformer/diffusion_pytorch_model.safetensors": "weights",
        } | changes
        for name, text in files.items():
            if text is not None:
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return listing_of(tmp_path)

    return make


@pytest.mark.parametrize(
    ("index", "files"),
    [
        ({}, {}),
        ({"text_encoder": ["transformers", "CLIPTextModel"]}, {"text_encoder/config.json": "{}"}),
        ({"helper": ["stable_diffusion", "SomethingOfDiffusers"]}, {"helper/config.json": "{}"}),
        ({"image_encoder": [None, None], "is_distilled": True}, {}),
        ({"text_encoder_select_layers": [2, 5, 8], "sample_sigmas": [1.0, 0.5, None]}, {}),
        ({"safety_checker": ["mine", "Checker"]}, {"safety_checker/pytorch_model.bin": "a pickle that nobody loads"}),
        ({}, {"transformer/diffusion_pytorch_model.bin": "a pickled twin", "convert.py": "a script"}),
        ({}, {"old/model.bin": "in a folder that is not named", "old/config.json": '{"auto_map": {"A": "b"}}'}),
        ({}, {"transformer/config.json": '{"auto_map": {}, "trust_remote_code": false}'}),
        ({}, {"transformer/tokenizer_config.json": '{"tokenizer_class": "ByT5Tokenizer"}'}),
        ({}, {"transformer/tokenizer_config.json": "{}", "transformer/spiece.model": "a vocabulary"}),
        ({"scheduler": ["diffusers", "X"]}, {"scheduler/scheduler_config.json": '{"lambda_min_clipped": -Infinity}'}),
    ],
)
def test_accepted_repositories(model, index, files):
    vet(model(index, **files))


CODE, VAE = "loads transformer from code", {"vae": ["diffusers", "AutoencoderKL"]}
MAPPED = '{"auto_map": {"AutoModel": "mine.Mine"}}'


@pytest.mark.parametrize(
    ("index", "files", "message"),
    [
        ({"transformer": ["mine", "Mine"]}, {"transformer/mine.py": "code"}, CODE),
        ({"transformer": ["mine", "Mine"]}, {}, CODE),
        ({"transformer": ["diffusers", "a.b"]}, {}, CODE),
        ({"transformer": ["diffusers"]}, {}, CODE),
        ({"transformer": [1, "Mine"]}, {"transformer/mine.py": "code"}, CODE),
        ({"transformer": [["mine", "Mine"]]}, {"transformer/mine.py": "code"}, CODE),
        ({"transformer": DIFFUSERS}, {"transformer/diffusers.py": "code"}, CODE),
        ({"_class_name": ["pipeline", "Mine"]}, {"pipeline.py": "code"}, "loads _class_name from code"),
        ({"trust_remote_code": True}, {}, "model_index.json requires code"),
        ({}, {"transformer/config.json": MAPPED}, "transformer/config.json requires"),
        ({}, {"transformer/config.json": "{"}, "transformer/config.json is not a JSON object"),
        ({}, {"model_index.json": "[" * 100_000}, "model_index.json is not a JSON object"),
        (VAE, {}, "lists vae, but that folder is missing"),
        (VAE, {"vae/m.pt": ""}, "vae has only pickled weights (vae/m.pt)"),
        (VAE, {"vae/m.bin": "", "vae/m.fp16.safetensors": "not loaded"}, "vae has only pickled weights"),
        (VAE, {"vae/m.fp16.safetensors": ""}, "vae has only weights of another precision (vae/m.fp16.safetensors)"),
        ({}, {"transformer/d.safetensors.index.json": '{"weight_map": {"a": "../x"}}'}, "transformer/../x"),
        ({}, {"transformer/d.safetensors.index.json": "{}"}, "has no valid weight_map"),
        (
            {},
            {"transformer/tokenizer_config.json": '{"tokenizer_class": "T5Tokenizer"}'},
            "has no vocabulary in its folder",
        ),
    ],
)
def test_refused_repositories(model, index, files, message):
    with pytest.raises(WeightsError) as refusal:
        vet(model(index, **files))
    assert message in str(refusal.value)


def test_a_folder_given_by_hand_is_vetted_but_needs_no_commit(model, tmp_path):
    model()
    flux = card("flux1-dev", "generator")
    weights = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors"
    with pytest.raises(WeightsError, match="is damaged"):
        resolve(flux, str(tmp_path))
    weights.write_bytes((8).to_bytes(8, "little") + b"{}      ")  # no tensors
    assert resolve(flux, str(tmp_path)) == tmp_path
    model({"transformer": ["mine", "Mine"]})
    with pytest.raises(WeightsError, match="loads transformer from code"):
        resolve(flux, str(tmp_path))
