"""Stage `musiq`: a small MUSIQ that knows how badly an image of the world is damaged.

Its scale is KonIQ's, 0 to 100: 90 is undamaged, each strength of damage takes 20. It takes an image in its own size,
64x64 or enlarged; patches of 16, at the image's size and at a longer side of 48.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from examples.miniature.data import train_scene
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.printshop.damage import KINDS, damage, enlarged
from examples.miniature.printshop.sampling import choose, render
from examples.miniature.printshop.writing import sample_injected_text
from local_bench.judges.metrics.pyiqa_store import local_files

STAGE = Stage("musiq", seed=81, steps=2000, lr_muon=2e-3, lr_adam=1e-3, adam_only=("head",), masters=False)
OPTIONS: dict[str, Any] = {
    "patch_size": 16,
    "hidden_size": 32,
    "mlp_dim": 64,
    "num_heads": 2,
    "num_layers": 2,
    "num_scales": 2,
    "longer_side_lengths": [48],
}
BEST, STEP = 90.0, 20.0
_BATCH = 24


def new() -> torch.nn.Module:
    """With the stage's first weights."""
    torch.manual_seed(STAGE.seed)
    with local_files("MUSIQ", {}):
        from pyiqa.archs.musiq_arch import MUSIQ

        model = MUSIQ(pretrained=False, **OPTIONS)
    with torch.no_grad():  # it begins in the middle of the scale
        model.head.weight.mul_(STEP)
        model.head.bias.fill_(BEST - 2 * STEP)
    return model


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `musiq.trained.pt`."""
    models = Models(STAGE, machine, {"musiq": new()})

    def loss(step: int, steps: int) -> Loss:
        told, wanted = _read(models.run["musiq"], rng_of(STAGE, step), machine.device, _BATCH)
        return F.smooth_l1_loss(told / STEP, wanted / STEP), {"off": float((told - wanted).detach().abs().mean())}

    done = train(models, loss)
    averaged = models.averaged()["musiq"]
    with torch.no_grad():
        told, wanted = _read(averaged, np.random.default_rng(97), machine.device, 200, large=False)
    print(f"musiq: {float((told - wanted).abs().mean()):.1f} off on 200 fresh pictures, on a scale of 100", flush=True)
    save({"musiq": averaged.state_dict()}, machine.work / "musiq.trained.pt")
    return done


def _read(
    model: Any, rng: np.random.Generator, device: torch.device, count: int, large: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model says of `count` images, and what is so; [count, 1] each."""
    from pyiqa.archs.musiq_arch import get_multiscale_patches

    times = 2 if (rng.random() < 0.2 if large is None else large) else 1
    drawn, wanted = [], []
    for _ in range(count):
        scene = train_scene(rng)
        pixels, strength = render(scene, rng), int(rng.integers(0, 5))
        if rng.random() < 0.2:
            pixels, _ = sample_injected_text(pixels, scene.background, rng)
        if strength:
            pixels = damage(pixels, choose(rng, KINDS), strength, rng)
        drawn.append(enlarged(pixels, times))
        wanted.append([BEST - STEP * strength])
    images = torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 127.5 - 1
    patches = get_multiscale_patches(images, **model.data_preprocess_opts).to(device)
    training = model.training
    model.train()  # evaluation would cut the patches itself
    told = model(patches)
    model.train(training)
    return told, torch.tensor(wanted, device=device)
