"""CSD: an embedding of an image's style, independent of its content.

Somepalli et al. 2024, "Measuring Style Similarity in Diffusion Models": the vision tower of OpenAI's CLIP ViT-L/14
(QuickGELU), fine-tuned, with a style projection in place of CLIP's own. Arrays are (width,) float32 with norm 1.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from open_clip.transformer import QuickGELU, VisionTransformer
from PIL import Image
from safetensors import SafetensorError

from local_bench.core.errors import WeightsError
from local_bench.core.tensors import open_tensors
from local_bench.judges.metrics.base import Array, Weights, WeightsNetwork
from local_bench.judges.metrics.clip_network import clip_transform, refuse_slender, remedy, rows

FILE = "pytorch_model.safetensors"
BACKBONE = "model_state_dict.module.backbone."
STYLE = "model_state_dict.module.last_layer_style"
"""Prefix of the weights in the published checkpoint, which was saved with its training state."""
HEAD_WIDTH = 64
"""Width of each attention head, in all OpenAI CLIP models."""
SIZE_PX = 224


class CsdNetwork(WeightsNetwork):
    """CLIP's vision tower with the style projection; each feature input is one image."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 8, "cuda": 64}
    model = "CSD: open_clip VisionTransformer with QuickGELU and the projection for style"
    output = "normalised style embedding"

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._transform, self.description = clip_transform({"size": SIZE_PX})

    @cached_property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"preprocessing": " ".join(str(self._transform).split())}

    def open(self, device: str) -> None:
        self._device = torch.device(device)
        self._tower = load_tower(self._weights).to(self._device)

    def close(self) -> None:
        del self._tower

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        refuse_slender(images[0], SIZE_PX)
        return self._transform(images[0])  # (3, 224, 224) float32

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        style = self._tower(torch.stack(list(prepared)).to(self._device))  # (batch, width)
        return rows(torch.nn.functional.normalize(style, dim=-1))


def load_tower(weights: Weights) -> Any:
    """The tower with the style projection, in the sizes of the checkpoint's tensors.

    Other parts of the checkpoint (content projection, training state) are not read. WeightsError if a tensor is missing
    or does not fit.
    """
    path = weights.folder / FILE
    try:
        with open_tensors(path) as file:
            names = set(file.keys())
            state = {n.removeprefix(BACKBONE): file.get_tensor(n).float() for n in names if n.startswith(BACKBONE)}
            if STYLE in names:
                state["proj"] = file.get_tensor(STYLE).float()  # (tower's width, width)
        width, _, patch, _ = state["conv1.weight"].shape
        if (state["positional_embedding"].shape[0] - 1) * patch**2 != SIZE_PX**2:
            raise ValueError(f"it is not for {SIZE_PX} px")
        tower = VisionTransformer(
            image_size=SIZE_PX,
            patch_size=patch,
            width=width,
            layers=sum(name.endswith("attn.in_proj_weight") for name in state),
            heads=width // HEAD_WIDTH,
            mlp_ratio=state["transformer.resblocks.0.mlp.c_fc.weight"].shape[0] / width,
            output_dim=state["proj"].shape[1],
            act_layer=QuickGELU,
        )
        tower.load_state_dict(state, strict=True)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as e:
        raise WeightsError(f"{path} is not CSD's checkpoint ({e}): {remedy(weights)}") from e
    return tower.eval()
