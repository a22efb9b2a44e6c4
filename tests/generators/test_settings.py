"""Each generator card names the source of its steps and guidance, which docs/reference/models.md has."""

import re

import pytest

from local_bench.core.files import configs_dir
from local_bench.models.cards import cards

PUBLISHED = sorted(
    name for name, card in cards().items() if card.role == "generator" and card.sampler and card.source.repo
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_card_names_the_source_of_its_settings(name):
    text = (configs_dir() / "models" / f"{name}.yaml").read_text()
    above = text[: text.index("\nsampler:")].splitlines()
    while above[-1].startswith("# ") and not above[-1].startswith("# steps"):
        above.pop()
    assert re.match(r"# steps(,| and) guidance.*: .{10}|# steps: .{10}", above[-1]), (
        "say above `sampler:` whose settings these are"
    )
