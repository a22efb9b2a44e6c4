"""Small Qwen2-VL and Qwen3-VL judges with seeded random weights, including tokenizer, processor and chat template.

Their answers have the right form but no meaning; all code around them runs as with a real judge.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from local_bench.generators.tokenizers import QWEN_SPECIAL, qwen_vl_processor
from local_bench.models.cards import ModelCard
from local_bench.models.shipped import amplify, byte_characters

SEED = 20260102
HIDDEN = 128
HEADS = 2
_FACTORS = {
    "": 3.0,
    "embed_tokens": 0.3,
    "v_proj": 2.0,
    "o_proj": 2.0,
    "merger": 4.0,
}  # so that answers follow the image
_CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if part.type in ('image', 'image_url') -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def build_qwen2_vl(folder: Path, card: ModelCard) -> None:
    """Saves a Qwen2-VL of 0.5 M parameters into `folder` (patch 14, merge 2, as in the published models)."""
    tokenizer = _tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        config = Qwen2VLConfig(
            tie_word_embeddings=True,
            text_config={**_text_config(tokenizer), "tie_word_embeddings": True},
            vision_config={
                "depth": 2,
                "embed_dim": 64,
                "hidden_size": HIDDEN,
                "num_heads": 2,
                "mlp_ratio": 2,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
            **_token_ids(tokenizer),
        )
        model = Qwen2VLForConditionalGeneration(config)
    _save(folder, model, qwen_vl_processor(tokenizer, _CHAT_TEMPLATE))


def build_qwen3_vl(folder: Path, card: ModelCard) -> None:
    """Saves a Qwen3-VL of 0.6 M parameters into `folder` (patch 16, merge 2, deepstack, interleaved M-RoPE)."""
    tokenizer = _tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        text = _text_config(tokenizer)
        config = Qwen3VLConfig(
            tie_word_embeddings=True,
            text_config={
                **text,
                "head_dim": HIDDEN // HEADS,
                "rope_parameters": {**text["rope_parameters"], "mrope_interleaved": True},
                "tie_word_embeddings": True,
            },
            vision_config={
                "depth": 3,
                "hidden_size": 64,
                "num_heads": 2,
                "intermediate_size": 128,
                "out_hidden_size": HIDDEN,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
            **_token_ids(tokenizer),
        )
        model = Qwen3VLForConditionalGeneration(config)
    pixels = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    size = {"shortest_edge": 32 * 32, "longest_edge": 1024 * 1024}
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size, **pixels),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(size=size, **pixels),
        chat_template=_CHAT_TEMPLATE,
    )
    _save(folder, model, processor)


def _save(
    folder: Path,
    model: Qwen2VLForConditionalGeneration | Qwen3VLForConditionalGeneration,
    processor: Qwen2VLProcessor | Qwen3VLProcessor,
) -> None:
    amplify(model, _FACTORS)
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)


def _tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE. The merges were learnt once: training orders equal counts differently."""
    lines = Path(__file__).with_name("tiny_merges.txt").read_text("utf-8").splitlines()
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    pieces = [*byte_characters(), *(left + right for left, right in merges), *QWEN_SPECIAL]
    return Qwen2Tokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(QWEN_SPECIAL[1:]),
    )


def _text_config(tokenizer: Qwen2Tokenizer) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]},
        "bos_token_id": tokenizer.convert_tokens_to_ids("<|im_start|>"),
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
        "pad_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    }


def _token_ids(tokenizer: Qwen2Tokenizer) -> dict[str, int]:
    names = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    return {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>") for name, token in names.items()}
