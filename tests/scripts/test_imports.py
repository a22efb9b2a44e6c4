"""Every script can be imported: the names that it takes from the package exist."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("scripts", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path.stem != "__main__"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_imported(name):
    importlib.import_module(name)
