"""What the judge is taught on: images whose truth is known, our rubrics' questions about them, and the answers.

Images are as drawn, softened by the autoencoder, damaged, torn, written into, or made by the small generators (their
truth is the checker's). A question's words are the rubric's own, by the code that asks them in a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from examples.miniature import readings, vae
from examples.miniature.data import train_edit, train_scene, worded_edit
from examples.miniature.loop import Machine
from examples.miniature.printshop.comparison import match_edit
from examples.miniature.printshop.damage import KINDS as DAMAGE
from examples.miniature.printshop.damage import STRENGTHS, damage
from examples.miniature.printshop.orderbook import frame
from examples.miniature.printshop.sampling import choose, draw_edit, render, sample_edit, sample_point, sample_variation
from examples.miniature.printshop.sets import STYLE, draw_set, sample_set
from examples.miniature.printshop.wording import points_of, true_of, write_point
from examples.miniature.printshop.writing import sample_injected_text
from local_bench.core.types import Question
from local_bench.suites.printshop.checker import DetectedScene, detect
from local_bench.suites.printshop.matching import Point, Style, edit_score, facts, holds, set_scores
from local_bench.suites.printshop.phrases import LANGUAGES, Edit, Language
from local_bench.suites.printshop.scene import (
    BACKGROUNDS,
    COLOURS,
    PLACES,
    SHAPES,
    SIZES,
    Figure,
    Pixels,
    Scene,
    draw,
    is_scene,
)

Soften = Callable[[Pixels], Pixels]
Answer = dict[str, Any]


_ATTRIBUTES: Mapping[str, Sequence[str] | Mapping[str, object]] = {
    "shape": SHAPES,
    "colour": COLOURS,
    "place": PLACES,
    "size": SIZES,
}
"""Of a figure, in its order."""


@dataclass(frozen=True)
class Case:
    """Images in the order in which they are shown, and what is asked about them: (question, answer)."""

    images: tuple[Pixels, ...]
    asked: tuple[tuple[Question, Answer], ...]
    bare: tuple[tuple[str, str], ...] = ()
    """Questions in no rubric's words, that teach the eye: (text, answer)."""


@dataclass(frozen=True)
class FeatureInput:
    """One image with its truth."""

    pixels: Pixels
    scene: Scene | None
    seen: DetectedScene | None = None
    """Of a generated image, in the place of a scene."""
    strength: int = 0
    """Of damage; 5 is nothing but noise."""
    kind: str = ""
    """Of damage, where it has one."""
    torn: bool = False
    written: bool = False
    ordered: Scene | None = None
    """What was asked for: a model fails near that, and what an edit keeps is easily read off its source."""

    def told(self) -> Scene | None:
        """What stands in it, as far as anybody can tell."""
        return self.scene or (self.seen.scene() if self.seen is not None else None)

    def met(self, point: Point) -> bool:
        """Where nobody can tell it is not met, as the rubric has it."""
        if self.scene is not None:
            return true_of(point, self.scene)
        assert self.seen is not None
        return holds(point, self.seen) is True


@dataclass(frozen=True)
class Edited:
    """An edit as a small generator made it."""

    edit: Edit
    source: Pixels
    result: Pixels


def drawn_look(rng: np.random.Generator, soften: Soften, scene: Scene | None = None) -> FeatureInput:
    """An image of the world in whatever state; of a scene of the training split where none is given."""
    scene = scene or train_scene(rng, 0.6)
    pixels = render(scene, rng)
    written = bool(rng.random() < 0.25)
    if written:
        pixels, _ = sample_injected_text(pixels, scene.background, rng)
    if rng.random() < 0.4:
        pixels = soften(pixels)
    found = FeatureInput(pixels, scene, written=written)
    lot = rng.random()
    if lot < 0.35:
        return damaged(found, rng)
    if lot < 0.42:
        return replace(found, pixels=_torn(pixels, rng), torn=True)
    if lot < 0.44:
        return replace(
            found, pixels=rng.integers(0, 256, pixels.shape).astype(np.uint8), scene=None, seen=None, strength=5
        )
    return found


def damaged(found: FeatureInput, rng: np.random.Generator) -> FeatureInput:
    """The same image, damaged by whatever kind and strength."""
    strength, kind = int(choose(rng, STRENGTHS)), choose(rng, tuple(DAMAGE))
    return replace(found, pixels=damage(found.pixels, kind, strength, rng), strength=strength, kind=kind)


