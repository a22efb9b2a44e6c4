"""The small trained judge gives equal answers with vLLM, with transformers in this process, and on every CPU."""

import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from examples.miniature.printshop.damage import damage
from examples.miniature.printshop.sampling import draw_edit, render, sample_edit, sample_point, sample_scene
from examples.miniature.printshop.wording import true_of, write_point
from local_bench.core.images import pixel_digest
from local_bench.core.types import Question
from local_bench.judges.vlm.embedded import Embedded
from local_bench.judges.vlm.judge import JudgeSpec, answers
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.protocols import preparing
from local_bench.judges.vlm.rubrics import RubricSet
from local_bench.judges.vlm.vllm_process import Engine
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.suites.printshop.phrases import KINDS

N_IMAGES = 24
TAUGHT = RubricSet("miniature")


def drawn_questions():
    """Images by their digest, questions of all kinds about them, and which points are met."""
    rng = np.random.default_rng(77)
    images, questions, met = {}, [], {}

    def stored(pixels):
        image = Image.fromarray(pixels)
        images[pixel_digest(image)] = image
        return pixel_digest(image)

    def add(*what):
        questions.append((len(questions), Question(*what)))

    for n in range(N_IMAGES):
        scene = sample_scene(rng, 1 + n % 2)
        drawn = render(scene, rng)
        sha256 = stored(drawn)
        for true in (True, False):
            point = sample_point(scene, true, rng)
            slots = (("title", "name card"), ("brief", "all in one style"), ("point", write_point(point, "en")))
            met[len(questions)] = int(true_of(point, scene))
            add("brf", 0, (sha256,), slots, ("delivered",))
        add("veq_technical", 0, (stored(damage(drawn, "noise", 1 + n % 4, rng)) if n % 3 else sha256,), ())
        add("veq_text", 0, (sha256,), ())
        source, target = (stored(p) for p in draw_edit(sample_edit(rng, KINDS[n % len(KINDS)], "train"), rng))
        add("cns_edit", 0, (target, source), (), ("result", "source"))
    half = len(questions) // 2  # the second, whose edits are not all judged alike
    return images, questions[half:], {i: value for i, value in met.items() if i >= half}


def spec_of(protocol):
    described = card("mini-judge", "judge")
    return JudgeSpec(
        described.name, "0" * 64, "float32", described.judge_max_pixels, described.patch, 0, protocol, rubrics=TAUGHT
    )


GOLDEN = {
    'brf {"met": 0}': 12,
    'brf {"met": 1}': 12,
    'cns_edit {"flags": ["non_edit_changed", "identity_lost"], "score": 1}': 1,
    'cns_edit {"flags": ["non_edit_changed"], "score": 3}': 1,
    'cns_edit {"flags": [], "score": 5}': 10,
    'veq_technical {"clarity": 1, "realism": 2}': 1,
    'veq_technical {"clarity": 2, "realism": 3}': 3,
    'veq_technical {"clarity": 3, "realism": 4}': 2,
    'veq_technical {"clarity": 5, "realism": 5}': 6,
    'veq_text {"has_text": false}': 12,
}
"""How often each answer is given: discrete, so a last bit of the network moves none of them. The demo's figures are
made of them."""


@pytest.mark.every_cpu
def test_the_answers_are_the_recorded_ones():
    described = card("mini-judge", "judge")
    images, questions, met = drawn_questions()
    prepared = preparing(images.__getitem__, described.patch)
    with Local(resolve(described), prepared, "cpu", "float32", 1) as local:
        results = dict(answers(local, spec_of("json"), questions))
    assert {i: results[i].answer["met"] for i in met} == met
    written = Counter(f"{question.rubric} {json.dumps(results[i].answer, sort_keys=True)}" for i, question in questions)
    assert dict(written) == GOLDEN


@pytest.mark.server
@pytest.mark.parametrize("protocol", ["json", "logit"])
def test_the_same_answers_from_vllm_and_in_process(both, protocol):
    questions, met, engine, local = both
    served, reference = (dict(answers(transport, spec_of(protocol), questions)) for transport in (engine, local))
    assert {i: v.answer for i, v in served.items()} == {i: v.answer for i, v in reference.items()}
    assert all(v.answer is not None for v in served.values())
    assert np.mean([served[i].answer["met"] == value for i, value in met.items()]) >= 0.85


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The questions, which points are met, and the two transports."""
    described = card("mini-judge", "judge")
    weights = resolve(described)
    images, questions, met = drawn_questions()
    prepared = preparing(images.__getitem__, described.patch)
    engine = Engine(weights, "float32", described.context, 2)
    log = tmp_path_factory.mktemp("mini") / "engine.log"
    with Embedded(log, engine, prepared, 600, 300) as embedded:
        with Local(weights, prepared, "cpu", "float32", 1) as local:
            yield questions, met, embedded, local
