"""ImageReward: predicted human preference for an image and its prompt, from a fine-tuned BLIP ViT-L.

Xu et al. 2023 (arXiv 2304.05977); github.com/THUDM/ImageReward, ImageReward/ImageReward.py (`score`, `_transform`,
`MLP`) and models/BLIP: the prompt's text encoder attends to the image's tokens, five linear layers without activation
functions map its first token to a number, and that is standardised by the training set's mean and deviation. Higher is
better; most values are between -2.5 and 2. The encoders are transformers' BLIP with the checkpoint's names translated.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from PIL import Image
from safetensors import SafetensorError
from tokenizers import BertWordPieceTokenizer
from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

from local_bench.core.errors import WeightsError
from local_bench.core.files import read_text
from local_bench.core.tensors import load_tensors
from local_bench.judges.metrics.aesthetic import linear_layers
from local_bench.judges.metrics.base import Array, Weights, WeightsNetwork
from local_bench.judges.metrics.clip_network import clip_transform, refuse_slender, remedy, rows

FILE = "ImageReward.safetensors"
SIZE_PX = 224
TOKENS = 35
MEAN, STD = 0.16717362830052426, 1.0333394966054072
HEAD_WIDTH = 64
"""Width of each attention head of BLIP's encoders."""
VISION, TEXT, HEAD = "blip.visual_encoder.", "blip.text_encoder.", "mlp."
NAMES = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.(\d+)\.norm", r"encoder.layers.\1.layer_norm"),
    (r"^blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.projection."),
    (r"^blocks\.(\d+)\.attn\.", r"encoder.layers.\1.self_attn."),
    (r"^blocks\.", "encoder.layers."),
    (r"^norm\.", "post_layernorm."),
)
"""Names in the image encoder of the checkpoint and in transformers; those of the text encoder are equal."""


class RewardNetwork(WeightsNetwork):
    """BLIP and the linear layers; each feature input is one image with one text. Arrays are (1,), the reward."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 8, "cuda": 64}
    tokens: ClassVar[int] = TOKENS
    model = "transformers BlipVisionModel and BlipTextModel with cross attention, five linear layers"
    output = f"(reward - {MEAN}) / {STD}"

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._transform, self.description = clip_transform({"size": SIZE_PX})

    @cached_property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"tokens": self.tokens}

    @cached_property
    def _tokenizer(self) -> BertWordPieceTokenizer:
        path = self._weights.parts["tokenizer"] / "vocab.txt"
        words = read_text(path, WeightsError, missing=remedy(self._weights)).removesuffix("\n").split("\n")
        try:
            return BertWordPieceTokenizer({word: i for i, word in enumerate(words)}, lowercase=True)
        except TypeError as e:
            raise WeightsError(f"{path} is not BERT's vocabulary ({e}): {remedy(self._weights)}") from e

    def tokens_if_cut(self, text: str) -> int | None:
        return TOKENS if len(self._tokenizer.encode(text).ids) > TOKENS else None

    def open(self, device: str) -> None:
        self._device = torch.device(device)
        self._vision, self._text, self._head = (part.to(self._device) for part in load_reward(self._weights))

    def close(self) -> None:
        del self._vision, self._text, self._head

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        refuse_slender(images[0], SIZE_PX)
        ids = self._tokenizer.encode(text or "").ids
        ids = [*ids[: TOKENS - 1], ids[-1]] if len(ids) > TOKENS else ids  # the last one is [SEP]
        tokens, mask = torch.zeros(2, TOKENS, dtype=torch.int64)
        tokens[: len(ids)], mask[: len(ids)] = torch.tensor(ids), 1
        return self._transform(images[0]), tokens, mask  # (3, 224, 224) float32, (35,) int64, (35,) int64

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        pixels, tokens, mask = (torch.stack(part).to(self._device) for part in zip(*prepared, strict=True))
        image = self._vision(pixel_values=pixels).last_hidden_state  # (batch, patches + 1, width)
        text = self._text(input_ids=tokens, attention_mask=mask, encoder_hidden_states=image).last_hidden_state
        return rows((self._head(text[:, 0]) - MEAN) / STD)


def load_reward(weights: Weights) -> tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module]:
    """Image encoder, text encoder and linear layers, in float32 and the sizes of the checkpoint's tensors. WeightsError
    if a tensor is missing or does not fit."""
    path = weights.folder / FILE
    try:
        state = load_tensors(path)
        vision, text, head = (_below(state, prefix) for prefix in (VISION, TEXT, HEAD))
        text.pop("embeddings.position_ids", None)  # a constant
        width, _, patch, _ = vision["patch_embed.proj.weight"].shape
        described = BlipVisionConfig(
            hidden_size=width,
            intermediate_size=vision["blocks.0.mlp.fc1.weight"].shape[0],
            num_hidden_layers=sum(name.endswith("attn.qkv.weight") for name in vision),
            num_attention_heads=width // HEAD_WIDTH,
            image_size=SIZE_PX,
            patch_size=patch,
            layer_norm_eps=1e-6,  # that of the authors' code; transformers' default is another
        )
        vocabulary, text_width = text["embeddings.word_embeddings.weight"].shape
        of_text = BlipTextConfig(
            vocab_size=vocabulary,
            hidden_size=text_width,
            encoder_hidden_size=width,
            intermediate_size=text["encoder.layer.0.intermediate.dense.weight"].shape[0],
            num_hidden_layers=sum(name.endswith("attention.self.query.weight") for name in text) // 2,
            num_attention_heads=text_width // HEAD_WIDTH,
            max_position_embeddings=text["embeddings.position_embeddings.weight"].shape[0],
        )
        models = BlipVisionModel(described), BlipTextModel(of_text, add_pooling_layer=False)
        models[0].load_state_dict({_renamed(name): tensor for name, tensor in vision.items()}, strict=True)
        models[1].load_state_dict(text, strict=True)
        return models[0].eval(), models[1].eval(), linear_layers(head, "layers")
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as e:
        raise WeightsError(f"{path} is not ImageReward's checkpoint ({e}): {remedy(weights)}") from e


def _below(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor.float() for name, tensor in state.items() if name.startswith(prefix)}


def _renamed(name: str) -> str:
    return next((re.sub(old, new, name) for old, new in NAMES if re.search(old, name)), name)
