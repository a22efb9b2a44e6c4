"""The wordings of the rubrics: which one a judge uses, their texts, and how every transport composes them."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from local_bench.cli.main import main
from local_bench.core.errors import ConfigError
from local_bench.core.types import Question, Task, Verdict
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import body, preparing
from local_bench.judges.vlm.rubrics import (
    DEFAULT,
    HYPE_USABLE,
    Rubric,
    RubricSet,
    read_stored,
    rubric,
    rubric_names,
    wordings,
)
from local_bench.models.cards import card
from local_bench.runs.config import JudgeConfig
from local_bench.runs.scoring import majority_verdict
from local_bench.suites.registry import suite
from local_bench.suites.servimage.questions import questions, which_image

SPEC = JudgeSpec("card", "0" * 64, "float32", 4096, 16, 0)
VARIANTS = ("improved", "paper", "miniature")
"""The wordings in our own layout; test_verbatim.py has the authors'."""
TAUGHT = {
    "brf": "0ae9c9e336ade9f0",
    "cns_edit": "4b99199779594b0d",
    "cns_set": "afcadab64b2804a5",
    "hype_edit": "8c01bdc8146e7c51",
    "idea_question": "cff27ed284824541",
    "veq_aesthetic": "be53db590d62b0b6",
    "veq_technical": "05057693bee58708",
    "veq_text": "e1609c614bf2bd3c",
    "vllm_qa": "ee65b2fb38c0f255",
}
"""The start of each digest of what the trained miniature judge was taught: its answers hold for these texts alone."""


def text_of(name, variant):
    tested = rubric(name, variant)
    return " ".join([*tested.text.split(), *tested.pictures.values(), *tested.evidence.values()])


def spec(variant, protocol="json"):
    return replace(SPEC, rubrics=RubricSet(variant), protocol=protocol)


def question(name, layout):
    """A question that fits the rubric in every wording."""
    slots = dict.fromkeys(rubric(name).numbers, "2")
    slots |= {slot: f"The {slot}." for slot in rubric(name).slots if slot not in slots}
    roles = tuple(layout) * (2 if name == "cns_set" else 1)
    images = tuple("abcdef"[: max(len(roles), rubric(name).writes is None)])
    return Question(name, 0, images, tuple(slots.items()), roles)


def questions_of(name):
    return [question(name, layout) for layout in rubric(name, "miniature").layouts or [()]]


