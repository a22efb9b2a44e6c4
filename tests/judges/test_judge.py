"""Who the judge is, and what one question to it is: all that decides a verdict is in the name, and nothing else."""

from dataclasses import fields, replace

import pytest

from local_bench.core.types import Collage, Question
from local_bench.judges.vlm import judge as module
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import VERSIONS
from local_bench.judges.vlm.rubrics import Rubric, RubricSet, closing_json, closing_logit, rubric, rubric_names, system
from local_bench.models.cards import Thinking

SPEC = JudgeSpec("card", "0" * 64, "bfloat16", 1_000_000, 32, 0)
LOGIT = replace(SPEC, protocol="logit")
BRF = Question("brf", 3, ("a",), (("title", "T"), ("brief", "B"), ("point", "P")), ("delivered",))
TEXT = Question("veq_text", 0, ("a",), ())
IDEA = Question("idea_question", 0, ("a", "b"), (("question", "Q"),), collage=Collage((1, 1)))
QA = Question("vllm_qa", 0, ("a", "b"), (("instruction", "I"),), ("source", "result"))
NUMERICS = {"vllm": "0.32.0", "device": "cpu"}

OTHERWISE = {
    "card": "other",
    "weights_sha256": "1" * 64,
    "dtype": "float16",
    "max_pixels": 999_999,
    "patch": 28,
    "seed": 1,
    "protocol": "logit",
    "min_pixels": 4096,
    "max_tokens": 64,
    "extra_args": ("--quantization", "fp8"),
    "rubrics": RubricSet("paper"),
    "source_max_pixels": 4_194_304,
    "chat_template_kwargs": (("enable_thinking", False),),
    "mm_processor_kwargs": (),
    "thinking": Thinking(budget_tokens=8, end="</think>"),
    "served": (("id", "other"),),
}


def test_every_field_of_a_judge_is_part_of_its_identity():
    assert set(OTHERWISE) == {field.name for field in fields(JudgeSpec)}
    ids = {name: replace(SPEC, **{name: value}).judge_id for name, value in OTHERWISE.items()}
    assert SPEC.judge_id not in ids.values()
    assert len(set(ids.values())) == len(ids)
    assert replace(SPEC).judge_id == SPEC.judge_id  # the same again: the same


def test_a_judge_s_questions_are_its_own():
    ids = {replace(SPEC, **{name: value}).question_id(BRF, NUMERICS) for name, value in OTHERWISE.items()}
    assert len(ids | {SPEC.question_id(BRF, NUMERICS)}) == len(OTHERWISE) + 1


@pytest.mark.parametrize("of", ["text", "json_closing", "logit_closing", "flag_closing"])
def test_the_text_around_a_rubric_is_part_of_the_judge_s_identity(monkeypatch, of):
    known = SPEC.judge_id
    other = system().model_copy(update={of: "Answer."})
    monkeypatch.setattr(module, "system", lambda: other)
    assert replace(SPEC).judge_id != known


def test_image_preparation_and_parsing_are_part_of_the_judge_s_identity(monkeypatch):
    known = SPEC.judge_id
    monkeypatch.setitem(module.PREPARATION, "filter", "lanczos")
    assert replace(SPEC).judge_id != known
    monkeypatch.undo()
    assert replace(SPEC).judge_id == known
    monkeypatch.setitem(VERSIONS, "json", "json-99")
    assert replace(SPEC).judge_id != known


@pytest.mark.parametrize(
    "other",
    [
        replace(BRF, images=("b",)),
        replace(BRF, images=("a", "b"), roles=("delivered", "source")),
        replace(BRF, images=("a", "b"), roles=("delivered", "reference")),
        replace(BRF, slots=(("title", "T"), ("brief", "B"), ("point", "p"))),
        replace(BRF, slots=(("title", "B"), ("brief", "T"), ("point", "P"))),
        replace(BRF, collage=Collage((1,))),
        replace(BRF, rubric="idea_question", slots=(("question", "Q"),)),
    ],
)
def test_every_field_of_a_question_is_in_its_identity(other):
    assert SPEC.question_id(other, NUMERICS) != SPEC.question_id(BRF, NUMERICS)


def test_different_questions_have_different_identities():
    two = replace(QA, images=("b", "a"))
    collages = [replace(IDEA, collage=collage) for collage in (Collage((2,)), Collage((0, 2)), None)]
    counts = [replace(IDEA, images=(), collage=Collage(count=n)) for n in (2, 3)]
    roles = [
        replace(BRF, images=("a", "b"), roles=("delivered", "source")),
        replace(BRF, images=("a", "b"), roles=("delivered", "reference")),
    ]
    questions = [QA, two, IDEA, *collages, *counts, *roles]
    assert len({SPEC.question_id(q, NUMERICS) for q in questions}) == len(questions)


def test_the_machine_s_numerics_are_part_of_a_question_s_identity_and_not_of_the_judge_s():
    assert SPEC.question_id(BRF, NUMERICS) != SPEC.question_id(BRF, NUMERICS | {"device": "sm90"})
    assert SPEC.question_id(BRF, dict(reversed(NUMERICS.items()))) == SPEC.question_id(BRF, NUMERICS)


def test_a_rubric_s_text_is_part_of_a_question_s_identity(monkeypatch):
    known = SPEC.question_id(BRF, NUMERICS)
    changed = Rubric.model_validate(rubric("brf").model_dump() | {"text": rubric("brf").text + " "})
    assert changed.sha256 != rubric("brf").sha256
    monkeypatch.setattr(RubricSet, "__getitem__", lambda self, name: changed)
    assert SPEC.question_id(BRF, NUMERICS) != known


