"""Stage `fine`: the judge gets an eye for what is fine, and learns what a damaged image is worth.

After all stages before, the eye tells the figures and is blind to noise of any strength: colours outweigh all else in
its patches, what is fine hardly passes them, and noise, whose sign says nothing, is learnt only by what has passed.
So the stage begins with filters for what is fine, added to those that say least. The tower alone is asked for each
kind of damage, and to say otherwise what it said before, so that nothing else has to be learnt again; then all is
practised once more with the eye as it now is.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.fft import idctn

from examples.miniature import drill, eye, judge, judge_model
from examples.miniature import judge_cases as cases
from examples.miniature.compare import blank, chosen, practice
from examples.miniature.loop import Loss, Machine, Stage, rng_of, save, train
from examples.miniature.printshop.damage import KINDS, STRENGTHS
from examples.miniature.text import Heads

STAGE = Stage("fine", seed=64, steps=3400, lr_muon=3e-3, lr_adam=1.5e-3, masters=False)
_ALONE = 0.4
"""The share of the steps in which the tower learns alone."""
_SHARES = {"fine": 0.2, "edits": 0.1, "points": 0.16, "marks": 0.28, "mixed": 0.06, "alike": 0.2}
_FILTERS, _GAIN = 32, 40.0
_SIDE = judge_model.PATCH
_VALUES = {kind: ("0", *map(str, STRENGTHS)) for kind in KINDS}
_AS_BEFORE, _KINDS = 5.0, 2.0
"""What counts how much where the tower learns alone."""
_IGNORED = -100


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `fine.trained.pt`."""
    with practice(machine, STAGE, "compare", kinds=blank(Heads(judge_model.WIDTH, _VALUES))) as (models, asked):
        processor, _ = judge_model.plain(machine.work / "judge")
        soften, made = cases.softener(machine), judge.Made.of(machine)
        visual = models.run["judge"].model.visual
        _, before = judge_model.taught(machine.work, "compare")
        visual_before = before.model.visual.to(machine.device).requires_grad_(False)
        _sharpen(visual, processor, [cases.drawn_look(np.random.default_rng(i), soften) for i in range(64)])

        def loss(step: int, steps: int) -> Loss:
            rng = rng_of(STAGE, step)
            what = "fine" if step < _ALONE * steps else chosen(rng, _SHARES)
            visual.requires_grad_(what == "fine")  # words would pull it away from what it has just learnt
            if what != "fine":
                return asked(what, rng)
            looks = [judge.worn(rng, soften, made) for _ in range(drill.LOOKS)]
            said, wanted = eye.tokens(visual, looks, processor), eye.tokens(visual_before, looks, processor)
            other = F.mse_loss(said, wanted) / wanted.var()
            lost, right = _marked(models.run["kinds"], said, looks)
            return _AS_BEFORE * other + _KINDS * lost, {"other": float(other.detach())} | right

        done = train(models, loss)
    save({"judge": models.averaged()["judge"].state_dict()}, machine.work / "fine.trained.pt")
    return done


@torch.no_grad()
def _sharpen(visual: Any, processor: object, looks: list[cases.FeatureInput]) -> None:
    """Adds random filters of the fine half of a patch's frequencies to those of the patches' own that say least."""
    proj = visual.patch_embed.proj.weight  # [width, 3, 2, 8, 8]; an image is shown as two frames
    seen = judge_model.seen(processor, [look.pixels for look in looks], proj.device)
    least = visual.patch_embed(seen["pixel_values"]).std(0).argsort()[:_FILTERS]
    rng = np.random.default_rng(STAGE.seed)
    fine = rng.normal(size=(_FILTERS, _SIDE, _SIDE)) * (np.add.outer(range(_SIDE), range(_SIDE)) >= _SIDE // 2)
    drawn, colours = idctn(fine, axes=(1, 2), norm="ortho"), rng.normal(size=(_FILTERS, 3))
    drawn /= np.linalg.norm(drawn, axis=(1, 2), keepdims=True)
    colours /= np.linalg.norm(colours, axis=1, keepdims=True)
    filters = torch.from_numpy(_GAIN / 2 * np.einsum("nc,nij->ncij", colours, drawn))
    proj[least] += filters[:, :, None].expand(-1, -1, 2, -1, -1).to(proj)


def _marked(heads: Any, tokens: torch.Tensor, looks: list[cases.FeatureInput]) -> Loss:
    """How far the tower's tokens tell the strength of each kind of damage; and of damaged images, how often."""
    known = [
        [_IGNORED if look.strength == 5 else look.strength * (look.kind == kind) for kind in KINDS] for look in looks
    ]
    wanted = torch.tensor(known, device=tokens.device).repeat_interleave(len(tokens) // len(looks), 0)
    lost, _ = heads.loss(tokens, wanted)
    said = heads.proj_out(tokens).split(heads.sizes, -1)
    right = {}
    for i, kind in enumerate(KINDS):
        has = wanted[:, i] > 0
        if has.any():
            right[kind] = float((said[i].argmax(-1) == wanted[:, i])[has].float().mean())
    return lost, right
