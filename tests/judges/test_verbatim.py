"""The authors' prompts: their words, how they are sent, and how their answer formats are read."""

import hashlib
import json
import re
from dataclasses import replace

import jsonschema
import pytest
import xgrammar
from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.core.types import Question, Task, Verdict
from local_bench.judges.vlm.injection import attacks, fooled
from local_bench.judges.vlm.judge import JudgeSpec, answers
from local_bench.judges.vlm.protocols import Reply, body, deliverables, preparing, read
from local_bench.judges.vlm.rubrics import RubricSet, read_stored, rubric
from local_bench.models.cards import card
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge import check_questions
from local_bench.suites.registry import suite
from local_bench.suites.servimage import questions as servimage

SET = RubricSet("verbatim")
SPEC = JudgeSpec("card", "0" * 64, "float32", 4096, 16, 0, rubrics=SET)
NAMES = ("brf", "cns_edit", "cns_set", "hype_edit", "idea_question", "veq_aesthetic", "veq_technical", "veq_text")
DIGESTS = ["e9e150a843c2671c", "a0b03ca204486a35", "6e22da90e7aa6a5a", "b7f7e9d9bc882f16", "948b104fdd3780d7"]
ORDER = Task("t", "c", 0, "Logo", "A blue logo.", ("Logo", "Card"), ("It is blue.", "It is round.", "It has text."))


class Scripted:
    """Answers every request with `reply(request)` and keeps the requests."""

    def __init__(self, reply):
        self.reply, self.received = reply, []

    def complete(self, requests, at_once=None):
        for key, request in requests:
            self.received.append(request)
            yield key, Reply(self.reply(request), "stop")


def words(text):
    """The words without Markdown's escapes, fences and emphasis, and without placeholders."""
    points = "1. {evaluation_point_1}\n2. {evaluation_point_2}\n- ..."
    text = re.sub(r"\{(?:\w+)\}", " ", text.replace("\\_", "_").replace(points, "{points}"))
    return re.sub(r"```json|[`*']", " ", text).split()


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("deliverables", "Prompt For Evaluation Points Extract\n", "Figure 9:"),
        ("brf", "Prompt for BRF\n", "Figure 10:"),
        ("veq_technical", "Figure 10: BRF Evaluation prompt.\n", "Figure 11:"),
        ("veq_aesthetic", "Prompt for VEQ-Aesthetic\n", "Prompt for VEQ-Text"),
        ("veq_text", "Prompt for VEQ-Text\n", "Figure 12:"),
        ("cns_edit", "Prompt for CNS-Edit\n", "Figure 13:"),
        ("cns_set", "Prompt for CNS-Set\n", "Figure 14:"),
    ],
)
def test_servimage_s_prompts_are_the_printed_words(name, start, end, shared):
    paper = (shared / "seeds" / "servimage.md").read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
    assert words(rubric(name, "verbatim").text) == words(paper)


def test_the_prompts_of_the_repositories_are_those_of_the_official_files():
    """The digests are of the strings in src/judge_gemini_3_flash.py (268591e) and evaluators/vllm.py (2888d44)."""
    texts = [rubric("hype_edit", "verbatim").text.rstrip("\n"), *rubric("vllm_qa", "verbatim").verbatim.texts]
    assert [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts] == DIGESTS


def order_requests(reply=lambda _: "{}", task=ORDER):
    """The verdicts of an order's questions, and the requests by their rubric."""
    asked = sorted(servimage.questions(task, {1: "a", 2: "b"}), key=lambda item: SET.shares_requests(item[1]))
    judge = Scripted(reply)
    verdicts = dict(answers(judge, SPEC, asked))
    return verdicts, {request.name: request for request in reversed(judge.received)}, judge.received


def brf_reply(scores, order=(0, 1)):
    entries = [{"image_index": i, "items": [{"score": score} for score in scores[i]]} for i in order]
    return json.dumps({"metric": "BRF", "image_count": len(entries), "evaluation_by_image": entries})


def cns_reply(scores):
    entries = [
        {"image_index": i, "score_1to5": score, "flags": ["style_inconsistent"] * (score < 3)} for i, score in scores
    ]
    return json.dumps({"metric": "CNS-Set", "image_scores": entries})


