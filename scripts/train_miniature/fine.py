"""Stage `fine`: the judge gets an eye for what is fine, and learns what a damaged picture is worth.

After all stages before, the eye tells the figures and is blind to noise of any strength: colours outweigh all else in
its patches, what is fine hardly passes them, and noise, whose sign says nothing, is learnt only by what has passed.
So the stage begins with filters for what is fine, in place of those that say least, and asks the tower alone for each
kind of damage; then all is practised again with the eye as it now is.
"""

from typing import Any

import numpy as np
import torch
from scipy.fft import idctn

from local_bench.suites.miniature.damage import KINDS, STRENGTHS
from scripts.train_miniature import drill, eye, judge, judge_model
from scripts.train_miniature import judge_cases as cases
from scripts.train_miniature.compare import chosen, practice
from scripts.train_miniature.loop import Loss, Machine, Stage, rng_of, save, train
from scripts.train_miniature.text import Heads

STAGE = Stage("fine", seed=64, steps=4000, lr_muon=2e-3, lr_adam=1e-3, masters=False)
_ALONE = 0.2
"""The share of the steps in which the tower learns alone."""
_SHARES = {"fine": 0.3, "edits": 0.1, "points": 0.14, "marks": 0.16, "mixed": 0.06, "alike": 0.24}
_FILTERS, _GAIN = 32, 60.0
_SIDE = judge_model.PATCH
_VALUES = {kind: ("0", *map(str, STRENGTHS)) for kind in KINDS}
_COUNTS = 2.0
"""What the kinds of damage count, beside all that stands in a picture."""
_IGNORED = -100


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `fine.trained.pt`."""
    heads = Heads(judge_model.WIDTH, _VALUES)
    with practice(machine, STAGE, "compare", kinds=heads) as (models, asked):
        processor, _ = judge_model.plain(machine.work / "judge")
        soften, made = cases.softener(machine), judge.Made.of(machine)
        visual = models.run["judge"].model.visual
        _sharpen(visual, processor, [cases.drawn_look(np.random.default_rng(i), soften) for i in range(64)])

        def loss(step: int, steps: int) -> Loss:
            rng = rng_of(STAGE, step)
            what = "fine" if step < _ALONE * steps else chosen(rng, _SHARES)
            if what != "fine":
                return asked(what, rng)
            looks = [judge.worn(rng, soften, made) for _ in range(drill.LOOKS)]
            tokens = eye.tokens(visual, looks, processor)
            seen, right = eye.told(models.run["heads"], tokens, looks)
            lost, kinds = _marked(models.run["kinds"], tokens, looks)
            return seen + _COUNTS * lost, {f"eye {name}": right[name] for name in ("shape", "damage")} | kinds

        done = train(models, loss)
    save({"judge": models.averaged()["judge"].state_dict()}, machine.work / "fine.trained.pt")
    return done


@torch.no_grad()
def _sharpen(visual: Any, processor: object, looks: list[cases.Look]) -> None:
    """Puts random filters of the fine half of a patch's frequencies where the patches' own say least."""
    proj = visual.patch_embed.proj.weight  # [width, 3, 2, 8, 8]; a picture is shown as two frames
    seen = judge_model.seen(processor, [look.pixels for look in looks], proj.device)
    least = visual.patch_embed(seen["pixel_values"]).std(0).argsort()[:_FILTERS]
    rng = np.random.default_rng(STAGE.seed)
    fine = rng.normal(size=(_FILTERS, _SIDE, _SIDE)) * (np.add.outer(range(_SIDE), range(_SIDE)) >= _SIDE // 2)
    drawn, colours = idctn(fine, axes=(1, 2), norm="ortho"), rng.normal(size=(_FILTERS, 3))
    drawn /= np.linalg.norm(drawn, axis=(1, 2), keepdims=True)
    colours /= np.linalg.norm(colours, axis=1, keepdims=True)
    filters = torch.from_numpy(_GAIN / 2 * np.einsum("nc,nij->ncij", colours, drawn))
    proj[least] = filters[:, :, None].expand(-1, -1, 2, -1, -1).to(proj)


def _marked(heads: Any, tokens: torch.Tensor, looks: list[cases.Look]) -> Loss:
    """How far the tower's tokens tell the strength of each kind of damage; and of damaged pictures, how often."""
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