def test_settings_that_decide_no_verdict_are_not_in_the_identity():
    known = SPEC.question_id(BRF, NUMERICS)
    assert SPEC.question_id(replace(BRF, point=4), NUMERICS) == known
    assert SPEC.question_id(replace(BRF, repeat=1), NUMERICS) == known  # greedy: the same answer again
    sampled = [LOGIT.question_id(replace(IDEA, repeat=n), NUMERICS) for n in range(3)]
    assert len(set(sampled)) == 1  # labels are not drawn: nothing is sampled under `logit`


def test_repeats_of_a_sampled_rubric_are_questions_of_their_own_with_seeds_of_their_own():
    assert rubric("idea_question").temperature > 0
    repeats = [replace(IDEA, repeat=n) for n in range(3)]
    assert len({SPEC.question_id(q, NUMERICS) for q in repeats}) == 3
    requests = [SPEC.requests(q)[0] for q in repeats]
    assert len({r.seed for r in requests}) == 3
    assert {r.temperature for r in requests} == {rubric("idea_question").temperature}
    assert all(replace(r, seed=0) == replace(requests[0], seed=0) for r in requests)  # but for the seed, alike
    assert SPEC.requests(repeats[1]) == SPEC.requests(repeats[1])
    other = replace(SPEC, seed=7).requests(repeats[0])[0]
    assert other.seed != requests[0].seed
    assert all(0 <= r.seed < 2**32 for r in requests)


def test_seeds_of_one_repeat_differ_between_questions():
    other = replace(IDEA, slots=(("question", "R"),))
    elsewhere = replace(IDEA, images=("a", "c"))
    assert len({SPEC.requests(q)[0].seed for q in (IDEA, other, elsewhere)}) == 3


def test_greedy_questions_have_the_judge_s_seed():
    assert {r.seed for r in replace(SPEC, seed=5).requests(replace(BRF, repeat=2))} == {5}
    assert {r.seed for r in replace(LOGIT, seed=5).requests(replace(IDEA, repeat=2))} == {5}


def test_json_is_one_request_bound_to_the_rubric_s_schema():
    (request,) = SPEC.requests(TEXT)
    tested = rubric("veq_text")
    assert request.schema == tested.answer_schema({})
    assert request.labels == ()
    assert (request.max_tokens, request.temperature, request.name) == (tested.max_tokens, 0, "veq_text")
    assert request.system == system().text
    assert request.text.endswith(closing_json(tested))
    assert replace(SPEC, max_tokens=7).requests(TEXT)[0].max_tokens == 7


@pytest.mark.parametrize("name", rubric_names())
def test_logit_is_one_request_a_criterion_alike_up_to_the_closing(name):
    tested = rubric(name)
    roles = tested.layouts[-1] if tested.layouts else ["image"]
    slots = tuple((slot, "3" if slot in tested.numbers else slot.upper()) for slot in tested.slots)
    question = Question(name, 0, tuple("abcdef"[: len(roles)]), slots, tuple(roles) if tested.layouts else ())
    requests = LOGIT.requests(question)
    if tested.writes is not None:
        assert requests == SPEC.requests(question)
        assert requests[0].schema
        return
    assert [r.labels for r in requests] == [c.tokens for c in tested.criteria]
    assert all((r.max_tokens, r.temperature, r.schema) == (1, 0, None) for r in requests)
    bodies = [r.text.removesuffix(closing_logit(tested, c)) for r, c in zip(requests, tested.criteria, strict=True)]
    assert set(bodies) == {SPEC.requests(question)[0].text.removesuffix(closing_json(tested))}
    assert len({r.text for r in requests}) == len(requests)
    assert len({(r.system, r.shown, r.seed, r.name) for r in requests}) == 1


def test_every_image_is_sent_separately_within_the_judge_s_budget():
    (request,) = SPEC.requests(replace(BRF, images=("a", "b"), roles=("delivered", "source")))
    assert [shown.images for shown in request.shown] == [("a",), ("b",)]
    assert {(s.collage, s.min_pixels, s.max_pixels) for s in request.shown} == {(None, 1, 1_000_000)}


@pytest.mark.parametrize(
    ("budget", "least", "most"),
    [(4_000_000, 262_144, 1_048_576), (1_000_000, 262_144, 1_000_000), (16_384, 16_384, 16_384)],
)
def test_a_rubric_s_bounds_are_limited_by_the_judge_s_budget(budget, least, most):
    assert (rubric("vllm_qa").min_pixels, rubric("vllm_qa").max_pixels) == (262_144, 1_048_576)
    (request,) = replace(SPEC, max_pixels=budget).requests(QA)
    assert {(s.min_pixels, s.max_pixels) for s in request.shown} == {(least, most)}


def test_the_judge_s_minimum_raises_the_rubric_s_up_to_the_maximum():
    spec = replace(SPEC, min_pixels=65_536)
    assert {(s.min_pixels, s.max_pixels) for s in spec.requests(BRF)[0].shown} == {(65_536, 1_000_000)}
    assert {s.min_pixels for s in spec.requests(QA)[0].shown} == {262_144}
    assert {s.min_pixels for s in replace(spec, min_pixels=500_000).requests(QA)[0].shown} == {500_000}
    assert {s.min_pixels for s in replace(spec, max_pixels=16_384).requests(BRF)[0].shown} == {16_384}


def test_a_collage_is_one_image_with_the_pixels_of_all_its_images():
    five = replace(IDEA, images=tuple("abcde"), collage=Collage((2, 3)))
    ((collage,), (card,)) = (
        SPEC.requests(q)[0].shown for q in (five, replace(IDEA, images=(), collage=Collage(count=4)))
    )
    assert (collage.images, collage.collage, collage.max_pixels) == (tuple("abcde"), Collage((2, 3)), 5_000_000)
    assert (card.images, card.collage, card.max_pixels) == ((), Collage(count=4), 1_000_000)
