"""The page in a real browser, from the disk: it requests nothing, and no script in it runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Dialog, FloatRect

from local_bench.report.page import write_report
from local_bench.runs.rundir import RunDir

MakeRun = Callable[..., Path]
Scheme = Literal["light", "dark"]
pytestmark = pytest.mark.browser


class Watched:
    """A page with its messages and requests."""

    def __init__(self, browser: Browser, width: int, scheme: Scheme) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _dismiss(self, dialog: Dialog) -> None:
        self.messages.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def images(self) -> list[bytes]:
        """PNGs of the full page, from its top down; one of all of it may be larger than Chromium can make."""
        width, height = self.page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
        tops = range(0, height, 4000)
        parts: list[FloatRect] = [{"x": 0, "y": y, "width": width, "height": min(4000, height - y)} for y in tops]
        return [self.page.screenshot(full_page=True, clip=part) for part in parts]

    @property
    def external_requests(self) -> list[str]:
        return [url for url in self.requests if not url.startswith(("file:", "data:"))]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (400, "light")])
def test_the_page_opens_from_the_disk(make_run: MakeRun, browser: Browser, width: int, scheme: Scheme) -> None:
    with RunDir.open(make_run(no_source=True, on_gpus=True, panel=True)) as run:
        file = write_report(run)
    watched = Watched(browser, width, scheme)
    watched.page.goto(file.as_uri())
    watched.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    images = watched.images()
    assert watched.messages == []
    assert watched.external_requests == []
    assert sum(map(len, images)) > 10_000
    assert watched.page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    styled = watched.page.evaluate("getComputedStyle(document.body).counterReset")
    assert styled == "table 0"  # the policy lets the style sheet through
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width  # tables scroll, the page does not
    watched.page.close()


def test_violations_of_the_policy_are_recorded(make_run: MakeRun, browser: Browser) -> None:
    with RunDir.open(make_run()) as run:
        file = write_report(run)
    hurt = file.read_text("utf-8").replace(
        "<main>", '<main><script>alert(1)</script><img src="https://evil.example/x.png">'
    )
    file.write_text(hurt, "utf-8")
    watched = Watched(browser, 800, "light")
    watched.page.goto(file.as_uri())
    assert any("script" in line for line in watched.messages)
    assert any("evil.example" in line for line in watched.messages)
    assert not any(line.startswith("dialog") for line in watched.messages)
    watched.page.close()
