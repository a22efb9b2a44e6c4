"""Judges of classes other than Qwen-VL in this process: any class of `AutoModelForImageTextToText`."""

import io

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.protocols import Shown, prepare

from .small_families import build
from .test_local import chosen, make_image, written


@pytest.fixture(scope="module", params=["internvl", "gemma3"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    build(request.param, path)
    return path


def load(shown):
    return prepare(shown, make_image, 1)


@pytest.fixture(scope="module")
def judge(folder):
    with Local(folder, load, "cpu", "float32") as loaded:
        yield loaded


def request(*images, text="Why?", **settings):
    return written(text, images, **settings)


def labels(*images, **settings):
    return chosen("Why?", images, **settings)


def answer(judge, *requests):
    return dict(judge.complete(list(enumerate(requests))))


def test_its_probabilities_are_those_of_a_plain_call(judge, folder):
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    content = [{"type": "image", "image": Image.open(io.BytesIO(load(Shown(("1",), None, 1, 16384)).png))}]
    messages = [{"role": "system", "content": [{"type": "text", "text": "You judge.\n"}]}]
    messages.append({"role": "user", "content": [*content, {"type": "text", "text": "Why?"}]})
    inputs = processor.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, processor_kwargs={"return_tensors": "pt"}
    )
    with torch.inference_mode():
        expected = torch.log_softmax(model(**inputs).logits[0, -1].float(), dim=-1)
    before = judge.counters()["prompt_tokens"]
    results = answer(judge, labels("1"), labels("2"))
    assert results[0].logprobs == pytest.approx(
        {label: expected[processor.tokenizer.convert_tokens_to_ids(label)].item() for label in results[0].logprobs},
        abs=1e-5,
    )
    assert results[0].text == max("012345", key=results[0].logprobs.get)
    assert results[1].logprobs != pytest.approx(results[0].logprobs, abs=1e-5)  # the image decides
    assert judge.counters()["prompt_tokens"] - before == 2 * inputs["input_ids"].shape[1]


def test_it_answers_by_schema_the_same_again(judge):
    asked = [request("1"), request("1", "2"), request(), request("1", temperature=1.0), labels("2")]
    replies = answer(judge, *asked)
    assert {reply.refusal for reply in replies.values()} == {None}
    assert all(replies[i].text.startswith('{"zeta":') and replies[i].finish_reason == "stop" for i in range(4))
    assert answer(judge, *asked) == replies
    seeds = {answer(judge, request("1", temperature=1.0, seed=seed))[0].text for seed in range(4)}
    assert len(seeds) > 1  # the negative control: sampling has an effect


def test_its_thought_precedes_its_answer(judge):
    thinking = {"thought_end": "e", "max_tokens": 300}
    for item in (request("1", temperature=1.0, **thinking), labels("1", temperature=1.0, **thinking)):
        reply = answer(judge, item)[0]
        thought, _, rest = reply.text.partition("e")
        assert reply.finish_reason == "stop", reply
        assert thought
        assert rest[:1] in set("{012345")
        assert (reply.logprobs is None) == (item.schema is not None)
    assert answer(judge, request("1", thought_end="never", max_tokens=4))[0].finish_reason == "length"


def test_a_prompt_that_does_not_fit_is_refused_alone(judge):
    long = answer(judge, request("1", text="why " * 40_000), labels("1"))
    assert long[0].refusal == "the judge refused the question"
    assert "exceeds the judge's maximum of" in long[0].text
    assert long[1].refusal is None