def generated_look(pixels: Pixels, ordered: Scene | None = None) -> FeatureInput:
    """An image that a model made; the checker says what is in it."""
    return FeatureInput(pixels, None, detect(pixels), ordered=ordered)


def one_image(found: FeatureInput, rng: np.random.Generator, points: int = 6) -> Case:
    """All that is asked about a single image; up to so many points."""
    asked: list[tuple[Question, Answer]] = [
        (_plain("veq_technical"), {"clarity": 5 - found.strength, "realism": _realism(found)}),
        (_plain("veq_aesthetic"), {"aesthetic": _aesthetic(found)}),
        (
            _plain("veq_text"),
            {"has_text": True, "text": max(0, 5 - found.strength)} if found.written else {"has_text": False},
        ),
    ]
    language = _language(rng)
    title, brief = frame("alone" if rng.random() < 0.7 else "set", language, rng)
    for point, met in _points(found, rng, points):
        asked.append((_brf(title, brief, write_point(point, language), ("delivered",)), {"met": int(met)}))
    bare = [(write_point(point, _language(rng)), str(int(met))) for point, met in _points(found, rng, 10)]
    scene = found.told()
    if scene is not None and found.strength < 4 and not found.torn:
        bare += readings.read(scene) + readings.read_in_chinese(scene)
    return Case((found.pixels,), tuple(asked), tuple(bare))


def ordered(pixels: Pixels, wanted: Scene, rng: np.random.Generator) -> tuple[Case, list[bool]]:
    """All that a client who ordered that scene would ask of an image, and what is true."""
    language = _language(rng)
    title, brief = frame("alone", language, rng)
    points, found = points_of(wanted), generated_look(pixels)
    met = [found.met(point) for point in points]
    asked = [(_brf(title, brief, write_point(point, language), ("delivered",)), {}) for point in points]
    return Case((pixels,), tuple(asked)), met


def edited_by_a_model(made: Edited, rng: np.random.Generator) -> Case:
    """A source and what a small generator made of it; what was kept is the checker's to say."""
    found = generated_look(made.result, made.edit.target)
    assert found.seen is not None
    done = match_edit(found.seen, made.edit).whole
    kept = edit_score(facts(found.seen), made.edit)
    return _of_edit(made.edit, made.source, found, (kept, _lost(kept)), done, rng)


def edited(rng: np.random.Generator, soften: Soften) -> Case:
    """A source and what was made of it, well or badly."""
    edit = train_edit(rng)
    source, target = draw_edit(edit, rng)
    outcome = choose(rng, ("done", "done", "redrawn", "more", "nothing", "foreign", "foreign", "damaged"))
    result, scene, strength = target, edit.target, 0
    if outcome == "redrawn":
        result = draw(scene, sample_variation(rng, len(scene.figures)))
    elif outcome == "more":
        other = choose(rng, BACKGROUNDS, (edit.target.background, edit.source.background))
        scene = replace(edit.target, background=other)
        result = draw(scene, sample_variation(rng, len(scene.figures)))
    elif outcome == "nothing":
        result, scene = source, edit.source
    elif outcome == "foreign":
        scene = train_scene(rng)
        result = render(scene, rng)
    elif outcome == "damaged":
        strength = int(choose(rng, STRENGTHS))
        result = damage(target, choose(rng, DAMAGE), strength, rng)
    if rng.random() < 0.4:
        result = soften(result)
    if rng.random() < 0.2:
        result, _ = sample_injected_text(result, scene.background, rng)
        outcome = "written" if outcome == "done" else outcome
    done = outcome in ("done", "redrawn") or (outcome == "damaged" and strength == 1)
    found = FeatureInput(result, scene, strength=strength, ordered=edit.target)
    return _of_edit(edit, source, found, _kept(outcome, strength, edit_score(facts(scene), edit)), done, rng)


def _of_edit(
    edit: Edit, source: Pixels, found: FeatureInput, kept: tuple[int, list[str]], done: bool, rng: np.random.Generator
) -> Case:
    worded = worded_edit(edit, rng).text.split(". ")[0]
    language = _language(rng)
    title, brief = frame("edit", language, rng)
    points = _points(found, rng, 8)
    score, flags = kept
    asked: list[tuple[Question, Answer]] = [
        (_plain("cns_edit", ("result", "source")), {"score": score, "flags": flags})
    ]
    asked += [
        (_brf(title, brief, write_point(p, language), ("delivered", "source")), {"met": int(met)}) for p, met in points
    ]
    scene = found.told()
    return Case((found.pixels, source), tuple(asked), readings.compared(edit.source, scene, worded, done))


