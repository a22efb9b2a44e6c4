"""Every rubric before real small judges of both families, under both protocols; probabilities against transformers."""

import numpy as np
import pytest
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import Collage, Question
from local_bench.judges.vlm.child import Child
from local_bench.judges.vlm.client import Client
from local_bench.judges.vlm.composer import Composer
from local_bench.judges.vlm.embedded import Embedded
from local_bench.judges.vlm.enrichment import deliverables, lines
from local_bench.judges.vlm.flags import Engine
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.rubric_files import rubric_names
from local_bench.judges.vlm.rubrics import rubric
from local_bench.judges.vlm.transport import answers
from local_bench.models.cards import card
from local_bench.models.weights import resolve

pytestmark = pytest.mark.server
COVER = 4
"""So many questions of a rubric have all its layouts, both languages, every form of sheet and every repeat."""
BRIEFS = (
    "A poster for a mountain hut in two colours; print quality, PNG, 1024x768.",
    "一张茶馆海报,红色圆形,白色背景,横版,300 DPI。",
)
IMAGES: dict[str, Image.Image] = {}
_RNG = np.random.default_rng(0)


def make_image():
    image = Image.fromarray(_RNG.integers(0, 256, (128, 128, 3), dtype=np.uint8))
    sha256 = pixel_digest(image)
    IMAGES[sha256] = image
    return sha256


def question(name, i):
    """The i-th question of a rubric: its layouts in turn, briefs in English and Chinese."""
    asked = rubric(name)
    layout = asked.layouts[i % len(asked.layouts)] if asked.layouts else []
    many = {"image": 3, "reference": 2, "input": 2}
    roles = tuple(role for role in layout for _ in range(many.get(role, 1)))
    n = len(roles) if asked.layouts else int(asked.writes is None)
    slots = tuple((slot, "2" if slot in asked.numbers else f"{BRIEFS[i % 2]} {i}") for slot in asked.slots)
    if name == "idea_question":
        counted = i % 4 == 0
        collage = Collage(count=3) if counted else Collage((1, 2))
        return Question(name, 0, () if counted else tuple(make_image() for _ in range(3)), slots, (), i % 3, collage)
    return Question(name, 0, tuple(make_image() for _ in range(n)), slots, roles)


@pytest.fixture(scope="module")
def questions():
    names = rubric_names()
    return [(i, question(names[i % len(names)], i // len(names))) for i in range(COVER * len(names))]


def composer(patch):
    return Composer(IMAGES.__getitem__, patch)


@pytest.fixture(scope="module", params=["qwen3-vl served", "qwen2-vl embedded"])
def judge(request, cache, judge_server, tmp_path_factory):
    """(transport, card, weights)"""
    described = card(f"tiny-{request.param.split()[0]}", "judge")
    weights = resolve(described)
    if "served" in request.param:
        yield Client(judge_server, composer(described.patch), None, 300), described, weights
        return
    engine = Engine(weights, "float32", 24576, 8, max_pixels=8 * described.judge_max_pixels)
    child = Child(tmp_path_factory.mktemp("embedded") / "engine.log")
    with Embedded(engine, child, composer(described.patch), 600, 300) as embedded:
        yield embedded, described, weights


def spec(described, protocol):
    return JudgeSpec(described.name, "0" * 64, "float32", described.judge_max_pixels, described.patch, 0, protocol)


@pytest.mark.parametrize("protocol", ["json", "logit"])
def test_every_rubric_is_always_answered_in_form(judge, questions, protocol):
    transport, described, _ = judge
    if protocol == "logit":  # those that write text are sent as with json
        questions = [(i, q) for i, q in questions if rubric(q.rubric).writes is None]
    said = dict(answers(transport, spec(described, protocol), questions))
    assert len(said) == len(questions)
    assert [(q.rubric, said[i].unscored) for i, q in questions if said[i].answer is None] == []
    for i, asked in questions:
        if rubric(asked.rubric).writes is None:
            assert (said[i].labels is not None) == (protocol == "logit")
    if protocol == "logit":
        return
    points = next(said[i] for i, q in questions if q.rubric == "evaluation_points")
    assert isinstance(lines(points, "points"), tuple | str)
    orders = [deliverables(said[i]) for i, q in questions if q.rubric == "deliverables"]
    assert all(isinstance(order, str) or order.rules for order in orders)  # never a crash, whatever was written


def test_the_labels_probabilities_are_those_of_transformers(judge, questions):
    """float32, to 1e-4, whatever carries the question."""
    transport, described, weights = judge
    one = spec(described, "logit")
    asked = [(i, q) for i, q in questions if rubric(q.rubric).writes is None]
    said = dict(answers(transport, one, asked))
    with Local(weights, composer(described.patch).prepared, "cpu", "float32", 1) as local:
        expected = dict(answers(local, one, asked))
    for i, _ in asked:
        assert said[i].labels.keys() == expected[i].labels.keys()
        for criterion, labels in said[i].labels.items():
            assert labels == pytest.approx(expected[i].labels[criterion], abs=1e-4)
    assert len({tuple(labels.values()) for v in said.values() for labels in v.labels.values()}) > 10  # and they differ
