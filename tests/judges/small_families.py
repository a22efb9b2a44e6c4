"""A small random model of each family of the judges' cards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from local_bench.testing import vlm_models

THINKING = (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
"""How Qwen3.5 and GLM-4.6V begin an answer."""
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def chat_template(image: str, opening: str = "") -> str:
    """A chat template with this text for an image, and this text after the beginning of the answer."""
    given = vlm_models._CHAT_TEMPLATE
    begin = "<|im_start|>assistant\n"
    for old, new in ((QWEN_IMAGE, image), (begin, begin + opening)):
        assert given.count(old) == 1
        given = given.replace(old, new)
    return given


def tokenizer(**special: str) -> transformers.PreTrainedTokenizerFast:
    """The small tokenizer with further special tokens, by their attributes."""
    known = vlm_models._tokenizer()
    known.add_tokens(["<think>", "</think>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=known.backend_tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|im_start|>",
        extra_special_tokens=special,
    )


def text_config(known: Any, **changed: Any) -> dict[str, Any]:
    """A language model of two layers, without Qwen's multi-dimensional positions."""
    given = vlm_models._text_config(known)
    del given["rope_parameters"]
    return {**given, "head_dim": 64, "tie_word_embeddings": True, **changed}


def mrope(*section: int, **changed: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [*section], **changed}


def save(folder: Path, model: Any, processor: Any) -> None:
    vlm_models._save(folder, model, processor)


QWEN_VISION = {"depth": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 128, "spatial_merge_size": 2}
QWEN_VISION |= {"temporal_patch_size": 2}
PIXELS = {"merge_size": 2, "temporal_patch_size": 2}


def qwen_processor(known: Any, patch: int, template: str) -> Any:
    """The processor of Qwen2.5-VL and all later Qwen-VL classes."""
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": 1024 * 1024}
    return transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(size=size, patch_size=patch, **PIXELS),
        tokenizer=known,
        video_processor=transformers.Qwen3VLVideoProcessor(size=size, patch_size=patch, **PIXELS),
        chat_template=template,
    )


def build_qwen25_vl(folder: Path) -> None:
    known = vlm_models._tokenizer()
    vision = {**QWEN_VISION, "patch_size": 14, "out_hidden_size": 128, "fullatt_block_indexes": [1]}
    config = transformers.Qwen2_5_VLConfig(
        tie_word_embeddings=True,
        text_config=text_config(known, rope_parameters=mrope(8, 12, 12)),
        vision_config={**vision, "window_size": 56},
        **vlm_models._token_ids(known),
    )
    size = {"shortest_edge": 28 * 28, "longest_edge": 1024 * 1024}
    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(size=size, patch_size=14, **PIXELS),
        tokenizer=known,
        video_processor=transformers.Qwen2VLVideoProcessor(size=size, patch_size=14, **PIXELS),
        chat_template=vlm_models._CHAT_TEMPLATE,
    )
    save(folder, transformers.Qwen2_5_VLForConditionalGeneration(config), processor)


def build_qwen35(folder: Path, moe: bool = False) -> None:
    """One layer of linear attention (GDN) and one of full attention. vLLM's CPU kernel requires heads of 128."""
    known = vlm_models._tokenizer()
    known.add_tokens(["<think>", "</think>"])
    heads = {f"linear_{part}": n for part, n in (("num_key_heads", 2), ("num_value_heads", 2))}
    heads |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    layers = ["linear_attention", "full_attention"]
    rope = mrope(8, 12, 12, mrope_interleaved=True, partial_rotary_factor=1.0)
    text = text_config(known, layer_types=layers, rope_parameters=rope, **heads)
    if moe:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        text |= {"shared_expert_intermediate_size": 64}
    kind = "Qwen3_5Moe" if moe else "Qwen3_5"
    config = getattr(transformers, f"{kind}Config")(
        tie_word_embeddings=True,
        text_config=text,
        vision_config={**QWEN_VISION, "patch_size": 16, "out_hidden_size": 128, "num_position_embeddings": 64},
        **vlm_models._token_ids(known),
    )
    template = chat_template(QWEN_IMAGE, THINKING)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    save(folder, model, qwen_processor(known, 16, template))


def build_qwen35_moe(folder: Path) -> None:
    build_qwen35(folder, moe=True)


def build_internvl(folder: Path) -> None:
    """The classes of the repositories whose names end in -HF."""
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    known = tokenizer(**names, video_token="<video>")
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.InternVLConfig(
        tie_word_embeddings=True,
        text_config={"model_type": "qwen3", **text_config(known)},
        vision_config={**vision, "image_size": [56, 56], "patch_size": [14, 14], "use_qk_norm": False},
        image_token_id=known.context_image_token_id,
        downsample_ratio=0.5,
        image_seq_length=4,
    )
    size = {"height": 56, "width": 56}
    processor = transformers.InternVLProcessor(
        image_processor=transformers.GotOcr2ImageProcessor(size=size, crop_to_patches=True, max_patches=12),
        tokenizer=known,
        video_processor=transformers.InternVLVideoProcessor(size=size),
        image_seq_length=4,
        chat_template=chat_template("<IMG_CONTEXT>\n"),
    )
    save(folder, transformers.InternVLForConditionalGeneration(config), processor)


