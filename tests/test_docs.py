"""The documentation site: MkDocs reads the pages as CommonMark does, so that they look as they do in the repository."""

from html.parser import HTMLParser

import pytest

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
