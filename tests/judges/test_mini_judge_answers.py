"""The small judge's answers are the same numbers on every CPU: they are what the demo's figures are made of."""

import json
from collections import Counter

import pytest

from local_bench.judges.vlm.chat_api import Composer
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.transport import answers
from local_bench.models.cards import card
from local_bench.models.weights import resolve

from .test_mini_judge import TAUGHT, drawn_questions

pytestmark = pytest.mark.every_cpu
GOLDEN = {
    'brf {"met": 0}': 24,
    'brf {"met": 1}': 24,
    'cns_edit {"flags": ["non_edit_changed", "identity_lost"], "score": 1}': 1,
    'cns_edit {"flags": ["non_edit_changed"], "score": 3}': 1,
    'cns_edit {"flags": [], "score": 5}': 22,
    'veq_technical {"clarity": 1, "realism": 2}': 3,
    'veq_technical {"clarity": 2, "realism": 3}': 5,
    'veq_technical {"clarity": 3, "realism": 4}': 5,
    'veq_technical {"clarity": 5, "realism": 2}': 1,
    'veq_technical {"clarity": 5, "realism": 5}': 10,
    'veq_text {"has_text": false}': 24,
}
"""How often each answer is given: discrete, so a last bit of the network moves none of them."""


def test_the_answers_are_the_recorded_ones():
    described = card("mini-judge", "judge")
    weights = resolve(described)
    images, questions, met = drawn_questions()
    composer = Composer(images.__getitem__, described.patch)
    spec = JudgeSpec(
        described.name, "0" * 64, "float32", described.judge_max_pixels, described.patch, 0, "json", rubrics=TAUGHT
    )
    with Local(weights, composer.prepared, "cpu", "float32", 1) as local:
        found = dict(answers(local, spec, questions))
    given = Counter(f"{question.rubric} {json.dumps(found[i].answer, sort_keys=True)}" for i, question in questions)
    assert sum(found[i].answer["met"] == value for i, value in met.items()) == len(met)
    assert dict(given) == GOLDEN
