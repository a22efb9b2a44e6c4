"""The site of one run or several in a real browser, from the disk: filters, links, hostile texts, accessibility."""

import io
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from PIL import Image

from local_bench.analysis.comparability import comparable
from local_bench.cli.main import main
from local_bench.core.errors import UserError
from local_bench.core.images import store_image
from local_bench.report.site.build import write_site
from local_bench.report.site.details import FULL, PREVIEWS, TASKS_PER_FILE, THUMBS, RunDetails, _write, path_in
from local_bench.report.site.mark import MARK
from local_bench.runs.rundir import RunDir
from tests.annotation.conftest import MODELS, answer_all, make_shop
from tests.conftest import ROOT

AXE = ROOT / "tests" / "data" / "axe.min.js"
pytestmark = pytest.mark.browser


def site_of(folder, *paths):
    runs = [RunDir.open(path) for path in paths]
    try:
        return write_site(runs, folder / "site")
    finally:
        for run in runs:
            run.store.close()


def data_of(site, name):
    text = (site.index.parent / "data" / f"{name}.js").read_text()
    return json.loads(re.fullmatch(r'LB\("[^"]*",(.*)\);\n', text, re.S)[1])


class Visit:
    """A page with its messages and requests."""

    def __init__(self, browser, index, width=1200, bypass_csp=False):
        self.base = index.as_uri()
        self.context = browser.new_context(viewport={"width": width, "height": 900}, bypass_csp=bypass_csp)
        self.page = self.context.new_page()
        self.messages, self.requests = [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.messages.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def go(self, where=""):
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}#/{where}")
        self.page.wait_for_selector("main h2")
        return self.page

    def close(self, allowed=None, checked=True):
        """`allowed`: the folder whose files a page may load, if it is not its own."""
        if checked:
            folder = allowed or self.base.rpartition("/")[0]
            assert self.messages == []
            assert [url for url in self.requests if not url.startswith((folder, "about:", "data:"))] == []
        self.context.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    made = make_shop(tmp_path_factory.mktemp("site") / "shop", 12)
    answer_all(made.path, "accept", {"a": "annotator", "b": "annotator"}, lambda *_: True)
    return made


@pytest.fixture(scope="module")
def shop_site(shop, tmp_path_factory):
    return site_of(tmp_path_factory.mktemp("out"), shop.path)


def test_the_data_is_that_of_the_run(shop, shop_site):
    found = data_of(shop_site, "summary")
    assert [run["name"] for run in found["runs"]] == ["shop"]
    columns = data_of(shop_site, "0-candidates-0")
    with RunDir.open(shop.path) as run:
        outcomes = run.store.outcomes()
    assert columns["decision"] == [int(row.accepted) for row in outcomes]
    assert columns["truth"] == [int(shop.right[row.candidate.image]) for row in outcomes]
    assert columns["people"] == [1] * len(outcomes)
    by_model = Counter(row.candidate.model for row in outcomes if row.accepted)
    leaderboard = found["overview"][0]["tables"][0]
    at = [heading for heading, *_ in leaderboard["columns"]].index("images accepted")
    accepted = {row[0]["t"]: int(row[at]["t"].partition(" / ")[0]) for row in leaderboard["rows"]}
    assert accepted == {m: by_model[m] for m in MODELS}
    assert shop_site.n_candidates == len(outcomes)
    out = shop_site.index.parent
    for row in outcomes:
        assert path_in(out, THUMBS, row.candidate.image).is_file()
        assert path_in(out, FULL, row.candidate.image).read_bytes() == run.image(row.candidate.image).read_bytes()


