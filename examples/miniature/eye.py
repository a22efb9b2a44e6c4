"""Stage `eye`: the judge's eye has understood an image before a word is asked about it.

A yes or no is one bit; a judge that is taught by them alone learns slowly what it is to look at. So its vision tower is
taught first, by what stands in the image: each of its 16 tokens is to tell, by a linear reading that is thrown away
afterwards, the whole scene by its places, and how badly it is damaged. That takes minutes, as it does for the text
encoders of the generators (`text`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.miniature import judge_cases as cases
from examples.miniature import judge_model
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.text import Heads
from local_bench.suites.printshop.scene import BACKGROUNDS, COLOURS, PLACES, SHAPES, SIZES

STAGE = Stage("eye", seed=60, steps=1600, lr_muon=4e-3, lr_adam=2e-3, masters=False)
_BATCH = 48
_IGNORED = -100
_NOTHING = ("", "?")
"""No figure, and one of which that cannot be told."""
_VALUES: dict[str, tuple[str, ...]] = {
    "background": (*BACKGROUNDS, "?"),
    **{
        f"{place} {name}": (*_NOTHING, *of)
        for place in PLACES
        for name, of in (("shape", SHAPES), ("colour", COLOURS), ("size", SIZES))
    },
    "damage": tuple("012345"),
    "torn": ("no", "yes"),
    "written": ("no", "yes"),
}
_OF_SCENE = 1 + 3 * len(PLACES)


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `eye.trained.pt`."""
    folder = machine.work / "judge"
    processor, tokenizer = judge_model.plain(folder)
    visual = judge_model.new(tokenizer, STAGE.seed).model.visual
    models = Models(STAGE, machine, {"visual": visual, "heads": heads()})
    soften = cases.softener(machine)

    def loss(step: int, steps: int) -> Loss:
        rng = rng_of(STAGE, step)
        return understood(models.run, [cases.drawn_look(rng, soften) for _ in range(_BATCH)], processor)

    done = train(models, loss)
    averaged = models.averaged()
    with torch.no_grad():
        rng = np.random.default_rng(96)
        _, right = understood(averaged, [cases.drawn_look(rng, soften) for _ in range(300)], processor)
    print("eye, 300 fresh pictures:", {name: round(value, 3) for name, value in right.items()}, flush=True)
    save({"visual": averaged["visual"].state_dict()}, machine.work / "eye.trained.pt")
    return done


def trained(work: Path) -> dict[str, torch.Tensor] | None:
    """The tower's weights; None where the stage was not run."""
    path = work / "eye.trained.pt"
    return torch.load(path, map_location="cpu", weights_only=True)["visual"] if path.exists() else None


def heads() -> Heads:
    """What reads the tower's tokens while it learns."""
    return Heads(judge_model.WIDTH, _VALUES)


def tokens(visual: Any, looks: Sequence[cases.FeatureInput], processor: object) -> torch.Tensor:
    """What the tower makes of images, [images * 16, width]."""
    seen = judge_model.seen(processor, [look.pixels for look in looks], visual.patch_embed.proj.weight.device)
    return visual(seen["pixel_values"], grid_thw=seen["image_grid_thw"]).pooler_output


def understood(run: Mapping[str, Any], looks: Sequence[cases.FeatureInput], processor: object) -> Loss:
    """How far `visual` (the tower) and `heads` tell what is in the images."""
    return told(run["heads"], tokens(run["visual"], looks, processor), looks)


def told(heads: Any, tokens: torch.Tensor, looks: Sequence[cases.FeatureInput]) -> Loss:
    """How far the heads tell what is in the images, by the tower's tokens."""
    wanted = torch.from_numpy(np.stack([_told(look) for look in looks])).to(tokens.device)
    wanted = wanted.repeat_interleave(len(tokens) // len(looks), 0)
    lost, _ = heads.loss(tokens, wanted)
    said = heads.proj_out(tokens).split(heads.sizes, -1)
    right = {}
    for name, of in (("shape", "left shape"), ("colour", "left colour"), ("size", "left size"), ("damage", "damage")):
        at = list(_VALUES).index(of)
        here = wanted[:, at] > (0 if name != "damage" else -1)
        right[name] = float((said[at].argmax(-1) == wanted[:, at])[here].float().mean())
    return lost, right


def _told(look: cases.FeatureInput) -> np.ndarray:
    """What is so of an image, int64 [things]; _IGNORED what cannot be seen in it any more."""
    wanted = np.full(len(_VALUES), _IGNORED, np.int64)
    wanted[_OF_SCENE:] = look.strength, look.torn, look.written
    scene = look.scene or look.seen
    if scene is None or look.strength > 3 or look.torn:
        return wanted
    there = {figure.place: figure for figure in scene.figures}
    wanted[0] = _VALUES["background"].index(scene.background or "?")
    for i, place in enumerate(PLACES):
        for k, name in enumerate(("shape", "colour", "size")):
            value = (getattr(there[place], name) or "?") if place in there else ""
            wanted[1 + 3 * i + k] = _VALUES[f"{place} {name}"].index(value)
    return wanted
