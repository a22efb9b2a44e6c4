"""What every judge is put through before it judges: whether it says the same in any company, and whether it can be
talked round. What comes of it is noted in the ledger under `canary:LABEL` and stands on the report."""

import json
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.injection import attacks, fooled
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.transport import Transport, answers
from local_bench.runs.rundir import RunDir

SIDE = 128
N_PICTURES = 4
_POINTS = ("There is a circle.", "The ground is white.")


def try_judge(run: RunDir, label: str, spec: JudgeSpec, transport: Transport, pictures: dict[str, Image.Image]) -> None:
    """Asks the canaries and notes what came of them; their pictures are put into `pictures`. Raises as `answers`.

    The attacks are asked once a judge; whether it repeats itself is looked at in every session, for it may depend on
    the machine, and one session that did not spoils it for the run.
    """
    known = run.store.json_meta(f"canary:{label}") or {}
    known = known if known.get("judge") == spec.judge_id else {}
    found = known | {"judge": spec.judge_id, "repeats": _repeats(spec, transport, pictures, known.get("repeats"))}
    if "attacks" not in found:
        found["attacks"] = _attacks(spec, transport, pictures)
    with run.store.transaction():
        run.store.set_meta(f"canary:{label}", json.dumps(found, sort_keys=True))


def _repeats(
    spec: JudgeSpec, transport: Transport, pictures: dict[str, Image.Image], before: dict[str, Any] | None
) -> dict[str, Any]:
    """Compares answers to the same questions alone and in a batch, with cold and warm caches."""
    first, second = _fresh_questions(pictures), _fresh_questions(pictures)
    said: dict[str, list[Verdict]] = {}

    def ask(way: str, questions: Iterable[Question], of: list[Question], at_once: int | None) -> None:
        heard = dict(answers(transport, spec, enumerate(questions), at_once))
        said[way] = [heard[i] for i in range(len(of))]

    ask("alone, cold", first, first, 1)
    ask("in a batch, cold", second + first, second, None)
    ask("in a batch, warm", first + second, first, None)
    ask("alone, warm", second, second, 1)
    ask("alone, warm again", first, first, 1)
    alike = {
        "in a batch": said["alone, cold"] == said["in a batch, warm"],
        "with a cold cache": said["in a batch, cold"] == said["alone, warm"],
        "with a warm cache": said["alone, cold"] == said["alone, warm again"],
    }
    differs = sorted({*(before or {}).get("differs", []), *(way for way, same in alike.items() if not same)})
    sessions = (before or {}).get("sessions", 0) + 1
    return {"reproducible": not differs, "differs": differs, "n": len(first) + len(second), "sessions": sessions}


def _fresh_questions(pictures: dict[str, Image.Image]) -> list[Question]:
    """Questions about pictures that no cache has seen."""
    rng = np.random.default_rng(secrets.randbits(64))
    asked = []
    for _ in range(N_PICTURES):
        image = Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
        sha256 = pixel_digest(image)
        pictures[sha256] = image
        asked.append(Question("veq_technical", 0, (sha256,), ()))
        for point in _POINTS:
            slots = (("title", "A print"), ("brief", "A print with one circle on white."), ("point", point))
            asked.append(Question("brf", 0, (sha256,), slots, ("delivered",)))
    return asked


def canary_questions() -> list[Question]:
    """One of each kind of question that `try_judge` asks."""
    return [*_fresh_questions({}), *(attack.attacked for attack in attacks()[0])]


def _attacks(spec: JudgeSpec, transport: Transport, pictures: dict[str, Image.Image]) -> dict[str, Any]:
    tried, drawn = attacks()
    pictures.update(drawn)
    pairs = [((attack.name, which), getattr(attack, which)) for attack in tried for which in ("clean", "attacked")]
    heard = dict(answers(transport, spec, pairs))
    results = {a.name: fooled(a, heard[a.name, "clean"], heard[a.name, "attacked"]) for a in tried}
    return {
        "n": sum(result is not None for result in results.values()),
        "n_unscored": sum(result is None for result in results.values()),
        "fooled_by": sorted(name for name, result in results.items() if result),
    }
