"""DINOv2 by transformers: the mean of all its tokens, with pixels outside a mask painted white.

Oquab et al. 2023, "DINOv2: Learning Robust Visual Features without Supervision". Images are preprocessed by the model's
own processor (its PIL version, with which the published numbers were computed). Arrays are (width,) float32 with norm
1: the mean of last_hidden_state over all tokens, including the class token.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from transformers import Dinov2Model
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from local_bench.core.environment import quiet_transformers
from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import Array, Weights, WeightsNetwork
from local_bench.judges.metrics.clip_network import normalised, read_json, refuse_slender, remedy, rows

INSIDE_FROM = 129
"""Mask values of at least this are inside."""
OUTSIDE = 255
"""Colour of pixels outside the mask: white."""
_BICUBIC = 3


class DinoNetwork(WeightsNetwork):
    """A DINOv2 model; a feature input is one image, or an image and the mask of its relevant part."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 4, "cuda": 32}
    model = "transformers Dinov2Model"
    output = "normalised mean of all tokens of last_hidden_state"

    def __init__(self, weights: Weights) -> None:
        """WeightsError if the folder's preprocessor_config.json is not that of DINOv2."""
        super().__init__(weights)
        self._processor = read_processor(weights, BitImageProcessorPil, ("shortest_edge",), ("do_center_crop",))
        crop = self._processor.crop_size
        self.description = (
            f"shortest side to {self._processor.size.shortest_edge} px (PIL bicubic, antialiased), "
            f"centre crop {crop.width}x{crop.height}, "
            f"{normalised(self._processor.image_mean, self._processor.image_std)}"
        )
        self.mask_description = (
            f"where a mask is given, it is resized to the image's size (PIL bicubic), and before all else the image's "
            f"pixels where it is under {INSIDE_FROM} are painted white"
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"preprocessing": f"{self.description}; {self.mask_description}"}

    def open(self, device: str) -> None:
        self._device = torch.device(device)
        self._model = load_transformer(self._weights, Dinov2Model).to(self._device)

    def close(self) -> None:
        del self._model

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> torch.Tensor:
        image = images[0] if len(images) == 1 else paint_outside(images[0], images[1])
        refuse_slender(image, self._processor.size.shortest_edge)
        pixels: torch.Tensor = self._processor(images=image, return_tensors="pt").pixel_values[0]
        return pixels  # (3, height, width) float32

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        tokens = self._model(pixel_values=torch.stack(list(prepared)).to(self._device)).last_hidden_state
        return rows(
            torch.nn.functional.normalize(tokens.mean(dim=1), dim=-1)
        )  # (batch, tokens, width) to (batch, width)


def paint_outside(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The image with pixels outside the mask painted white; the mask is resized to the image's size if necessary."""
    grey = mask.convert("L")
    if grey.size != image.size:
        grey = grey.resize(image.size, Image.Resampling.BICUBIC)
    inside = np.asarray(grey)[:, :, None] >= INSIDE_FROM  # (height, width, 1)
    return Image.fromarray(np.where(inside, np.asarray(image), np.uint8(OUTSIDE)))


def load_transformer(weights: Weights, kind: Any) -> Any:
    """A transformers model of class `kind` from its .safetensors, float32, in evaluation mode.

    Of a model with several towers only those of `kind` are read. WeightsError if a weight is missing.
    """
    quiet_transformers()
    try:
        model, report = kind.from_pretrained(
            weights.folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        raise WeightsError(f"{weights.folder} is not a {kind.__name__} ({e}): {remedy(weights)}") from e
    lacking = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    if lacking:  # transformers would initialise it randomly
        raise WeightsError(f"{weights.folder} lacks {lacking[0]} of a {kind.__name__}: {remedy(weights)}")
    return model.eval()


def read_processor(weights: Weights, kind: Any, size: tuple[str, ...], also: tuple[str, ...] = ()) -> Any:
    """The PIL image processor of class `kind`, configured by the folder's preprocessor_config.json.

    WeightsError unless it resizes to a `size` with these keys by bicubic filter, rescales by 1/255, normalises and does
    `also`.
    """
    name = "preprocessor_config.json"
    config = read_json(weights, name)
    steps = ("do_resize", "do_rescale", "do_normalize", *also)
    specified = {step: config.get(step) for step in steps} | {"size": sorted(config.get("size") or ())}
    specified |= {"resample": config.get("resample")}
    expected = dict.fromkeys(steps, True) | {"size": sorted(size), "resample": _BICUBIC}
    if specified != expected or abs(255 * config.get("rescale_factor", 0) - 1) > 1e-6:
        raise WeightsError(
            f"{weights.folder / name} specifies preprocessing other than the metric's: {remedy(weights)}"
        )
    return kind.from_pretrained(weights.folder, local_files_only=True)
