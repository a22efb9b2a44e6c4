"""Networks whose embeddings of images and texts are compared (CLIP, DINOv2, CSD), and what they share with others.

Arrays are (width,) float32 with norm 1.
"""

import re
import unicodedata
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError

from local_bench.core import strictjson
from local_bench.core.environment import quiet_transformers
from local_bench.core.errors import WeightsError
from local_bench.core.images import MAX_PIXELS
from local_bench.judges.metrics.base import Array, Unscorable, Weights, WeightsNetwork
from local_bench.models.tensors import open_tensors

CONFIG = "open_clip_config.json"
INSIDE_FROM = 129
"""Mask values of at least this are inside."""
OUTSIDE = 255
"""Colour of pixels outside the mask: white."""
_BICUBIC = 3
CSD_FILE = "pytorch_model.safetensors"
CSD_BACKBONE = "model_state_dict.module.backbone."
CSD_STYLE = "model_state_dict.module.last_layer_style"
"""Prefix of the weights in the published checkpoint, which was saved with its training state."""
CSD_HEAD_WIDTH = 64
"""Width of each attention head, in all OpenAI CLIP models."""
CSD_SIDE_PX = 224


class EmbeddingNetwork(WeightsNetwork):
    """A network that computes a row for each tensor of a batch."""

    @abstractmethod
    def embed(self, batch: torch.Tensor) -> torch.Tensor:
        """(batch, width) for a batch of preprocessed inputs, on the device."""

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        return rows(self.embed(torch.stack(list(prepared)).to(self._device)))


class ClipNetwork(EmbeddingNetwork):
    """A CLIP model from a local folder in open_clip's layout; each feature input is one image or one text.

    Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision". Images are
    preprocessed as specified in the model's open_clip_config.json, texts tokenised and truncated to 77 tokens.
    """

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
            quick_gelu = bool(config["model_cfg"].get("quick_gelu", False))
            self._tokens = int(config["model_cfg"]["text_cfg"].get("context_length", 77))
            self.transform, self.description = clip_transform(settings)
            """The image transformation, and its description."""
            transform = " ".join(str(self.transform).split())
            self.details = {"preprocessing": transform, "quick_gelu": quick_gelu, "tokens": self._tokens}
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise WeightsError(
                f"{weights.folder / CONFIG} does not describe a CLIP model ({e!r}): {remedy(weights)}"
            ) from e

    def load(self, device: str) -> Any:
        import open_clip

        return open_clip.create_model(self._location, precision="fp32", device="cpu").eval().to(device)

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

    def embed(self, batch: torch.Tensor) -> torch.Tensor:
        encode = self._model.encode_image if batch.is_floating_point() else self._model.encode_text
        embeddings: torch.Tensor = encode(batch, normalize=True)
        return embeddings


class DinoNetwork(EmbeddingNetwork):
    """A DINOv2 model; a feature input is one image, or an image and the mask of its relevant part.

    Oquab et al. 2023, "DINOv2: Learning Robust Visual Features without Supervision". Images are preprocessed by the
    model's own processor (its PIL version, with which the published numbers were computed). Arrays are the mean of
    last_hidden_state over all tokens, including the class token.
    """

    batch_size: ClassVar[dict[str, int]] = {"cpu": 4, "cuda": 32}
    model = "transformers Dinov2Model"
    output = "normalised mean of all tokens of last_hidden_state"

    def __init__(self, weights: Weights) -> None:
        """WeightsError if the folder's preprocessor_config.json is not that of DINOv2."""
        from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

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
        self.details = {"preprocessing": f"{self.description}; {self.mask_description}"}

    def load(self, device: str) -> Any:
        from transformers import Dinov2Model

        return load_transformer(self._weights, Dinov2Model).to(device)

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> torch.Tensor:
        image = images[0] if len(images) == 1 else paint_outside(images[0], images[1])
        refuse_slender(image, self._processor.size.shortest_edge)
        pixels: torch.Tensor = self._processor(images=image, return_tensors="pt").pixel_values[0]
        return pixels  # (3, height, width) float32

    def embed(self, batch: torch.Tensor) -> torch.Tensor:
        tokens = self._model(pixel_values=batch).last_hidden_state  # (batch, tokens, width)
        return torch.nn.functional.normalize(tokens.mean(dim=1), dim=-1)


