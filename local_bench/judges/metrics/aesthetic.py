"""Aesthetic predictor v2.5: predicted human rating of an image's appearance, from a linear head on SigLIP embeddings.

The predictor of discus0434/aesthetic-predictor-v2-5, as used by ICE-Bench (arXiv 2503.14482, section B.1): the image is
resized to a height of 1024 px, SigLIP so400m/14 at 384 px (Zhai et al. 2023) computes its pooled embedding, which is
normalised and passed through five linear layers. The intended scale is 1 to 10, which a linear head may slightly
exceed; higher is better. ICE-Bench divides the score by 10 afterwards. The official code runs in bfloat16; here
everything is float32, so scores differ by the rounding of bfloat16.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from PIL import Image
from safetensors import SafetensorError
from transformers import SiglipVisionModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from local_bench.core.errors import WeightsError
from local_bench.core.images import MAX_PIXELS
from local_bench.core.tensors import load_tensors
from local_bench.judges.metrics.base import Array, Unscorable, Weights, WeightsNetwork
from local_bench.judges.metrics.clip_network import ClipNetwork, normalised, remedy, rows
from local_bench.judges.metrics.dino_ref import load_transformer, read_processor

HEAD = "aesthetic_predictor_v2_5.safetensors"
LAION_HEAD = "sac+logos+ava1-l14-linearMSE.safetensors"
HEIGHT_PX = 1024
_LAYERS = 5


class AestheticNetwork(WeightsNetwork):
    """SigLIP's vision tower and the head; arrays are (1,), the score."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 4, "cuda": 32}
    model = "transformers SiglipVisionModel"
    output = "score of the head on the normalised pooled embedding"

    def __init__(self, weights: Weights) -> None:
        """WeightsError if the folder's preprocessor_config.json is not that of SigLIP."""
        super().__init__(weights)
        self._processor = read_processor(weights, SiglipImageProcessorPil, ("height", "width"))
        size = self._processor.size
        self.description = (
            f"height to {HEIGHT_PX} px, width in proportion and rounded down, unless it has that height (PIL bicubic, "
            f"antialiased), then {size.width}x{size.height} px whatever the aspect (PIL bicubic, antialiased), "
            f"{normalised(self._processor.image_mean, self._processor.image_std)}"
        )

    def open(self, device: str) -> None:
        self._device = torch.device(device)
        self._tower = load_transformer(self._weights, SiglipVisionModel).to(self._device)
        self._head = linear_head(self._weights, HEAD, "scoring_head").to(self._device)

    def close(self) -> None:
        del self._tower, self._head

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> torch.Tensor:
        pixels: torch.Tensor = self._processor(images=to_height(images[0]), return_tensors="pt").pixel_values[0]
        return pixels  # (3, height, width) float32

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        pooled = self._tower(pixel_values=torch.stack(list(prepared)).to(self._device)).pooler_output  # (batch, width)
        return rows(self._head(pooled / pooled.norm(dim=-1, keepdim=True)))


class LaionNetwork(ClipNetwork):
    """CLIP and the head; arrays are (1,), the score. Each feature input is one image.

    Schuhmann et al. 2022 (LAION-5B), the "improved aesthetic predictor" sac+logos+ava1-l14-linearMSE: CLIP ViT-L/14 at
    224 px, normalised embedding, five linear layers without activation functions. The authors' script runs CLIP in
    float16 on a GPU; here everything is float32.
    """

    reads_text: ClassVar[bool] = False
    output = "score of the head on the normalised embedding"

    def open(self, device: str) -> None:
        super().open(device)
        self._head = linear_head(self._weights, LAION_HEAD, "layers")

    def close(self) -> None:
        super().close()
        del self._head

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        embeddings = super().run(prepared)
        # on the host: the head is small, and its result is the same on every device
        return rows(torch.stack([self._head(torch.from_numpy(embedding)) for embedding in embeddings]))


def to_height(image: Image.Image) -> Image.Image:
    """The image resized to a height of 1024 px, as ICE-Bench compares images. Unscorable if the result would be empty
    or too large."""
    if image.height == HEIGHT_PX:
        return image
    width = int(image.width * HEIGHT_PX / image.height)
    if not 0 < width * HEIGHT_PX <= MAX_PIXELS:
        raise Unscorable(f"a picture of {image.width}x{image.height} is too slender to be resized for this metric")
    return image.resize((width, HEIGHT_PX), Image.Resampling.BICUBIC)


def linear_head(weights: Weights, file: str, prefix: str) -> torch.nn.Sequential:
    """The linear layers `prefix.N` of a `file` in the part `head`. WeightsError unless they are as `linear_layers`
    requires."""
    path = weights.parts.get("head", weights.folder) / file
    try:
        return linear_layers({name: tensor.float() for name, tensor in load_tensors(path).items()}, prefix)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as e:
        raise WeightsError(f"{path} is not the expected head ({e}): {remedy(weights)}") from e


def linear_layers(state: Mapping[str, torch.Tensor], prefix: str) -> torch.nn.Sequential:
    """The linear layers `prefix.N` in the order of N; dropout between them has no effect in evaluation. LookupError,
    ValueError or RuntimeError unless `state` has exactly five layers, of which the last has one output."""
    tensors = {name.removeprefix(f"{prefix}."): tensor for name, tensor in state.items()}
    indices = sorted(int(name.partition(".")[0]) for name in tensors if name.endswith(".weight"))
    shapes = {index: tensors[f"{index}.weight"].shape for index in indices}  # (after, before)
    layers = ((str(n), torch.nn.Linear(before, after)) for n, (after, before) in shapes.items())
    head = torch.nn.Sequential(OrderedDict(layers))
    head.load_state_dict(tensors)
    if len(indices) != _LAYERS or shapes[indices[-1]][0] != 1:
        raise ValueError(f"{len(indices)} layers that end in {shapes[indices[-1]][0]} numbers")
    return head.eval()
