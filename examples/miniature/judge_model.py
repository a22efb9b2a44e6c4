"""The small judge before it has learnt anything: a Qwen2-VL with a tokenizer that holds the rubrics' words whole.

Patches of 8, merged two by two: an image of 64x64 is 16 tokens. Tokenizer and processor are saved and read back before
anything is trained with them, since what is read back is what will be served.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoProcessor,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

from examples.miniature.printshop.wording import vocabulary
from examples.miniature.vocabulary import learn
from local_bench.generators.tokenizers import QWEN_SPECIAL
from local_bench.judges.vlm.rubrics import RubricSet, closing_json, closing_logit, system
from local_bench.models.shipped import byte_characters
from local_bench.suites.printshop.phrases import LANGUAGES, language_words
from local_bench.suites.printshop.scene import Pixels
from local_bench.testing import vlm_models as tiny

WIDTH, LAYERS, HEADS, KEY_HEADS = 128, 4, 4, 2
PATCH, MERGE, SIDE = 8, 2, 64
WORDING = RubricSet("miniature")
RUBRICS = ("brf", "veq_technical", "veq_aesthetic", "veq_text", "cns_edit", "cns_set", "vllm_qa", "hype_edit")
_CONTEXT = 8192


def processor(folder: Path) -> Qwen2VLProcessor:
    """As it reads back from `folder`, made first where it is not there."""
    if not (folder / "tokenizer.json").exists():
        pixels = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
        size = {"min_pixels": (PATCH * MERGE) ** 2, "max_pixels": SIDE * SIDE}
        made = Qwen2VLProcessor(
            image_processor=Qwen2VLImageProcessor(**pixels, **size),
            tokenizer=_tokenizer(),
            video_processor=Qwen2VLVideoProcessor(**pixels, **size),
            chat_template=tiny._CHAT_TEMPLATE,
        )
        made.save_pretrained(folder)
    return AutoProcessor.from_pretrained(folder)


def new(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2VLForConditionalGeneration:
    """With first weights of that seed."""
    torch.manual_seed(seed)
    token = tokenizer.convert_tokens_to_ids
    config = Qwen2VLConfig(
        tie_word_embeddings=True,
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KEY_HEADS,
            "max_position_embeddings": _CONTEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": token("<|im_start|>"),
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 2,
            "embed_dim": 96,
            "hidden_size": WIDTH,
            "num_heads": 3,
            "mlp_ratio": 2,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        },
        **tiny._token_ids(tokenizer),
    )
    return Qwen2VLForConditionalGeneration(config)


def taught(work: Path, stage: str) -> tuple[Any, Qwen2VLForConditionalGeneration]:
    """The processor, and the judge as that stage left it."""
    found, tokenizer = plain(work / "judge")
    model = new(tokenizer, 0)
    kept = torch.load(work / f"{stage}.trained.pt", map_location="cpu", weights_only=True)
    model.load_state_dict(kept["judge"])
    return found, model


def _tokenizer() -> Qwen2Tokenizer:
    bare = Qwen2Tokenizer(vocab={c: i for i, c in enumerate((*byte_characters(), *QWEN_SPECIAL))}, merges=[])
    split = bare.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    words = dict.fromkeys(tuple(word) for text in _texts() for word, _ in split(text))
    merges = learn(words)
    pieces = [*byte_characters(), *dict.fromkeys("".join(pair) for pair in merges), *QWEN_SPECIAL]
    return Qwen2Tokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(QWEN_SPECIAL[1:]),
    )


def _texts() -> list[str]:
    """All words that a question or an answer may have."""
    found = [system().text, "system\nuser\nassistant\n"]
    for name in RUBRICS:
        asked = WORDING[name]
        closings = [closing_json(asked), *(closing_logit(asked, criterion) for criterion in asked.criteria)]
        fields = [f'{{"{name}":' for form in asked.answer for name in form] + [
            f',"{n}":' for f in asked.answer for n in f
        ]
        answers = [*fields, "true", "false", "[]}", '["', '","', '"]}', "}"]
        found += [asked.text, *asked.pictures.values(), *closings, *answers, "[title ", "[end point ", "[end brief "]
    found += [word for word in vocabulary() if not word.isascii()]
    found += [" ".join(("", word)) for word in vocabulary() if word.isascii()] + list(vocabulary())
    found += [text for language in LANGUAGES for text in language_words(language).points.values() if "{" not in text]
    return found


def seen(processor: Any, images: Sequence[Pixels], device: torch.device) -> dict[str, torch.Tensor]:
    """Images of 64x64 as the model takes them."""
    side = {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": SIDE**2}
    pil_images = [Image.fromarray(pixels) for pixels in images]
    found = processor.image_processor(images=pil_images, size=side, return_tensors="pt")
    return {name: found[name].to(device) for name in ("pixel_values", "image_grid_thw")}


def plain(folder: Path) -> tuple[Any, Qwen2Tokenizer]:
    """The processor and its tokenizer."""
    found = processor(folder)
    return found, found.tokenizer