def test_one_request_has_all_images_and_points_of_an_order():
    replies = {"brf": brf_reply([[1, 0, 0], [0, 0, 1]]), "cns_set": cns_reply([(0, 5), (1, 2)])}
    verdicts, requests, received = order_requests(lambda request: replies.get(request.name, "{}"))
    assert [request.name for request in received if request.name in replies] == ["brf", "cns_set"]
    brf = requests["brf"]
    assert [shown.images for shown in brf.shown] == [("a",), ("b",)]
    for part in (
        "1. It is blue.\n2. It is round.\n3. It has text.",
        "of the generated 2 picture.",
        '"image_count": 2',
        "- Task ID: t\n- Task Name: Logo\n- Task Requirements: A blue logo.\n",
    ):
        assert part in brf.text
    assert "You will see 2 images." in requests["cns_set"].text
    met = {key[::2]: verdict.answer["met"] for key, verdict in verdicts.items() if key[1] == "brf"}
    assert met == {(1, 0): 1, (1, 1): 0, (1, 2): 0, (2, 0): 0, (2, 1): 0, (2, 2): 1}
    assert verdicts[2, "cns_set", 0, 0].answer == {"score": 2, "flags": ["style_inconsistent"]}
    scores = {score.name: score.value for score in servimage.scores(ORDER, verdicts)[1]}
    assert (scores["brf"], scores["cns_set"]) == (pytest.approx(5 * 2 / 3), 5)


@pytest.mark.parametrize(("order", "met"), [((1, 0), [1, 0]), ((1, 1), [None, None])])
def test_images_are_read_by_their_index_and_a_repeated_one_is_unscored(order, met):
    written = brf_reply([[1] * 3, [0] * 3], order)
    verdicts, _, _ = order_requests(lambda request: written if request.name == "brf" else "{}")
    answered = [verdicts[i, "brf", 0, 0].answer for i in (1, 2)]
    # the position decides where a server enforces the format; one that does not is read by the index
    assert [answer and answer["met"] for answer in answered] in ([None, None], met)


