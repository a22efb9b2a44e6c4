"""The documentation's table of models says what the cards say."""

import re
from pathlib import Path

from local_bench.models.cards import cards

CATALOGUE = (Path(__file__).resolve().parent.parent / "docs" / "catalogue.md").read_text()


def rows():
    """Model name -> the row of the table that names it; `-4b` after `qwen3-vl-2b` is `qwen3-vl-4b`."""
    found = {}
    for line in CATALOGUE.splitlines():
        if not line.startswith("| `"):
            continue
        last = ""
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            full = name if not name.startswith("-") else last.rpartition("-")[0] + name
            found[full] = line
            last = full
    return found


def test_every_real_model_stands_in_the_table_with_what_it_needs():
    table = rows()
    for card in cards().values():
        if card.source.build:
            assert card.name.startswith("tiny-" if card.source.random else "mini-")
            assert card.source.random or card.name in table, f"{card.name} is not in docs/catalogue.md"
            continue
        assert card.name in table, f"{card.name} is not in docs/catalogue.md"
        line = table[card.name]
        assert card.licence in line, (card.name, card.licence)
        assert ("yes" in line.split("|")[5]) >= card.gated, (card.name, "gated")
        figures = [float(x) for x in re.findall(r"\d+\.?\d*", line.split("|")[3])]
        assert any(abs(figure - card.vram_gb) <= 0.051 for figure in figures), (card.name, card.vram_gb, figures)


def test_the_table_names_no_model_that_is_not_there():
    assert {name for name in rows() if not name.startswith("tiny-")} <= set(cards())
