"""`models`: what people and programs are told of the cards and of their files."""

import json

import pytest

from local_bench.cli.cards import inputs_text
from local_bench.models.cards import ModelCard, cards


def test_the_list_has_a_line_for_every_card(cli):
    ended = cli("models", "list")
    header, _, *lines = ended.stdout.splitlines()
    assert header.split() == ["model", "role", "family", "size", "VRAM", "licence", "gated", "inputs"]
    assert {line.split()[0] for line in lines} == set(cards())
    (flux,) = [line for line in lines if line.startswith("flux1-schnell ")]
    for words in ("generator", "16.9 B", "Apache-2.0", "yes", "text"):
        assert words in flux


def test_show_says_all_of_the_card_and_that_its_files_are_not_here(cli):
    ended = cli("models", "show", "flux1-dev", "--json")
    shown = json.loads(ended.stdout)
    assert shown.items() >= cards()["flux1-dev"].model_dump().items()
    assert (shown["here"], shown["bytes"], shown["manifest"], shown["weights_sha256"]) == (False, None, None, None)
    assert "local-bench models fetch flux1-dev" in ended.stderr
    in_words = dict(line.split(maxsplit=1) for line in cli("models", "show", "flux1-dev").stdout.splitlines()[2:])
    assert in_words["source.repo"] == "black-forest-labs/FLUX.1-dev"
    assert in_words["sampler.num_inference_steps"] == "50"
    assert in_words["here"] == "no"


def test_a_small_model_is_built_where_it_is_shown_or_fetched(cli):
    shown = json.loads(cli("models", "show", "tiny-clip", "--json").stdout)
    assert shown["here"] is True
    assert shown["bytes"] > 1_000_000
    ended = cli("models", "fetch", "tiny-clip", "--json")
    fetched = json.loads(ended.stdout)["tiny-clip"]
    assert fetched["weights_sha256"] == shown["weights_sha256"]
    assert fetched["folder"] == shown["folder"]
    assert fetched["manifest"] is None


@pytest.mark.parametrize(
    ("takes", "words"),
    [
        ({}, "text"),
        ({"pictures": 1}, "text, optional image"),
        ({"pictures": 3, "text_alone": False}, "text + up to 3 images"),
        ({"pictures": 1, "text_alone": False, "condition": "depth"}, "text + depth map"),
        ({"pictures": 1, "text_alone": False, "mask": True}, "text + image + mask"),
    ],
)
def test_what_a_generator_takes_is_said_in_words(takes, words):
    flux = cards()["flux1-dev"].model_dump()
    assert inputs_text(ModelCard.model_validate(flux | {"takes": takes})) == words
    assert inputs_text(cards()["qwen3-vl-8b"]) == ""
