"""`models add`: the card of a judge, from the config of a vision-language model and the headers of its weights."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from local_bench.core.errors import WeightsError
from local_bench.judges.vlm.vllm_process import vllm_version
from local_bench.models.cards import ModelCard
from local_bench.models.vet import Listing, listing_of
from local_bench.models.weights import resolve

_MAX_LEN = 8192
_SERVING_GB = 5
"""Memory for serving in addition to the weights, as in the shipped cards."""
_SHARE_GB = 75
"""What weights and serving may take of a GPU of 80 GB."""
_TEXT = ("text_config", "llm_config", "language_config")
_MAX_PIXELS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast")
"""Image processors that have `max_pixels`."""
_FIXED = ("mm_tokens_per_image", "image_seq_length", "vision_soft_tokens_per_image", "default_output_length")
"""Where configs have the number of tokens per image or tile."""
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_THINKING = "enable_thinking"


def judge_fields(listing: Listing, parameters: int) -> tuple[dict[str, Any], list[str]]:
    """The card's fields that follow from the model's configs, and what they do not say, one sentence each. WeightsError
    for a model that neither vLLM nor transformers serves with images."""
    config = listing.json("config.json") if "config.json" in listing.names else {}
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None
    if architecture is None or not _takes_images(architecture, str(config.get("model_type"))):
        raise WeightsError(
            f"{listing.where} is neither a diffusers pipeline nor a vision-language model that vLLM serves (its "
            f"architecture is {architecture}): choose another model"
        )
    text = next((config[key] for key in _TEXT if isinstance(config.get(key), dict)), config)
    context = _whole(text.get("max_position_embeddings")) or _whole(config.get("max_position_embeddings"))
    images, notes = _images(listing, config)
    if not context:
        notes.append(f"The context length is not known: {_MAX_LEN} tokens are assumed.")
    thinks = any(_THINKING.encode() in listing.read(name) for name in _TEMPLATES if name in listing.names)
    if thinks:
        notes.append("Its chat template has `enable_thinking`, which is off: `thinking` in the card reads thoughts.")
    vram_gb = round(parameters * 2e-9 + _SERVING_GB, 1)
    gpus = next(n for n in (1, 2, 4, 8, 16, 32) if vram_gb / n <= _SHARE_GB or n == 32)
    notes.append(f"Memory is an estimate: its weights in 16 bits and {_SERVING_GB} GB.")
    fields = {
        "role": "judge",
        "family": str(config.get("model_type") or architecture),
        "title": f"{Path(listing.where).resolve().name} ({architecture})",
        "parameters_b": round(parameters / 1e9, 3),
        "vram_gb": vram_gb,
        **images,
        **({"chat_template_kwargs": {_THINKING: False}} if thinks else {}),
        "context": context or _MAX_LEN,
        "max_model_len": min(context or _MAX_LEN, _MAX_LEN),
        "tensor_parallel_size": gpus,
    }
    return fields, notes


def unknown_variables(card: ModelCard, weights: str | None, variables: Iterable[str]) -> Iterator[str]:
    """A sentence for each variable, of the card or further ones, that the judge's chat template does not have."""
    for name in dict.fromkeys((*card.chat_template_kwargs, *variables)):
        listing = listing_of(resolve(card, weights))
        texts = [listing.read(file) for file in _TEMPLATES if file in listing.names]
        if any(b"{%" in text for text in texts) and not any(name.encode() in text for text in texts):
            yield f"chat_template_kwargs.{name} has no effect: the chat template of {card.name} has no such variable."


def _takes_images(architecture: str, model_type: str) -> bool:
    """Whether vLLM has a class of this name for images, or without vLLM transformers one for this model type."""
    if vllm_version() is None:
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

        return model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # it logs to the standard output
    from vllm.model_executor.models import registry

    return architecture in registry._MULTIMODAL_MODELS


def _images(listing: Listing, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The card's fields about images, and what is not known of them."""
    processor: dict[str, Any] = {}
    for name in ("processor_config.json", "preprocessor_config.json"):
        loaded = listing.json(name) if name in listing.names else {}
        inner = loaded.get("image_processor")
        processor |= loaded | (inner if isinstance(inner, dict) else {})
    vision = config.get("vision_config")
    vision = vision if isinstance(vision, dict) else {}
    patch, merge = _whole(vision.get("patch_size")), _whole(vision.get("spatial_merge_size"))
    fields: dict[str, Any] = {}
    if processor.get("image_processor_type") not in _MAX_PIXELS:
        fields["mm_processor_kwargs"] = {}
    if patch and merge and patch * merge <= _MAX_LEN:
        return {"patch": patch * merge} | fields, []
    fixed = next((n for key in _FIXED if (n := _whole(config.get(key)) or _whole(vision.get(key)))), None)
    tiles = _whole(processor.get("max_patches"))
    if fixed and fixed * (tiles or 1) < 2**16 and "image_grid_pinpoints" not in config:
        return {"patch": 1, "image_tokens": fixed * (tiles + 1 if tiles else 1) + 4} | fields, []
    return fields, ["The tokens of an image are not known: one for 28 x 28 pixels is planned (`image_tokens`)."]


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**24 else None