def test_every_page_and_link_and_filter(shop, shop_site, browser):
    visit = Visit(browser, shop_site.index)
    page = visit.go()
    assert page.inner_text("h2") == "Overview"
    assert all(model in page.inner_text("main") for model in MODELS)
    for link in page.eval_on_selector_all("main a, nav a", "all => all.map(one => one.getAttribute('href'))"):
        visit.go(link.removeprefix("#/"))
        assert "cannot be shown" not in page.inner_text("main")
    with RunDir.open(shop.path) as run:
        outcomes = run.store.outcomes()
        tasks = {task.task_id: task for task in run.store.tasks()}

    def n_visible():
        return int(re.match(r"([\d,]+) image", page.inner_text("main p[aria-live]"))[1].replace(",", ""))

    page = visit.go("gallery/0")
    assert n_visible() == len(outcomes)
    page.select_option("[name=model]", MODELS[0])
    of_model = [row for row in outcomes if row.candidate.model == MODELS[0]]
    assert n_visible() == len(of_model)
    n_rejected = sum(not row.accepted for row in of_model)
    for name, value, n in (
        ("decision", "rejected", n_rejected),
        ("disagree", "people", n_rejected),  # people accept everything
        ("disagree", "truth", sum(row.accepted != shop.right[row.candidate.image] for row in of_model)),
    ):
        page.select_option(f"[name={name}]", value)
        assert n_visible() == n
        page.select_option(f"[name={name}]", "")
    page.fill("[name=max]", "2")  # without a chosen score: of the first one, which is then chosen
    assert (n_visible(), page.input_value("[name=score]")) == (n_rejected, "brf")
    page.select_option("[name=score]", "")
    assert (n_visible(), page.input_value("[name=max]")) == (len(of_model), "")
    page.select_option("[name=sort]", "down")
    shown = page.eval_on_selector_all(".card", "all => all.map(one => Number(/brf: (.*)/.exec(one.textContent)[1]))")
    assert shown == sorted(shown, reverse=True)
    page.select_option("[name=score]", "")
    assert page.input_value("[name=sort]") == "plan"
    page.fill("[name=q]", tasks["print-02"].title)
    titled = {task_id for task_id, task in tasks.items() if task.title == tasks["print-02"].title}
    assert n_visible() == sum(row.candidate.task_id in titled for row in of_model)
    address = page.url
    visit.page.goto("about:blank")
    visit.page.goto(address)  # the filters are part of the address
    page.wait_for_selector(".card")
    assert n_visible() == sum(row.candidate.task_id in titled for row in of_model)
    page.select_option("[name=sort]", "failures")
    rejected = page.eval_on_selector_all(".card", "all => all.map(one => one.textContent.includes('not accepted'))")
    assert rejected == sorted(rejected, reverse=True)

    page.click(".card a.shot")  # a stable link to one image
    page.wait_for_selector(".candidate.chosen")
    page.click(".candidate.chosen .frame")
    page.wait_for_selector("dialog[open] img")
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('dialog[open] img').naturalWidth") == 64
    page.keyboard.press("Escape")
    before = page.inner_text("h2")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(200)
    assert page.inner_text("h2") != before
    visit.close()


def test_hostile_text_is_escaped(make_run, tmp_path, browser):
    site = site_of(tmp_path, make_run(no_source=True, on_gpus=True, panel=True))
    visit = Visit(browser, site.index)
    tasks = data_of(site, "0-tasks")["id"]
    details = [f"details/0/{section['name']}" for section in data_of(site, "0-sections")]
    places = ("", "gallery/0", "tasks/0", "model/0/alpha", "nonsense/<b>")
    for where in (*places, *details, *(f"task/0/{task}" for task in tasks)):
        page = visit.go(where)
        page.wait_for_timeout(50)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.querySelectorAll('main script, main svg, main style').length") == 0
    assert "<script>" in page.content() or "&lt;script" in visit.go(f"task/0/{tasks[0]}").content()
    visit.close()


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (400, "light")])
def test_no_serious_fault_of_accessibility(shop_site, browser, width, scheme):
    visit = Visit(browser, shop_site.index, width, bypass_csp=True)
    visit.page.emulate_media(color_scheme=scheme)
    details = [f"details/0/{section['name']}" for section in data_of(shop_site, "0-sections")]
    for where in ("", "gallery/0", "tasks/0", "task/0/print-02", f"model/0/{MODELS[0]}", *details):
        page = visit.go(where)
        page.wait_for_timeout(200)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # tables scroll, the page does not
        page.evaluate(AXE.read_text())
        violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [fault for fault in violations if fault["impact"] in ("serious", "critical")] == [], where
    visit.close(checked=False)  # axe reads the style sheets in its own way


def test_runs_whose_answers_are_combined_differently_are_not_comparable(tmp_path):
    a, b = (make_shop(tmp_path / name, 5, models=MODELS[:1]) for name in "ab")
    with RunDir.open(a.path) as x, RunDir.open(b.path) as y:
        for run in (x, y):
            run.store.set_meta("judges", '{"1": "one", "2": "two"}')
        assert comparable([x, y], ["the judges"])[0] == [0, 0]
        for other in ({"panel_word": "majority"}, {"order_swap": True}):
            y.config = x.config.model_copy(update=other)
            assert comparable([x, y], ["the judges"]) == ([0, 1], ["b and a differ in the judges"])


def test_only_comparable_runs_are_compared(tmp_path, browser):
    a = make_shop(tmp_path / "a", 5, models=MODELS[:1])
    b = make_shop(tmp_path / "b", 5, models=MODELS[1:], seed=6)
    c = make_shop(tmp_path / "c", 4, models=MODELS[:1])
    with RunDir.open(a.path) as x, RunDir.open(b.path) as y, RunDir.open(c.path) as z:
        assert comparable([x, y]) == ([0, 0], [])
        assert comparable([x, y, z]) == ([0, 0, 1], ["c and a differ in the tasks"])
    site = site_of(tmp_path, a.path, b.path, c.path)
    visit = Visit(browser, site.index)
    text = visit.go().inner_text("main")
    assert "Not comparable: c and a differ in the tasks." in text
    assert "Comparable runs: a, b" in text
    assert len(visit.page.query_selector_all("[aria-label^=Leaderboard]")) == 2
    widths = visit.page.eval_on_selector_all(
        "main table", "all => all.map(one => [...one.rows].map(row => row.cells.length))"
    )
    assert len(widths) >= 4
    assert all(len(set(one)) == 1 for one in widths), widths  # every table has a heading for every column
    visit.close()