class CsdNetwork(EmbeddingNetwork):
    """An embedding of an image's style, independent of its content; each feature input is one image.

    CSD, Somepalli et al. 2024, "Measuring Style Similarity in Diffusion Models": the vision tower of OpenAI's CLIP
    ViT-L/14 (QuickGELU), fine-tuned, with a style projection in place of CLIP's own.
    """

    batch_size: ClassVar[dict[str, int]] = {"cpu": 8, "cuda": 64}
    model = "CSD: open_clip VisionTransformer with QuickGELU and the projection for style"
    output = "normalised style embedding"

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._transform, self.description = clip_transform({"size": CSD_SIDE_PX})
        self.details = {"preprocessing": " ".join(str(self._transform).split())}

    def load(self, device: str) -> Any:
        """In the sizes of the checkpoint's tensors. Other parts of it (content projection, training state) are not
        read."""
        from open_clip.transformer import QuickGELU, VisionTransformer

        path, prefix = self._weights.folder / CSD_FILE, CSD_BACKBONE
        with fitting(path, "CSD's checkpoint", self._weights):
            with open_tensors(path) as file:
                names = set(file.keys())
                state = {n.removeprefix(prefix): file.get_tensor(n).float() for n in names if n.startswith(prefix)}
                if CSD_STYLE in names:
                    state["proj"] = file.get_tensor(CSD_STYLE).float()  # (tower's width, width)
            width, _, patch, _ = state["conv1.weight"].shape
            if (state["positional_embedding"].shape[0] - 1) * patch**2 != CSD_SIDE_PX**2:
                raise ValueError(f"it is not for {CSD_SIDE_PX} px")
            tower = VisionTransformer(
                image_size=CSD_SIDE_PX,
                patch_size=patch,
                width=width,
                layers=sum(name.endswith("attn.in_proj_weight") for name in state),
                heads=width // CSD_HEAD_WIDTH,
                mlp_ratio=state["transformer.resblocks.0.mlp.c_fc.weight"].shape[0] / width,
                output_dim=state["proj"].shape[1],
                act_layer=QuickGELU,
            )
            tower.load_state_dict(state, strict=True)
        return tower.eval().to(device)

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        refuse_slender(images[0], CSD_SIDE_PX)
        return self._transform(images[0])  # (3, 224, 224) float32

    def embed(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(self._model(batch), dim=-1)


def as_clip_reads(text: str) -> str:
    """The text as transformers' CLIP tokenizer normalises it before tokenisation: NFC, single spaces, lower case by
    character (also a Greek word's last sigma), the control characters U+001C to U+001F kept. open_clip's own
    normalisation would also repair HTML entities, curly quotes and wrongly decoded characters."""
    return re.sub(r"[^\S\x1c-\x1f]+", " ", "".join(map(str.lower, unicodedata.normalize("NFC", text))))


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


def too_slender(image: Image.Image) -> Unscorable:
    return Unscorable(f"a picture of {image.width}x{image.height} is too slender to be resized for this metric")


def refuse_slender(image: Image.Image, shortest_px: int) -> None:
    """Unscorable for an image that would not fit into memory once its shortest side has `shortest_px` pixels."""
    if max(image.size) / min(image.size) * shortest_px**2 > MAX_PIXELS:
        raise too_slender(image)


def paint_outside(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The image with pixels outside the mask painted white; the mask is resized to the image's size if necessary."""
    grey = mask.convert("L")
    if grey.size != image.size:
        grey = grey.resize(image.size, Image.Resampling.BICUBIC)
    inside = np.asarray(grey)[:, :, None] >= INSIDE_FROM  # (height, width, 1)
    return Image.fromarray(np.where(inside, np.asarray(image), np.uint8(OUTSIDE)))


def rows(batch: torch.Tensor) -> list[Array]:
    """One array in host memory for each row."""
    return [row.copy() for row in batch.to(torch.float32).cpu().numpy()]


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


def read_json(weights: Weights, name: str) -> dict[str, Any]:
    """A model's JSON configuration. WeightsError if it is missing or not a JSON object."""
    path = weights.folder / name
    value = strictjson.read(path, WeightsError, missing=remedy(weights))
    if not isinstance(value, dict):
        raise WeightsError(f"{path} is not a JSON object: {remedy(weights)}")
    return value


@contextmanager
def fitting(path: Path, what: str, weights: Weights) -> Iterator[None]:
    """WeightsError if the file at `path` is not `what`: it cannot be read, or a tensor is missing or does not fit."""
    try:
        yield
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as e:
        raise WeightsError(f"{path} is not {what} ({e}): {remedy(weights)}") from e


def remedy(weights: Weights) -> str:
    """The remedy for model files that the metric cannot read."""
    return (
        f"choose a card that this metric supports, or fetch its model again "
        f"(`local-bench models fetch {weights.card.name}`)"
    )
