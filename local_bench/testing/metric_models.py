"""Small metric networks with seeded random weights, saved in the layout of the published ones."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model, SiglipConfig, SiglipModel

from local_bench.judges.metrics import embeddings, preferences
from local_bench.judges.metrics.pyiqa_store import seeded
from local_bench.models.cards import ModelCard
from local_bench.models.shipped import amplify

SEED = 20260103
_MODEL = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
_MODEL_OF_LAION = {
    "embed_dim": 64,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 56, "layers": 2, "width": 64, "head_width": 32, "patch_size": 14},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1},
}
_HEAD_WIDTHS = (64, 128, 64, 32, 16, 1)
_MIDDLE = 5.0
"""Output of a small head for a featureless image."""
_GAIN = 1.6
"""Gain of each of its layers, so that scores differ."""


_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *_LETTERS, *(f"##{c}" for c in _LETTERS), "the")
_NORMS = ("norm.weight", "norm1.weight", "norm2.weight")


def build_clip(folder: Path, card: ModelCard) -> None:
    """Saves a CLIP of 3.4 M parameters (3.2 M of them token embeddings) into `folder`."""
    import open_clip

    with seeded(SEED):
        model = open_clip.CLIP(**_MODEL)
    _save_clip(folder, model, _MODEL)


def build_laion_clip(folder: Path, card: ModelCard) -> None:
    """Saves a CLIP with QuickGELU of 0.5 M parameters into `folder`; its embedding depends strongly on the image."""
    import open_clip

    with seeded(SEED + 1):
        model = open_clip.CLIP(**_MODEL_OF_LAION)
    amplify(model.visual, {"": 4.0})
    _save_clip(folder, model, _MODEL_OF_LAION)


def build_laion_head(folder: Path, card: ModelCard) -> None:
    """Saves a head for that CLIP into `folder`."""
    indices = (0, 2, 4, 6, 7)  # the published one has no dropout after its fourth layer
    save_file(_head(SEED + 2, "layers", indices), folder / preferences.LAION_HEAD)


def build_siglip(folder: Path, card: ModelCard) -> None:
    """Saves a SigLIP of 0.1 M parameters, text tower included, with its processor's config into `folder`."""
    with seeded(SEED + 3):
        config = SiglipConfig(
            vision_config={
                "hidden_size": _HEAD_WIDTHS[0],
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 56,
                "patch_size": 14,
            },
            text_config={
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "vocab_size": 64,
                "bos_token_id": 0,
                "eos_token_id": 1,
                "projection_size": _HEAD_WIDTHS[0],
            },
        )
        model = SiglipModel(config)
    amplify(model.vision_model, {"": 4.0})
    model.eval().save_pretrained(folder)
    _save_processor(folder, "Siglip", [0.5] * 3, [0.5] * 3, size={"height": 56, "width": 56})


def build_aesthetic_head(folder: Path, card: ModelCard) -> None:
    """Saves a head for that SigLIP into `folder`."""
    save_file(_head(SEED + 4, "scoring_head", (0, 2, 4, 6, 8)), folder / preferences.V2_5_HEAD)


def build_dinov2(folder: Path, card: ModelCard) -> None:
    """Saves a DINOv2 of 0.1 M parameters with its processor's config into `folder`: SwiGLU as in the giant model, and
    position embeddings for another image size than that of its inputs."""
    with seeded(SEED + 5):
        config = Dinov2Config(
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=70,
            patch_size=14,
            use_swiglu_ffn=True,
        )
        model = Dinov2Model(config)
    amplify(model, {"": 6.0})
    model.eval().save_pretrained(folder)
    crop = {"do_center_crop": True, "crop_size": {"height": 56, "width": 56}}
    _save_processor(folder, "Bit", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], size={"shortest_edge": 64}, **crop)


def build_csd(folder: Path, card: ModelCard) -> None:
    """Saves a CSD of 0.8 M parameters into `folder`, under the names of the published checkpoint once converted."""
    from open_clip.transformer import QuickGELU, VisionTransformer

    width, embedding = 2 * embeddings.CSD_HEAD_WIDTH, 64
    with seeded(SEED + 6):
        tower = VisionTransformer(
            image_size=embeddings.CSD_SIDE_PX,
            patch_size=32,
            width=width,
            layers=2,
            heads=2,
            mlp_ratio=4.0,
            output_dim=embedding,
            act_layer=QuickGELU,
        )
        content = torch.randn(width, embedding)
    amplify(tower, {"": 4.0})
    state = {name: tensor.contiguous() for name, tensor in tower.state_dict().items()}
    style = state.pop("proj")
    saved = {f"{embeddings.CSD_BACKBONE}{name}": tensor for name, tensor in state.items()}
    saved |= {
        embeddings.CSD_STYLE: style,
        embeddings.CSD_STYLE.replace("style", "content"): content,
        "optimizer_state_dict.state.0.exp_avg": torch.zeros(width),
    }
    save_file(saved, folder / embeddings.CSD_FILE)


