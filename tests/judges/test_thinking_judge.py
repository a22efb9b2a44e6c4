"""A judge of a kind newer than the shipped cards: linear attention, and thinking that its card turns off."""

import json
import re
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import pytest
from PIL import Image
from transformers import AutoProcessor

from local_bench.core.errors import ConfigError
from local_bench.core.images import pixel_digest
from local_bench.core.types import Question
from local_bench.judges.vlm.client import Client, ExternalServer, ManagedServer
from local_bench.judges.vlm.judge import answers
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.protocols import preparing
from local_bench.models.cards import Thinking, card
from local_bench.models.weights import resolve
from local_bench.report.judging import judges
from local_bench.runs.config import JudgeConfig, RunConfig
from local_bench.runs.judge_factory import JudgeDevice, _engine, _needs, attention_of, judge_spec, open_judge
from local_bench.runs.provenance import write_provenance
from local_bench.runs.rundir import RunDir
from tests.stages import run_stages

from .small_families import QWEN_IMAGE, THINKING, build, chat_template

pytestmark = pytest.mark.server

CARD = """\
name: tiny-qwen35
role: judge
family: qwen3.5
title: A small random Qwen3.5
source: {folder: ../../weights}
licence: Apache-2.0
parameters_b: 0.001
vram_gb: 0.01
judge_max_pixels: 16384
patch: 32
context: 32768
chat_template_kwargs: {enable_thinking: false}
"""
CPU = JudgeDevice("cpu", None)
H100 = JudgeDevice("NVIDIA H100 80GB HBM3", 0, (9, 0))
WHY = "layers other than attention (linear_attention)"
IMAGE = Image.effect_noise((64, 64), 80).convert("RGB")
QUESTION = Question("brf", 0, (pixel_digest(IMAGE),), (("title", "T"), ("brief", "B"), ("point", "P")), ("delivered",))
SETTINGS = {"off": (("enable_thinking", False),), "on": (("enable_thinking", True),), "unset": ()}


