"""Builds the documentation site and reads it as a reader would copy from it."""

from html.parser import HTMLParser

import pytest

from tests.conftest import ROOT


def build(folder):
    """Write the site to `folder`, without its plugins, the index for the search and the reference from docstrings: they
    take most of the time and do not change the text of a page."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: it is in the dependency group `dev`")
    from mkdocs.commands.build import build as write
    from mkdocs.config import load_config

    write(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), plugins=[]))


class CodeBlocks(HTMLParser):
    """The code blocks of a page, as (title or None, text)."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self._title, self._inside = None, None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag == "span" and dict(attrs).get("class") == "filename":
            self._inside, self._title = "title", ""
        elif tag == "pre":
            self._inside = "code"
            self.found.append((self._title, ""))
            self._title = None

    def handle_endtag(self, tag):
        if tag == "pre" or (tag == "span" and self._inside == "title"):
            self._inside = None

    def handle_data(self, data):
        if self._inside == "title":
            self._title += data
        elif self._inside == "code":
            self.found[-1] = (self.found[-1][0], self.found[-1][1] + data)
