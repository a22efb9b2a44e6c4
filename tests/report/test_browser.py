"""The report in a real browser, from the disk, in a run's folder and as one file: it requests nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from local_bench.cli.main import main
from local_bench.report.site.single_file import NAME
from tests.annotation.conftest import make_shop

MakeRun = Callable[..., Path]
pytestmark = pytest.mark.browser
PLACES = ("", "gallery/0", "task/0/print-02", "details/0/truth", "details/0/provenance")


class Watched:
    """A page with its messages and requests."""

    def __init__(self, browser: Browser, file: Path) -> None:
        self.base = file.as_uri()
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def go(self, where: str) -> None:
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}#/{where}")
        self.page.wait_for_selector("main h2")
        self.page.wait_for_function("[...document.images].every((one) => one.loading === 'lazy' || one.complete)")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("report") / "shop"
    make_shop(path, 4)
    assert main(["report", str(path), "--single-file"]) == 0
    return path


def test_a_run_s_own_report_has_its_full_images(run: Path, browser: Browser) -> None:
    watched = Watched(browser, run / "report" / "index.html")
    for where in PLACES:
        watched.go(where)
    watched.go("task/0/print-02")
    watched.page.locator(".candidate .frame").first.click()
    watched.page.locator("dialog[open] img").evaluate_all("all => Promise.all(all.map((one) => one.decode()))")
    assert watched.messages == []
    assert {url for url in watched.requests if not url.startswith((run.as_uri(), "about:"))} == set()
    assert any(url.startswith(f"{run.as_uri()}/images/") for url in watched.requests)
    watched.page.close()


def test_the_one_file_has_everything_in_it(run: Path, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "mailed.html"
    file.write_bytes((run / "report" / NAME).read_bytes())
    watched = Watched(browser, file)
    for where in PLACES:
        watched.go(where)
        assert watched.page.locator("main h2").inner_text() != "This page cannot be shown"
    watched.go("gallery/0")
    assert watched.page.locator(".card img").evaluate_all("all => all.every((one) => one.naturalWidth > 0)")
    assert watched.messages == []
    assert {url.partition("#")[0] for url in watched.requests if not url.startswith(("data:", "about:"))} == {
        file.as_uri()
    }
    watched.page.close()


@pytest.mark.parametrize("name", ["index.html", NAME])
def test_violations_of_the_policy_are_recorded(run: Path, browser: Browser, tmp_path: Path, name: str) -> None:
    file = tmp_path / "hurt.html"
    added = '<script>alert(1)</script><img src="https://evil.example/x.png"></head>'
    file.write_text((run / "report" / name).read_text("utf-8").replace("</head>", added), "utf-8")
    watched = Watched(browser, file)
    watched.page.goto(file.as_uri())
    assert any("script" in line for line in watched.messages)
    assert any("evil.example" in line for line in watched.messages)
    watched.page.close()
