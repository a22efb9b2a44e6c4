"""Stage `gallery`: images by the small generators, for the judge to learn from; of prompts that may be trained on."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from examples.miniature import pipelines
from examples.miniature.data import edits, train_scene, worded_edit, worded_scene
from examples.miniature.drawing import draw
from examples.miniature.judge_cases import Edited
from examples.miniature.loop import Machine
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import Style, style_of
from local_bench.suites.printshop.scene import Pixels, Scene

SEED = 91
FILE = "generated.npz"
_EACH = 1500


def made(machine: Machine) -> dict[str, Pixels]:
    """Of each model that has drawn some, its images, uint8 [n, 64, 64, 3]."""
    path = machine.work / FILE
    return dict(np.load(path)) if path.exists() else {}


def ordered(images: Mapping[str, Pixels]) -> list[tuple[Pixels, Scene]]:
    """Each with the scene that its prompt asked for."""
    found: list[tuple[Pixels, Scene]] = []
    for name, drawn in images.items():
        number = list(pipelines.CALLS).index(name)
        if name == "mini-kontext":
            scenes = [edit.target for edit in edits(SEED, number, len(drawn))[0]]
        else:
            scenes = [scene for scene, _ in _prompts(np.random.default_rng([SEED, number]), len(drawn))]
        found += zip(drawn, scenes, strict=True)
    return found


def _prompts(rng: np.random.Generator, count: int) -> list[tuple[Scene, str]]:
    scenes = (train_scene(rng, 0.7) for _ in range(count))
    return [(scene, worded_scene(scene, rng).text) for scene in scenes]


def edited(images: Mapping[str, Pixels]) -> list[Edited]:
    """The edits among them, with their sources."""
    results = images.get("mini-kontext", ())
    if not len(results):
        return []
    asked, sources, _ = edits(SEED, list(pipelines.CALLS).index("mini-kontext"), len(results))
    return [Edited(*each) for each in zip(asked, sources, results, strict=True)]


def by_style(images: Sequence[Pixels]) -> dict[Style, list[Pixels]]:
    """Those of one figure by what a set of them would share."""
    found: dict[Style, list[Pixels]] = defaultdict(list)
    for image in images:
        style = style_of(detect(image))
        if None not in style:
            found[style].append(image)
    return dict(found)


def run(machine: Machine) -> bool:
    """Draws `generated.npz` once, by each model that is trained by then: the judge is to be right about others too."""
    path = machine.work / FILE
    if path.exists():
        return True
    count = _EACH if machine.limit is None else min(_EACH, machine.limit)
    found: dict[str, Pixels] = {}
    for number, (name, (_, file)) in enumerate(pipelines.CALLS.items()):
        if not (machine.work / file).exists():
            continue
        rng = np.random.default_rng([SEED, number])
        pipe = pipelines.built(name, machine)
        if name == "mini-kontext":
            wanted, sources, _ = edits(SEED, number, count)
            found[name] = draw(pipe, [worded_edit(edit, rng).text for edit in wanted], sources, number)
        else:
            found[name] = draw(pipe, [words for _, words in _prompts(rng, count)], seed=number)
        print(f"gallery: {count} pictures by {name}", flush=True)
    aside = path.with_suffix(".writing.npz")
    np.savez(aside, **found)
    aside.replace(path)
    return True
