"""What a config, a card and a device decide about vLLM's attention and batch invariance, and what is recorded."""

import subprocess
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from local_bench.core.errors import ConfigError, ServerError
from local_bench.core.yamlfile import yaml_value
from local_bench.judges.vlm import vllm_process as module
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import NO_REPLY, Reply
from local_bench.judges.vlm.vllm_process import Attention, ModelFacts, attention_for, is_recurrent
from local_bench.models.cards import ModelCard, card
from local_bench.models.weights import resolve
from local_bench.report.judging import Judge
from local_bench.runs import judge_factory
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge import _repeats, combined_repeats
from local_bench.runs.judge_factory import JudgeDevice, attention_of, judge_spec, numerics_of
from local_bench.runs.provenance import _repeatability

CPU = JudgeDevice("cpu", None)
A100 = JudgeDevice("NVIDIA A100-SXM4-80GB", 0, (8, 0))
BOTH = {"on": [], "off": []}
USUAL = ModelFacts(
    "", mla=False, masked=False, refused={"FLASH_ATTN": BOTH, "TRITON_ATTN": BOTH, "FLEX_ATTENTION": BOTH}
)


@pytest.fixture
def checked(cache, monkeypatch):
    """What the checks of vLLM are given; they are replaced here, and run in test_judge_on_gpu."""
    calls = []

    def facts(*call):
        calls.append(call)
        return USUAL

    monkeypatch.setattr(module, "_facts_of_child", facts)
    monkeypatch.setattr(module, "unusable_vllm", lambda _: None)
    return calls


def embedded(**settings):
    return JudgeConfig(card="tiny-qwen3-vl", transport="embedded", **settings)


@pytest.mark.parametrize(
    ("settings", "of_card", "expected"),
    [
        ({}, {}, (True, "FLASH_ATTN")),
        ({"batch_invariant": "off"}, {}, (False, "FLASH_ATTN")),
        ({}, {"batch_invariant": "off"}, (False, "FLASH_ATTN")),
        ({"batch_invariant": "on"}, {"batch_invariant": "off"}, (True, "FLASH_ATTN")),
        ({}, {"attention_backend": "TRITON_ATTN"}, (True, "TRITON_ATTN")),
        ({"attention_backend": "FLEX_ATTENTION"}, {"attention_backend": "TRITON_ATTN"}, (True, "FLEX_ATTENTION")),
        ({"extra_args": ["--attention-backend", "TRITON_ATTN"]}, {}, (True, "TRITON_ATTN")),
        ({"extra_args": ["--max-num-seqs", "8", "--attention-backend=TRITON_ATTN"]}, {}, (True, "TRITON_ATTN")),
    ],
)
def test_the_config_precedes_the_card(checked, monkeypatch, settings, of_card, expected):
    described = card("tiny-qwen3-vl", "judge").model_copy(update=of_card)
    monkeypatch.setattr(judge_factory, "card", lambda *_: described)
    results = attention_of(embedded(**settings), A100)
    assert (results.batch_invariant, results.backend) == expected
    numerics = numerics_of(embedded(**settings), [A100])
    assert (numerics["batch_invariant"], numerics["attention_backend"]) == expected
    assert bool(results.why_not) is not results.batch_invariant
    backend = settings.get("attention_backend") or of_card.get("attention_backend")
    assert checked[0][:3] == (resolve(described), "bfloat16", (8, 0))
    assert "extra_args" in settings or checked[0][3] == ((backend,) if backend else ("FLASH_ATTN", "TRITON_ATTN"))


def test_nothing_is_checked_for_a_cpu_or_where_vllm_does_not_run(checked, monkeypatch):
    assert attention_of(embedded(), CPU) == Attention(why_not="vLLM has no batch-invariant mode on a CPU")
    numerics = numerics_of(embedded(), [CPU])  # those of earlier releases
    assert numerics == {"vllm": "0.32.0", "device": "cpu", "batch_invariant": False}
    external = JudgeConfig(card="tiny-qwen3-vl", base_url="http://127.0.0.1:1/v1")
    assert attention_of(external, A100) is None
    assert numerics_of(external, [A100]) == {"server": "external"}
    assert attention_of(JudgeConfig(card="tiny-qwen3-vl", transport="local"), A100) is None
    required = {"batch_invariant": "on", "attention_backend": "FLASH_ATTN"}  # by a card: it can be tried on a CPU
    described = card("tiny-qwen3-vl", "judge").model_copy(update=required)
    monkeypatch.setattr(judge_factory, "card", lambda *_: described)
    assert attention_of(embedded(), CPU).batch_invariant is False
    assert checked == []


@pytest.mark.parametrize(
    ("supplied", "device", "message"),
    [
        ({"batch_invariant": "on"}, CPU, r"judge\.batch_invariant: on is impossible \(.* on a CPU\): use auto$"),
        ({"attention_backend": "X"}, CPU, r"judge\.attention_backend: X .* leave it out on a CPU$"),
        ({"transport": "local", "batch_invariant": "on"}, A100, "are settings of vLLM, .* the transport local"),
        ({"transport": "local", "attention_backend": "X"}, CPU, "are settings of vLLM, .* the transport local"),
    ],
)
def test_impossible_requirements_are_one_sentence(checked, supplied, device, message):
    with pytest.raises(ConfigError, match=message):
        attention_of(JudgeConfig(card="tiny-qwen3-vl", **{"transport": "embedded"} | supplied), device)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_invariant": "off", "base_url": "http://127.0.0.1:1/v1"}, "start the server at base_url with them"),
        ({"attention_backend": "X", "base_url": "http://127.0.0.1:1/v1"}, "start the server at base_url with them"),
        ({"batch_invariant": "yes"}, "batch_invariant"),
        ({"batch_invariant": 1}, "batch_invariant"),
        ({"attention_backend": "flash attn"}, "attention_backend"),
        *(
            ({"chat_template_kwargs": {name: "{{ x }}"}}, "is not a variable of a chat template")
            for name in ("chat_template", "tokenize", "tools", "add_generation_prompt", "a b", "", "9a")
        ),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        JudgeConfig(card="tiny-qwen3-vl", **settings)