@pytest.mark.parametrize("protocol", ["json", "logit"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_rubric_is_composed_with_labels_in_place(variant, protocol):
    """What each transport makes of it is compared in test_every_rubric.py and test_thinking_judge.py."""
    prepared = preparing(lambda sha: Image.new("RGB", (32, 32), (ord(sha), 0, 0)), 16)
    for asked in [question for name in rubric_names() for question in questions_of(name)]:
        captioned = rubric(asked.rubric, variant).in_place and asked.roles
        for request in spec(variant, protocol).requests(asked):
            images = [*map(prepared, request.shown)]
            served, embedded = (
                body(request, images, "m", inline=inline)["messages"][-1]["content"] for inline in (True, False)
            )
            each = ["text", "image_url"] if captioned else ["image_url"]
            assert (
                [part["type"] for part in served]
                == [part["type"] for part in embedded]
                == [*each * len(images), "text"]
            )
            assert [part["uuid"] for part in served if "uuid" in part] == [image.sha256 for image in images]
            captions = [part["text"].partition(" (")[0] for part in served[:-1] if part["type"] == "text"]
            assert captions == [f"Image {i + 1}" for i in range(len(captions))]


def test_evidence_precedes_the_labels_in_json_and_is_omitted_with_logit():
    assert {name for name in rubric_names() if rubric(name).evidence} == {"cns_edit", "hype_edit", "vllm_qa"}
    assert not any(rubric(name, old).evidence for name in rubric_names() for old in ("paper", "miniature"))
    for name in ("cns_edit", "hype_edit", "vllm_qa"):
        tested, question = rubric(name), questions_of(name)[0]
        schema = tested.answer_schema({})
        assert list(schema["properties"]) == ["evidence", *tested.answer[0]]
        assert schema["required"][0] == "evidence"
        (written,) = spec("improved").requests(question)
        assert written.text.index('"evidence": written first') > written.text.rfind("[end")
        assert all("evidence" not in request.text for request in spec("improved", "logit").requests(question))
        assert "evidence" not in {criterion.name for criterion in tested.criteria}


SENTENCES = {
    ("veq_technical", "paper"): ["0 completely unrealistic or obviously AI-generated"],
    ("veq_technical", "improved"): ["obviously AI-generated", "JPEG blocking, banding, aliasing, ringing", "anatomy"],
    ("veq_aesthetic", "paper"): ["5 exceptional, masterful composition"],
    ("veq_aesthetic", "improved"): ["oversaturated"],
    ("veq_text", "miniature"): ["not what it says"],
    ("veq_text", "paper"): ["Spelling counts; claims made by the text do not"],
    ("veq_text", "improved"): ["Spelling counts; claims made by the text do not", "kerning"],
    ("brf", "paper"): ["unclear or not applicable"],
    ("brf", "improved"): ["what belongs to another image is 0 here"],
    ("cns_edit", "improved"): ["identity"],
    ("idea_question", "paper"): ["what scores 1 point and what scores 0 points"],
    ("idea_question", "improved"): ["answer to the question itself is no"],
    ("vllm_qa", "improved"): ["or if nothing changed"],
}
REMOVED = {
    ("veq_text", "paper"): "not what it says",
    ("veq_text", "improved"): "not what it says",
    ("vllm_qa", "paper"): "nothing changed",  # the official prompt does not have it
    ("veq_technical", "paper"): "drawing",
    ("idea_question", "paper"): "clearly and fully yes",
    ("idea_question", "improved"): "clearly and fully yes",
}


def test_the_texts_of_the_rubrics():
    assert {key: [s for s in sentences if s in text_of(*key)] for key, sentences in SENTENCES.items()} == SENTENCES
    assert [key for key, sentence in REMOVED.items() if sentence in text_of(*key)] == []


def test_the_wording_of_the_miniature_judge_is_unchanged():
    assert {name: rubric(name, "miniature").sha256[:16] for name in TAUGHT} == TAUGHT
    assert card("mini-judge", "judge").rubrics == "miniature"
    assert JudgeConfig(card="mini-judge").rubric_set(card("mini-judge", "judge")) == RubricSet("miniature")
    assert JudgeConfig(card="qwen3-vl-8b").rubric_set(card("qwen3-vl-8b", "judge")) == RubricSet(DEFAULT)


def test_another_wording_than_in_training_is_refused_with_both_names(tmp_path, capsys):
    config = JudgeConfig(card="mini-judge", rubrics="improved")
    with pytest.raises(ConfigError, match="'miniature' and does not support 'improved'"):
        config.rubric_set(card("mini-judge", "judge"))
    run = {"name": "r", "suite": {"name": "studio"}, "models": [{"card": "tiny-flux"}], "metrics": []}
    (tmp_path / "run.yaml").write_text(json.dumps(run | {"judge": {"card": "mini-judge", "rubrics": "paper"}}))
    assert main(["plan", str(tmp_path / "run.yaml")]) == 2
    assert "mini-judge was trained on the rubrics 'miniature' and does not support 'paper'" in capsys.readouterr().err


def test_the_option_usable_is_off_by_default():
    assert "usable" not in text_of("hype_edit", "improved")
    on = RubricSet("improved", (HYPE_USABLE,))["hype_edit"]
    assert list(on.answer[0]) == ["changes_made", "rest_preserved", "usable"]
    assert '"usable": no defect' in on.text
    assert on.sha256 != rubric("hype_edit").sha256
    task = Task("t", "c", 0, "T", "B", ("D",), ())
    parts = {"changes_made": True, "rest_preserved": True}
    for answer, passed in ((parts, 1), (parts | {"usable": False}, 0), (parts | {"usable": True}, 1)):
        scores = {
            s.name: s for s in suite("hype-edit-1").scores(task, {(1, "hype_edit", 0, 0): Verdict(answer, None, "")})[1]
        }
        assert scores["pass"].value == passed
        assert scores["usable"].applies == ("usable" in answer)


def test_a_panel_whose_judges_have_different_wordings_can_vote():
    votes = [
        {"evidence": "A seam.", "changes_made": True, "rest_preserved": True},
        {"changes_made": True, "rest_preserved": False, "usable": True},
        {"changes_made": False, "rest_preserved": True},
    ]
    word = majority_verdict("hype_edit", [Verdict(answer, None, "") for answer in votes], 3)
    assert word.answer == {"changes_made": True, "rest_preserved": True, "usable": True}
    for answer in votes:
        assert read_stored("hype_edit", answer) == (answer, None)
    assert read_stored("hype_edit", {"changes_made": True})[0] is None
    assert len(wordings("hype_edit")) == 6  # four, and `usable` turned on in two of them


def test_images_come_in_the_order_of_the_wording():
    roles = ("source", "mask", "reference", "result")
    asked = Question("vllm_qa", 0, ("s", "m", "f", "r"), (("instruction", "I"),), roles)
    orders = {v: "".join(shown.images[0] for shown in spec(v).requests(asked)[0].shown) for v in VARIANTS}
    assert orders == {"improved": "srmf", "paper": "srmf", "miniature": "smfr"}


def test_a_point_of_a_set_names_the_image_of_the_order():
    task = Task("t", "c", 0, "T", "B", ("Logo", "Card"), ("It is blue.",))
    brf = [q for _, q in questions(task, {1: "a", 2: "b"}) if q.rubric == "brf"]
    first, second = (spec("improved").requests(q)[0].text for q in brf)
    assert "Image 1 of 2: Logo\nThe other images of the order, which are not shown: 2. Card" in first
    assert "Image 2 of 2: Card" in second
    assert "Image 2 of 2" not in spec("miniature").requests(brf[1])[0].text
    assert which_image(replace(task, deliverables=("Logo",)), 1) == "The only image of the order: Logo"


def test_comparisons_with_a_source_can_have_more_pixels_than_other_questions():
    large = replace(SPEC, source_max_pixels=4_194_304)
    for name, most in (("vllm_qa", 4_194_304), ("cns_edit", 4_194_304), ("veq_text", 4096)):
        assert {shown.max_pixels for shown in large.requests(questions_of(name)[0])[0].shown} == {most}
    assert {shown.max_pixels for shown in SPEC.requests(questions_of("vllm_qa")[0])[0].shown} == {4096}


def test_a_rubric_with_options_needs_their_placeholder():
    fields = rubric("brf").model_dump()
    with pytest.raises(ValueError, match="options"):
        Rubric.model_validate(fields | {"options": {"x": "X"}})
    with pytest.raises(ValueError, match="legend"):
        Rubric.model_validate(fields | {"in_place": False})
