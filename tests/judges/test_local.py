import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import xgrammar
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from local_bench.core.errors import ConfigError, ServerError, WeightsError
from local_bench.core.types import Question
from local_bench.judges.payment.network import load_backbone
from local_bench.judges.vlm.judge import JudgeSpec, answers
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.protocols import Prepared, Request, Shown, prepare
from local_bench.judges.vlm.rubrics import rubric, rubric_names
from local_bench.models.cards import card
from local_bench.models.tensors import load_tensors
from local_bench.models.weights import resolve
from local_bench.runs import judge_factory
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, open_judge
from local_bench.runs.progress import Quiet

JUDGES = ["tiny-qwen2-vl", "tiny-qwen3-vl"]
SCORING = [name for name in rubric_names() if rubric(name).answer and not rubric(name).criteria[0].words]
"""Without those that need tokens of words, which the small judges do not have."""
SCHEMA = {
    "type": "object",
    "properties": {"zeta": {"enum": [0, 1, 2, 3, 4, 5]}, "alpha": {"enum": [False, True]}, "why": {"type": "string"}},
    "required": ["zeta", "alpha", "why"],
    "additionalProperties": False,
}
SCHEMA["properties"]["why"] |= {"pattern": "^[a-z ]{4,24}$"}


def make_image(sha256):
    pixels = np.random.default_rng(int(sha256, 16)).integers(0, 256, (100, 140, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def local(name, **settings):
    chosen = card(name, "judge")
    return Local(resolve(chosen), lambda item: prepare(item, make_image, chosen.patch), "cpu", "float32", **settings)


@pytest.fixture(scope="module", params=JUDGES)
def judge(request, cache):
    with local(request.param) as loaded:
        loaded.name = request.param
        yield loaded


def shown_images(*images):
    return tuple(Shown((sha256,), None, 1, 16384) for sha256 in images)


def written(text="Why?", images=("1", "2"), **settings):
    return replace(Request("You judge.\n", shown_images(*images), text, 64, 0, 0, "a_test", SCHEMA), **settings)


def chosen(text="Why?", images=("1", "2"), **settings):
    return written(text, images, **{"max_tokens": 1, "schema": None, "labels": tuple("012345")} | settings)


def alone(judge, requests):
    return {key: reply for item in requests for key, reply in judge.complete([item])}


def reply_of(judge, request):
    ((_, reply),) = judge.complete([(0, request)])
    return reply


def many():
    """Requests of both kinds, of unlike lengths, about one, two and no images."""
    return [
        (f"{kind.__name__} {n} {images}", kind("Question " + "and why? " * n, images))
        for images, questions in ((("1", "2"), 9), (("3",), 2), ((), 2), (("3", "4"), 2))
        for n in range(questions)
        for kind in (written, chosen)
    ]


def question(name, n):
    tested = rubric(name)
    roles = tuple(tested.layouts[-1] if tested.layouts else [])
    images = len(roles) if tested.layouts else 1
    slots = tuple((slot, "2" if slot in tested.numbers else f"the {slot} of {n}") for slot in tested.slots)
    return Question(name, n, tuple(f"{n}{i}" for i in range(images)), slots, roles)


class Plain:
    """A reference with transformers alone: the complete prompt in one pass."""

    def __init__(self, name):
        weights = resolve(card(name, "judge"))
        self.patch = card(name, "judge").patch
        self.processor = AutoProcessor.from_pretrained(weights, local_files_only=True)
        self.model = AutoModelForImageTextToText.from_pretrained(weights, local_files_only=True, dtype=torch.float32)
        self.tokenizer = self.processor.tokenizer

    def inputs(self, request):
        images = [prepare(item, make_image, self.patch).png for item in request.shown]
        marks = "<|vision_start|><|image_pad|><|vision_end|>" * len(images)
        return self.processor(
            text=f"<|im_start|>system\n{request.system}<|im_end|>\n<|im_start|>user\n{marks}{request.text}<|im_end|>\n"
            "<|im_start|>assistant\n",
            images=[Image.open(io.BytesIO(png)) for png in images] or None,
            do_resize=False,
            return_tensors="pt",
        )

    def logprobs(self, request):
        with torch.inference_mode():
            logits = self.model(**self.inputs(request)).logits[0, -1].double()
        tokens = [self.tokenizer.convert_tokens_to_ids(label) for label in request.labels]
        return dict(zip(request.labels, torch.log_softmax(logits, dim=-1)[tokens].tolist(), strict=True))

    def write(self, request):
        info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=len(self.tokenizer))
        grammar = xgrammar.GrammarCompiler(info).compile_json_schema(
            request.schema, any_whitespace=False, separators=(",", ":")
        )
        inputs = self.inputs(request)
        constraint = xgrammar.contrib.hf.LogitsProcessor(grammar)
        out = self.model.generate(
            **inputs, max_new_tokens=request.max_tokens, do_sample=False, logits_processor=[constraint]
        )
        return self.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.fixture(scope="module")
def plain(judge):
    return Plain(judge.name)


@pytest.mark.parametrize("protocol", ["json", "logit"])
def test_every_rubric_is_answered(judge, protocol):
    chosen_card = card(judge.name, "judge")
    spec = JudgeSpec(judge.name, "0" * 64, "float32", 16384, chosen_card.patch, 0, protocol=protocol, max_tokens=640)
    verdicts = dict(answers(judge, spec, [(name, question(name, 0)) for name in SCORING]))
    assert {key: verdict.unscored for key, verdict in verdicts.items()} == dict.fromkeys(SCORING)
    assert all((verdict.labels is not None) == (protocol == "logit") for verdict in verdicts.values())
    writing = [(name, question(name, 0)) for name in rubric_names() if rubric(name).writes]
    for _, verdict in answers(judge, replace(spec, max_tokens=48), writing):
        assert verdict.answer is not None or verdict.unscored == "the judge's answer was cut off (length)"


def test_labels_have_the_probabilities_of_a_plain_forward_pass(judge, plain):
    requests = [(key, request) for key, request in many() if request.labels][::2]
    for key, reply in judge.complete(requests):
        expected = plain.logprobs(dict(requests)[key])
        assert reply.logprobs == pytest.approx(expected, abs=1e-4)
        assert reply.text == max(expected, key=expected.get)
        assert reply.finish_reason == "length"


def test_an_answer_is_what_plain_generation_writes(judge, plain):
    requests = [(key, request) for key, request in many() if request.schema][::4]
    for key, reply in judge.complete(requests):
        assert (reply.text, reply.finish_reason) == (plain.write(dict(requests)[key]), "stop")


def test_answers_do_not_depend_on_the_batch(judge):
    requests = many()
    together = dict(judge.complete(requests))
    assert together == alone(judge, requests)
    assert together == dict(judge.complete(reversed(requests), at_once=3))
    assert len({reply.text for reply in together.values() if reply.logprobs is None}) > 2  # they do differ by question


def test_keys_are_in_the_order_of_the_schema_without_spaces(judge):
    turned = SCHEMA | {"properties": dict(reversed(SCHEMA["properties"].items()))}
    for schema, keys in ((SCHEMA, ["zeta", "alpha", "why"]), (turned, ["why", "alpha", "zeta"])):
        text = reply_of(judge, written(schema=schema)).text
        assert list(json.loads(text)) == keys
        assert text == json.dumps(json.loads(text), separators=(",", ":"))


def test_a_sampled_answer_depends_on_its_seed_and_not_on_the_batch(judge):
    requests = [(seed, written(temperature=1.5, seed=seed)) for seed in range(6)]
    together = dict(judge.complete([*requests, ("greedy", written())]))
    del together["greedy"]
    assert together == alone(judge, requests)
    assert len({reply.text for reply in together.values()}) > 1
    assert {reply.finish_reason for reply in together.values()} == {"stop"}


def test_an_answer_that_reaches_the_token_limit_is_marked(judge):
    replies = dict(judge.complete([(n, written(max_tokens=n)) for n in (3, 40)]))
    assert replies[3].finish_reason == "length"
    assert replies[40].finish_reason == "stop"
    assert replies[40].text.startswith(replies[3].text)


def test_a_prompt_that_is_too_long_is_refused_and_the_others_are_answered(judge, plain, monkeypatch):
    requests = [("long", written("why " * 40_000)), ("short", written()), ("longer", chosen("why " * 40_000))]
    replies = dict(judge.complete(requests))
    for key in ("long", "longer"):
        assert replies[key].refusal == "the judge refused the question"
        assert "exceeds the judge's maximum of 32768" in replies[key].text
    assert replies["short"] == alone(judge, requests[1:2])["short"]
    tokens = plain.inputs(written())["input_ids"].numel() + written().max_tokens
    for most, refusal in ((tokens, None), (tokens - 1, "the judge refused the question")):
        monkeypatch.setattr(judge, "_longest", most)
        assert reply_of(judge, written()).refusal == refusal


def test_an_image_token_in_a_text_is_only_text(judge):
    marked = [("marked", chosen("<|vision_start|><|image_pad|><|vision_end|> Why?")), ("not", chosen())]
    replies = dict(judge.complete(marked))
    assert replies["marked"].refusal is None
    assert replies["marked"].logprobs != replies["not"].logprobs


def test_an_image_that_the_model_cannot_take_is_refused(cache):
    chosen_card = card("tiny-qwen2-vl", "judge")
    png = io.BytesIO()
    Image.new("RGB", (chosen_card.patch * 201, chosen_card.patch)).save(png, "PNG")
    with Local(resolve(chosen_card), lambda _: Prepared(png.getvalue(), ""), "cpu", "float32") as judge:
        reply = reply_of(judge, written(images=("1",)))
        with pytest.raises(ServerError, match="run the same command again"):
            judge.restart()
    assert reply.refusal == "the judge refused the question"
    assert "aspect ratio" in reply.text


def test_images_are_read_once_for_all_questions_about_them(judge, plain):
    requests = [(n, chosen("why? " * n)) for n in range(4)]
    prompts = [plain.inputs(request)["input_ids"][0] for _, request in requests]
    prefix = int((prompts[0] == plain.processor.image_token_id).nonzero().max()) + 1
    before = judge.counters()
    list(judge.complete(requests))
    after = judge.counters()
    assert after["prompt_tokens"] - before["prompt_tokens"] == sum(map(len, prompts))
    assert after["cached_tokens"] - before["cached_tokens"] == 3 * prefix
    assert prefix > 20
    list(judge.complete([(n, chosen(images=(str(n), "2"))) for n in range(3)]))
    assert judge.counters()["cached_tokens"] == after["cached_tokens"]


def test_batches_are_halved_when_memory_runs_out(cache, monkeypatch):
    write, sizes = Local._generate, []

    def small_memory(self, prefix, requests, suffixes):
        sizes.append(len(requests))
        if len(requests) > 2:
            raise torch.OutOfMemoryError
        return write(self, prefix, requests, suffixes)

    requests = [(n, written("Why? " * n)) for n in range(11)]
    with local("tiny-qwen3-vl") as judge:
        expected = dict(judge.complete(requests))
        monkeypatch.setattr(Local, "_generate", small_memory)
        assert dict(judge.complete(requests)) == expected
        assert sizes == [8, 4, 2, 2, 2, 2, 2, 1]
        monkeypatch.setattr(Local, "_generate", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError))
        with pytest.raises(ServerError, match="too little free memory for one question"):
            list(judge.complete(requests))


