"""A LoRA file is fused as a whole or refused: which layouts and extra keys are used, and which are named."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.generators.lora import fuse_adapters
from local_bench.generators.registry import FAMILIES
from local_bench.models.cards import card, cards
from local_bench.models.weights import resolve
from local_bench.runs import plan
from local_bench.runs.config import JudgeConfig, RunConfig

ATTENTION = "transformer.transformer_blocks.0.attn"
DEEPER = "transformer.transformer_blocks.20.attn.to_q"
KOHYA = "lora_unet_double_blocks_0_img_attn"
COMFY = "diffusion_model.double_blocks.0.img_attn.proj"
T5 = "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q"
TO_Q, TO_K, TO_V, TO_OUT = (f"transformer_blocks.0.attn.to_{layer}" for layer in ("q", "k", "v", "out.0"))


def pair(layer, outputs=64, inputs=64, rank=4, names=("lora_A", "lora_B")):
    generator = torch.Generator().manual_seed(len(layer))
    down, up = torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)
    return {f"{layer}.{names[0]}.weight": down * 0.1, f"{layer}.{names[1]}.weight": up * 0.1}


def kohya(layer, **sizes):
    return pair(layer, **sizes, names=("lora_down", "lora_up"))


def zeros(state):
    return {key: torch.zeros_like(tensor) for key, tensor in state.items()}


GOOD = pair(f"{ATTENTION}.to_q") | pair(f"{ATTENTION}.to_k", rank=8)
XLABS = {
    f"double_blocks.0.processor.{layer}_lora1.{part}.weight": torch.ones(size)
    for layer, outputs in (("qkv", 192), ("proj", 64))
    for part, size in (("down", (4, 64)), ("up", (outputs, 4)))
}


@pytest.fixture
def flux():
    from diffusers import FluxPipeline

    weights = resolve(card("tiny-flux", "generator"))
    return FluxPipeline.from_pretrained(weights, text_encoder=None, text_encoder_2=None)


def fuse(pipe, folder, state, denoiser="transformer"):
    """The names of the weights that the adapter changes."""
    save_file(state, folder / "lora.safetensors")
    before = {name: weight.clone() for name, weight in getattr(pipe, denoiser).state_dict().items()}
    fuse_adapters(pipe, denoiser, {"style": 1.0}, {"style": folder}, "my-flux")
    after = getattr(pipe, denoiser).state_dict()
    assert after.keys() == before.keys()
    return {name.removesuffix(".weight") for name, weight in after.items() if not torch.equal(weight, before[name])}


MAGNITUDES = {f"{ATTENTION}.{layer}.lora_magnitude_vector": torch.ones(64) for layer in ("to_q", "to_k")}
BIASES = {f"{ATTENTION}.{layer}.lora_B.bias": torch.ones(64) for layer in ("to_q", "to_k")}
QKV = f"{KOHYA}_qkv"
FITTING = {
    "two-ranks": (GOOD, {TO_Q, TO_K}),
    "alpha": (GOOD | {f"{ATTENTION}.to_q.alpha": torch.tensor(2.0)}, {TO_Q, TO_K}),
    "zeros-for-another-layer": (GOOD | zeros(pair(DEEPER)), {TO_Q, TO_K}),
    "dora-of-peft": (GOOD | MAGNITUDES, {TO_Q, TO_K}),
    "bias": (GOOD | BIASES, {TO_Q, TO_K, f"{TO_Q}.bias", f"{TO_K}.bias"}),
    "kohya": (
        kohya(QKV, outputs=192) | {f"{QKV}.alpha": torch.tensor(2.0)} | kohya(f"{KOHYA}_proj"),
        {TO_Q, TO_K, TO_V, TO_OUT},
    ),
    "comfy-with-untrained-t5": (kohya(COMFY) | zeros(kohya(T5)), {TO_OUT}),
    "xlabs": (XLABS, {TO_Q, TO_K, TO_V, TO_OUT}),
}


@pytest.mark.parametrize(("state", "changed"), FITTING.values(), ids=FITTING)
def test_every_layout_of_an_adapter_that_fits_is_fused(flux, tmp_path, state, changed):
    assert fuse(flux, tmp_path, state) == changed


PROJ, FAR = f"{KOHYA}_proj", "lora_unet_double_blocks_{}_img_attn_proj"
UNUSED = {
    "deeper": (GOOD | pair(DEEPER), f"does not use 2 of the 6 tensors in .*{DEEPER}.lora_A.weight"),
    "all-deeper": (pair(DEEPER), "does not use 2 of the 2 tensors"),
    "no-prefix": (
        {key.removeprefix("transformer."): tensor for key, tensor in GOOD.items()},
        r"does not use 4 of the 4 tensors in .*to_q.lora_A.weight, …\): use an adapter",
    ),
    "another-denoiser": (pair("unet.mid_block.attn.to_q"), "does not use 2 of the 2 tensors"),
    "kohya-deeper": (
        kohya(PROJ) | kohya(FAR.format(5)),
        r"2 of the 4 tensors in .*\(lora_unet_double_blocks_5_img_attn_proj.lora_down.weight, ",
    ),
    "kohya-deeper-than-flux": (
        kohya(PROJ) | kohya(FAR.format(20)),
        r"not a LoRA adapter of this model \(Incompatible keys detected: lora_unet_double_blocks_20_img",
    ),
    "narrower": (kohya("lora_unet_single_blocks_0_linear1", outputs=448), "not a LoRA adapter of this model"),
    "dora-of-kohya": (kohya(PROJ) | {f"{PROJ}.dora_scale": torch.ones(64, 1)}, "1 of the 3 tensors in .*dora_scale"),
    "comfy-with-t5": (kohya(COMFY) | kohya(T5), "2 of the 4 tensors in .*t5xxl"),
    "comfy-bias": (kohya(COMFY) | {f"{COMFY}.diff_b": torch.ones(64)}, "1 of the 3 .*diff_b"),
    "norm": (GOOD | {f"{ATTENTION}.norm_q.weight": torch.ones(32)}, "1 of the 5 .*norm_q"),
    "no-adapter": ({"a": torch.ones(1)}, "1 of the 1 tensors"),
    "empty": ({}, "0 of the 0 tensors"),
    "half-a-pair": (
        {key: tensor for key, tensor in GOOD.items() if key != f"{ATTENTION}.to_k.lora_A.weight"},
        "incomplete, it does not contain transformer_blocks.0.attn.to_k.lora_A.weight: replace it",
    ),
    "dora-of-one-layer": (
        GOOD | {f"{ATTENTION}.to_q.lora_magnitude_vector": torch.ones(64)},
        "incomplete, it does not contain .*to_k.lora_magnitude_vector",
    ),
}


@pytest.mark.parametrize(("state", "sentence"), UNUSED.values(), ids=UNUSED)
def test_an_adapter_that_would_be_fused_in_part_is_refused_with_what_is_unused(flux, tmp_path, state, sentence):
    with pytest.raises(WeightsError, match=sentence) as error:
        fuse(flux, tmp_path, state)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "state",
    [
        pair("text_encoder.text_model.encoder.layers.0.self_attn.q_proj", 32, 32),
        GOOD | pair("text_encoder_2.encoder.block.0.layer.0.SelfAttention.q", 32, 32),
        kohya(f"{KOHYA}_proj") | kohya("lora_te1_text_model_encoder_layers_0_self_attn_q_proj", outputs=32, inputs=32),
    ],
    ids=["only", "t5", "kohya"],
)
def test_an_adapter_of_a_text_encoder_is_refused(flux, tmp_path, state):
    with pytest.raises(ConfigError, match=re.escape("only adapters of the transformer are supported")):
        fuse(flux, tmp_path, state)


def test_a_scale_in_the_config_of_peft_is_refused(flux, tmp_path):
    """diffusers does not read adapter_config.json: an adapter with lora_alpha 8 and r 4 would have half its effect."""
    config = tmp_path / "adapter_config.json"
    for more in (
        {"lora_alpha": 8},
        {"lora_alpha": 4, "use_rslora": True},
        {"lora_alpha": 4, "alpha_pattern": {"q": 8}},
    ):
        config.write_text(json.dumps({"peft_type": "LORA", "r": 4} | more))
        with pytest.raises(WeightsError, match=r"adapter_config.json scales the adapter \(lora_alpha \d, r 4\), which"):
            fuse(flux, tmp_path, GOOD)
    config.write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4, "alpha_pattern": {}}))
    assert fuse(flux, tmp_path, GOOD) == {TO_Q, TO_K}


@pytest.mark.parametrize(
    ("name", "parts", "unread"),
    [
        ("tiny-flux", ("style",), "style"),  # a scale in `lora` was forgotten
        ("tiny-flux", ("vae",), "vae"),
        ("tiny-flux-ip-adapter", ("adapter", "image_encoder"), None),
        ("tiny-flux-ip-adapter", ("encoder",), "encoder"),
        ("sd-1.5", ("vae",), "vae"),
    ],
)
def test_a_part_that_its_family_does_not_read_is_refused_before_anything_is_made(monkeypatch, name, parts, unread):
    described = card(name, "generator")
    monkeypatch.setattr(plan, "card", lambda *_: described.model_copy(update=changes))
    changes = {"parts": dict.fromkeys(parts, described.source)}
    config = RunConfig(name="t", suite={"name": "studio"}, models=[{"card": name}])
    if unread is None:
        plan.check_config(config, files=False)
        return
    with pytest.raises(
        ConfigError, match=f"does not read the part '{unread}': give a LoRA adapter its scale in `lora`"
    ):
        plan.check_config(config, files=False)
    changes["lora"] = {unread: 1.0}
    plan.check_config(config, files=False)


READ = {
    "adapter_scale": "flux_ip_adapter",
    "guidance_scale": ".*",
    "image_guidance_scale": "omnigen|instruct_pix2pix",
    "max_sequence_length": "flux.*|sd3.*|qwen_image(_inpaint)?|z_image|pixart_sigma",
    "negative_prompt": "sd3.*|qwen_image.*|z_image|pixart_sigma|instruct_pix2pix",
    "paste_back": "flux_fill|.*_inpaint",
    "true_cfg_scale": "qwen_image.*",
}
"""Setting -> the families whose images it changes."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_setting_that_its_family_does_not_read_is_refused_before_anything_is_made(monkeypatch, family):
    """FLUX.1's pipeline has `true_cfg_scale`, its family here does not: its images would be those without guidance."""
    described = next(c for c in cards().values() if c.family == family)
    config = RunConfig(name="t", suite={"name": "studio"}, models=[{"card": described.name}])
    for setting, readers in READ.items():
        value = "blurred" if setting == "negative_prompt" else True if setting == "paste_back" else 2
        changed = described.sampler.model_copy(update={setting: value})
        monkeypatch.setattr(plan, "card", lambda *_, to=changed: described.model_copy(update={"sampler": to}))
        if re.fullmatch(readers, family):
            plan.check_config(config, files=False)
        else:
            with pytest.raises(ConfigError, match=f"{family} does not read sampler.{setting}: remove it .it reads .*"):
                plan.check_config(config, files=False)