def test_the_task_list_says_that_it_counts_first_attempts(tmp_path, browser):
    made = make_shop(tmp_path / "a", 2, attempts=2)
    answer_all(made.path, "accept", {"a": "annotator"}, lambda *_: True)
    visit = Visit(browser, site_of(tmp_path, made.path).index)
    assert "first attempts accepted" in visit.go("tasks/0").inner_text("thead")
    # printed, the heading above the four images is on their page
    printed = visit.go("task/0/print-02").pdf(
        format="A4", margin=dict.fromkeys(("top", "right", "bottom", "left"), "10mm")
    )
    assert len(re.findall(rb"/Type /Page\b", printed)) == 2
    visit.close()


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (768, "dark")])
def test_a_wide_table_has_a_shadow_at_its_end_and_keeps_its_first_column(shop_site, browser, width, scheme):
    visit = Visit(browser, shop_site.index, width)
    visit.page.emulate_media(color_scheme=scheme)
    region = visit.go().locator("[aria-label=Leaderboard]")
    hidden = region.evaluate("one => one.scrollWidth - one.clientWidth")
    assert hidden > 0

    def right_edge():
        image = Image.open(io.BytesIO(region.screenshot())).convert("RGB")
        return image.getpixel((image.width - 3, 2))  # above the headings; the picture can be a pixel wider

    shadow = right_edge()
    for left in range(0, hidden, 20):  # the cells below the first column are never over it, the bars neither
        region.evaluate("(one, left) => { one.scrollLeft = left; }", left)
        assert region.evaluate("""one => [...one.querySelectorAll("tr > :first-child")].every((cell) => {
            const { right, top, height } = cell.getBoundingClientRect();
            return document.elementFromPoint(right - 3, top + height / 2) === cell;
        })"""), left
    region.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    ground = right_edge()
    assert sum(abs(a - b) for a, b in zip(shadow, ground, strict=True)) > 60
    visit.close()


def test_a_second_report_replaces_the_first_and_a_foreign_folder_is_refused(shop, tmp_path, capsys):
    out = tmp_path / "site"

    def files():
        return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}

    assert main(["report", str(shop.path), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_missing"] == 0
    before = files()
    (out / "data" / "9-tasks-0.js").write_text("of an earlier site")
    assert main(["report", str(shop.path), "--out", str(out)]) == 0
    assert files() == before
    (out / MARK).unlink()
    assert main(["report", str(shop.path), "--out", str(out)]) == 2
    assert "not of a site" in capsys.readouterr().err
    assert main(["report", str(shop.path), str(shop.path)]) == 2
    (tmp_path / "link").symlink_to(shop.path)
    for again in (shop.path, tmp_path / "link"):
        assert main(["report", str(shop.path), str(again), "--out", str(tmp_path / "twice")]) == 2
        assert f"{again} is given twice: give it once" in capsys.readouterr().err
    with RunDir.open(shop.path) as run, pytest.raises(UserError, match="two of the runs are named"):
        write_site([run, run], tmp_path / "twice")


def test_settle_only_computes_and_report_replaces_the_page_of_an_earlier_release(tmp_path, capsys):
    path = make_shop(tmp_path / "run", 3).path
    assert main(["settle", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(path / "report" / "index.html")
    assert not {"report", "exports"} & {folder.name for folder in path.iterdir()}
    (path / "report").mkdir()
    (path / "report" / "index.html").write_text("of an earlier release")
    assert main(["report", str(path)]) == 0
    assert "viewer.js" in (path / "report" / "index.html").read_text()
    (path / "report" / MARK).unlink()
    assert main(["report", str(path)]) == 2  # a folder with other files


def test_a_missing_image_is_counted_and_the_others_are_displayed(tmp_path, capsys):
    shop = make_shop(tmp_path / "run", 3)
    with RunDir.open(shop.path) as run:
        run.image(next(iter(shop.right))).unlink()
    assert main(["report", str(shop.path), "--out", str(tmp_path / "site"), "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["n_missing"] == 1
    assert "local-bench verify" in captured.err


@pytest.mark.parametrize(("size", "preview"), [((1024, 512), (768, 384)), ((600, 600), (600, 600)), ((512, 300), None)])
def test_large_images_have_a_preview_too(shop, tmp_path, size, preview):
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    sha = store_image(tmp_path / "images", image)
    out = tmp_path / "site"
    for folder in ("thumbs", "previews", "images"):
        (out / folder / sha[:2]).mkdir(parents=True)
    assert _write((str(tmp_path / "images" / sha[:2] / f"{sha}.png"), sha, str(out), True))
    assert max(Image.open(path_in(out, THUMBS, sha)).size) == 256
    assert path_in(out, FULL, sha).is_file()
    made = path_in(out, PREVIEWS, sha)
    assert (Image.open(made).size if made.is_file() else None) == preview
    with RunDir.open(shop.path) as run:
        task = replace(run.store.tasks()[0], source_sha256=sha)
        assert RunDetails(run, {}, out)._previews(task, []) == ([sha] if preview else [])


def test_the_viewer_reads_the_file_of_a_task():
    script = (ROOT / "local_bench/report/site/static/viewer.js").read_text()
    assert f"-tasks-${{Math.floor(index / {TASKS_PER_FILE})}}" in script
