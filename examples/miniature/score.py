"""Stage `score`: how good the exported models are, on what no training saw. The checker is the referee.

Everything goes through the shipped files and the classes that a run loads them with: 500 prompts of each kind, the
judge through `judges.vlm.local` and the requests that a run sends.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from examples.miniature import judge_cases, judge_model, pipelines
from examples.miniature.drawing import draw
from examples.miniature.judge import PROTOCOLS
from examples.miniature.loop import Machine
from examples.miniature.printshop.comparison import match_edit
from examples.miniature.printshop.sampling import (
    choose,
    draw_edit,
    sample_caption,
    sample_edit,
    sample_instruction,
    sample_scene,
    wording_held_out,
)
from examples.miniature.printshop.wording import write_caption
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.protocols import Protocol, Reply, Shown, prepare, read
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.settle.agreement import spearman
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import facts
from local_bench.suites.printshop.phrases import KINDS, wordings
from local_bench.suites.printshop.scene import Pixels, Scene

SEED = 4848
_EACH = 500
Table = dict[str, float]


def run(machine: Machine) -> bool:
    """Prints the table and writes it as `score.json`."""
    count = _EACH if machine.limit is None else machine.limit
    table: dict[str, Table] = {}
    made: list[tuple[Scene, Pixels]] = []
    for name in ("mini-flux", "mini-flux-early", "mini-sd3"):
        pipe = _loaded(name, machine)
        for kind, asked in (("one", _one), ("two, pair held out", _held_out), ("two, pair seen", _two)):
            wanted = asked(np.random.default_rng(SEED), count)
            drawn = draw(pipe, [words for _, words in wanted], seed=SEED)
            table[f"{name}: {kind}"] = _drawn_right(drawn, [scene for scene, _ in wanted])
            made += zip([scene for scene, _ in wanted], drawn, strict=True)
    for split in ("train", "held_out"):
        table[f"mini-kontext: edits, {split}"] = _edits(_loaded("mini-kontext", machine), split, count)
    table |= _judge(resolve(card("mini-judge", "judge")), machine, count, made)
    for name, found in table.items():
        print(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in found.items()), flush=True)
    (machine.work / "score.json").write_text(json.dumps(table, indent=1) + "\n")
    return True


def _loaded(name: str, machine: Machine) -> Any:
    kind, _ = pipelines.CALLS[name]
    folder = resolve(card(name, "generator"))
    pipe = kind.from_pretrained(folder, torch_dtype=torch.float32, local_files_only=True)
    return pipe.to(machine.device)


def _one(rng: np.random.Generator, count: int) -> list[tuple[Scene, str]]:
    """Scenes of one figure in words that they were never trained with."""
    found: list[tuple[Scene, str]] = []
    while len(found) < count:
        scene, name = sample_scene(rng, 1), choose(rng, wordings())
        if wording_held_out(scene, name):
            found.append((scene, write_caption(scene, name)))
    return found


def _held_out(rng: np.random.Generator, count: int) -> list[tuple[Scene, str]]:
    scenes = [sample_scene(rng, 2, "held_out") for _ in range(count)]
    return [(scene, sample_caption(scene, rng)) for scene in scenes]


def _two(rng: np.random.Generator, count: int) -> list[tuple[Scene, str]]:
    scenes = [sample_scene(rng, 2, "train") for _ in range(count)]
    return [(scene, sample_caption(scene, rng)) for scene in scenes]


def _drawn_right(drawn: Pixels, scenes: list[Scene]) -> Table:
    """By what is told of a figure, the share that is right; and of whole scenes, with and without the sizes."""
    hits: dict[str, list[bool]] = defaultdict(list)
    for image, scene in zip(drawn, scenes, strict=True):
        there = facts(detect(image))
        for about, what, value in facts(scene):
            hits[what].append((about, what, value) in there)
        but_size = {fact for fact in facts(scene) if fact[1] != "size"}
        hits["place"].append({about for about, _, _ in but_size} <= {about for about, _, _ in there})
        hits["all but size"].append(but_size <= there)
        hits["all"].append(facts(scene) <= there)
    return {what: float(np.mean(values)) for what, values in hits.items()}


def _edits(pipe: Any, split: Any, count: int) -> Table:
    rng = np.random.default_rng(SEED + 1)
    kinds = KINDS if split == "train" else tuple(kind for kind in KINDS if kind != "move")
    wanted = [sample_edit(rng, kinds[i % len(kinds)], split) for i in range(count)]
    sources = np.stack([draw_edit(edit, rng)[0] for edit in wanted])
    prompts = [sample_instruction(edit, rng) for edit in wanted]
    hits: dict[str, list[bool]] = defaultdict(list)
    for image, edit in zip(draw(pipe, prompts, sources, SEED), wanted, strict=True):
        whole = match_edit(detect(image), edit).whole
        hits["all"].append(whole)
        hits[edit.kind].append(whole)
    return {what: float(np.mean(values)) for what, values in hits.items()}


def _judge(folder: Path, machine: Machine, count: int, made: list[tuple[Scene, Pixels]]) -> dict[str, Table]:
    """Every rubric in both protocols, on images that were drawn and on those that were generated."""
    rng = np.random.default_rng(SEED + 2)
    as_is: Callable[[Pixels], Pixels] = lambda pixels: pixels  # noqa: E731
    looks = [judge_cases.drawn_look(rng, as_is, _held_out_scene(rng)) for _ in range(count)]
    pairs = [
        kind(rng, as_is)
        for kind in (judge_cases.edited, judge_cases.instructed, judge_cases.in_a_set)
        for _ in range(count // 10)
    ]
    table: dict[str, Table] = {}
    with _Asked(folder, machine) as judge:
        for state in ("clean", "written", "damaged"):
            mine = [judge_cases.one_image(look, rng) for look in looks if _state(look) == state]
            table |= judge.verdicts(mine[: count // 3], f"rendered, {state}")
        table |= judge.verdicts(pairs, "rendered, pairs and sets")
        chosen = [made[i] for i in rng.permutation(len(made))[:count]]
        shown = [judge_cases.one_image(judge_cases.generated_look(pixels), rng) for _, pixels in chosen[: count // 3]]
        table |= judge.verdicts(shown, "generated")
        wanted = [(chosen[(i + i % 2) % len(chosen)][0], pixels) for i, (_, pixels) in enumerate(chosen)]
        table |= judge.ranked(wanted, rng)
    return table


def _held_out_scene(rng: np.random.Generator) -> Scene:
    return sample_scene(rng, 2, "held_out") if rng.random() < 0.5 else sample_scene(rng, 1)


def _state(look: judge_cases.FeatureInput) -> str:
    """`damaged` where something of it cannot be told any more, or might not be."""
    return "damaged" if look.strength or look.torn else "written" if look.written else "clean"


class _Asked:
    """The judge as a run asks it in its own process."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self._images: dict[str, Image.Image] = {}
        self._multiple = judge_model.PATCH * judge_model.MERGE
        self._local = Local(folder, self._load, str(machine.device), "float32")

    def __enter__(self) -> "_Asked":
        self._local.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._local.__exit__(*ended)

    def verdicts(self, some: Iterable[judge_cases.Case], what: str) -> dict[str, Table]:
        """Of each rubric's fields, the share that is as it should be."""
        hits: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
        for case in some:
            for protocol in PROTOCOLS:
                for (question, answer), given in zip(case.asked, self._answers(case, protocol), strict=True):
                    for field, value in answer.items():
                        right = given.get(field) == value
                        hits[f"judge, {what}, {protocol}"][f"{question.rubric}.{field}"].append(right)
        return {
            name: {field: float(np.mean(v)) for field, v in fields.items()}
            | {"brf questions": float(len(fields.get("brf.met", ())))}
            for name, fields in hits.items()
        }

    def ranked(self, wanted: Iterable[tuple[Scene, Pixels]], rng: np.random.Generator) -> dict[str, Table]:
        """A client's points about images that were made for him or, every other time, for somebody else."""
        cases = [judge_cases.ordered(pixels, scene, rng) for scene, pixels in wanted]
        table = {}
        for protocol in PROTOCOLS:
            scores: list[tuple[float, float]] = []
            right: list[bool] = []
            for case, met in cases:
                said = [given.get("met") for given in self._answers(case, protocol)]
                known = [(int(s), int(t)) for s, t in zip(said, met, strict=True) if s is not None]
                right += [s == t for s, t in known]
                if len(known) == len(met):
                    scores.append((float(np.mean([s for s, _ in known])), float(np.mean([t for _, t in known]))))
            rho = spearman([s for s, _ in scores], [t for _, t in scores]).value
            kinder = float(np.mean([s - t for s, t in scores]))
            table[f"judge, orders on generated pictures, {protocol}"] = {
                "points right": float(np.mean(right)),
                "points": float(len(right)),
                "pictures": float(len(scores)),
                "spearman": rho if rho is not None else float("nan"),
                "too kind by, of 5": 5 * kinder,
            }
        return table

    def _answers(self, case: judge_cases.Case, protocol: Protocol) -> list[dict[str, Any]]:
        self._images.clear()
        names = tuple(str(i) for i in range(len(case.images)))
        self._images |= {name: Image.fromarray(p) for name, p in zip(names, case.images, strict=True)}
        spec = JudgeSpec(
            "mini-judge", "", "float32", judge_model.SIDE**2, self._multiple, 0, protocol, rubrics=judge_model.WORDING
        )
        found = []
        for question, _ in case.asked:
            asked = replace(question, images=names)
            replies: list[Reply] = [reply for _, reply in self._local.complete(enumerate(spec.requests(asked)))]
            found.append(read(asked, protocol, replies, judge_model.WORDING).answer or {})
        return found

    def _load(self, shown: Shown) -> Any:
        return prepare(shown, self._images.__getitem__, self._multiple)
