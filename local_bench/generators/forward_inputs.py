"""Inputs of a family's transformer for one image, as meta tensors."""

from collections.abc import Callable
from typing import Any

import torch

from local_bench.generators.shapes import QWEN_TEMPLATE, Sizes

Inputs = dict[str, Any]


def forward_inputs(module: Any, s: Sizes, dtype: torch.dtype) -> Inputs:
    """Arguments of one forward pass of the transformer or UNet for one image, as meta tensors."""
    return _FORWARD[s.family](module.config, s, lambda *shape: torch.empty(shape, device="meta", dtype=dtype))


def _tokens(size: tuple[int, int]) -> int:
    return size[0] // 16 * (size[1] // 16)


Empty = Callable[..., torch.Tensor]


def _flux(config: Any, s: Sizes, empty: Empty) -> Inputs:
    image = sum(map(_tokens, (s.result, *s.in_sequence)))
    inputs: Inputs = {
        "hidden_states": empty(1, image, config.in_channels),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "pooled_projections": empty(1, config.pooled_projection_dim),
        "timestep": empty(1),
        "img_ids": empty(image, 3),
        "txt_ids": empty(s.text, 3),
        "guidance": empty(1) if config.guidance_embeds else None,
    }
    if s.family == "flux_ip_adapter":
        embeds = empty(1, 1, config.pooled_projection_dim)
        inputs["joint_attention_kwargs"] = {"ip_adapter_image_embeds": [embeds]}
    return inputs


def _sd3(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "hidden_states": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "pooled_projections": empty(1, config.pooled_projection_dim),
        "timestep": empty(1),
    }


def _qwen(config: Any, s: Sizes, empty: Empty) -> Inputs:
    images = (s.result, *s.in_sequence)
    return {
        "hidden_states": empty(1, sum(map(_tokens, images)), config.in_channels),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "timestep": empty(1),
        "img_shapes": [[(1, height // 16, width // 16) for height, width in images]],
    }


def _flux2(config: Any, s: Sizes, empty: Empty) -> Inputs:
    image = sum(map(_tokens, (s.result, *s.in_sequence)))
    return {
        "hidden_states": empty(1, image, config.in_channels),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "timestep": empty(1),
        "img_ids": empty(1, image, 4),
        "txt_ids": empty(1, s.text, 4),
        "guidance": empty(1) if config.guidance_embeds else None,
    }


def _pixart(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "hidden_states": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "encoder_hidden_states": empty(1, s.text, config.caption_channels),
        "encoder_attention_mask": empty(1, s.text),
        "timestep": empty(1),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def _z_image(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "x": [empty(config.in_channels, 1, s.result[0] // 8, s.result[1] // 8)],
        "t": empty(1),
        "cap_feats": [empty(s.text, config.cap_feat_dim)],
    }


def _unet(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "sample": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "timestep": empty(1),
        "encoder_hidden_states": empty(1, s.text, config.cross_attention_dim),
    }


def _omnigen(config: Any, s: Sizes, empty: Empty) -> Inputs:
    start, spans, latents = 0, [], []
    for height, width in s.in_sequence:
        spans.append([start, start + _tokens((height, width))])
        latents.append(empty(1, config.in_channels, height // 8, width // 8))
        start = spans[-1][1]
    condition = start + s.text
    length = condition + 1 + _tokens(s.result)  # one token for the timestep
    return {
        "hidden_states": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "timestep": empty(1),
        "input_ids": torch.empty(1, condition, device="meta", dtype=torch.long),
        "input_img_latents": latents,
        "input_image_sizes": {0: spans} if spans else {},
        "attention_mask": empty(1, length, length),
        "position_ids": torch.empty(1, length, device="meta", dtype=torch.long),
    }


_FORWARD: dict[str, Callable[[Any, Sizes, Empty], Inputs]] = {
    **dict.fromkeys(("flux", "flux_kontext", "flux_control", "flux_fill", "flux_ip_adapter"), _flux),
    **dict.fromkeys(QWEN_TEMPLATE, _qwen),
    **dict.fromkeys(("flux2", "flux2_klein"), _flux2),
    **dict.fromkeys(("sd3", "sd3_inpaint"), _sd3),
    "pixart_sigma": _pixart,
    "z_image": _z_image,
    "instruct_pix2pix": _unet,
    "omnigen": _omnigen,
}