def build_pick_score(folder: Path, card: ModelCard) -> None:
    """Saves a transformers CLIP of 0.9 M parameters (0.8 M of them token embeddings) into `folder`."""
    tower = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "gelu"}
    with seeded(SEED + 7):
        model = CLIPModel(
            CLIPConfig(
                text_config=tower | {"hidden_size": 16, "eos_token_id": 2},  # as in the published config
                vision_config=tower | {"hidden_size": 32, "patch_size": 32},
                projection_dim=32,
            )
        )
    amplify(model, {"": 4.0})
    model.eval().save_pretrained(folder)


def build_hps(folder: Path, card: ModelCard) -> None:
    """Saves a CLIP of 2 M parameters (0.8 M of them token embeddings) into `folder`, under the names of the published
    checkpoint once converted and in its float16."""
    import open_clip

    vision, text = (open_clip.get_model_config("ViT-H-14")[tower] for tower in ("vision_cfg", "text_cfg"))
    with seeded(SEED + 8):
        model = open_clip.CLIP(
            32,
            vision | {"layers": 2, "width": 160, "patch_size": 32},
            text | {"layers": 1, "width": preferences.HPS_TEXT_HEAD_WIDTH, "heads": 1},
        )
    amplify(model, {"": 2.0})
    state = {
        f"{preferences.HPS_STATE}{name}": tensor.half().contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(state, folder / preferences.HPS_FILE)


def build_image_reward(folder: Path, card: ModelCard) -> None:
    """Saves an ImageReward of 0.6 M parameters into `folder`, under the names of the published checkpoint."""
    width, text_width, inner = 128, _HEAD_WIDTHS[0], 96
    linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    linear |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, (preferences.REWARD_SIDE_PX // 32) ** 2 + 1, width),
        "patch_embed.proj.weight": (width, 3, 32, 32),
        "patch_embed.proj.bias": (width,),
        **_layer("norm", (width,)),
    }
    for i in (0, 1):
        for name, shape in (linear | {"norm1": (width,), "norm2": (width,)}).items():
            shapes |= _layer(f"blocks.{i}.{name}", shape)
    shapes = {f"{preferences.REWARD_VISION}{name}": shape for name, shape in shapes.items()}
    text = preferences.REWARD_TEXT
    shapes[f"{text}embeddings.word_embeddings.weight"] = (len(_VOCABULARY) + 2, text_width)  # [DEC] and [ENC]
    shapes[f"{text}embeddings.position_embeddings.weight"] = (64, text_width)
    shapes |= _layer(f"{text}embeddings.LayerNorm", (text_width,))
    for i in (0, 1):
        layer = f"{text}encoder.layer.{i}"
        for part, source in (("attention", text_width), ("crossattention", width)):
            shapes |= _layer(f"{layer}.{part}.self.query", (text_width, text_width))
            shapes |= _layer(f"{layer}.{part}.self.key", (text_width, source))
            shapes |= _layer(f"{layer}.{part}.self.value", (text_width, source))
            shapes |= _layer(f"{layer}.{part}.output.dense", (text_width, text_width))
            shapes |= _layer(f"{layer}.{part}.output.LayerNorm", (text_width,))
        shapes |= _layer(f"{layer}.intermediate.dense", (inner, text_width))
        shapes |= _layer(f"{layer}.output.dense", (text_width, inner))
        shapes |= _layer(f"{layer}.output.LayerNorm", (text_width,))
    generator = torch.Generator().manual_seed(SEED + 9)
    state = {
        name: torch.randn(shape, generator=generator) * (0.2 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5)
        for name, shape in shapes.items()
    }
    state |= {name: 1 + tensor for name, tensor in state.items() if name.lower().endswith(_NORMS)}
    state[f"{text}embeddings.position_ids"] = torch.arange(64)[None]
    save_file(state | _head(SEED + 10, "mlp.layers", (0, 2, 4, 6, 7)), folder / preferences.REWARD_FILE)


def _layer(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the weight and bias of a linear layer, or of a layer norm."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def build_vocabulary(folder: Path, card: ModelCard) -> None:
    """Saves the vocabulary of a BERT tokenizer that splits words into letters into `folder`."""
    (folder / "vocab.txt").write_text("\n".join(_VOCABULARY) + "\n")


def _save_clip(folder: Path, model: torch.nn.Module, described: dict[str, Any]) -> None:
    import open_clip

    preprocess = {
        "mean": list(open_clip.OPENAI_DATASET_MEAN),
        "std": list(open_clip.OPENAI_DATASET_STD),
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    config = {"model_cfg": described, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2))


def _head(seed: int, prefix: str, indices: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """The linear layers of a head under their published names; scores are near the middle of the scale."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for index, (before, after) in zip(indices, pairwise(_HEAD_WIDTHS), strict=True):
        state[f"{prefix}.{index}.weight"] = torch.randn(after, before, generator=generator) * (_GAIN / before**0.5)
        state[f"{prefix}.{index}.bias"] = torch.full((after,), _MIDDLE if after == 1 else 0.0)
    return state


def _save_processor(folder: Path, kind: str, mean: list[float], std: list[float], **settings: Any) -> None:
    """Saves preprocessor_config.json with what these models' published ones have in common, and `settings`."""
    processor = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": mean,
        "image_processor_type": f"{kind}ImageProcessor",
        "image_std": std,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | settings, indent=2))