NEEDED = {
    "adapter_scale": "flux_ip_adapter",
    "guidance_scale": "(?!qwen).*",
    "image_guidance_scale": "omnigen|instruct_pix2pix",
    "max_sequence_length": "flux(?!2).*|sd3.*",
    "true_cfg_scale": "qwen_image.*",
}
"""Setting -> the families whose pipeline fails without it, or uses a default of its own."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_setting_that_a_card_sets_to_null_is_refused_where_its_family_needs_it(monkeypatch, family):
    """Each image failed with a TypeError, or was made with a guidance that neither plan nor work id named."""
    described = next(c for c in cards().values() if c.family == family)
    config = RunConfig(name="t", suite={"name": "studio"}, models=[{"card": described.name}])
    for setting in READ:
        changed = described.sampler.model_copy(update={setting: None})
        monkeypatch.setattr(plan, "card", lambda *_, to=changed: described.model_copy(update={"sampler": to}))
        if re.fullmatch(NEEDED.get(setting, ""), family):
            with pytest.raises(ConfigError, match=f"{family} needs sampler.{setting}, which the card leaves out or"):
                plan.check_config(config, files=False)
        else:
            plan.check_config(config, files=False)


def test_a_judge_reads_no_parts(monkeypatch):
    judge = card("mini-judge", "judge")
    monkeypatch.setattr(plan, "card", lambda *_: judge.model_copy(update={"parts": {"adapter": judge.source}}))
    with pytest.raises(ConfigError, match="mini-judge: a judge reads no parts: merge an adapter into its weights"):
        plan.judge_card(JudgeConfig(card="mini-judge"))


def test_a_unet_takes_the_layouts_of_its_pipeline(tmp_path):
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    unet = UNet2DConditionModel(
        block_out_channels=(32, 32), layers_per_block=1, cross_attention_dim=32, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8,
    )  # fmt: skip
    parts = dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor"))
    scheduler = DDIMScheduler(steps_offset=1, clip_sample=False)
    pipe = StableDiffusionPipeline(
        unet=unet, vae=AutoencoderKL(), scheduler=scheduler, requires_safety_checker=False, **parts
    )
    layer = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    for state in (
        kohya(f"lora_unet_{layer.replace('.', '_')}", outputs=32, inputs=32),
        pair(f"unet.{layer.replace('to_q', 'processor.to_q')}_lora", 32, 32, names=("down", "up")),
        pair(f"unet.{layer}", 32, 32),
    ):
        assert fuse(pipe, tmp_path, state, "unet") == {layer}
    with pytest.raises(WeightsError, match="does not use 2 of the 4 tensors"):
        fuse(pipe, tmp_path, state | pair(f"unet.{layer}".replace("_blocks.0", "_blocks.7"), 32, 32), "unet")
