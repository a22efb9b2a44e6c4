"""Scripts, small: each can be imported, and what they measure or write."""

import ast
import importlib
import json
from types import ModuleType

import pytest

from scripts import learning_curve
from scripts.write_reference import FOLDER, pages

from ..conftest import ROOT

SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("scripts", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path.stem != "__main__"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_imported_and_the_names_of_the_package_that_it_uses_exist(name):
    """Also those that it imports in functions, and attributes of modules."""
    script = importlib.import_module(name)
    for node in ast.walk(ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("local_bench"):
            for alias in node.names:
                if not hasattr(importlib.import_module(node.module), alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = getattr(script, node.value.id, None)
            assert not isinstance(module, ModuleType) or hasattr(module, node.attr), f"{node.value.id}.{node.attr}"


def test_a_small_curve(monkeypatch):
    monkeypatch.setattr(learning_curve, "SIZES", (60,))
    made = learning_curve.images(40)
    assert len(made) == 160
    assert made == learning_curve.images(40), "seeded"
    found = learning_curve.curve(made, "strict", 2)
    assert [row["kind"] for row in found["rows"]] == ["rule", "logistic"]
    assert all(0.3 < row["accuracy"] <= 1 for row in found["rows"])
    assert found["client_without_noise"] > 0.75
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("name", ["config.md", "task-files.md", "cards.md", "cli.md"])
def test_the_reference_is_up_to_date(name):
    assert (FOLDER / name).read_text() == pages()[name].rstrip() + "\n", "run scripts/write_reference.py"