def instructed(rng: np.random.Generator, soften: Soften) -> Case:
    """The same the other way round: what the rubrics ask that show the source first."""
    edit = sample_edit(rng, None, "train")
    source, target = draw_edit(edit, rng)
    outcome = choose(rng, ("done", "done", "nothing", "other", "more"))
    result = target
    if outcome == "nothing":
        result = source
    elif outcome == "other":
        result = render(train_scene(rng), rng)
    elif outcome == "more":
        scene = replace(
            edit.target, background=choose(rng, BACKGROUNDS, (edit.target.background, edit.source.background))
        )
        result = draw(scene, sample_variation(rng, len(scene.figures)))
    if rng.random() < 0.4:
        result = soften(result)
    words = worded_edit(edit, rng).text.split(". ")[0]
    done, kept = outcome in ("done", "more"), outcome in ("done", "nothing")
    roles = ("source", "result")
    checks = (("instruction", words), ("changes", words), ("preservations", "everything else"))
    asked = (
        (Question("vllm_qa", 0, _shown(2), (("instruction", words),), roles), {"success": int(done and kept)}),
        (
            Question("hype_edit", 0, _shown(2), checks, roles),
            {"changes_made": done, "rest_preserved": kept, "usable": done and kept},
        ),
    )
    return Case((source, result), asked, ((words, str(int(done and kept))),))


def in_a_set(rng: np.random.Generator, soften: Soften) -> Case:
    """Images that were ordered as one set."""
    count = int(rng.integers(2, 5))
    broken = choose(rng, STYLE) if count > 2 and rng.random() < 0.6 else None
    images = sample_set(rng, count, broken)
    drawn = draw_set(images, rng)
    if rng.random() < 0.4:
        drawn = [soften(image) for image in drawn]
    asked = []
    for index in range(count):
        slots = (("count", str(count)), ("index", str(index + 1)))
        question = Question("cns_set", 0, _shown(count), slots, ("image",) * count)
        asked.append((question, _agrees(images.broken, index == images.breaker)))
    styles = [(s.background, s.figures[0].colour, s.figures[0].size) for s in images.scenes]
    return Case(tuple(drawn), tuple(asked), readings.alike(styles))


def in_a_made_set(styles: Mapping[Style, Sequence[Pixels]], rng: np.random.Generator) -> Case:
    """Images of one figure each by the small generators, put together as a set; `styles` has them by their style."""
    whole = [style for style, images in styles.items() if len(images) >= 4]
    count, style = int(rng.integers(2, 5)), choose(rng, whole)
    chosen = [style] * count
    if rng.random() < 0.5:
        chosen[int(rng.integers(count))] = choose(rng, whole)
    drawn = [styles[each][int(rng.integers(len(styles[each])))] for each in chosen]
    asked = []
    for index, score in enumerate(set_scores(chosen)):
        slots = (("count", str(count)), ("index", str(index + 1)))
        flags = {
            1: ["style_inconsistent", "color_palette_broken"],
            2: ["color_palette_broken"],
            3: ["layout_divergent"],
        }
        answer = {"score": score, "flags": flags.get(score, [])}
        asked.append((Question("cns_set", 0, _shown(count), slots, ("image",) * count), answer))
    return Case(tuple(drawn), tuple(asked), readings.alike(chosen))


def _points(found: FeatureInput, rng: np.random.Generator, count: int) -> list[tuple[Point, bool]]:
    """Claims about the image, as many true as false where it has both."""
    if found.strength == 5 or found.torn:
        return [(sample_point(train_scene(rng), True, rng), False) for _ in range(count)] if found.strength == 5 else []
    if found.strength == 4:
        return []
    base = found.told() or _supposed(found.seen, rng) or train_scene(rng)
    made: list[tuple[Point, bool]] = []
    for i in range(count):
        if found.ordered is not None and rng.random() < 0.5:
            point = choose(rng, points_of(found.ordered))
        elif rng.random() < 0.5:
            point = choose(rng, points_of(base))
            point = point if i % 2 == 0 else _nearly(point, rng)
        else:
            point = sample_point(base, i % 2 == 0, rng)
        made.append((point, found.met(point)))
    return made


