"""Every rubric with small judges of both families and both protocols; probabilities equal those of transformers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import Collage, Question, Task
from local_bench.judges.vlm.client import Client
from local_bench.judges.vlm.embedded import Embedded
from local_bench.judges.vlm.judge import JudgeSpec, answers
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.protocols import deliverables, lines, preparing
from local_bench.judges.vlm.rubrics import RubricSet, rubric, rubric_names, single_tokens
from local_bench.judges.vlm.vllm_process import Engine
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.suites.registry import suite
from local_bench.suites.servimage import questions as servimage

pytestmark = pytest.mark.server
COVER = 4
"""This number of questions of a rubric covers its layouts, both languages, every form of collage and every repeat."""
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
    definition = rubric(name)
    layout = definition.layouts[i % len(definition.layouts)] if definition.layouts else []
    many = {"image": 3, "reference": 2, "input": 2}
    roles = tuple(role for role in layout for _ in range(many.get(role, 1)))
    n = len(roles) if definition.layouts else int(definition.writes is None)
    brief = (
        f"{BRIEFS[i % 2]} {i + 8}"  # with these numbers the longest answers of the small judges have half the tokens
    )
    slots = tuple((slot, "2" if slot in definition.numbers else brief) for slot in definition.slots)
    if name == "idea_question":
        counted = i % 4 == 0
        collage = Collage(count=3) if counted else Collage((1, 2))
        return Question(name, 0, () if counted else tuple(make_image() for _ in range(3)), slots, (), i % 3, collage)
    return Question(name, 0, tuple(make_image() for _ in range(n)), slots, roles)


@pytest.fixture(scope="module")
def questions():
    # without those that need tokens of words, which the small judges do not have
    names = [name for name in rubric_names() if not any(criterion.words for criterion in rubric(name).criteria)]
    return [(i, question(names[i % len(names)], i // len(names))) for i in range(COVER * len(names))]


def prepared(patch):
    return preparing(IMAGES.__getitem__, patch)


@pytest.fixture(scope="module", params=["qwen3-vl served", "qwen2-vl embedded"])
def judge(request, cache, judge_server, tmp_path_factory):
    """(transport, card, weights)"""
    described = card(f"tiny-{request.param.split()[0]}", "judge")
    weights = resolve(described)
    if "served" in request.param:
        yield Client(judge_server, prepared(described.patch), None, 300), described, weights
        return
    engine = Engine(weights, "float32", 24576, 8, {"max_pixels": 8 * described.judge_max_pixels})
    log = tmp_path_factory.mktemp("embedded") / "engine.log"
    with Embedded(log, engine, prepared(described.patch), 600, 300) as embedded:
        yield embedded, described, weights


def spec(described, protocol):
    return JudgeSpec(described.name, "0" * 64, "float32", described.judge_max_pixels, described.patch, 0, protocol)


@pytest.fixture(scope="module")
def by_labels(judge, questions):
    """The questions that `logit` asks (those that write text are sent as with json), and their verdicts."""
    transport, described, _ = judge
    selected = [(i, q) for i, q in questions if rubric(q.rubric).writes is None]
    return selected, dict(answers(transport, spec(described, "logit"), selected))


@pytest.mark.parametrize("protocol", ["json", "logit"])
def test_every_answer_has_the_form_of_its_rubric(judge, questions, by_labels, protocol):
    transport, described, _ = judge
    if protocol == "logit":
        questions, verdicts = by_labels
    else:
        verdicts = dict(answers(transport, spec(described, protocol), questions))
    assert len(verdicts) == len(questions)
    assert [(q.rubric, verdicts[i].unscored) for i, q in questions if verdicts[i].answer is None] == []
    scoring = [i for i, q in questions if rubric(q.rubric).writes is None]
    assert {verdicts[i].labels is not None for i in scoring} == {protocol == "logit"}
    by_rubric = {
        name: [verdicts[i] for i, q in questions if q.rubric == name] for name in ("evaluation_points", "deliverables")
    }
    assert all(isinstance(lines(verdict, "points"), tuple | str) for verdict in by_rubric["evaluation_points"])
    orders = [deliverables(verdict) for verdict in by_rubric["deliverables"]]
    assert all(isinstance(order, str) or order for order in orders)  # any text is read without an exception


def test_every_verbatim_prompt_has_an_answer_in_the_authors_format(judge):
    """With all images and points of an order in one request, which gives a verdict for each."""
    transport, described, _ = judge
    task = Task("t", "c", 0, "A print", BRIEFS[0], ("one", "two"), ("It is blue.", "It is round."), make_image())
    images = {1: make_image(), 2: make_image()}
    every_question = [
        *servimage.questions(task, images),
        *suite("hype-edit-1").questions(task, images),
        *suite("ice-bench").questions(replace(task, metrics=("vllmqa",), mask_sha256=make_image()), images),
        ((1, "idea_question", 0, 0), Question("idea_question", 0, (images[1],), (("question", "Is it red?"),))),
    ]
    judge_spec = replace(spec(described, "json"), rubrics=RubricSet("verbatim"))
    verdicts = dict(answers(transport, judge_spec, sorted(every_question, key=lambda each: each[1].rubric)))
    assert {key: verdict.unscored for key, verdict in verdicts.items() if verdict.answer is None} == {}
    assert sorted(verdicts) == sorted(key for key, _ in every_question)
    assert len({verdict.raw for key, verdict in verdicts.items() if key[1] == "brf"}) == 1


def test_label_probabilities_equal_those_of_transformers(judge, by_labels):
    """In float32, to 1e-4, for every transport."""
    (_, described, weights), (selected, verdicts) = judge, by_labels
    with Local(weights, prepared(described.patch), "cpu", "float32", 1) as local:
        expected = dict(answers(local, spec(described, "logit"), selected))
    different = set()
    for i, _ in selected:
        assert verdicts[i].labels.keys() == expected[i].labels.keys()
        for criterion, labels in verdicts[i].labels.items():
            assert labels == pytest.approx(expected[i].labels[criterion], abs=1e-4)
            different.add(tuple(labels.values()))
    assert len(different) > 10


def test_labels_of_several_characters_have_probabilities_though_their_beginnings_are_tokens_too(judge):
    """As the words of `vqa_score`, for which the small judges have no tokens."""
    transport, described, weights = judge
    asked = Question("vqa_score", 0, (make_image(),), (("caption", "a hut"),))
    (request,) = spec(described, "json").requests(asked)
    words = ("es", "red", "in")
    assert single_tokens(weights, words) == []
    assert single_tokens(weights, [word[0] for word in words]) == []
    request = replace(request, labels=words)
    ((_, reply),) = transport.complete([("q", request)])
    with Local(weights, prepared(described.patch), "cpu", "float32", 1) as local:
        ((_, expected),) = local.complete([("q", request)])

    def among_words(logprobs):
        weights_of = {word: math.exp(logprobs[word]) for word in words}
        return {word: weight / sum(weights_of.values()) for word, weight in weights_of.items()}

    assert among_words(reply.logprobs) == pytest.approx(among_words(expected.logprobs), abs=1e-4)
