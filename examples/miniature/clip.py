"""Stage `clip`: a small CLIP that knows the world's images by the world's words.

Radford et al. 2021: images and their captions are to be nearer to each other than to all others of the batch. Its
tokenizer is that of the generators (one Latin word a token), since OpenAI's has 49,408 entries.
"""

import json
from pathlib import Path

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from transformers import CLIPTokenizer

from examples.miniature.data import train_scene, worded_scene
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.printshop.damage import KINDS, damage
from examples.miniature.printshop.sampling import choose, render
from examples.miniature.vocabulary import CLIP_TOKENS, clip_tokenizer
from local_bench.judges.metrics.embeddings import CONFIG
from local_bench.suites.printshop.scene import Pixels

STAGE = Stage("clip", seed=71, steps=2500, lr_muon=3e-3, lr_adam=2e-3, masters=False)
_WIDTH, _BATCH = 64, 128
_MEAN, _DEVIATION = list(open_clip.OPENAI_DATASET_MEAN), list(open_clip.OPENAI_DATASET_STD)


def tokenizer(folder: Path) -> CLIPTokenizer:
    """As it reads back from `folder`, made first where it is not there; filled up with a sign that ends no text."""
    if not (folder / "tokenizer.json").exists():
        made = clip_tokenizer()
        made.pad_token = "!"
        made.save_pretrained(folder)
    return CLIPTokenizer.from_pretrained(folder)


def described(words: CLIPTokenizer) -> dict[str, object]:
    """The model as open_clip_config.json describes it."""
    return {
        "embed_dim": _WIDTH,
        "vision_cfg": {"image_size": 64, "layers": 2, "width": _WIDTH, "head_width": 32, "patch_size": 8},
        "text_cfg": {
            "context_length": CLIP_TOKENS,
            "vocab_size": len(words),
            "width": _WIDTH,
            "heads": 2,
            "layers": 2,
            "hf_tokenizer_name": "here",
        },
    }


def new(words: CLIPTokenizer) -> open_clip.CLIP:
    """With the stage's first weights."""
    torch.manual_seed(STAGE.seed)
    asked = described(words)
    text = {name: value for name, value in asked["text_cfg"].items() if name != "hf_tokenizer_name"}  # type: ignore[attr-defined]
    return open_clip.CLIP(**{**asked, "text_cfg": text})


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `clip.trained.pt`, beside the tokenizer in the folder `clip`."""
    words = tokenizer(machine.work / "clip")
    models = Models(STAGE, machine, {"clip": new(words)})

    def loss(step: int, steps: int) -> Loss:
        found, right = _loss(models.run["clip"], words, rng_of(STAGE, step), machine.device)
        return found, {"right": right}

    done = train(models, loss)
    averaged = models.averaged()["clip"]
    with torch.no_grad():
        _, right = _loss(averaged, words, np.random.default_rng(98), machine.device)
    print(f"clip: of {_BATCH} fresh captions, {right:.1%} have their own picture nearest", flush=True)
    save({"clip": averaged.state_dict()}, machine.work / "clip.trained.pt")
    return done


def write_config(folder: Path, words: CLIPTokenizer) -> None:
    """open_clip_config.json."""
    preprocess = {"mean": _MEAN, "std": _DEVIATION, "interpolation": "bicubic", "resize_mode": "shortest"}
    config = {"model_cfg": described(words), "preprocess_cfg": preprocess}
    (folder / CONFIG).write_text(json.dumps(config, indent=2))


def _loss(
    model: torch.nn.Module, words: CLIPTokenizer, rng: np.random.Generator, device: torch.device
) -> tuple[torch.Tensor, float]:
    scenes = dict.fromkeys(train_scene(rng, 0.6) for _ in range(_BATCH))
    drawn = np.stack([_seen(render(scene, rng), rng) for scene in scenes])
    texts = [worded_scene(scene, rng).text for scene in scenes]
    ids = words(texts, padding="max_length", max_length=CLIP_TOKENS, truncation=True, return_tensors="pt").input_ids
    images = torch.from_numpy(drawn).to(device).permute(0, 3, 1, 2).float() / 255
    mean, deviation = (torch.tensor(v, device=device).view(3, 1, 1) for v in (_MEAN, _DEVIATION))
    a = model.encode_image((images - mean) / deviation, normalize=True)
    b = model.encode_text(ids.to(device), normalize=True)
    near = model.logit_scale.exp().clamp(max=100) * a @ b.T
    own = torch.arange(len(a), device=device)
    right = float((near.argmax(0) == own).float().mean())
    return (F.cross_entropy(near, own) + F.cross_entropy(near.T, own)) / 2, right


def _seen(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    return damage(pixels, choose(rng, KINDS), 1, rng) if rng.random() < 0.2 else pixels
