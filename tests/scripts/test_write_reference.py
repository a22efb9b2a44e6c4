"""The reference pages are those of today's models and commands."""

import pytest

from scripts.write_reference import FOLDER, pages


@pytest.mark.parametrize("name", ["config.md", "task-files.md", "cards.md", "cli.md"])
def test_the_reference_is_up_to_date(name):
    assert (FOLDER / name).read_text() == pages()[name].rstrip() + "\n", "run scripts/write_reference.py"