def test_a_model_that_cannot_be_loaded_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="precision 'int8' is unknown"):
        Local(tmp_path, lambda _: Prepared(b"", ""), "cpu", "int8")
    unloaded = Local(tmp_path, lambda _: Prepared(b"", ""), "cpu", "float32")
    with pytest.raises(WeightsError, match=f"the judge in {tmp_path} cannot be loaded"), unloaded:
        pass
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}', "utf-8")
    with pytest.raises(ConfigError, match="is a qwen2 model"), unloaded:
        pass


def test_a_judge_that_lacks_a_weight_is_refused(cache, tmp_path):
    """transformers would initialise it at random."""
    folder = shutil.copytree(resolve(card("tiny-qwen3-vl", "judge")), tmp_path / "judge")
    tensors = load_tensors(folder / "model.safetensors")
    del tensors[next(key for key in tensors if key.endswith("down_proj.weight"))]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    lacking = Local(folder, lambda _: Prepared(b"", ""), "cpu", "float32")
    with pytest.raises(WeightsError, match=r"its files lack weights of \w+: .*down_proj.weight, 1 in all"), lacking:
        pass
    with pytest.raises(WeightsError, match=r"its files lack weights of \w+: .*down_proj.weight, 1 in all"):
        load_backbone(folder, torch.device("cpu"), "float32")


