"""The notebook of the docs runs from start to end on a run, by the public API."""

import ast
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.annotation.conftest import make_shop
from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "analysis.ipynb"


@pytest.fixture
def run_dir(tmp_path):
    """The demo's, where one has just been made."""
    demo = os.environ.get("LOCAL_BENCH_DEMO_RUN")
    return Path(demo) if demo else make_shop(tmp_path / "shop", 6).path


def test_the_notebook_runs(run_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_BENCH_RUN", str(run_dir))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    assert sum("text/html" in output.get("data", {}) for output in shown) == 6


def test_the_notebook_uses_the_public_api_only():
    source = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code")
    nodes = [*ast.walk(ast.parse(source))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name.startswith("local_bench")} == {"local_bench"}
    assert modules - set(sys.stdlib_module_names) == {"local_bench", "matplotlib.pyplot", "pandas", "PIL"}
