"""Each generator card names the source of its steps and guidance, and docs/models.md has the same numbers."""

import re
from pathlib import Path

import pytest

from local_bench.core.paths import configs_dir
from local_bench.models.cards import cards

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = sorted(
    name for name, card in cards().items() if card.role == "generator" and card.sampler and card.source.repo
)


def rows():
    """name -> (steps, guidance, side) of the table in docs/models.md."""
    table = (ROOT / "docs" / "models.md").read_text()
    lines = re.findall(r"^\| `(\S+)` \| (\d+) \| ([^|]+) \| (\d+) \|", table, re.MULTILINE)
    return {name: tuple(numbers) for name, *numbers in lines}


def test_the_table_has_every_published_generator_and_no_other():
    assert sorted(rows()) == PUBLISHED
    assert len(PUBLISHED) >= 22


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_card_names_the_source_of_its_settings_and_the_table_has_its_numbers(name):
    text = (configs_dir() / "models" / f"{name}.yaml").read_text()
    above = text[: text.index("\nsampler:")].splitlines()
    while above[-1].startswith("# ") and not above[-1].startswith("# steps"):
        above.pop()
    source = r"# steps(,| and) guidance.*: .{10}|# steps: .{10}"
    assert re.match(source, above[-1]), "say above `sampler:` whose settings these are"
    sampler = cards()[name].sampler
    scale = sampler.true_cfg_scale if sampler.guidance_scale is None else sampler.guidance_scale
    guidance = "none" if scale is None else str(scale)
    if sampler.image_guidance_scale is not None:
        guidance += f", image {sampler.image_guidance_scale}"
    assert rows()[name] == (str(sampler.num_inference_steps), guidance, str(sampler.height))
