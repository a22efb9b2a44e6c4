"""Stage `judge`: a small Qwen2-VL that answers our rubrics in our own words, by JSON and by single labels.

The first part of the steps is mostly short claims and readings, which teach the eye cheaply; the rubrics' long
words come to the fore later. Only answers count, and of a JSON answer mostly the tokens that decide.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from examples.miniature import eye, gallery, judge_model
from examples.miniature import judge_cases as cases
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.packing import Asked, Batch, collated, packed
from local_bench.core.types import Question
from local_bench.judges.vlm.protocols import Protocol, texts
from local_bench.judges.vlm.rubrics import system
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import Style, facts
from local_bench.suites.printshop.scene import Pixels, Scene

STAGE = Stage("judge", seed=61, steps=4500, lr_muon=4e-3, lr_adam=2e-3, masters=False)
PROTOCOLS: tuple[Protocol, ...] = ("json", "logit")
_EYE = 16
"""Rows of short claims in a batch."""
_FURTHER = 320
"""Up to how many places short claims stand from the images: a rubric's points stand behind its words, and attention
learnt at one distance does not know another."""
_MADE = 0.35
"""How much of what is shown was made by the small generators, once they have made something."""
_FORM = 0.05
"""What a token counts that only gives an answer its form."""


class Asking:
    """Turns cases into batches for the model."""

    def __init__(self, machine: Machine, model: Any, folder: Path) -> None:
        self.processor, self.tokenizer = judge_model.plain(folder)
        self._model, self._device = model, machine.device
        self._image = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self._end = self.tokenizer.convert_tokens_to_ids("[end")
        self._positions: dict[int, torch.Tensor] = {}

    def batch(
        self,
        some: list[cases.Case],
        protocols: tuple[Protocol, ...],
        bare: bool,
        rubrics: bool,
        further: Sequence[int] = (),
        whole: int = 100,
    ) -> dict[str, Any]:
        """All questions of cases with equally many images, a row each; what is asked stands so many places `further`
        from the images, row by row, as if something were said in between. Of points, `whole` are asked to the end;
        of the rest only what can be known where they end."""
        some = [case for case in some if (bare and case.bare) or (rubrics and case.asked)]
        rows = []
        for case in some:
            asked = [self._bare(len(case.images), text, answer) for text, answer in case.bare] if bare else []
            if rubrics:
                points = 0
                for question, answer in case.asked:
                    points += question.rubric == "brf"
                    if points > whole:
                        asked.append(self._point_alone(len(case.images), question, answer))
                        continue
                    for protocol in protocols:
                        asked += self._asked(len(case.images), question, answer, protocol)
            rows.append(packed(asked))
        made = collated(rows, self.tokenizer.pad_token_id, self._device)
        images = [image for case in some for image in case.images]
        vision = judge_model.seen(self.processor, images, self._device)
        if further:
            last = max(at for at, token in enumerate(self.tokens(len(some[0].images), "")) if token == self._image)
            by = torch.tensor(further[: len(some)], device=self._device)[:, None]
            made = replace(made, depths=torch.where(made.depths > last, made.depths + by, made.depths))
        return {"batch": made, "vision": vision, "positions": self._place(made, len(some[0].images))}

    def tokens(self, images: int, text: str) -> tuple[int, ...]:
        """A whole prompt, as `judges.vlm.local` makes it."""
        ids = self.tokenizer(self._chat(images, text), add_special_tokens=False)["input_ids"]
        each = (judge_model.SIDE // judge_model.PATCH // judge_model.MERGE) ** 2
        return tuple(token for i in ids for token in (i,) * (each if i == self._image else 1))

    def _chat(self, images: int, text: str) -> str:
        pieces = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]
        messages = [
            {"role": "system", "content": [{"type": "text", "text": system().text}]},
            {"role": "user", "content": pieces},
        ]
        return str(self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def _bare(self, images: int, text: str, answer: str) -> Asked:
        ids = self._words(answer)
        claim = len(answer) == 1
        weights = (*(1.0,) * (len(ids) - 1), _FORM)
        deciding = 0 if claim else len(ids) - 2
        return Asked(self.tokens(images, text), ids, weights, "claim" if claim else "reading", deciding)

    def _asked(self, images: int, question: Question, answer: cases.Answer, protocol: Protocol) -> list[Asked]:
        made = []
        asked = judge_model.WORDING[question.rubric]
        labels = asked.labels_of(answer)
        for text, criterion in texts(question, protocol, judge_model.WORDING):
            prompt = self.tokens(images, text)
            if criterion is None:
                ids = self._words(json.dumps(answer, separators=(",", ":")))
                weights = tuple(self._weight(i) for i in ids)
                deciding = next((i for i, w in enumerate(weights) if w == 1), 0)
                early = self._early(question, prompt, answer)
                made.append(Asked(prompt, ids, weights, f"{question.rubric} json", deciding, early))
            elif criterion.name in labels:
                ids = self._words(str(int(labels[criterion.name])))
                weight = 0.3 if criterion.flag else 1.0
                kind = f"{question.rubric} flag" if criterion.flag else f"{question.rubric} logit"
                made.append(Asked(prompt, ids, (weight, _FORM), kind))
        return made

    def _early(self, question: Question, prompt: tuple[int, ...], answer: cases.Answer) -> tuple[int, int] | None:
        """Where a point has been read to its end, it can be known whether it is met; what follows is a question's
        form, and the answer only has to look that up."""
        if question.rubric != "brf":
            return None
        last = max(at for at, token in enumerate(prompt) if token == self._end)
        return last + 1, self._words(str(answer["met"]))[0]

    def _point_alone(self, images: int, question: Question, answer: cases.Answer) -> Asked:
        prompt = self.tokens(images, texts(question, "logit", judge_model.WORDING)[0][0])
        early = self._early(question, prompt, answer)
        assert early is not None
        return Asked(prompt[: early[0] + 1], (early[1],), (1.0,), "early")

    def _weight(self, token: int) -> float:
        """1 for a token of JSON that decides: a digit, true or false, the end of a list, a flag's name."""
        piece = self.tokenizer.decode([token])
        return 1.0 if piece.strip().isdigit() or piece in ("true", "false") else 0.3 if "]" in piece else _FORM * 4

    def _words(self, answer: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"])

    def _place(self, batch: Batch, images: int) -> torch.Tensor:
        """Positions [3, rows, tokens]: Qwen's own up to the last image, one a token from there."""
        if images not in self._positions:
            ids = torch.tensor([self.tokens(images, "")], device=self._device)
            side = judge_model.SIDE // judge_model.PATCH
            grid = torch.tensor([[1, side, side]] * images, device=self._device)
            kinds = (ids == self._image).int()
            found, _ = self._model.model.get_rope_index(input_ids=ids, mm_token_type_ids=kinds, image_grid_thw=grid)
            last = int((ids[0] == self._image).nonzero()[-1]) + 1
            rest = found[:, 0, :last].max() + 1 + torch.arange(judge_model._CONTEXT - last, device=self._device)
            self._positions[images] = torch.cat([found[:, 0, :last], rest.expand(3, -1)], 1)
        return self._positions[images][:, batch.depths]


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `judge.trained.pt`, beside tokenizer and processor in the folder `judge`."""
    folder = machine.work / "judge"
    _, tokenizer = judge_model.plain(folder)
    model = judge_model.new(tokenizer, STAGE.seed)
    model.model.visual.load_state_dict(eye.trained(machine.work))
    models = Models(STAGE, machine, {"judge": model})
    asking = Asking(machine, models.run["judge"], folder)
    soften, made = cases.softener(machine), Made.of(machine)

    def loss(step: int, steps: int) -> Loss:
        rng, share = rng_of(STAGE, step), step / steps
        batch = _batch(asking, rng, share, soften, made)
        found, right = judged(models.run["judge"], batch)
        return found, means(right)

    done = train(models, loss)
    save({"judge": models.averaged()["judge"].state_dict()}, machine.work / "judge.trained.pt")
    return done


TOLD = ("claim", "early", "brf json", "brf logit", "cns_edit logit", "veq_technical logit")


def means(right: Mapping[str, list[bool]], also: Sequence[str] = ()) -> dict[str, float]:
    """What is reported of `judged`: how often each kind was right."""
    return {kind: float(np.mean(values)) for kind, values in sorted(right.items()) if kind in (*TOLD, *also)}


def judged(model: Any, given: dict[str, Any]) -> tuple[torch.Tensor, dict[str, list[bool]]]:
    """The weighted loss of a batch, and by kind whether the token that decides was the likeliest."""
    batch: Batch = given["batch"]
    hidden = model.model(
        input_ids=batch.ids,
        attention_mask=batch.mask,
        position_ids=given["positions"],
        mm_token_type_ids=(batch.ids == model.config.image_token_id).int(),
        use_cache=False,
        **given["vision"],
    )[0]
    asked = batch.labels >= 0
    logits, wanted, weights = model.lm_head(hidden[asked]).float(), batch.labels[asked], batch.weights[asked]
    lost = F.cross_entropy(logits, wanted, reduction="none")
    hit = torch.zeros_like(batch.labels, dtype=torch.bool)
    hit[asked] = logits.argmax(-1) == wanted
    right: dict[str, list[bool]] = defaultdict(list)
    for row, at, kind in batch.kinds:
        right[kind].append(bool(hit[row, at]))
    return (lost * weights).sum() / weights.sum(), right


@dataclass(frozen=True)
class Made:
    """What the small generators made, where they have."""

    drawn: list[tuple[Pixels, Scene]]
    """With what was asked for."""
    edited: list[cases.Edited]
    by_style: dict[Style, list[Pixels]]
    missed: list[tuple[Pixels, Scene]]
    """Those of `drawn` that are not what was asked for: in these a judge is wrong."""

    @classmethod
    def of(cls, machine: Machine) -> "Made":
        made = gallery.made(machine)
        drawn = gallery.ordered(made)
        missed = [(pixels, scene) for pixels, scene in drawn if not facts(scene) <= facts(detect(pixels))]
        return cls(drawn, gallery.edited(made), gallery.by_style([pixels for pixels, _ in drawn]), missed)


def _batch(asking: Asking, rng: np.random.Generator, share: float, soften: cases.Soften, made: Made) -> dict[str, Any]:
    eye = rng.random() < (0.85 if share < 0.12 else 0.4)
    lot = rng.random()
    if eye:
        of = _one if lot < 0.75 else an_edit
        further = [int(rng.integers(_FURTHER)) for _ in range(_EYE)]
        return asking.batch([of(rng, soften, made) for _ in range(_EYE)], PROTOCOLS, True, False, further)
    if lot < 0.55:
        some = [_one(rng, soften, made) for _ in range(14)]
    elif lot < 0.75:
        some = [an_edit(rng, soften, made) for _ in range(10)]
    elif lot < 0.85:
        some = [cases.instructed(rng, soften) for _ in range(10)]
    else:
        some = equally_large([a_set(rng, soften, made) for _ in range(12)], 5)
    return asking.batch([_by_one_rubric(case, rng) for case in some], PROTOCOLS, True, True)


def equally_large(sets: list[cases.Case], most: int) -> list[cases.Case]:
    """Those that have as many images as the first."""
    return [case for case in sets if len(case.images) == len(sets[0].images)][:most]


def _by_one_rubric(case: cases.Case, rng: np.random.Generator) -> cases.Case:
    """What one rubric asks about it: a rubric's words are long, and many images teach more than many rubrics about
    few. Mostly the points, where there are any."""
    names = list(dict.fromkeys(question.rubric for question, _ in case.asked))
    rest = [name for name in names if name != "brf"]
    points = "brf" in names and (not rest or rng.random() < 0.65)
    chosen = "brf" if points else rest[int(rng.integers(len(rest)))] if rest else ""
    return replace(case, asked=tuple(pair for pair in case.asked if pair[0].rubric == chosen))


def a_look(rng: np.random.Generator, soften: cases.Soften, made: Made, share: float = _MADE) -> cases.FeatureInput:
    """An image, in a `share` of all cases by a small generator."""
    if made.drawn and rng.random() < share:
        some = made.missed if made.missed and rng.random() < 0.5 else made.drawn
        return cases.generated_look(*some[int(rng.integers(len(some)))])
    return cases.drawn_look(rng, soften)


def worn(rng: np.random.Generator, soften: cases.Soften, made: Made) -> cases.FeatureInput:
    """An image, drawn or by a small generator, that is damaged mostly."""
    found = a_look(rng, soften, made)
    return found if found.strength or rng.random() < 0.35 else cases.damaged(found, rng)


def _one(rng: np.random.Generator, soften: cases.Soften, made: Made) -> cases.Case:
    return cases.one_image(a_look(rng, soften, made), rng)


def an_edit(rng: np.random.Generator, soften: cases.Soften, made: Made, share: float = _MADE) -> cases.Case:
    """A source and a result, in a `share` of all cases by a small generator."""
    if made.edited and rng.random() < share:
        edit = made.edited[int(rng.integers(len(made.edited)))]
        if rng.random() < 0.4:  # by a model that never saw the source
            edit = replace(edit, result=made.drawn[int(rng.integers(len(made.drawn)))][0])
        return cases.edited_by_a_model(edit, rng)
    return cases.edited(rng, soften)


def a_set(rng: np.random.Generator, soften: cases.Soften, made: Made, share: float = _MADE) -> cases.Case:
    """Images that were ordered as one set, in a `share` of all cases by the small generators."""
    if made.by_style and rng.random() < share:
        return cases.in_a_made_set(made.by_style, rng)
    return cases.in_a_set(rng, soften)