def test_the_cards_settings_of_the_prompt_hold_here_too(cache):
    """As in vLLM: arguments of the image processor, of which an unknown one is refused, and the longest prompt."""

    def read(**settings):
        with local("tiny-qwen3-vl", **settings) as judge:
            return reply_of(judge, written()), judge.counters()["prompt_tokens"]

    reply, tokens = read()
    assert reply.refusal is None
    smaller, fewer = read(processor_kwargs={"max_pixels": 4096})
    assert (smaller.refusal, fewer < tokens) == (None, True)
    longest = int(tokens) + written().max_tokens
    assert read(max_model_len=longest)[0] == reply
    assert read(max_model_len=longest - 1)[0].refusal == "the judge refused the question"
    with pytest.raises(ConfigError, match="mm_processor_kwargs: Qwen2VLImageProcessor has no 'max_pixel'"):
        read(processor_kwargs={"max_pixel": 4096})


def test_a_local_judge_of_a_run_has_the_context_of_its_card(cache, monkeypatch, tmp_path):
    described = card("tiny-qwen3-vl", "judge").model_copy(update={"context": 128, "max_model_len": 128})
    monkeypatch.setattr(judge_factory, "card", lambda *_: described)
    config, device = JudgeConfig(card="tiny-qwen3-vl", transport="local"), JudgeDevice("cpu", None)
    spec = judge_factory.judge_spec(config, device)
    question = Question("veq_technical", 0, ("1",), ())
    order = JudgeOrder(config, spec, [question], make_image, tmp_path / "log", Quiet())
    with open_judge(order, [device]) as judge:
        ((_, verdict),) = answers(judge, spec, [(0, question)])
    assert verdict.unscored == "the judge refused the question"
    assert "exceeds the judge's maximum of 128" in verdict.raw