def test_the_client_s_images_follow_the_generated_ones():
    _, requests, _ = order_requests(task=replace(ORDER, source_sha256="s", reference_sha256=("r",)))
    shown = {name: [shown.images[0] for shown in requests[name].shown] for name in ("brf", "cns_edit")}
    assert shown == {"brf": ["a", "b", "s", "r"], "cns_edit": ["a", "s"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_is_sent_alone_and_its_format_has_a_grammar(name):
    asked = next(q for q in every_question() if q.rubric == name)
    (request,) = SPEC.requests(asked)
    prepared = preparing(lambda _: Image.new("RGB", (32, 32)), 16)
    sent = body(request, [*map(prepared, request.shown)], "m")
    assert [message["role"] for message in sent["messages"]] == ["user"]
    assert "[end " not in request.text
    assert "Answer with one JSON object" not in request.text
    xgrammar.Grammar.from_json_schema(json.dumps(request.schema))
    jsonschema.Draft202012Validator.check_schema(request.schema)


def every_question():
    task = replace(ORDER, source_sha256="s")
    yield from (question for _, question in servimage.questions(task, {1: "a", 2: "b"}))
    yield from (question for _, question in suite("hype-edit-1").questions(task, {1: "a"}))
    yield Question("idea_question", 0, ("a",), (("question", 'Is it red? {"score": 1, "reason": ""}'),))


def test_control_tokens_in_slots_are_split_and_placeholders_in_them_stay():
    task = replace(ORDER, brief="<|im_end|> {n_images} {points}")
    _, requests, _ = order_requests(task=task)
    assert "- Task Requirements: < |im_end|> {n_images} {points}\n" in requests["brf"].text
    edit = next(q for _, q in suite("hype-edit-1").questions(replace(task, source_sha256="s"), {1: "a"}))
    (request,) = SPEC.requests(edit)
    assert "< |im_end|> {n_images}" in request.captions[1]


def test_hype_s_judge_has_the_prompt_before_and_after_the_images():
    task = replace(ORDER, source_sha256="s", reference_sha256=("r",))
    question = next(q for _, q in suite("hype-edit-1").questions(task, {1: "a"}))
    (request,) = SPEC.requests(question)
    prompt = rubric("hype_edit", "verbatim").text
    assert request.text == prompt
    assert request.captions == (
        f"{prompt}\nReference image 1:\n",
        "Reference image 2:\n",
        "Instruction:\nA blue logo.\nCandidate output image:\n",
    )
    for word, passed in (("PASS", 1.0), ("FAIL", 0.0)):
        reply = Reply(json.dumps({"verdict": word, "reasoning": "It is."}), "stop")
        verdict = read(question, "json", [reply], SET)
        scores = {
            score.name: score for score in suite("hype-edit-1").scores(task, {(1, "hype_edit", 0, 0): verdict})[1]
        }
        assert (scores["pass"].value, scores["rating"].value) == (passed, passed)
        assert not scores["changes_made"].applies
        assert read_stored("hype_edit", verdict.answer) == (verdict.answer, None)


@pytest.mark.parametrize(
    "roles", [("source", *others, "result") for others in ((), ("mask",), ("reference",), ("mask", "reference"))]
)
def test_ice_bench_s_prompt_depends_on_the_images_and_is_answered_by_one_label(roles):
    question = Question("vllm_qa", 0, tuple(role[0] for role in roles), (("instruction", "变红"),), roles)
    (request,) = SPEC.requests(question)
    count = {2: "两", 3: "三", 4: "四"}[len(roles)]
    assert request.text.startswith(f"现在有{count}张图")
    assert ("掩码图" in request.text, "[REF]" in request.text) == ("mask" in roles, "reference" in roles)
    assert "'变红'" in request.text
    assert (request.labels, request.schema, request.max_tokens, request.system) == (("0", "1"), None, 1, "")
    assert [shown.images[0] for shown in request.shown][:2] == ["s", "r"]
    assert read(question, "json", [Reply("1", "length", {"0": -2.0, "1": -0.1})], SET) == Verdict(
        {"success": 1}, None, "1"
    )
    assert (
        read(question, "json", [Reply("可以")], SET).unscored == "the judge's answer to success is none of its labels"
    )


TECHNICAL, AESTHETIC, TEXT = ({"metric": f"{kind}_Quality"} for kind in ("Technical", "Aesthetic", "Text"))


@pytest.mark.parametrize(
    ("name", "reply", "answer"),
    [
        ("veq_text", TEXT | {"has_text": False, "final_score_0to5": 0}, {"has_text": False}),
        ("veq_text", TEXT | {"has_text": True, "final_score_0to5": 4}, {"has_text": True, "text": 4}),
        ("veq_technical", TECHNICAL | {"clarity_score_0to5": 5, "realism_score_0to5": 0}, {"clarity": 5, "realism": 0}),
        ("veq_aesthetic", AESTHETIC | {"final_score_0to5": 3.0}, {"aesthetic": 3}),
        ("veq_aesthetic", AESTHETIC | {"final_score_0to5": 6}, None),
        ("veq_aesthetic", {"aesthetic": 3}, None),
        ("veq_aesthetic", [3], None),
        ("idea_question", {"score": 1, "reason": "It is."}, {"met": 1}),
    ],
)
def test_the_authors_formats_are_read(name, reply, answer):
    verdict = read(Question(name, 0, ("a",), (("question", "?"),)), "json", [Reply(json.dumps(reply), "stop")], SET)
    assert verdict.answer == answer
    assert answer or verdict.unscored.startswith(f"the answer does not have the authors' format for {name}: ")


def test_published_rules_are_read_from_the_extraction_prompt():
    entry = {"subtask": "logo", "rules": {"file_type": ["png"], "visual_specs": {"aspect_ratio": "1:1",
             "dimensions": {"width": 30, "height": 20, "unit": "cm"}, "resolution": {"min_dpi": 300}}}}  # fmt: skip
    reply = {"extracted_rules": {"output_quantity": 1, "deliverables": [entry]}, "reasoning": []}
    question = Question("deliverables", 0, (), (("title", "T"), ("brief", "B")))
    (rules,) = deliverables(read(question, "json", [Reply(json.dumps(reply), "stop")], SET))
    specs = {"width_mm": 300.0, "height_mm": 200.0, "aspect_ratio": "1:1", "min_dpi": 300.0}
    assert rules.model_dump(exclude_defaults=True) == {"file_type": ["PNG"], "visual_specs": specs}


def test_the_checks_of_a_judge_have_questions_in_every_format():
    questions = check_questions()
    requests = {request.text for question in questions for request in SPEC.requests(question)}
    assert any("1. The image shows a red circle. Checked and found" in text for text in requests)
    passing = next(attack for attack in attacks()[0] if attack.name == "painted-pass")
    assert fooled(passing, Verdict({"passed": False}, None, ""), Verdict({"passed": True}, None, "")) is True


@pytest.mark.parametrize("settings", [{"protocol": "logit"}, {"hype_usable": True}])
def test_other_criteria_and_formats_are_refused(settings):
    with pytest.raises(ConfigError, match="`verbatim` has the authors' criteria and answer formats"):
        JudgeConfig(card="tiny-qwen3-vl", rubrics="verbatim", **settings).rubric_set(card("tiny-qwen3-vl", "judge"))
