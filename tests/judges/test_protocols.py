"""How replies are parsed: a valid answer, or unscored with the judge's own text. Never a guess."""

import json
import math

import pytest

from local_bench.core.types import Question
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import Reply, body, protocol_for, read, texts
from local_bench.judges.vlm.rubrics import (
    RubricSet,
    closing_json,
    closing_logit,
    has_probabilities,
    read_stored,
    rubric,
    rubric_names,
)

BRF = Question("brf", 0, ("a",), (("title", "T"), ("brief", "B"), ("point", "P")), ("delivered",))
TEXT = Question("veq_text", 0, ("a",), ())
AESTHETIC = Question("veq_aesthetic", 0, ("a",), ())
TECHNICAL = Question("veq_technical", 0, ("a",), ())
CHECKLIST = Question("hype_checklist", 0, (), (("instruction", "I"),))
SEAMS = Question("cns_edit", 0, ("a", "b"), (), ("result", "source"))


def json_reply(text, finish="stop"):
    return Reply(text, finish)


def sure(labels, best):
    """A reply that is all but certain of `best`."""
    return Reply(best, "length", {label: -0.01 if label == best else -9.0 for label in labels})


def test_a_valid_answer_counts():
    """Those that do not: tests/judges/test_hostile.py."""
    for text, finish in (('{"met":1}', "stop"), (' {"met" : 1}\n', "stop"), ('{"met":1}', None)):
        verdict = read(BRF, "json", [json_reply(text, finish)])
        assert (verdict.answer, verdict.unscored, verdict.raw) == ({"met": 1}, None, text)
        assert (verdict.value("met"), verdict.variance("met")) == (1, None)


def test_an_unpaired_surrogate_can_be_stored_and_is_no_answer():
    """JSON may spell half of a surrogate pair, which no UTF-8 file, and so no ledger, can hold."""
    escaped = '{"changes":["\\ud83d"],"preservations":[]}'
    complete = '{"changes":["\\ud83d\\ude00"],"preservations":[]}'
    halved = read(CHECKLIST, "json", [json_reply(escaped)])
    assert (halved.answer, halved.raw) == (None, escaped)
    assert read(CHECKLIST, "json", [json_reply(complete)]).answer == {"changes": ["\U0001f600"], "preservations": []}


def test_one_refusal_among_the_labels_leaves_the_question_unscored_with_all_texts():
    for other, reason in (
        (Reply("too long", refusal="the judge refused the question"), "the judge refused the question"),
        (Reply(None), "the judge gave no answer"),
    ):
        verdict = read(TECHNICAL, "logit", [sure("012345", "4"), other])
        assert (verdict.unscored, json.loads(verdict.raw)) == (reason, ["4", other.text])


def test_labels_give_expectation_variance_and_the_likeliest_as_answer():
    p = [0.05, 0.05, 0.1, 0.2, 0.35, 0.25]
    logprobs = {str(i): math.log(q) - 3 for i, q in enumerate(p)}  # unnormalised: other tokens had the rest
    verdict = read(AESTHETIC, "logit", [Reply("5", "length", logprobs | {"6": -0.001, "no": 0.0})])
    assert (verdict.answer, verdict.raw) == ({"aesthetic": 4}, "5")  # the likeliest, not the one that was drawn
    mean = sum(i * q for i, q in enumerate(p))
    assert verdict.value("aesthetic") == pytest.approx(mean, abs=1e-5)
    assert verdict.variance("aesthetic") == pytest.approx(sum((i - mean) ** 2 * q for i, q in enumerate(p)), abs=1e-4)
    assert sum(verdict.labels["aesthetic"].values()) == pytest.approx(1, abs=1e-5)
    certain = dict.fromkeys("01235", -math.inf) | {"4": 0.0}
    verdict = read(AESTHETIC, "logit", [Reply("4", "length", certain)])
    assert (verdict.value("aesthetic"), verdict.variance("aesthetic")) == (4, 0)
    assert verdict.labels["aesthetic"] == dict.fromkeys("01235", 0.0) | {"4": 1.0}
    # As if the model preferred another answer: e to the -900 is nothing to a float.
    unlikely = dict.fromkeys("0123", -2000.0) | {"4": -900.0, "5": -900.0 - math.log(3)}
    verdict = read(AESTHETIC, "logit", [Reply("4", "length", unlikely)])
    assert verdict.value("aesthetic") == pytest.approx(4.25, abs=1e-5)


def test_a_tie_goes_to_the_lower_label_and_halves_the_expectation():
    for drawn in ("2", "4"):
        logprobs = dict.fromkeys("0135", -30.0) | {"4": -0.7, "2": -0.7}
        verdict = read(AESTHETIC, "logit", [Reply(drawn, "length", logprobs)])
        assert verdict.answer == {"aesthetic": 2}
        assert verdict.value("aesthetic") == pytest.approx(3, abs=1e-5)
        assert verdict.variance("aesthetic") == pytest.approx(1, abs=1e-5)


def test_text_is_not_scored_if_the_image_has_none():
    with_text = read(TEXT, "logit", [sure("01", "1"), sure("012345", "3")])
    assert with_text.answer == {"has_text": True, "text": 3}
    assert with_text.value("text") == pytest.approx(3, abs=0.01)
    none = read(TEXT, "logit", [sure("01", "0"), sure("012345", "3")])
    assert none.answer == {"has_text": False}
    assert set(none.labels) == {"has_text"}
    assert none.value("text") is None
    assert json.loads(none.raw) == ["0", "3"]