@pytest.mark.parametrize(
    ("text", "value"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("true", "on"), ("'on'", "on")]
)
def test_yaml_s_booleans_are_read(text, value):
    data = yaml_value(f"{{batch_invariant: {text}}}")
    assert JudgeConfig(card="tiny-qwen3-vl", **data).batch_invariant == value
    assert ModelCard(**card("mini-judge", "judge").model_dump() | data).batch_invariant == value


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("ValueError: no such model", "fetch it again"),
        ("ImportError: libcudart.so.13: cannot open shared object file", "repair the installation"),
    ],
)
def test_the_reason_of_a_failing_check_is_given(monkeypatch, tmp_path, reason, advice):
    said = SimpleNamespace(stdout="", stderr=f"{reason}\n    For further information visit x\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)
    module._facts_of_child.cache_clear()
    with pytest.raises(ServerError, match=rf"vLLM cannot serve the judge in .* \({reason}\): {advice}"):
        attention_for(tmp_path, "bfloat16", (8, 0))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"text_config": {"layer_types": ["linear_attention", "full_attention"]}}', True),
        ('{"text_config": {"linear_num_key_heads": 16}}', True),
        ('{"layer_types": ["sliding_attention", "full_attention"]}', False),
        ('{"model_type": "qwen2_vl"}', False),
        ("[]", False),
        ("{", False),
        (None, False),
    ],
)
def test_layers_other_than_attention_are_known_from_the_weights_folder(tmp_path, config, expected):
    if config:
        (tmp_path / "config.json").write_text(config)
    assert is_recurrent(tmp_path) is expected


# ---- the chat template


def test_the_config_adds_to_the_card_s_template_variables(cache, monkeypatch):
    described = card("tiny-qwen3-vl", "judge")
    plain = judge_spec(JudgeConfig(card="tiny-qwen3-vl"), CPU)
    of_card = described.model_copy(update={"chat_template_kwargs": {"enable_thinking": False, "b": 1}})
    monkeypatch.setattr(judge_factory, "card", lambda *_: of_card)
    inherited = judge_spec(JudgeConfig(card="tiny-qwen3-vl"), CPU)
    both = judge_spec(JudgeConfig(card="tiny-qwen3-vl", chat_template_kwargs={"b": 2, "a": "x"}), CPU)
    assert [spec.chat_template_kwargs for spec in (plain, inherited, both)] == [
        (),
        (("b", 1), ("enable_thinking", False)),
        (("a", "x"), ("b", 2), ("enable_thinking", False)),
    ]
    assert len({spec.judge_id for spec in (plain, inherited, both)}) == 3


# ---- the batch-invariance check


def check(flips, before=None, failed=()):
    """The check of a judge whose answer to the call with this number flips, or fails."""
    calls = iter(range(1000))

    class Flipping:
        def complete(self, requests, at_once=None):
            for key, _ in requests:
                call = next(calls)
                text = "1" if call in flips else "0"
                labels = {str(i): -1.0 if text == str(i) else -2.0 for i in range(6)}
                yield key, Reply("", refusal=NO_REPLY) if call in failed else Reply(text, "stop", labels)

    spec = JudgeSpec("c", "0" * 64, "float32", 16384, 32, 0, "logit")
    return _repeats(spec, Flipping(), {}, before)


def test_a_server_that_fails_on_a_question_has_not_changed_its_answer():
    results = check((), failed={0, 1, 30})
    assert (results["reproducible"], results["differs"], results["compared"]) == (True, [], 12)


def test_the_check_counts_the_answers_that_change():
    same = check(())
    assert (same["reproducible"], same["sessions"], same["n"], same["compared"]) == (True, 1, 24, 12)
    assert "equal answers" in _repeatability(same)
    results = check({0})  # the first answer of the judge alone
    assert results["changed"] == {"in a batch": 1, "with a cold cache": 0, "with a warm cache": 1}
    assert _repeatability(results) == (
        "not batch-invariant: answers change in a batch (1 of 12), with a warm cache (1 of 12), so a rerun can differ"
    )
    again = check((), before=results)
    assert (again["reproducible"], again["sessions"], again["compared"], again["n"]) == (False, 2, 24, 24)
    assert again["changed"] == results["changed"]
    assert "in a batch (1 of 24)" in _repeatability(again)


def test_checks_of_earlier_releases_are_combined():
    old = {"reproducible": False, "differs": ["in a batch"], "n": 24, "sessions": 2}
    assert _repeatability(old) == "not batch-invariant: answers change in a batch, so a rerun can differ"
    merged = combined_repeats(old, check({0}))
    assert merged["differs"] == ["in a batch", "with a warm cache"]
    assert (merged["n"], merged["sessions"], merged["compared"]) == (24, 2, 12)


def test_the_report_has_the_check_and_the_mode():
    for noted, expected in (
        ({}, ""),
        ({"reproducible": True, "note": "equal"}, "equal"),
        ({"not_batch_invariant": "why"}, "batch invariance is not guaranteed: why"),
        (
            {"reproducible": False, "note": "3 of 12", "not_batch_invariant": "w"},
            "3 of 12; batch invariance is not guaranteed: w",
        ),
    ):
        assert Judge(name="j", judge_id="0", card="c", **noted).check == expected
