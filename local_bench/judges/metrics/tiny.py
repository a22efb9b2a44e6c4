"""A small CLIP with seeded random weights, saved as open_clip's own are."""

import json
from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file

from local_bench.core.cards import ModelCard

SEED = 20260103
_MODEL = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
_PREPROCESS = {
    "mean": list(open_clip.OPENAI_DATASET_MEAN),
    "std": list(open_clip.OPENAI_DATASET_STD),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}


def build_clip(folder: Path, card: ModelCard) -> None:
    """Saves a CLIP of 3.4 M parameters (3.2 M of them token embeddings) into `folder`."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = open_clip.CLIP(**_MODEL)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    config = {"model_cfg": _MODEL, "preprocess_cfg": _PREPROCESS}
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2))
