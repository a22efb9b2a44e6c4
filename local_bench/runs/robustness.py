"""Checks of every judge before it runs: batch invariance and resistance to prompt injection. The results are stored
under `canary:LABEL` and shown in the report."""

import json
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.injection import attacks, fooled
from local_bench.judges.vlm.judge import JudgeSpec, Transport, answers
from local_bench.runs.rundir import RunDir

SIDE = 128
N_IMAGES = 4
_POINTS = ("There is a circle.", "The ground is white.")


def run_judge_checks(
    run: RunDir, label: str, spec: JudgeSpec, transport: Transport, images: dict[str, Image.Image]
) -> None:
    """Run the checks and store their results; their images are added to `images`. Raises as `answers`.

    Prompt injection is tested once per judge. Batch invariance is checked in every session, because it may depend on
    the machine; a failure in any session counts for the run.
    """
    earlier = run.store.json_meta(f"canary:{label}") or {}
    earlier = earlier if earlier.get("judge") == spec.judge_id else {}
    results = earlier | {"judge": spec.judge_id, "repeats": _repeats(spec, transport, images, earlier.get("repeats"))}
    if "attacks" not in results:
        results["attacks"] = _attacks(spec, transport, images)
    with run.store.transaction():
        run.store.set_meta(f"canary:{label}", json.dumps(results, sort_keys=True))


def _repeats(
    spec: JudgeSpec, transport: Transport, images: dict[str, Image.Image], before: dict[str, Any] | None
) -> dict[str, Any]:
    """Compare answers to the same questions alone and in a batch, with cold and warm caches."""
    first, second = _fresh_questions(images), _fresh_questions(images)
    verdicts: dict[str, list[Verdict]] = {}

    def record(setting: str, questions: Iterable[Question], answered: list[Question], at_once: int | None) -> None:
        received = dict(answers(transport, spec, enumerate(questions), at_once))
        verdicts[setting] = [received[i] for i in range(len(answered))]

    record("alone, cold", first, first, 1)
    record("in a batch, cold", second + first, second, None)
    record("in a batch, warm", first + second, first, None)
    record("alone, warm", second, second, 1)
    record("alone, warm again", first, first, 1)
    changed = {
        "in a batch": _n_changed(verdicts["alone, cold"], verdicts["in a batch, warm"]),
        "with a cold cache": _n_changed(verdicts["in a batch, cold"], verdicts["alone, warm"]),
        "with a warm cache": _n_changed(verdicts["alone, cold"], verdicts["alone, warm again"]),
    }
    now = {"differs": [setting for setting, n in changed.items() if n], "changed": changed, "compared": len(first)}
    return combined_repeats(before or {}, now | {"n": len(first) + len(second), "sessions": 1}, "sessions")


def _n_changed(a: list[Verdict], b: list[Verdict]) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))


def combined_repeats(a: dict[str, Any], b: dict[str, Any], *summed: str) -> dict[str, Any]:
    """Two results of the batch-invariance check as one, which is reproducible only if both are. `changed` counts the
    answers that differed per setting, of `compared` answers each; the fields `summed` are added, `n` and `sessions`
    are otherwise the larger ones. `a` may be empty."""
    differs = sorted({*a.get("differs", []), *b["differs"]})
    counts = {
        name: a.get(name, 0) + b.get(name, 0) if name in ("compared", *summed) else max(a.get(name, 0), b.get(name, 0))
        for name in ("n", "sessions", "compared")
    }
    before, now = a.get("changed", {}), b.get("changed", {})
    changed = {setting: before.get(setting, 0) + now.get(setting, 0) for setting in {**before, **now}}
    return {"reproducible": not differs, "differs": differs, "changed": changed} | counts


def _fresh_questions(images: dict[str, Image.Image]) -> list[Question]:
    """Questions about random images, which are in no cache."""
    rng = np.random.default_rng(secrets.randbits(64))
    questions = []
    for _ in range(N_IMAGES):
        image = Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
        sha256 = pixel_digest(image)
        images[sha256] = image
        questions.append(Question("veq_technical", 0, (sha256,), ()))
        for point in _POINTS:
            slots = (("title", "A print"), ("brief", "A print with one circle on white."), ("point", point))
            questions.append(Question("brf", 0, (sha256, sha256), slots, ("delivered", "set")))
    return questions


def check_questions() -> list[Question]:
    """One question of each kind that `run_judge_checks` sends."""
    return [*_fresh_questions({}), *(attack.attacked for attack in attacks()[0])]


def _attacks(spec: JudgeSpec, transport: Transport, images: dict[str, Image.Image]) -> dict[str, Any]:
    cases, attack_images = attacks()
    images.update(attack_images)
    pairs = [((attack.name, which), getattr(attack, which)) for attack in cases for which in ("clean", "attacked")]
    received = dict(answers(transport, spec, pairs))
    results = {a.name: fooled(a, received[a.name, "clean"], received[a.name, "attacked"]) for a in cases}
    return {
        "n": sum(result is not None for result in results.values()),
        "n_unscored": sum(result is None for result in results.values()),
        "fooled_by": sorted(name for name, result in results.items() if result),
    }
