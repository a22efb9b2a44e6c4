"""`models`: text and JSON about the cards and their files."""

import json

import pytest

from local_bench.cli.catalogue import inputs_text
from local_bench.models.cards import ModelCard, cards


def test_the_list_has_a_line_for_every_card_and_show_the_complete_one(cli):
    ended = cli("models", "list")
    header, _, *lines = ended.stdout.splitlines()
    assert header.split() == ["model", "role", "family", "size", "VRAM", "licence", "gated", "inputs"]
    assert {line.split()[0] for line in lines} == set(cards())
    (flux,) = [line for line in lines if line.startswith("flux1-schnell ")]
    for expected in ("generator", "16.9 B", "Apache-2.0", "yes", "text"):
        assert expected in flux
    ended = cli("models", "show", "flux1-dev", "--json")
    output = json.loads(ended.stdout)
    assert output.items() >= cards()["flux1-dev"].model_dump().items()
    assert (output["here"], output["bytes"], output["manifest"], output["weights_sha256"]) == (False, None, None, None)
    assert "local-bench models fetch flux1-dev" in ended.stderr
    as_text = dict(line.split(maxsplit=1) for line in cli("models", "show", "flux1-dev").stdout.splitlines()[2:])
    assert as_text["source.repo"] == "black-forest-labs/FLUX.1-dev"
    assert as_text["sampler.num_inference_steps"] == "50"
    assert as_text["here"] == "no"


def test_a_small_model_is_built_by_show_and_fetch(cli):
    output = json.loads(cli("models", "show", "tiny-clip", "--json").stdout)
    assert output["here"] is True
    assert output["bytes"] > 1_000_000
    ended = cli("models", "fetch", "tiny-clip", "--json")
    fetched = json.loads(ended.stdout)["tiny-clip"]
    assert fetched["weights_sha256"] == output["weights_sha256"]
    assert fetched["folder"] == output["folder"]
    assert fetched["manifest"] is None


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ({}, "text"),
        ({"pictures": 1}, "text, optional image"),
        ({"pictures": 3, "text_alone": False}, "text + up to 3 images"),
        ({"pictures": 1, "text_alone": False, "condition": "depth"}, "text + depth map"),
        ({"pictures": 1, "text_alone": False, "mask": True}, "text + image + mask"),
    ],
)
def test_the_inputs_of_a_generator_as_text(takes, expected):
    flux = cards()["flux1-dev"].model_dump()
    assert inputs_text(ModelCard.model_validate(flux | {"takes": takes})) == expected
    assert inputs_text(cards()["qwen3-vl-8b"]) == ""
