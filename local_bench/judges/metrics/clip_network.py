"""CLIP by open_clip: embeddings of images and text, and helpers shared by all embedding metrics.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision". Images are preprocessed as
specified in the model's open_clip_config.json, texts tokenised and truncated to 77 tokens. Arrays are (width,) float32
with norm 1.
"""

import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image

from local_bench.core import strictjson
from local_bench.core.errors import WeightsError
from local_bench.core.images import MAX_PIXELS
from local_bench.judges.metrics.base import Array, Unscorable, Weights, WeightsNetwork

CONFIG = "open_clip_config.json"


class ClipNetwork(WeightsNetwork):
    """A CLIP model from a local folder in open_clip's layout; each feature input is one image or one text."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 8, "cuda": 64}
    reads_text: ClassVar[bool] = True
    model = "open_clip CLIP"
    output = "normalised embedding"

    def __init__(self, weights: Weights) -> None:
        """WeightsError if the folder's open_clip_config.json does not describe a CLIP model."""
        super().__init__(weights)
        self._location = f"local-dir:{weights.folder}"
        config = read_json(weights, CONFIG)
        try:
            settings = {"size": config["model_cfg"]["vision_cfg"]["image_size"], **config.get("preprocess_cfg", {})}
            self._side_px = int(settings["size"])
            self._quick_gelu = bool(config["model_cfg"].get("quick_gelu", False))
            self._tokens = int(config["model_cfg"]["text_cfg"].get("context_length", 77))
            self.transform, self.description = clip_transform(settings)
            """The image transformation, and its description."""
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise WeightsError(
                f"{weights.folder / CONFIG} does not describe a CLIP model ({e!r}): {remedy(weights)}"
            ) from e

    @cached_property
    def identity(self) -> dict[str, Any]:
        transform = {"preprocessing": " ".join(str(self.transform).split())}
        return super().identity | transform | {"quick_gelu": self._quick_gelu, "tokens": self._tokens}

    def open(self, device: str) -> None:
        import open_clip

        self._device = torch.device(device)
        self._model = open_clip.create_model(self._location, precision="fp32", device=device).eval()

    def close(self) -> None:
        del self._model

    @cached_property
    def _tokenizer(self) -> Any:
        import open_clip

        tokenizer = open_clip.get_tokenizer(self._location)
        if isinstance(tokenizer, open_clip.SimpleTokenizer):
            tokenizer.clean_fn = as_clip_reads
        return tokenizer

    def tokens_if_cut(self, text: str) -> int | None:
        limit = self._tokens
        cut, longer = (self._tokenizer([text], length)[0][:limit] for length in (limit, limit + 1))
        return None if torch.equal(cut, longer) else limit  # a text that is cut has its end mark earlier

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        if text is not None:
            return self._tokenizer([text])[0]  # (tokens,) int64
        refuse_slender(images[0], self._side_px)
        return self.transform(images[0])  # (3, height, width) float32

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        batch = torch.stack(list(prepared)).to(self._device)
        encode = self._model.encode_image if batch.is_floating_point() else self._model.encode_text
        return rows(encode(batch, normalize=True))


def as_clip_reads(text: str) -> str:
    """The text as transformers' CLIP tokenizer normalises it before tokenisation: NFC, single spaces, lower case.
    open_clip's own normalisation would also repair HTML entities, curly quotes and wrongly decoded characters."""
    return " ".join(unicodedata.normalize("NFC", text).split()).lower()


def clip_transform(settings: dict[str, Any]) -> tuple[Any, str]:
    """open_clip's evaluation transform for images, and its description.

    `settings` is the image size in pixels and other deviations from CLIP's defaults (`preprocess_cfg` of a config).
    ValueError for a resize mode that no OpenAI CLIP model uses.
    """
    from open_clip.transform import PreprocessCfg, image_transform_v2, merge_preprocess_dict

    wanted = PreprocessCfg(**merge_preprocess_dict(PreprocessCfg(), settings))
    if wanted.resize_mode != "shortest":
        raise ValueError(f"resize_mode {wanted.resize_mode}")
    steps = (
        f"shortest side to {wanted.size} px (PIL {wanted.interpolation}, antialiased), "
        f"centre crop {wanted.size}x{wanted.size}, {normalised(wanted.mean, wanted.std)}"
    )
    return image_transform_v2(wanted, is_train=False), steps


def normalised(mean: Sequence[float], std: Sequence[float]) -> str:
    """Description of the last preprocessing steps."""
    return (
        f"RGB (sRGB values as they are), /255, minus mean ({', '.join(map(str, mean))}), "
        f"by deviation ({', '.join(map(str, std))}), float32"
    )


def refuse_slender(image: Image.Image, shortest_px: int) -> None:
    """Unscorable for an image that would not fit into memory once its shortest side has `shortest_px` pixels."""
    if max(image.size) / min(image.size) * shortest_px**2 > MAX_PIXELS:
        raise Unscorable(f"a picture of {image.width}x{image.height} is too slender to be resized for this metric")


def rows(batch: torch.Tensor) -> list[Array]:
    """One array in host memory for each row."""
    return [row.copy() for row in batch.to(torch.float32).cpu().numpy()]


def read_json(weights: Weights, name: str) -> dict[str, Any]:
    """A model's JSON configuration. WeightsError if it is missing or not a JSON object."""
    path: Path = weights.folder / name
    value = strictjson.read(path, WeightsError, missing=remedy(weights))
    if not isinstance(value, dict):
        raise WeightsError(f"{path} is not a JSON object: {remedy(weights)}")
    return value


def remedy(weights: Weights) -> str:
    """The remedy for model files that the metric cannot read."""
    return (
        f"choose a card that this metric supports, or fetch its model again "
        f"(`local-bench models fetch {weights.card.name}`)"
    )
