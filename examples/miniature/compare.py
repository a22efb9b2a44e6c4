"""Stage `compare`: the judge learns to hold images against each other.

It reads either of two images without a fault long before it says whether they are alike: that answer is one bit, and
always yes is a place to rest in. So what is alike is asked of the images themselves, half-way up the language model:
each token of the last image is to tell it, by a linear reading that is thrown away afterwards, as for the eye
(`eye`). Questions that stand behind the images find it there. All else is practised on the side, so that it is kept.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F

from examples.miniature import drill, eye, judge, judge_model
from examples.miniature import judge_cases as cases
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.text import Heads

STAGE = Stage("compare", seed=63, steps=2700, lr_muon=2e-3, lr_adam=1e-3, masters=False)
_LAYERS = 2
"""After so many of the language model's layers it is to be known; the others look it up."""
_SHARES = {"eye": 0.08, "edits": 0.16, "points": 0.16, "marks": 0.2, "mixed": 0.05, "alike": 0.35}
_ALIKE = 0.6
"""How many of the cases in which all is alike are drawn anew."""
_IGNORED = -100
_SCORES = tuple("012345")
_VALUES: dict[str, tuple[str, ...]] = {
    **{f"same {what}": ("0", "1") for what in ("background", "left", "centre", "right", "colour", "size")},
    "edit": _SCORES,
    **{f"picture {n}": _SCORES for n in range(1, 5)},
}
_TOLD = ("same background", "same colour", "edit")
_ALSO = ("cns_set logit", "veq_technical json")


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `compare.trained.pt`."""
    with practice(machine, STAGE, "drill") as (models, asked):

        def loss(step: int, steps: int) -> Loss:
            rng = rng_of(STAGE, step)
            return asked(chosen(rng, _SHARES), rng)

        done = train(models, loss)
    save({"judge": models.averaged()["judge"].state_dict()}, machine.work / "compare.trained.pt")
    return done


def chosen(rng: np.random.Generator, shares: Mapping[str, float]) -> str:
    """What is practised in a step."""
    return list(shares)[int(np.searchsorted(np.cumsum(list(shares.values()))[:-1], rng.random(), "right"))]


def blank(heads: Heads) -> Heads:
    """The same without an opinion: a new head's first guesses would pull at a model that has learnt."""
    torch.nn.init.zeros_(heads.proj_out.weight)
    torch.nn.init.zeros_(heads.proj_out.bias)
    return heads


@contextmanager
def practice(
    machine: Machine, stage: Stage, after: str, **more: torch.nn.Module
) -> Iterator[tuple[Models, Callable[[str, np.random.Generator], Loss]]]:
    """The judge as an earlier stage left it, with heads that are thrown away (and `more` modules); and what a step may
    practise by its name: eye, edits, points, marks, mixed, alike."""
    processor, model = judge_model.taught(machine.work, after)
    modules = {"judge": model, "heads": eye.heads(), "alike": blank(Heads(judge_model.WIDTH, _VALUES)), **more}
    models = Models(stage, machine, modules)
    trained = models.run["judge"]
    asking = judge.Asking(machine, trained, machine.work / "judge")
    soften, made = cases.softener(machine), judge.Made.of(machine)
    tower = {"visual": trained.model.visual, "heads": models.run["heads"]}

    def asked(what: str, rng: np.random.Generator) -> Loss:
        given = asking, rng, soften, made
        if what == "eye":
            looks = [judge.a_look(rng, soften, made, drill.MADE) for _ in range(drill.LOOKS)]
            return eye.understood(tower, looks, processor)[0], {}
        if what == "alike":
            some, bare = _some(rng, soften, made)
            batch = asking.batch(some, judge.PROTOCOLS, bare, not bare)
            found, right = judge.judged(trained, batch)
            shown = batch["batch"].ids == trained.config.image_token_id
            alike, known = _alike(models.run["alike"], some, shown, half_way)
            return found + alike, judge.means(right, _ALSO) | known
        if what == "marks":
            batch = drill.marks(*given)
        elif what == "mixed":
            batch = drill.batch(*given)
        else:
            batch = drill.points(*given, edits=what == "edits")
        found, right = judge.judged(trained, batch)
        return found, judge.means(right, _ALSO)

    with _Overheard(trained.model.language_model.layers[_LAYERS - 1]) as half_way:
        yield models, asked


