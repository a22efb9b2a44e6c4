"""HPSv2.1: predicted human preference for an image and its prompt, from a fine-tuned CLIP ViT-H/14.

Wu et al. 2023, "Human Preference Score v2" (arXiv 2306.09341); github.com/tgxs002/HPSv2, hpsv2/img_score.py (`score`)
and hpsv2/src/open_clip/transform.py (`ResizeMaxSize`): the cosine of the embeddings, of which papers print 100 times
the mean. In [-1, 1], higher is better; typical values are 0.2 to 0.35. As there, images are resized as float tensors,
here with the antialiasing of torchvision 0.17 and later; earlier versions, and so the authors' tables, have none. The
authors' code runs in float16 on a GPU and fails for images that are 224 px long and not square.
"""

from functools import cached_property
from typing import Any

import torch
from open_clip import CLIP, OPENAI_DATASET_MEAN, OPENAI_DATASET_STD, SimpleTokenizer, get_model_config
from PIL import Image
from safetensors import SafetensorError
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from local_bench.core.errors import WeightsError
from local_bench.core.tensors import load_tensors
from local_bench.judges.metrics.base import Unscorable, Weights
from local_bench.judges.metrics.clip_network import ClipNetwork, normalised, remedy

FILE = "HPS_v2.1_compressed.safetensors"
STATE = "state_dict."
"""Prefix of the weights in the published checkpoint."""
SIDE_PX = 224
TEXT_HEAD_WIDTH = 64
"""Width of each attention head of ViT-H/14's text tower."""


class HpsNetwork(ClipNetwork):
    """open_clip's CLIP with the published checkpoint, in the sizes of its tensors."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._side_px, self._tokens, self._quick_gelu = weights, SIDE_PX, 77, False
        self.transform = padded
        self.description = (
            f"/255, longest side to {SIDE_PX} px (float tensor, bicubic, antialiased), padded to "
            f"{SIDE_PX}x{SIDE_PX} with black on both sides, {normalised(OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)}"
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"preprocessing": self.description, "text": "as open_clip's SimpleTokenizer"}

    def open(self, device: str) -> None:
        self._device = torch.device(device)
        self._model = load_clip(self._weights).to(self._device)

    @cached_property
    def _tokenizer(self) -> Any:
        return SimpleTokenizer()


def padded(image: Image.Image) -> torch.Tensor:
    """The preprocessed image, (3, 224, 224) float32. Unscorable if its shorter side would have no pixel."""
    scale = SIDE_PX / max(image.size)
    height, width = round(image.height * scale), round(image.width * scale)
    if not height or not width:
        raise Unscorable(f"a picture of {image.width}x{image.height} is too slender to be resized for this metric")
    tensor = F.resize(F.to_tensor(image), [height, width], InterpolationMode.BICUBIC, antialias=True)
    left, top = (SIDE_PX - width) // 2, (SIDE_PX - height) // 2
    tensor = F.pad(tensor, [left, top, SIDE_PX - width - left, SIDE_PX - height - top])
    normalized: torch.Tensor = F.normalize(tensor, OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)
    return normalized


def load_clip(weights: Weights) -> Any:
    """The model in float32. WeightsError if the checkpoint is not that of a CLIP for 224 px."""
    path = weights.folder / FILE
    try:
        state = {n.removeprefix(STATE): t.float() for n, t in load_tensors(path).items() if n.startswith(STATE)}
        vision, text = (get_model_config("ViT-H-14")[tower] for tower in ("vision_cfg", "text_cfg"))
        blocks = [n for n in state if n.endswith(".attn.in_proj_weight")]
        vision["layers"] = sum(n.startswith("visual.") for n in blocks)
        vision["width"], _, vision["patch_size"], _ = state["visual.conv1.weight"].shape
        text["layers"] = len(blocks) - vision["layers"]
        text["width"], embed_dim = state["text_projection"].shape
        text["heads"] = text["width"] // TEXT_HEAD_WIDTH
        model = CLIP(embed_dim, vision, text)
        model.load_state_dict(state, strict=True)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as e:
        raise WeightsError(f"{path} is not HPS v2.1's checkpoint ({e}): {remedy(weights)}") from e
    return model.eval()