def test_flags_are_those_whose_label_is_likelier_raised():
    flags = [c.flag for c in rubric("cns_edit").criteria if c.flag]
    raised = {"identity_lost", "edge_seam"}
    replies = [sure("12345", "2"), *(sure("01", "1" if flag in raised else "0") for flag in flags)]
    verdict = read(SEAMS, "logit", replies)
    assert verdict.answer == {"score": 2, "flags": [flag for flag in flags if flag in raised]}
    assert set(verdict.labels) == {"score", *flags}
    written = '{"evidence":"A seam.","score":2,"flags":["identity_lost","edge_seam","edge_seam"]}'
    assert read(SEAMS, "json", [json_reply(written)]).answer == {"evidence": "A seam."} | verdict.answer


@pytest.mark.parametrize("variant", ["improved", "paper", "miniature"])
def test_an_answer_in_labels_has_the_form_of_an_answer_in_json(variant):
    wording = RubricSet(variant)
    for name in rubric_names():
        tested = wording[name]
        if tested.writes is not None or tested.criteria[0].words:
            continue
        question = Question(name, 0, (), ())
        for pick in range(6):
            picked = [(c, pick % len(c.tokens)) for c in tested.criteria]
            answer = read(question, "logit", [sure(c.tokens, c.tokens[n]) for c, n in picked], wording).answer
            for criterion, n in picked:
                if criterion.flag:
                    assert (criterion.flag in answer[criterion.field]) == criterion.labels[n], name
                elif criterion.field in answer:
                    assert answer[criterion.field] is criterion.labels[n], name
            complete = dict.fromkeys(tested.evidence, "It is blue.") | answer
            as_json = read(question, "json", [json_reply(json.dumps(complete))], wording).answer
            assert json.dumps(as_json) == json.dumps(complete), name
            if tested.evidence:  # which no answer in JSON may leave out
                assert read(question, "json", [json_reply(json.dumps(answer))], wording).answer is None, name


def test_enrichment_uses_json_under_either_protocol():
    assert protocol_for(CHECKLIST, "logit") == "json"
    assert protocol_for(BRF, "logit") == "logit"
    assert texts(CHECKLIST, "logit") == texts(CHECKLIST, "json")
    written = '{"changes":["the sky is red"],"preservations":[]}'
    assert read(CHECKLIST, "logit", [json_reply(written)]).answer == json.loads(written)


def test_the_texts_of_a_question_differ_in_their_closing_only():
    ((complete, none),) = texts(TEXT, "json")
    assert none is None
    assert complete.endswith("\n" + closing_json(rubric("veq_text")))
    body = complete.removesuffix(closing_json(rubric("veq_text")))
    by_criterion = texts(TEXT, "logit")
    assert [criterion.name for _, criterion in by_criterion] == ["has_text", "text"]
    assert [text for text, _ in by_criterion] == [body + closing_logit(rubric("veq_text"), c) for _, c in by_criterion]


VQA = Question("vqa_score", 0, ("a",), (("caption", 'a "red" hut<|im_end|>'),))


@pytest.mark.parametrize("protocol", ["json", "logit"])
def test_vqascore_is_the_probability_of_yes_to_the_authors_question(protocol):
    """Under either protocol, also where the judge's first token is a part of a label with a little probability."""
    spec = JudgeSpec("card", "0" * 64, "float32", 1_000_000, 28, 0, protocol)
    (request,) = spec.requests(VQA)
    assert request.text == 'Does this figure show "a "red" hut< |im_end|>"? Please answer yes or no.'
    assert (request.system, request.labels, request.max_tokens, request.schema) == ("", ("No", "Yes"), 1, None)
    sent = body(request, [], "m")
    assert sent["structured_outputs"] == {"choice": ["No", "Yes"]}
    assert sent["top_logprobs"] == len({"N", "No", "Y", "Ye", "Yes"})
    logprobs = {"Yes": math.log(0.6), "No": math.log(0.2), "Y": math.log(0.15), "Ye": -9999.0}
    verdict = read(VQA, protocol, [Reply("Yes", "length", logprobs)])
    assert (verdict.answer, verdict.labels) == ({"shown": 1}, {"shown": {"0": 0.25, "1": 0.75}})
    assert verdict.value("shown") == 0.75
    assert read_stored("vqa_score", verdict.answer) == (verdict.answer, None)
    assert has_probabilities("vqa_score", verdict.labels)
    assert read(VQA, protocol, [Reply("Y", "length", logprobs)]).unscored.endswith("shown is none of its labels")
    missing = read(VQA, protocol, [Reply("Yes", "length", {"Yes": -0.1})])
    assert missing.unscored == "the judge gave no probabilities for the labels of shown"


def test_the_digits_of_other_rubrics_request_one_probability_each():
    question = Question("veq_technical", 0, (), ())
    spec = JudgeSpec("card", "0" * 64, "float32", 1_000_000, 28, 0, "logit", rubrics=RubricSet("miniature"))
    for request in spec.requests(question):
        assert body(request, [], "m")["top_logprobs"] == len(request.labels) == 6
