"""DINOv2 by transformers: the mean of all its tokens, and how a mask takes the rest of a picture away.

Oquab et al. 2023, "DINOv2: Learning Robust Visual Features without Supervision". A picture goes through the model's own
processor (in its PIL form, as the published numbers were made). Arrays are (width,) float32 of length 1: the mean of
last_hidden_state over all tokens, the class token included.

DINO-ref: how close what a picture shows is to its reference, as the cosine of DINOv2's embeddings of both.

Oquab et al. 2023; ICE-Bench (arXiv 2503.14482), section B.5, eq. 8, with DINOv2 giant: the mean over all tokens. Where
a mask says what was to be changed, only that part of the image counts; the reference is never masked, and of several
the first counts. In [-1, 1], higher is better, 1 for the same picture.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from transformers import Dinov2Model
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from local_bench.core.errors import WeightsError
from local_bench.core.quiet import quiet_transformers
from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, Network, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import cosine, mend, normalised, read_json, refuse_slender, rows
from local_bench.judges.metrics.registry import Weights
from local_bench.models.weights import weights_digest

INSIDE_FROM = 129
"""Values of a mask from here on are inside."""
OUTSIDE = 255
"""What the pixels outside become: white."""
_BICUBIC = 3


class DinoNetwork(Network):
    """A DINOv2; a look is a picture, or a picture and the mask that says what of it counts."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 4, "cuda": 32}

    def __init__(self, weights: Weights) -> None:
        """WeightsError where the folder's preprocessor_config.json is not DINOv2's."""
        self._weights = weights
        self._processor = read_processor(weights, BitImageProcessorPil, ("shortest_edge",), ("do_center_crop",))
        crop = self._processor.crop_size
        self.words = (
            f"shortest side to {self._processor.size.shortest_edge} px (PIL bicubic, antialiased), "
            f"centre crop {crop.width}x{crop.height}, "
            f"{normalised(self._processor.image_mean, self._processor.image_std)}"
        )
        self.words_of_mask = (
            f"where a mask is given, it is resized to the image's size (PIL bicubic), and before all else the image's "
            f"pixels where it is under {INSIDE_FROM} are painted white"
        )

    @property
    def key(self) -> Hashable:
        return (type(self).__name__, self._weights.folder)

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {
            "model": "transformers Dinov2Model",
            "weights": weights_digest(self._weights.folder),
            "preprocessing": f"{self.words}; {self.words_of_mask}",
            "output": "normalised mean of all tokens of last_hidden_state",
            "dtype": "float32",
        }

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
    """The image, white where the mask is not white; the mask is brought to the image's size if it has another."""
    grey = mask.convert("L")
    if grey.size != image.size:
        grey = grey.resize(image.size, Image.Resampling.BICUBIC)
    inside = np.asarray(grey)[:, :, None] >= INSIDE_FROM  # (height, width, 1)
    return Image.fromarray(np.where(inside, np.asarray(image), np.uint8(OUTSIDE)))


def load_transformer(weights: Weights, kind: Any) -> Any:
    """A transformers model of class `kind` from its .safetensors, float32, for evaluation.

    Of a model of several towers only what `kind` has is read. WeightsError where a weight of it is missing.
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
        raise WeightsError(f"{weights.folder} is no {kind.__name__} ({e}): {mend(weights)}") from e
    lacking = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
    if lacking:  # transformers would leave random numbers there
        raise WeightsError(f"{weights.folder} lacks {lacking[0]} of a {kind.__name__}: {mend(weights)}")
    return model.eval()


def read_processor(weights: Weights, kind: Any, size: tuple[str, ...], also: tuple[str, ...] = ()) -> Any:
    """The PIL image processor of class `kind`, as the folder's preprocessor_config.json has it.

    WeightsError unless it resizes to such a `size` by bicubic filter, rescales by 1/255, normalises and does `also`.
    """
    name = "preprocessor_config.json"
    config = read_json(weights, name)
    steps = ("do_resize", "do_rescale", "do_normalize", *also)
    asked = {step: config.get(step) for step in steps} | {"size": sorted(config.get("size") or ())}
    asked |= {"resample": config.get("resample")}
    expected = dict.fromkeys(steps, True) | {"size": sorted(size), "resample": _BICUBIC}
    if asked != expected or abs(255 * config.get("rescale_factor", 0) - 1) > 1e-6:
        raise WeightsError(f"{weights.folder / name} asks for other preprocessing than the metric's: {mend(weights)}")
    return kind.from_pretrained(weights.folder, local_files_only=True)


DINO_REF = "dino_ref"


def make(name: str, weights: Weights) -> "DinoRef":
    return DinoRef(name, DinoNetwork(weights))


class DinoRef(NetworkMetric):
    """Cosine of image, or of what the mask leaves of it, and first reference."""

    def __init__(self, name: str, network: DinoNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=f"{network.words_of_mask}; then image and first reference: {network.words}",
            source="Oquab et al. 2023; ICE-Bench section B.5: cosine of the means of all tokens",
            needs=("reference",),
            lowest=-1.0,
            highest=1.0,
        )

    def looks(self, subject: Subject) -> tuple[FeatureInput, ...]:
        image = (subject.image, subject.mask) if subject.mask else (subject.image,)
        return FeatureInput(image), FeatureInput((subject.references[0],))

    def value(self, arrays: Sequence[Array]) -> float:
        return cosine(arrays[0], arrays[1])