def _supposed(seen: DetectedScene | None, rng: np.random.Generator) -> Scene | None:
    """What somebody may take for granted who cannot tell all of it; None where no scene of ours is near."""
    if seen is None:
        return None
    figures = [
        Figure(*(getattr(figure, name) or choose(rng, of) for name, of in _ATTRIBUTES.items()))
        for figure in seen.figures
    ]
    if not is_scene(tuple(figures)):
        return None
    return Scene(seen.background or choose(rng, BACKGROUNDS), tuple(figures))


def _nearly(point: Point, rng: np.random.Generator) -> Point:
    """The same but for one thing, mostly the shape: what a client would have to look twice for."""
    if point.count is not None:
        return Point(count=3 - point.count)
    others = {**_ATTRIBUTES, "background": BACKGROUNDS}
    stated = [name for name in others if getattr(point, name) is not None]
    name = "shape" if "shape" in stated and rng.random() < 0.6 else choose(rng, stated)
    return replace(point, **{name: choose(rng, others[name], (getattr(point, name),))})


def _realism(found: FeatureInput) -> int:
    if found.torn:
        return 1
    left = (5, 5, 4, 3, 2, 0)[found.strength]
    if found.seen is None:
        return left
    sure = found.seen.confidence
    return min(left, 1 if not found.seen.figures else 5 if sure > 0.5 else 4 if sure > 0 else 2)


def _aesthetic(found: FeatureInput) -> int:
    """Contrast, size, a calm surface: what can be told without taste."""
    scene = found.told()
    if scene is None:
        return 0 if found.strength == 5 else 2
    ground = np.array(BACKGROUNDS[scene.background])
    least = min(float(np.linalg.norm(ground - COLOURS[figure.colour])) for figure in scene.figures)
    score = 5 - (least < 170) - all(figure.size == "small" for figure in scene.figures)
    return max(0, score - (found.strength + 1) // 2 - 2 * found.torn - found.written)


def _kept(outcome: str, strength: int, score: int) -> tuple[int, list[str]]:
    """For consistency with the source, and the flags: `score` is what the facts alone say."""
    if outcome == "damaged":
        return 5 - strength, ["texture_damaged"]
    if outcome == "written":
        return 3, ["non_edit_changed"]
    if outcome == "redrawn":
        return 4, ["subject_drift"]
    return score, _lost(score)


def _lost(score: int) -> list[str]:
    return [] if score == 5 else ["non_edit_changed"] if score > 2 else ["non_edit_changed", "identity_lost"]


def _agrees(broken: str | None, breaker: bool) -> Answer:
    if broken is None:
        return {"score": 5, "flags": []}
    if not breaker:
        return {"score": 4, "flags": []}
    flags = {
        "background": (2, ["style_inconsistent", "color_palette_broken"]),
        "colour": (2, ["color_palette_broken"]),
        "size": (3, ["layout_divergent"]),
    }
    score, raised = flags[broken]
    return {"score": score, "flags": raised}


def _torn(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """The lower half moved aside, as a bad seam does."""
    torn = pixels.copy()
    at, by = int(rng.integers(26, 39)), int(rng.integers(7, 15)) * (1 if rng.random() < 0.5 else -1)
    torn[at:] = np.roll(torn[at:], by, 1)
    return torn


def _language(rng: np.random.Generator) -> Language:
    """Chinese a little more often: it is learnt more slowly."""
    return LANGUAGES[0] if rng.random() < 0.45 else LANGUAGES[1]


def _plain(rubric: str, roles: tuple[str, ...] = ()) -> Question:
    return Question(rubric, 0, _shown(max(1, len(roles))), (), roles)


def _brf(title: str, brief: str, point: str, roles: tuple[str, ...]) -> Question:
    return Question("brf", 0, _shown(len(roles)), (("title", title), ("brief", brief), ("point", point)), roles)


def _shown(count: int) -> tuple[str, ...]:
    return tuple("0" * 64 for _ in range(count))


def softener(machine: Machine) -> Soften:
    """What the autoencoder makes of an image; the image itself where there is no autoencoder yet."""
    if not (machine.work / "vae.trained.pt").exists():
        return lambda pixels: pixels
    model = vae.trained(machine)

    @torch.no_grad()
    def soften(pixels: Pixels) -> Pixels:
        told = model.encode(vae.as_tensor(pixels[None], machine.device)).latent_dist.mode()
        return vae.as_pixels(model.decode(told).sample)[0]

    return soften
