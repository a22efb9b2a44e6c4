"""`models add` for a judge, and `judge: {repo: …}`."""

import json

import pytest
from pydantic import ValidationError

from local_bench.cli.main import main
from local_bench.core.errors import WeightsError
from local_bench.generators.adding import add_card
from local_bench.judges.vlm.adding import judge_fields
from local_bench.models.cards import card
from local_bench.runs.config import JudgeConfig

from .small_families import build


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("qwen35", {"patch": 32, "image_tokens": None, "mm_processor_kwargs": None}),
        ("internvl", {"patch": 1, "image_tokens": 4 * 13 + 4, "mm_processor_kwargs": {}}),
        ("gemma3", {"patch": 1, "image_tokens": 4 + 4, "mm_processor_kwargs": {}}),
    ],
)
def test_a_judge_s_card_is_made_from_its_files(here, capsys, family, expected):
    build(family, here / "ours")
    capsys.readouterr()
    (here / "ours" / "README.md").write_text("---\nlicense: mit\n---\n")
    assert main(["models", "add", "ours", "--name", "mine", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    described = card("mine", "judge")
    assert {key: getattr(described, key) for key in expected} == expected
    assert (described.context, described.licence, described.tensor_parallel_size) == (32768, "mit", 1)
    assert described.chat_template_kwargs == ({"enable_thinking": False} if family == "qwen35" else {})
    assert any("enable_thinking" in note for note in notes) is (family == "qwen35")
    assert 0 < described.parameters_b < 0.01
    for repo in ("ours", str(here / "ours")):
        assert JudgeConfig(repo=repo).card == "mine"


def test_what_the_files_do_not_say_is_in_the_notes(here):
    folder = here / "ours"
    build("internvl", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"image_seq_length": "many", "vision_config": []}
    config["text_config"]["max_position_embeddings"] = 2**40
    (folder / "config.json").write_text(json.dumps(config))
    added = add_card("ours", None, here / "local-bench" / "models", judge_fields)
    for part in ("context length is not known", "tokens of an image are not known", "licence is not stated"):
        assert any(part in note for note in added.notes), part
    assert all(note in added.path.read_text() for note in added.notes)
    assert card("ours", "judge").max_model_len == 8192


NEITHER = "neither a diffusers pipeline nor a vision"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, NEITHER),
        ({"architectures": 5, "model_type": ["x"]}, NEITHER),
        ({"architectures": "x"}, NEITHER),
        ({}, NEITHER),
        ({"architectures": ["InternVLChatModel"], "auto_map": {"AutoModel": "modeling.Model"}}, "requires code from"),
    ],
)
def test_other_models_are_refused(here, config, message):
    (here / "ours").mkdir()
    (here / "ours" / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=message):
        add_card("ours", None, here / "local-bench" / "models", judge_fields)
    assert not (here / "local-bench").exists()


def test_a_repository_without_a_card_is_one_sentence():
    shipped, unknown = "Qwen/Qwen3-VL-8B-Instruct", "no judge's card has the source 'lab/unknown': run `local-bench mod"
    assert JudgeConfig(repo=shipped).card == "qwen3-vl-8b"
    for settings, message in (
        ({"repo": "lab/unknown"}, unknown),
        ({"repo": "lab/unknown", "card": ""}, unknown),
        ({"repo": shipped, "card": "mini-judge"}, "repo"),
        ({"repo": 3}, "repo"),
    ):
        with pytest.raises(ValidationError, match=message):
            JudgeConfig(**settings)
