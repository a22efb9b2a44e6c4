"""A judge of a class unlike Qwen-VL's through vLLM; `scripts/judge_families.py` does this for every family."""

import json
from pathlib import Path

import pytest

from local_bench.models.cards import cards
from scripts import judge_families

pytestmark = pytest.mark.server


def test_gemma_4_answers_with_the_settings_of_its_card(tmp_path, monkeypatch):
    """Its images have a fixed number of tokens, its processor no `max_pixels`, and image tokens see each other."""
    monkeypatch.chdir(tmp_path)
    results = judge_families.check("gemma4", tmp_path)
    assert results["passed"], results


def test_every_family_of_the_cards_has_been_started():
    recorded = json.loads((Path(judge_families.ROOT) / "benchmarks" / "judge_families.json").read_text())["families"]
    assert list(recorded) == list(judge_families.BUILDERS)
    assert all(item["passed"] for item in recorded.values())
    shipped = {card.family for card in cards().values() if card.role == "judge"}
    covered = {cards()[item["card"]].family for item in recorded.values()}
    assert shipped - covered == {"qwen2-vl", "qwen3-vl", "qwen3-vl-moe"}  # of which small cards are shipped
