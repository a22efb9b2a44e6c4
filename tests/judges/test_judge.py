"""Who the judge is, and what one question to it is: all that decides a verdict is in the name, and nothing else."""

from dataclasses import fields, replace

import pytest

from local_bench.core.types import Collage, Question
from local_bench.judges.vlm import judge as module
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import VERSIONS, Shown
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
    "plugin": "brightness",
}


def test_every_field_of_a_judge_is_part_of_its_identity_and_of_its_questions():
    assert set(OTHERWISE) == {field.name for field in fields(JudgeSpec)}
    judges = [SPEC, *(replace(SPEC, **{name: value}) for name, value in OTHERWISE.items())]
    assert len({judge.judge_id for judge in judges}) == len(judges)
    assert len({judge.question_id(BRF, NUMERICS) for judge in judges}) == len(judges)
    assert replace(SPEC).judge_id == SPEC.judge_id  # the same again: the same
    wordings = [replace(SPEC, rubrics=RubricSet(variant)).judge_id for variant in ("improved", "paper", "miniature")]
    assert len(set(wordings)) == 3


def test_texts_around_rubrics_image_preparation_and_parsing_are_part_of_the_judge_s_identity(monkeypatch):
    plain = system()
    ids = [SPEC.judge_id]
    for part in ("text", "json_closing", "logit_closing", "flag_closing"):
        other = plain.model_copy(update={part: "Answer."})
        with monkeypatch.context() as patch:
            patch.setattr(module, "system", lambda other=other: other)
            ids.append(replace(SPEC).judge_id)
    for versions, key in ((module.PREPARATION, "filter"), (VERSIONS, "json")):
        with monkeypatch.context() as patch:
            patch.setitem(versions, key, "another")
            ids.append(replace(SPEC).judge_id)
    assert len(set(ids)) == len(ids)
    assert replace(SPEC).judge_id == SPEC.judge_id


def test_different_questions_have_different_identities():
    roles = [replace(BRF, images=("a", "b"), roles=("delivered", role)) for role in ("source", "reference")]
    slots = [(("title", "T"), ("brief", "B"), ("point", "p")), (("title", "B"), ("brief", "T"), ("point", "P"))]
    other = [replace(BRF, slots=changed) for changed in slots]
    other += [replace(BRF, images=("b",)), replace(BRF, rubric="idea_question", slots=(("question", "Q"),))]
    collages = [replace(IDEA, collage=collage) for collage in (Collage((2,)), Collage((0, 2)), None)]
    counts = [replace(IDEA, images=(), collage=Collage(count=n)) for n in (2, 3)]
    questions = [BRF, replace(BRF, collage=Collage((1,))), QA, replace(QA, images=("b", "a")), IDEA]
    questions += [*roles, *other, *collages, *counts]
    assert len({SPEC.question_id(q, NUMERICS) for q in questions}) == len(questions)


def test_the_machine_s_numerics_are_part_of_a_question_s_identity_and_not_of_the_judge_s():
    assert SPEC.question_id(BRF, NUMERICS) != SPEC.question_id(BRF, NUMERICS | {"device": "sm90"})
    assert SPEC.question_id(BRF, dict(reversed(NUMERICS.items()))) == SPEC.question_id(BRF, NUMERICS)


def test_a_rubric_s_text_is_part_of_a_question_s_identity(monkeypatch):
    before = SPEC.question_id(BRF, NUMERICS)
    changed = Rubric.model_validate(rubric("brf").model_dump() | {"text": rubric("brf").text + " "})
    assert changed.sha256 != rubric("brf").sha256
    monkeypatch.setattr(RubricSet, "__getitem__", lambda self, name: changed)
    assert SPEC.question_id(BRF, NUMERICS) != before


def test_settings_that_decide_no_verdict_are_not_in_the_identity():
    before = SPEC.question_id(BRF, NUMERICS)
    assert SPEC.question_id(replace(BRF, point=4), NUMERICS) == before
    assert SPEC.question_id(replace(BRF, repeat=1), NUMERICS) == before  # greedy: the same answer again
    sampled = [LOGIT.question_id(replace(IDEA, repeat=n), NUMERICS) for n in range(3)]
    assert len(set(sampled)) == 1  # labels are not drawn: nothing is sampled under `logit`


def test_repeats_of_a_sampled_rubric_are_questions_of_their_own_with_seeds_of_their_own():
    assert rubric("idea_question").temperature > 0
    repeats = [replace(IDEA, repeat=n) for n in range(3)]
    assert len({SPEC.question_id(q, NUMERICS) for q in repeats}) == 3
    requests = [SPEC.requests(q)[0] for q in repeats]
    assert {r.temperature for r in requests} == {rubric("idea_question").temperature}
    assert all(replace(r, seed=0) == replace(requests[0], seed=0) for r in requests)  # but for the seed, alike
    assert SPEC.requests(repeats[1]) == SPEC.requests(repeats[1])
    elsewhere = [replace(IDEA, slots=(("question", "R"),)), replace(IDEA, images=("a", "c"))]
    seeds = [r.seed for r in requests] + [SPEC.requests(q)[0].seed for q in elsewhere]
    seeds.append(replace(SPEC, seed=7).requests(IDEA)[0].seed)
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)
    for judge, greedy in ((SPEC, replace(BRF, repeat=2)), (LOGIT, replace(IDEA, repeat=2))):
        assert {r.seed for r in replace(judge, seed=5).requests(greedy)} == {5}  # nothing is drawn


def test_json_is_one_request_bound_to_the_rubric_s_schema():
    (request,) = SPEC.requests(TEXT)
    tested = rubric("veq_text")
    assert (request.schema, request.labels, request.system) == (tested.answer_schema({}), (), system().text)
    assert (request.max_tokens, request.temperature, request.name) == (tested.max_tokens, 0, "veq_text")
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
    assert request.shown == tuple(Shown((image,), None, 1, 1_000_000) for image in "ab")


def test_a_rubric_s_bounds_are_limited_by_the_judge_s_budget():
    assert (rubric("vllm_qa").min_pixels, rubric("vllm_qa").max_pixels) == (262_144, 1_048_576)
    for question, most, least, expected in (
        (QA, 4_000_000, 1, (262_144, 1_048_576)),
        (QA, 1_000_000, 1, (262_144, 1_000_000)),
        (QA, 16_384, 1, (16_384, 16_384)),
        (BRF, 1_000_000, 65_536, (65_536, 1_000_000)),  # the judge's minimum raises the rubric's, up to the maximum
        (QA, 1_000_000, 65_536, (262_144, 1_000_000)),
        (QA, 1_000_000, 500_000, (500_000, 1_000_000)),
        (BRF, 16_384, 65_536, (16_384, 16_384)),
    ):
        (request,) = replace(SPEC, max_pixels=most, min_pixels=least).requests(question)
        assert {(shown.min_pixels, shown.max_pixels) for shown in request.shown} == {expected}


def test_a_collage_is_one_image_with_the_pixels_of_all_its_images():
    five, four = Collage((2, 3)), Collage(count=4)
    for images, collage, most in ((tuple("abcde"), five, 5_000_000), ((), four, 1_000_000)):
        ((shown,),) = [SPEC.requests(replace(IDEA, images=images, collage=collage))[0].shown]
        assert (shown.images, shown.collage, shown.max_pixels) == (images, collage, most)
