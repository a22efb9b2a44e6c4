"""A judge that writes its thoughts before the answer, by `thinking` in its card: one request, two parts of the text."""

from dataclasses import replace

import pytest
import xgrammar
from pydantic import ValidationError

from local_bench.core.types import Question
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import Reply, after_thought, body, last_of, read, reply
from local_bench.models.cards import ModelCard, Thinking, card
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge_factory import _needs
from local_bench.testing import vlm_models

END = "</think>"
SPEC = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0, thinking=Thinking(budget_tokens=500, end=END))
PLAIN = replace(SPEC, thinking=None)
BRF = Question("brf", 3, (), (("title", "T"), ("brief", "B"), ("point", "P")))
CUT_OFF = "the judge's thought was cut off before its end (thinking.budget_tokens)"


def read_by(protocol, *replies, end=END):
    return read(BRF, protocol, replies, thought_end=end)


@pytest.mark.parametrize("protocol", ["json", "logit"])
def test_the_thought_has_its_own_tokens_and_precedes_the_constrained_answer(protocol):
    (request,), (plain,) = (replace(spec, protocol=protocol).requests(BRF) for spec in (SPEC, PLAIN))
    assert request.max_tokens == plain.max_tokens + 500
    sent, before = body(request, [], "m"), body(plain, [], "m")
    grammar = xgrammar.Grammar.from_structural_tag(sent["response_format"])
    assert END in str(grammar)
    assert sent["skip_special_tokens"] is False
    assert "structured_outputs" not in sent
    changed = ("response_format", "structured_outputs", "skip_special_tokens", "max_tokens")
    assert {k: v for k, v in sent.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}
    assert "skip_special_tokens" not in before
    thought, answer = after_thought(request)["format"]["elements"]
    assert (thought["end"], answer["type"]) == (END, "or" if protocol == "logit" else "json_schema")


def test_the_answer_alone_is_read_and_the_thought_is_stored():
    thought = 'It is {"met": 0}, or 1. No: 0.'
    verdict = read_by("json", Reply(f'{thought}{END}{{"met":1}}', "stop"))
    assert (verdict.answer, verdict.unscored) == ({"met": 1}, None)
    assert verdict.raw == f'{thought}{END}{{"met":1}}'
    chances = {"0": -2.0, "1": -1.0}
    label = read_by("logit", Reply(f"0 {thought}{END}1", "stop", chances))
    assert (label.answer, label.raw) == ({"met": 1}, f"0 {thought}{END}1")
    assert label.labels["met"]["1"] > 0.7
    # The negative control: without the card's `thinking` the same texts are no answers.
    for protocol, text in (("json", verdict.raw), ("logit", label.raw)):
        assert read_by(protocol, Reply(text, "stop", chances), end="").answer is None


def test_a_thought_or_an_answer_that_is_cut_off_is_unscored():
    for protocol in ("json", "logit"):
        for text in ('{"met":1}', "1", "", "I think that 1"):
            verdict = read_by(protocol, Reply(text, "length", {"0": -2.0, "1": -1.0}))
            assert (verdict.answer, verdict.unscored, verdict.raw) == (None, CUT_OFF, text)
    assert read_by("json", Reply(f'So.{END}{{"met"', "length")).unscored == "the judge's answer was cut off (length)"


def test_the_label_s_probabilities_are_those_after_the_thought():
    tops = [{"0": -9.0, "1": -0.1}, {"0": -8.0, "1": -0.2}, {"0": -0.5, "1": -1.0}, {"0": -7.0, "1": -7.0}]
    content = [
        {"token": token, "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()]}
        for token, top in zip(("1", END, "0", "<|im_end|>"), tops, strict=True)
    ]
    choice = {"message": {"content": f"1{END}0"}, "finish_reason": "stop", "logprobs": {"content": content}}
    assert reply({"choices": [choice]}).logprobs == tops[2]
    assert last_of("0", ["0"]) == last_of("", [""]) == last_of("x", ["a", "b"]) == 0


# ---- image tokens and the arguments of the image processor


def described(**fields):
    return ModelCard(**card("tiny-qwen3-vl", "judge").model_dump() | fields)


def test_the_context_is_planned_with_the_tokens_of_the_image():
    shown = replace(BRF, images=("a",), roles=("delivered",))
    long = replace(shown, slots=(("title", "T"), ("brief", "B" * 9000), ("point", "P")))

    def context(described, spec):
        return _needs(described, spec, [long])["max_model_len"]

    per_pixel, fixed = context(described(), PLAIN), context(described(image_tokens=3328), PLAIN)
    assert fixed - per_pixel in range(3328 - 16384 // 32**2 - 1024, 3328 + 1024)
    assert context(described(image_tokens=3328), SPEC) >= fixed  # and with those of the thought
    assert described(image_tokens=256).tokens_of_image(1) == described(image_tokens=256).tokens_of_image(10**6) == 256
    assert described().tokens_of_image(1024**2) == 1024


def test_a_card_s_processor_arguments_and_thinking_are_the_judge_s():
    config = JudgeConfig(card="tiny-qwen3-vl")
    plain = config.spec(described(), "0" * 64, "float32")
    assert (plain.mm_processor_kwargs, plain.thinking) == (None, None)
    thinking = {"budget_tokens": 9, "end": "x"}
    changed = config.spec(described(mm_processor_kwargs={"b": 1, "a": True}, thinking=thinking), "0" * 64, "float32")
    assert changed.mm_processor_kwargs == (("a", True), ("b", 1))
    assert changed.thinking == Thinking(**thinking)
    with pytest.raises(ValidationError):
        described(mm_processor_kwargs={"trust_remote_code": True})
    for invalid in ({"budget_tokens": 0, "end": "x"}, {"budget_tokens": 9, "end": ""}, {"end": "x"}):
        with pytest.raises(ValidationError):
            described(thinking=invalid)


@pytest.mark.parametrize("end", ["<|vision_end|>", "</think>"])
def test_the_end_may_be_one_token_special_or_added(end):
    tokenizer = vlm_models._tokenizer()
    tokenizer.add_tokens(["</think>"])
    spec = replace(SPEC, protocol="logit", thinking=Thinking(budget_tokens=9, end=end))
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    tag = after_thought(spec.requests(BRF)[0])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_structural_tag(tag))

    def allowed(*texts):
        mask = xgrammar.allocate_token_bitmask(1, len(tokenizer))
        matcher.fill_next_token_bitmask(mask)
        ids = tokenizer.convert_tokens_to_ids([*texts])
        return [text for text, i in zip(texts, ids, strict=True) if mask[0][i // 32] >> (i % 32) & 1]

    assert allowed("0", "a", end, "<|im_end|>") == ["0", "a", end]
    assert matcher.accept_token(tokenizer.convert_tokens_to_ids(end))
    assert allowed("0", "1", "2", "a", end, "<|im_end|>") == ["0", "1"]
    assert matcher.accept_token(tokenizer.convert_tokens_to_ids("1"))
    assert allowed("0", "1", "a", end, "<|im_end|>") == ["<|im_end|>"]