def build_gemma3(folder: Path) -> None:
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    known = tokenizer(**names)
    known.add_tokens(["\n" * n for n in range(1, 5)])  # vLLM merges the line breaks around an image
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.Gemma3Config(
        text_config=text_config(known, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]),
        vision_config={**vision, "image_size": 56, "patch_size": 14, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=known.image_token_id,
        boi_token_index=known.boi_token_id,
        eoi_token_index=known.eoi_token_id,
    )
    processor = transformers.Gemma3Processor(
        image_processor=transformers.Gemma3ImageProcessor(size={"height": 56, "width": 56}),
        tokenizer=known,
        image_seq_length=4,
        chat_template=chat_template("<start_of_image>"),
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.05)  # zeros: blind
    save(folder, model, processor)
    path = folder / "model.safetensors"
    tensors = {name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})  # the names in published checkpoints, which vLLM reads


def build_gemma4(folder: Path) -> None:
    names = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"}
    names |= {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    known = tokenizer(**names, stc_token="<|channel>", etc_token="<channel|>")
    known.add_special_tokens({"additional_special_tokens": ["<|video|>"]})
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    vision |= {"head_dim": 32, "intermediate_size": 128, "patch_size": 16, "position_embedding_size": 1024}
    vision["default_output_length"] = 280  # vLLM reads it
    layers = ["sliding_attention", "full_attention"]
    config = transformers.Gemma4Config(
        text_config=text_config(
            known, layer_types=layers, global_head_dim=64, num_global_key_value_heads=1, hidden_size_per_layer_input=0
        ),
        vision_config=vision,
        audio_config=None,
        image_token_id=known.image_token_id,
        boi_token_id=known.boi_token_id,
        eoi_token_id=known.eoi_token_id,
        video_token_id=known.convert_tokens_to_ids("<|video|>"),
        tie_word_embeddings=True,
    )
    processor = transformers.Gemma4Processor(
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(),
        image_processor=transformers.Gemma4ImageProcessor(),
        tokenizer=known,
        video_processor=transformers.Gemma4VideoProcessor(),
        chat_template=chat_template("<|image|>"),
    )
    save(folder, transformers.Gemma4ForConditionalGeneration(config), processor)


def build_glm46v(folder: Path, moe: bool = False) -> None:
    """GLM-4.6V-Flash has the classes of GLM-4.1V, GLM-4.6V those of GLM-4.5V."""
    names = {"image_token": "<|image|>", "video_token": "<|video|>", "start": "<|begin_of_image|>"}
    names |= {"end": "<|end_of_image|>", "v_start": "<|begin_of_video|>", "v_end": "<|end_of_video|>"}
    known = tokenizer(**names)
    ids = {name: known.convert_tokens_to_ids(token) for name, token in names.items()}
    rope = mrope(8, 12, 12, partial_rotary_factor=1.0)
    text = text_config(known, rope_parameters=rope, tie_word_embeddings=False)
    if moe:
        text |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1}
        text |= {"topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": False}
    kind = "Glm4vMoe" if moe else "Glm4v"
    config = getattr(transformers, f"{kind}Config")(
        text_config=text,
        vision_config={**QWEN_VISION, "patch_size": 14, "out_hidden_size": 128, "image_size": 112},
        image_token_id=ids["image_token"],
        video_token_id=ids["video_token"],
        image_start_token_id=ids["start"],
        image_end_token_id=ids["end"],
        video_start_token_id=ids["v_start"],
        video_end_token_id=ids["v_end"],
    )
    size = {"shortest_edge": 28 * 28 * 2, "longest_edge": 1024 * 1024}
    processor = transformers.Glm46VProcessor(
        image_processor=transformers.Glm46VImageProcessor(size=size, patch_size=14, **PIXELS),
        tokenizer=known,
        video_processor=transformers.Glm46VVideoProcessor(size=size, patch_size=14, **PIXELS),
        chat_template=chat_template("<|begin_of_image|><|image|><|end_of_image|>", THINKING),
    )
    save(folder, getattr(transformers, f"{kind}ForConditionalGeneration")(config), processor)


def build_glm46v_moe(folder: Path) -> None:
    build_glm46v(folder, moe=True)


CARDS = {
    "qwen25-vl": "qwen25-vl-7b",
    "qwen35": "qwen35-9b",
    "qwen35-moe": "qwen35-35b-a3b",
    "internvl": "internvl35-8b",
    "gemma3": "gemma3-12b",
    "gemma4": "gemma4-31b",
    "glm46v": "glm46v-flash",
    "glm46v-moe": "glm46v",
}
"""The card of each family whose settings are used."""
BUILDERS: dict[str, Callable[[Path], None]] = {
    "qwen25-vl": build_qwen25_vl,
    "qwen35": build_qwen35,
    "qwen35-moe": build_qwen35_moe,
    "internvl": build_internvl,
    "gemma3": build_gemma3,
    "gemma4": build_gemma4,
    "glm46v": build_glm46v,
    "glm46v-moe": build_glm46v_moe,
}


def build(name: str, folder: Path) -> None:
    """Save a small random model of this family."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BUILDERS[name](folder)
