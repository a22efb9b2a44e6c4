"""The report in a real browser, from the disk, in a run's folder and as one file: it requests nothing else."""

import pytest

from local_bench.cli.main import main
from local_bench.report.site.build import SINGLE_FILE
from tests.annotation.conftest import make_shop
from tests.report.test_site import Visit

pytestmark = pytest.mark.browser
PLACES = ("", "gallery/0", "task/0/print-02", "details/0/truth", "details/0/provenance")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "shop"
    make_shop(path, 4)
    assert main(["report", str(path), "--single-file"]) == 0
    return path


def test_a_run_s_own_report_has_its_full_images(run, browser):
    visit = Visit(browser, run / "report" / "index.html")
    for where in (*PLACES, "task/0/print-02"):
        visit.go(where)
    visit.page.locator(".candidate .frame").first.click()
    visit.page.locator("dialog[open] img").evaluate_all("all => Promise.all(all.map((one) => one.decode()))")
    assert any(url.startswith(f"{run.as_uri()}/images/") for url in visit.requests)
    visit.close(run.as_uri())


def test_the_one_file_has_everything_in_it(run, browser, tmp_path):
    file = tmp_path / "mailed.html"
    file.write_bytes((run / "report" / SINGLE_FILE).read_bytes())
    visit = Visit(browser, file)
    for where in (*PLACES, "gallery/0"):
        assert visit.go(where).locator("main h2").inner_text() != "This page cannot be shown"
    shown = "[...document.images].every((one) => one.loading === 'lazy' || one.complete)"
    visit.page.wait_for_function(shown)
    assert visit.page.locator(".card img").evaluate_all("all => all.every((one) => one.naturalWidth > 0)")
    figure = visit.go().locator(".figures figure").first
    assert not figure.locator("a").count()  # a browser refuses to open an address of data
    figure.click()
    visit.close(file.as_uri())


@pytest.mark.parametrize("name", ["index.html", SINGLE_FILE])
def test_violations_of_the_policy_are_recorded(run, browser, tmp_path, name):
    file = tmp_path / "hurt.html"
    added = '<script>alert(1)</script><img src="https://evil.example/x.png"></head>'
    file.write_text((run / "report" / name).read_text("utf-8").replace("</head>", added), "utf-8")
    visit = Visit(browser, file)
    visit.page.goto(file.as_uri())
    for word in ("script", "evil.example"):
        assert any(word in line for line in visit.messages)
    visit.close(checked=False)