@pytest.fixture(scope="module", autouse=True)
def folder(cache, tmp_path_factory):
    """A working folder with the judge's weights and card, two orders and their images."""
    path = tmp_path_factory.mktemp("thinking")
    build("qwen35", path / "weights")
    (path / "local-bench" / "models").mkdir(parents=True)
    (path / "local-bench" / "models" / "tiny-qwen35.yaml").write_text(CARD)
    order = {"category": "C", "price_usd": 10, "title": "Card", "brief": "A card.", "evaluation_points": ["A", "B"]}
    lines = [json.dumps(order | {"task_id": f"t{i}", "deliverables": ["front"]}) for i in range(2)]
    (path / "orders.jsonl").write_text("\n".join(lines))
    (path / "images").mkdir()
    for i in range(2):
        IMAGE.rotate(90 * i).save(path / "images" / f"t{i}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


def load(sha256):
    return IMAGE


@pytest.fixture(scope="module")
def run(folder):
    """A run judged by the embedded engine, with the checks of the judge; the engine that the run started stays open."""
    config = RunConfig(
        name="t",
        suite={"name": "servimage", "path": "orders.jsonl"},
        models=[{"card": "imported", "name": "theirs", "imported": {"images": "images"}}],
        metrics=[],
        judge={"card": "tiny-qwen35", "transport": "embedded", "protocol": "logit"},
        engine={"device": "cpu"},
    )
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        kept = []

        def opened(*order):
            kept.append(stack.enter_context(open_judge(*order)))
            return nullcontext(kept[0])

        patch.setattr("local_bench.runs.executors.base.open_judge", opened)
        run_stages(config, folder / "run", ("generate", "judge", "settle"))
        (transport,) = kept
        with RunDir.open(folder / "run") as done:
            yield SimpleNamespace(transport=transport, dir=done)


def test_it_answers_on_a_cpu_and_the_report_says_that_its_answers_are_not_batch_invariant(run):
    rows = run.dir.store.rows("SELECT unscored, labels FROM verdicts")
    assert len(rows) >= 2 * (2 + 2)
    assert {row["unscored"] for row in rows} == {None}
    assert len({row["labels"] for row in rows}) > 2
    noted = run.dir.store.json_meta("provenance")["judge"]
    assert (noted["dtype"], noted["numerics"]["batch_invariant"]) == ("bfloat16", False)
    (judge,) = judges(run.dir)
    assert judge.check.endswith("batch invariance is not guaranteed: vLLM has no batch-invariant mode on a CPU")
    write_provenance(run.dir, None, [H100])
    (judge,) = judges(run.dir)
    assert f"batch invariance is not guaranteed: vLLM has no batch-invariant kernels for {WHY}" in judge.check
    assert run.dir.store.json_meta("provenance")["judge"]["numerics"] == {
        "vllm": "0.32.0",
        "device": H100.device,
        "batch_invariant": False,
        "attention_backend": "FLASH_ATTN",
        "model_runner": "V2",
    }
    config = JudgeConfig(card="tiny-qwen35", transport="embedded")  # vLLM checks its arguments in test_judge_on_gpu
    assert attention_of(config, H100).recurrent


def test_batch_invariance_that_is_required_is_refused_before_anything_is_generated(folder):
    config = JudgeConfig(card="tiny-qwen35", batch_invariant="on", transport="embedded")
    for device, why in ((CPU, "no batch-invariant mode on a CPU"), (H100, WHY)):
        with pytest.raises(ConfigError, match=rf"judge\.batch_invariant: on is impossible .*{re.escape(why)}"):
            attention_of(config, device)
    run = RunConfig(
        name="t",
        suite={"name": "servimage", "path": "orders.jsonl"},
        models=[{"card": "tiny-flux", "height": 64, "width": 64, "num_inference_steps": 1}],
        metrics=[],
        judge=config.model_dump(),
        engine={"device": "cpu"},
    )
    with pytest.raises(ConfigError, match="on is impossible"):
        run_stages(run, folder / "refused", ("generate", "judge"))
    with RunDir.open(folder / "refused") as left:
        assert {row.state for row in left.store.candidates()} == {"planned"}


# ---- the chat template


def lengths(weights, template=None):
    """Setting -> number of tokens of the prompt, as transformers renders the judge's own template, or this one."""
    processor = AutoProcessor.from_pretrained(weights)
    spec = judge_spec(JudgeConfig(card="tiny-qwen35", protocol="logit"), CPU)
    (request,) = spec.requests(QUESTION)
    content = [{"type": "text", "text": request.captions[0]}, {"type": "image", "image": IMAGE}]
    content.append({"type": "text", "text": request.text})
    messages = [{"role": "system", "content": [{"type": "text", "text": request.system}]}]
    messages.append({"role": "user", "content": content})
    more = {"chat_template": template, "tokenize": False, "add_generation_prompt": True}
    texts = {
        name: processor.apply_chat_template(messages, **more, **dict(settings)) for name, settings in SETTINGS.items()
    }
    assert texts["off"].endswith("</think>\n\n")
    assert texts["on"] == texts["unset"]
    assert texts["on"].endswith("<think>\n")
    return {name: len(processor(text=[text], images=[IMAGE])["input_ids"][0]) for name, text in texts.items()}


def ask(transport, counted):
    """Setting -> (tokens of the prompt, the answer)."""
    results = {}
    for name, settings in SETTINGS.items():
        spec = replace(
            judge_spec(JudgeConfig(card="tiny-qwen35", protocol="logit"), CPU), chat_template_kwargs=settings
        )
        before = counted(transport)
        (answered,) = answers(transport, spec, [("q", QUESTION)])
        results[name] = counted(transport) - before, answered[1]
    return results


def thoughts(transport):
    """The verdicts after a thought, by `json` and `logit`. A letter ends it: a random model writes no marker."""
    spec = judge_spec(JudgeConfig(card="tiny-qwen35"), CPU)
    asked = [replace(QUESTION, slots=(*QUESTION.slots[:2], ("point", point))) for point in ("P", "R", "S")]
    settings = {"thinking": Thinking(budget_tokens=200, end="e"), "chat_template_kwargs": SETTINGS["on"]}
    results = [
        dict(answers(transport, replace(spec, protocol=p, **settings), enumerate(asked))) for p in ("json", "logit")
    ]
    never = replace(spec, thinking=Thinking(budget_tokens=4, end="</answer>"))
    (cut_off,) = dict(answers(transport, never, [("q", QUESTION)])).values()
    return (*results, cut_off)


def check_thoughts(by_json, by_logit, cut_off):
    for verdicts in (by_json, by_logit):
        scored = [verdict for verdict in verdicts.values() if verdict.unscored is None]
        assert scored, verdicts
        for verdict in scored:
            thought, _, answer = verdict.raw.partition("e")
            assert thought
            assert verdict.answer == ({"met": int(answer)} if verdict.labels else json.loads(answer))
    labels = [verdict.labels["met"] for verdict in by_logit.values() if verdict.labels]
    assert all(sum(chances.values()) == pytest.approx(1, abs=1e-5) for chances in labels)
    assert cut_off.unscored == "the judge's thought was cut off before its end (thinking.budget_tokens)"
    assert cut_off.raw


def prompt_tokens(transport):
    return transport.counters().get("prompt_tokens", 0)


def test_the_template_s_variables_reach_the_model_through_every_transport(folder, run):
    config = JudgeConfig(card="tiny-qwen35", protocol="logit", transport="embedded")
    spec = judge_spec(config, CPU)
    assert spec.chat_template_kwargs == SETTINGS["off"]  # by the card
    embedded, embedded_thoughts = ask(run.transport, prompt_tokens), thoughts(run.transport)
    needs = _needs(card("tiny-qwen35", "judge"), spec, [QUESTION])
    engine = _engine(folder / "weights", spec, [CPU], needs, 1.0, attention_of(config, CPU))
    with ManagedServer(folder / "served.log", engine, 600) as server:

        def tokens(_):
            key = {"Authorization": f"Bearer {server.api_key.get_secret_value()}"}
            lines = httpx2.get(server.base_url.removesuffix("/v1") + "/metrics", headers=key).text
            (line,) = (line for line in lines.splitlines() if line.startswith("vllm:prompt_tokens_total"))
            return float(line.rpartition(" ")[2])

        prepared = preparing(load, 32)
        served = ask(Client(server, prepared, None, 300), tokens)
        with Client(ExternalServer(server.base_url, server.api_key), prepared, None, 300) as client:
            external, external_thoughts = ask(client, tokens), thoughts(client)
    small = resolve(card("tiny-qwen3-vl", "judge"))
    template = chat_template(QWEN_IMAGE, THINKING)
    with Local(small, prepared, "cpu", "float32") as local:  # a Qwen-VL class, with prefixes in common
        local._processor.chat_template = template
        in_process = ask(local, prompt_tokens)
    for name, by in {"embedded": embedded, "served": served, "external": external, "local": in_process}.items():
        expected = lengths(small, template) if name == "local" else lengths(folder / "weights")
        assert {setting: n for setting, (n, _) in by.items()} == expected, name
        assert by["off"][1] != by["on"][1] == by["unset"][1], name
    assert embedded == served == external
    check_thoughts(*embedded_thoughts)
    assert external_thoughts == embedded_thoughts
    with Local(folder / "weights", prepared, "cpu", "float32") as local:  # other rounding
        check_thoughts(*thoughts(local))
