"""CLIP-cap: how well a picture fits its caption, as the cosine of CLIP's image and text embeddings.

Radford et al. 2021; ICE-Bench's CLIP-cap takes ViT-L/14 at 336 px. In [-1, 1], higher is better. The picture goes
through the model's own preprocessing (shortest side resized, bicubic with antialiasing, centre crop, mean and
deviation), the caption through its tokenizer, cut at 77 tokens. One picture a forward pass, float32.
"""

from collections.abc import Sequence
from pathlib import Path

import open_clip
import torch
from PIL import Image

from local_bench.core.nouns import Score
from local_bench.judges.metrics.base import MetricSpec

CLIP_CAP = "clip_cap"


def make(name: str, weights: Path) -> "ClipCap":
    return ClipCap(name, weights)


class ClipCap:
    """CLIP-cap by one CLIP model from a local folder in open_clip's layout."""

    def __init__(self, name: str, weights: Path) -> None:
        location = f"local-dir:{weights}"
        self._model, _, self._prepare = open_clip.create_model_and_transforms(location, precision="fp32")
        self._model.eval()
        self._tokens = open_clip.get_tokenizer(location)
        prepared = " ".join(str(self._prepare).split())
        self.spec = MetricSpec(name, True, prepared, "open_clip, cosine of image and caption", needs_caption=True)

    def score(self, images: Sequence[Image.Image], captions: Sequence[str | None]) -> list[Score]:
        return [self._one(image, caption) for image, caption in zip(images, captions, strict=True)]

    def _one(self, image: Image.Image, caption: str | None) -> Score:
        if not caption:
            return Score(self.spec.name, None, "there is no caption to compare it with")
        with torch.inference_mode():
            seen = self._model.encode_image(self._prepare(image).unsqueeze(0), normalize=True)  # (1, width)
            read = self._model.encode_text(self._tokens([caption]), normalize=True)  # (1, width)
        return Score(self.spec.name, float((seen * read).sum()))
