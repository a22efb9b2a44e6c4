"""Judges of classes unlike Qwen-VL's through vLLM, with the settings of their cards and small random weights.

One family at a time, because each takes a vLLM engine; LOCAL_BENCH_TEST_FAMILIES=1 runs all of them.
"""

import os
from dataclasses import replace

import pytest
from PIL import Image

from local_bench.core.types import Question
from local_bench.core.yamlfile import yaml_text
from local_bench.judges.vlm.judge import answers
from local_bench.models.cards import Thinking, cards
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, judge_spec, open_judge
from local_bench.runs.progress import Quiet

from .small_families import BUILDERS, CARDS, build

IMAGES = {
    name: Image.linear_gradient("L").rotate(turn).resize((96, 64)).convert("RGB")
    for name, turn in (("a", 0), ("b", 180))
}
POINTS = (("title", "T"), ("brief", "B"))
QUESTIONS = [Question("brf", 0, (sha,), (*POINTS, ("point", p)), ("delivered",)) for sha in IMAGES for p in ("P", "R")]
THOUGHT = Thinking(budget_tokens=200, end="e")
"""A letter, because random models do not end their thoughts."""
USUAL = ("gemma4",)
"""Its images have a fixed number of tokens, its processor no `max_pixels`, and image tokens see each other."""


@pytest.mark.server
@pytest.mark.parametrize("family", BUILDERS)
def test_a_family_answers_with_the_settings_of_its_card(family, tmp_path, monkeypatch):
    if family not in USUAL and not os.environ.get("LOCAL_BENCH_TEST_FAMILIES"):
        pytest.skip("LOCAL_BENCH_TEST_FAMILIES=1 runs all families")
    build(family, tmp_path / "weights")
    own = {"source": {"folder": str(tmp_path / "weights")}, "judge_max_pixels": 16384, "judge_min_pixels": 1}
    own |= {"name": "small", "title": family, "context": 32768, "vram_gb": 0.1, "tensor_parallel_size": 1}
    path = tmp_path / "local-bench" / "models" / "small.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml_text({"extends": CARDS[family], **own}))
    monkeypatch.chdir(tmp_path)
    config, cpu = JudgeConfig(card="small", transport="embedded"), JudgeDevice("cpu", None)
    usual = judge_spec(config, cpu)
    order = JudgeOrder(config, usual, QUESTIONS, IMAGES.__getitem__, tmp_path / "log", Quiet())
    with open_judge(order, [cpu]) as judge:
        for protocol in ("json", "logit"):
            spec = replace(usual, protocol=protocol)
            verdicts = dict(answers(judge, spec, enumerate(QUESTIONS))).values()
            assert [verdict.unscored for verdict in verdicts] == [None] * 4
            thoughts = list(answers(judge, replace(spec, thinking=THOUGHT), enumerate(QUESTIONS)))
            assert len(thoughts) == 4  # random models rarely end a thought, so there may be no answer in them
        assert len({str(verdict.labels) for verdict in verdicts}) > 2  # the image has an influence
        tokens = [judge.counters()["prompt_tokens"]]
        for variables in (usual.chat_template_kwargs, ()):
            spec = replace(usual, protocol="json", chat_template_kwargs=variables)
            assert len(list(answers(judge, spec, enumerate(QUESTIONS)))) == 4
            tokens.append(judge.counters()["prompt_tokens"])
    turned_off = tokens[1] - tokens[0] != tokens[2] - tokens[1]
    assert turned_off is (bool(usual.chat_template_kwargs) and family != "gemma4")  # Gemma 4 is off by default


def test_every_family_of_the_cards_has_a_small_model():
    assert list(CARDS) == list(BUILDERS)
    shipped = {card.family for card in cards().values() if card.role == "judge"}
    covered = {cards()[name].family for name in CARDS.values()}
    assert shipped - covered == {"qwen2-vl", "qwen3-vl", "qwen3-vl-moe"}  # of which small cards are shipped
