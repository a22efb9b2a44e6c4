"""PickScore: predicted human preference for an image and its prompt, from a fine-tuned CLIP ViT-H/14.

Kirstain et al. 2023, "Pick-a-Pic" (arXiv 2305.01569); github.com/yuvalkirstain/PickScore, README.md, "Inference with
PickScore": exp(logit_scale) times the cosine of the embeddings by transformers' CLIPModel, inputs by the processor of
laion/CLIP-ViT-H-14-laion2B-s32B-b79K, whose settings are CLIP's defaults. Higher is better; typical values are 17 to
25. The softmax over several images in that code is not applied.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from open_clip import SimpleTokenizer
from transformers import CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from local_bench.judges.metrics.base import Array, Weights
from local_bench.judges.metrics.clip_network import ClipNetwork, as_clip_reads, normalised, rows
from local_bench.judges.metrics.dino_ref import load_transformer


class PickNetwork(ClipNetwork):
    """transformers' CLIPModel; embeddings of images have norm 1, those of texts norm exp(logit_scale)."""

    model = "transformers CLIPModel"
    output = "image: normalised embedding; text: normalised embedding times exp(logit_scale)"

    def __init__(self, weights: Weights) -> None:
        self._weights, self._side_px, self._tokens, self._quick_gelu = weights, 224, 77, False
        processor = CLIPImageProcessorPil()
        self.transform = lambda image: processor(images=image, return_tensors="pt").pixel_values[0]
        self.description = (
            "shortest side to 224 px (PIL bicubic, antialiased), centre crop 224x224, "
            f"{normalised(processor.image_mean, processor.image_std)}"
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"preprocessing": self.description}

    def open(self, device: str) -> None:
        self._device = torch.device(device)
        self._model = load_transformer(self._weights, CLIPModel).to(self._device)

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = SimpleTokenizer()  # with this normalisation, the tokens are those of transformers' CLIPTokenizer
        tokenizer.clean_fn = as_clip_reads
        return tokenizer

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        batch = torch.stack(list(prepared)).to(self._device)
        if batch.is_floating_point():
            embedding = self._model.get_image_features(pixel_values=batch).pooler_output  # (batch, width)
            return rows(torch.nn.functional.normalize(embedding, dim=-1))
        embedding = self._model.get_text_features(input_ids=batch).pooler_output
        return rows(self._model.logit_scale.exp() * torch.nn.functional.normalize(embedding, dim=-1))
