"""Images by a pipeline, as a run would have it make them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from examples.miniature.text import TOKENS
from local_bench.suites.printshop.scene import SIDE, Pixels

NUM_INFERENCE_STEPS = 8
SD3_GUIDANCE_SCALE = 2.0
_BATCH = 50


def draw(pipe: Any, prompts: Sequence[str], sources: Pixels | None = None, seed: int = 0) -> Pixels:
    """uint8 [n, 64, 64, 3]; `sources` are what is to be edited."""
    pipe.set_progress_bar_config(disable=True)
    made = []
    for start in range(0, len(prompts), _BATCH):
        part = slice(start, start + _BATCH)
        asked: dict[str, Any] = {
            "prompt": list(prompts[part]),
            "height": SIDE,
            "width": SIDE,
            "num_inference_steps": NUM_INFERENCE_STEPS,
            "max_sequence_length": TOKENS,
            "generator": torch.Generator().manual_seed(seed * 100_003 + start),
            "output_type": "np",
        }
        if sources is not None:
            image = torch.from_numpy(sources[part]).permute(0, 3, 1, 2).float() / 255
            asked |= {"image": image, "max_area": SIDE * SIDE, "_auto_resize": False}
        elif type(pipe).__name__ == "StableDiffusion3Pipeline":
            asked["guidance_scale"] = SD3_GUIDANCE_SCALE
        with torch.inference_mode():
            images = pipe(**asked).images
        made.append((images * 255).round().astype(np.uint8))
    return np.concatenate(made)
