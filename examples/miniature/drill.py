"""Stage `drill`: the judge goes on where it is weak: points that are nearly met, images that models made, edits by
models that never saw the source, sets that break their style.

Its eye goes on with it: every second step asks the vision tower alone, as `eye` did, here also about images by
models. A point's answer is known where the point ends; only two of a dozen are asked to the end, in both protocols.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from examples.miniature import eye, judge, judge_model
from examples.miniature import judge_cases as cases
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train

STAGE = Stage("drill", seed=62, steps=6000, lr_muon=2e-3, lr_adam=1e-3, masters=False)
LOOKS, _EYE = 48, 0.5
MADE = 0.5
"""How much of what is shown was made by the small generators."""
_POINTS, _WHOLE = 12, 2


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `drill.trained.pt`."""
    processor, model = judge_model.taught(machine.work, "judge")
    models = Models(STAGE, machine, {"judge": model, "heads": eye.heads()})
    trained = models.run["judge"]
    asking = judge.Asking(machine, trained, machine.work / "judge")
    soften, made = cases.softener(machine), judge.Made.of(machine)
    tower = {"visual": trained.model.visual, "heads": models.run["heads"]}

    def loss(step: int, steps: int) -> Loss:
        rng = rng_of(STAGE, step)
        if rng.random() < _EYE:
            looks = [judge.a_look(rng, soften, made, MADE) for _ in range(LOOKS)]
            found, right = eye.understood(tower, looks, processor)
            return found, {f"eye {name}": right[name] for name in ("shape", "size")}
        found, told = judge.judged(trained, batch(asking, rng, soften, made))
        return found, judge.means(told)

    done = train(models, loss)
    save({"judge": models.averaged()["judge"].state_dict()}, machine.work / "drill.trained.pt")
    return done


def batch(asking: judge.Asking, rng: np.random.Generator, soften: cases.Soften, made: judge.Made) -> dict[str, Any]:
    """A step's questions: points on one image most of all."""
    lot = rng.random()
    if lot < 0.45:
        return points(asking, rng, soften, made)
    if lot < 0.6:
        some = [judge.an_edit(rng, soften, made, MADE) for _ in range(16)]
        return asking.batch(some, judge.PROTOCOLS, True, False)
    if lot < 0.8:
        some = [_of(judge.an_edit(rng, soften, made, MADE), rng.random() < 0.3) for _ in range(10)]
    elif lot < 0.92:
        some = judge.equally_large([judge.a_set(rng, soften, made, MADE) for _ in range(12)], 5)
    elif lot < 0.97:
        some = [_of(cases.one_image(judge.a_look(rng, soften, made, MADE), rng), False) for _ in range(10)]
    else:
        some = [cases.instructed(rng, soften) for _ in range(10)]
    return asking.batch(some, judge.PROTOCOLS, True, True, whole=_WHOLE)


def points(
    asking: judge.Asking, rng: np.random.Generator, soften: cases.Soften, made: judge.Made, edits: bool = False
) -> dict[str, Any]:
    """A step's questions, all of them points on one image, or on an edit beside its source."""
    if edits:
        some = [judge.an_edit(rng, soften, made, MADE) for _ in range(12)]
    else:
        some = [cases.one_image(judge.a_look(rng, soften, made, MADE), rng, _POINTS) for _ in range(14)]
    return asking.batch([_of(case, True) for case in some], judge.PROTOCOLS, False, True, whole=_WHOLE)


def marks(asking: judge.Asking, rng: np.random.Generator, soften: cases.Soften, made: judge.Made) -> dict[str, Any]:
    """A step's questions: all but points that is asked of a single image, mostly of a damaged one."""
    looks = [judge.worn(rng, soften, made) for _ in range(14)]
    return asking.batch([_of(cases.one_image(one, rng), False) for one in looks], judge.PROTOCOLS, False, True)


def _of(case: cases.Case, points: bool) -> cases.Case:
    """Its points, or all else."""
    return replace(case, asked=tuple(pair for pair in case.asked if (pair[0].rubric == "brf") == points))
