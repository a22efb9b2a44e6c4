"""The documentation site: MkDocs reads the pages as CommonMark does, so that they look as they do in the repository."""

import ast
import os
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.annotation.conftest import make_shop
from tests.conftest import ROOT
from tests.docs_site import build

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md"))
HEADINGS = tuple(f"h{level}" for level in range(1, 7))


class Blocks(HTMLParser):
    """Headings, table cells and code blocks in order, as (tag, text)."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self._tag = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag in (*HEADINGS, "th", "td", "pre", "table"):
            self._tag = tag
            self.found.append((tag, ""))

    def handle_endtag(self, tag):
        if tag == self._tag:
            self._tag = None
            self.found[-1] = (tag, self.found[-1][1].strip().removesuffix("¶"))  # the sign links to the heading

    def handle_data(self, data):
        if self._tag:
            self.found[-1] = (self._tag, self.found[-1][1] + data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    build(folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_heading_table_and_code_block_is_on_the_site(site, page):
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed: Rich installs it")
    html = (site / page).with_suffix(".html").read_text()
    article = html[html.index("<article") : html.index("</article>")]
    text = (DOCS / page).with_suffix(".md").read_text()
    expected = Blocks(markdown_it.MarkdownIt("commonmark").enable("table").render(text)).found
    assert expected
    assert Blocks(article).found == expected


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