class _Overheard:
    """What a layer last gave on, as a context manager."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self._layer = layer
        self.given: torch.Tensor | None = None

    def __enter__(self) -> Self:
        self._hook = self._layer.register_forward_hook(self._hear)
        return self

    def __exit__(self, *ended: object) -> None:
        self._hook.remove()

    def _hear(self, layer: torch.nn.Module, taken: object, given: Any) -> None:
        self.given = given[0] if isinstance(given, tuple) else given


def _some(rng: np.random.Generator, soften: cases.Soften, made: judge.Made) -> tuple[list[cases.Case], bool]:
    """Cases with equally many images, and whether they are asked short questions, or by the rubrics."""
    lot = rng.random()
    if lot < 0.55:
        bare, count = lot < 0.3, 20 if lot < 0.3 else 10
        return [_only(_unlike(judge.an_edit, rng, soften, made), "cns_edit") for _ in range(count)], bare
    bare, count = lot < 0.75, 20 if lot < 0.75 else 14
    return judge.equally_large([_unlike(judge.a_set, rng, soften, made) for _ in range(count)], count // 2), bare


def _unlike(
    of: Callable[..., cases.Case], rng: np.random.Generator, soften: cases.Soften, made: judge.Made
) -> cases.Case:
    """One in which something differs, mostly."""
    found = of(rng, soften, made, drill.MADE)
    if rng.random() < _ALIKE and all(answer == "1" for text, answer in found.bare if text.startswith("same ")):
        return of(rng, soften, made, drill.MADE)
    return found


def _only(case: cases.Case, rubric: str) -> cases.Case:
    return replace(case, asked=tuple(pair for pair in case.asked if pair[0].rubric == rubric))


def _alike(heads: Any, some: list[cases.Case], shown: torch.Tensor, half_way: _Overheard) -> Loss:
    """How far the tokens of each row's last image tell what is alike; `shown` [rows, tokens] marks all images."""
    assert half_way.given is not None
    each = int(shown[0].sum()) // len(some[0].images)
    at = torch.stack([row.nonzero()[-each:, 0] for row in shown])
    vectors = half_way.given.gather(1, at[..., None].expand(-1, -1, half_way.given.shape[-1])).flatten(0, 1)
    vectors = F.layer_norm(vectors, vectors.shape[-1:])
    wanted = torch.from_numpy(np.stack([_known(case) for case in some])).to(vectors.device).repeat_interleave(each, 0)
    lost, _ = heads.loss(vectors, wanted)
    told = heads.proj_out(vectors).split(heads.sizes, -1)
    right = {}
    for name in _TOLD:
        at_name = list(_VALUES).index(name)
        asked = wanted[:, at_name] >= 0
        if asked.any():
            right[name] = float((told[at_name].argmax(-1) == wanted[:, at_name])[asked].float().mean())
    return lost, right


def _known(case: cases.Case) -> np.ndarray:
    """What is alike, int64 [things]; _IGNORED what is not asked of it."""
    wanted = np.full(len(_VALUES), _IGNORED, np.int64)
    names = list(_VALUES)
    for text, answer in case.bare:
        if text in _VALUES:
            wanted[names.index(text)] = int(answer)
    for question, answer in case.asked:
        if question.rubric == "cns_edit":
            wanted[names.index("edit")] = int(answer["score"])
        if question.rubric == "cns_set":
            wanted[names.index(f"picture {dict(question.slots)['index']}")] = int(answer["score"])
    return wanted
