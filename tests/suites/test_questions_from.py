"""Other benchmarks' questions about a suite's images: which questions a task has, and the scores computed from their
answers."""

import pytest

from local_bench.core.errors import ConfigError
from local_bench.core.types import Task, Verdict
from local_bench.suites.questions_from import BENCHMARKS, borrowed_questions, borrowed_scores, check_borrowed, pass_fail

ALL = ["ice-bench", "hype-edit-1", "idea-bench"]
EDIT = Task(
    "edit",
    "Product",
    0,
    "T",
    "Make <SOURCE> red.",
    ("front", "back"),
    ("It is red", "It is sharp"),
    "s" * 64,
    ("r" * 64,),
)
TEXT_ONLY = Task("words", "Product", 0, "T", "A boot.", ("boot",), ("It is a boot",))


def questions_of(names, task, images):
    return list(borrowed_questions(names, task, images))


def test_an_edit_has_all_questions():
    found = questions_of(ALL, EDIT, {1: "a" * 64, 2: "b" * 64})
    assert len({key for key, _ in found}) == len(found) == 2 * (1 + 1 + 2 * 3)
    ice = [q for (i, rubric, *_), q in found if rubric == "vllm_qa" and i == 2]
    assert [(q.roles, q.images[-1]) for q in ice] == [(("source", "reference", "result"), "b" * 64)]
    hype = [q for (i, rubric, *_), q in found if rubric == "hype_edit" and i == 1]
    assert hype[0].images == ("s" * 64, "r" * 64, "a" * 64)
    idea = [q for (i, rubric, *_), q in found if rubric == "idea_question" and i == 1]
    assert {(q.slots[0][1], q.repeat) for q in idea} == {(p, r) for p in EDIT.evaluation_points for r in range(3)}


def test_a_task_of_text_alone_is_no_edit():
    assert {key[1] for key, _ in questions_of(ALL, TEXT_ONLY, {1: "a" * 64})} == {"idea_question"}
    found = {score.name: score for score in borrowed_scores(ALL, TEXT_ONLY, {})[1]}
    assert not found["ice_vllmqa"].applies
    assert not found["hype_pass"].applies
    assert found["idea_met"].unscored == "3 askings of point 1 have no answer"


def test_scores_are_each_benchmarks_own_of_each_image():
    def verdict(**answer):
        return Verdict(answer, None, "")

    verdicts = {
        (1, "vllm_qa", 0, 0): verdict(success=1),
        (2, "vllm_qa", 0, 0): verdict(success=0),
        (1, "hype_edit", 0, 0): verdict(changes_made=True, rest_preserved=True),
        (2, "hype_edit", 0, 0): verdict(changes_made=True, rest_preserved=False),
    }
    for i, met in ((1, (1, 1, 0)), (2, (0, 0, 0))):
        for repeat in range(3):
            verdicts[i, "idea_question", 0, repeat] = verdict(met=met[repeat])
            verdicts[i, "idea_question", 1, repeat] = verdict(met=1)
    found = {i: {s.name: s.value for s in of} for i, of in borrowed_scores(ALL, EDIT, verdicts).items()}
    assert found[1] == {"ice_vllmqa": 1, "hype_pass": 1, "hype_rating": 1, "idea_met": pytest.approx((2 / 3 + 1) / 2)}
    assert found[2] == {"ice_vllmqa": 0, "hype_pass": 0, "hype_rating": 0, "idea_met": 0.5}
    assert pass_fail(ALL) == ("hype_pass",)


def test_servimages_questions_of_another_benchmarks_task():
    found = questions_of(["servimage"], EDIT, {1: "a" * 64})
    assert {key[1] for key, _ in found} == {"veq_technical", "veq_aesthetic", "veq_text", "cns_edit"}
    names = {score.name for score in borrowed_scores(["servimage"], EDIT, {})[1]}
    assert names == {"servimage_veq", "servimage_cns"}


def test_no_rubric_and_no_score_is_two_benchmarks():
    names = [name for other in BENCHMARKS.values() for name in other.names.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("suite", "names", "message"),
    [
        ("servimage", ["ice"], "unknown benchmark 'ice': available are servimage, idea-bench, hype-edit-1, ice-bench"),
        ("servimage", ["servimage"], "servimage already includes the questions of servimage"),
        ("printshop", ["servimage"], "printshop already includes the questions of servimage"),
        ("ice-bench", ["ice-bench"], "already includes the questions of ice-bench"),
        ("servimage", ["ice-bench", "ice-bench"], "duplicate 'ice-bench'"),
    ],
)
def test_questions_that_cannot_be_borrowed_are_an_error(suite, names, message):
    with pytest.raises(ConfigError, match=message):
        check_borrowed(suite, names)
