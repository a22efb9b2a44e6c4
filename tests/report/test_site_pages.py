"""Every page of a site of two suites at several widths, in light and dark: layout, sorting, comparison, figures."""

import io
import re
import shutil
import sqlite3
from contextlib import closing
from fractions import Fraction

import pytest
from PIL import Image

from local_bench.core.table import DASH
from local_bench.report.papers.draw import SMALL
from tests.annotation.conftest import MODELS, answer_all, make_shop
from tests.report.conftest import write_run
from tests.report.test_site import Visit, site_of

pytestmark = pytest.mark.browser
BLIND = MODELS[0]
SECTIONS = ("settlement", "scores", "judges", "generation", "costs", "provenance")
PAGES = (
    *("", "gallery/0", "gallery/1", "tasks/0", "tasks/1", "task/0/print-03", "task/1/t2", "model/0/quagga-turbo"),
    *("details/0/truth", *(f"details/1/{section}" for section in SECTIONS), "details/0/scenarios"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Three models of printshop, of which the first saw no source image, and a suite without prices whose model `beta`
    has no accepted image."""
    folder = tmp_path_factory.mktemp("site")
    shop = make_shop(folder / "shop", 8)
    answer_all(shop.path, "scores", {"a": "annotator"}, lambda *_: 4)
    with closing(sqlite3.connect(shop.path / "ledger.sqlite")) as db, db:
        db.execute("UPDATE candidates SET work = json_set(work, '$.pictures', json('[]')) WHERE model = ?", (BLIND,))
    other = write_run(folder / "run", gap=False, on_gpus=True)
    with closing(sqlite3.connect(other / "ledger.sqlite")) as db, db:
        db.execute("UPDATE tasks SET price_micro_usd = 0, content = json_set(content, '$.price_micro_usd', 0)")
        db.execute("UPDATE sessions SET started_utc = '2026-01-01T00:00:00+00:00' WHERE session = 2")
    return site_of(folder, shop.path, other)


@pytest.fixture
def visit(site, browser):
    visit = Visit(browser, site.index)
    yield visit
    visit.close()


def test_all_pages_at_all_widths_and_in_print(visit):
    """Printed (A4, portrait, with margins of 10 mm) a page has headings and images, and nothing is cut."""
    for where in PAGES:
        page = visit.go(where)
        assert "cannot be shown" not in page.inner_text("main")
        regions = page.locator("main [role=region], main section")
        labels = regions.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
        assert len(labels) == len(set(labels)), (where, labels)
        for width in (400, 1280, 1600):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, where)
            if not where:
                _check_figures(page, width)
        page.set_viewport_size({"width": 718, "height": 1047})
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= 718, where
        wide = page.locator(".scroll").evaluate_all(
            "all => all.filter((one) => getComputedStyle(one).overflowX !== 'visible').length"
        )
        heads = page.locator("thead th").evaluate_all("all => all.map((one) => one.innerText)")
        boxes = page.locator("thead button").evaluate_all("all => all.map((one) => getComputedStyle(one).display)")
        assert set(boxes) <= {"contents"}  # Chromium does not repeat buttons on a table's next page
        images = page.locator("main img").evaluate_all("all => all.map((one) => one.getBoundingClientRect().width)")
        assert (wide, all(heads), all(images), bool(heads or images)) == (0, True, True, True), where
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 27, 27)"  # of light pages
        page.emulate_media(media="screen", color_scheme="light")


def test_images_and_annotators_are_told_apart(visit):
    cards = visit.go("gallery/1").locator(".card").all_inner_texts()
    assert len(cards) == len(set(cards)) > 3, cards
    assert "1 annotator" in visit.go("task/0/print-03").locator("summary").all_inner_texts()


def _check_figures(page, width):
    """Labels of 11 px or more; at 1280 px, text that differs from the page and no box around the figure."""
    page.evaluate("for (const one of document.images) one.loading = 'eager'")
    page.evaluate("Promise.all([...document.images].map((one) => one.decode()))")
    shown = page.locator(".figures img")
    assert shown.count() >= 4
    for i in range(shown.count()):
        size = shown.nth(i).evaluate("one => one.getBoundingClientRect().width / (one.naturalWidth * 0.75)") * SMALL
        assert size >= 10.95, (width, i, size)
    for scheme in ("light", "dark") if width == 1280 else ():
        page.emulate_media(color_scheme=scheme)
        _check_contrast(page, scheme)


def _check_contrast(page, at):
    ground = tuple(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))))
    image = Image.open(io.BytesIO(page.locator(".figures figure").first.screenshot())).convert("RGB")
    assert image.getpixel((2, 2)) == ground, at
    title = image.crop((0, 0, image.width, 30))  # nothing else is so high
    assert max(_contrast(colour, ground) for _, colour in title.getcolors(100_000)) > 4.5, at


def _contrast(a, b):
    """WCAG 2.1, contrast ratio."""

    def luminance(colour):
        linear = [x / 3294.6 if x <= 10 else ((x / 255 + 0.055) / 1.055) ** 2.4 for x in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


CELLS = (
    """all => all.map((table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim())))"""
)


def _names(cells):
    """The cells without their small print and the marks of the sorted column."""
    return [cell.partition("\n")[0].rstrip(" ▾▴") for cell in cells]


def test_groups_have_their_own_columns_and_images_without_inputs_are_counted(visit):
    page = visit.go()
    tables = {
        name: page.locator(f"[aria-label^={name}] table").evaluate_all(CELLS) for name in ("Leaderboard", "Scores")
    }
    for found in tables.values():
        for rows in found:
            assert len({len(row) for row in rows}) == 1
            assert all(any(cell != DASH for cell in column[1:]) for column in zip(*rows, strict=True))
    priced, unpriced = tables["Leaderboard"]
    assert {"revenue", "share"} <= set(_names(priced[0]))
    assert not {"revenue", "share", "profit"} & set(_names(unpriced[0]))
    assert [_names(rows[0]) for rows in tables["Scores"]] == [["model", "brf"], ["model", "brf", "veq", "piqe"]]
    assert re.search(r"\$[\d,.]+\n\$[\d,.]+ to \$[\d,.]+", priced[1][1])  # the interval is below the value
    rows = page.locator("[aria-label^=Leaderboard] table").first.evaluate_all(CELLS)[0]
    at = _names(rows[0]).index("without inputs")
    assert {_names(row)[0]: row[at] for row in rows[1:]} == {model: "2" if model == BLIND else "0" for model in MODELS}
    common = page.locator("[aria-label^='Tasks that all models support'] table").evaluate_all(CELLS)[0]
    assert {_names(row)[0] for row in common[1:]} == set(MODELS)
    assert all(row[_names(common[0]).index("tasks accepted")].endswith(" / 6") for row in common[1:])
    assert f"{BLIND} 2 of" in page.inner_text(".warnings")


@pytest.mark.parametrize("where", ["", "tasks/0", "model/0/quagga-turbo"])
def test_headings_sort_by_click_and_by_keyboard(visit, where):
    page = visit.go(where)
    tables = page.locator("main table")
    n_sorted = 0
    for i in range(tables.count()):
        heads = tables.nth(i).locator("thead th")
        for k in range(heads.count()):
            button = heads.nth(k).locator("button")
            if not button.count():
                assert tables.nth(i).locator("tbody tr").count() == 1
                continue
            seen = {}
            for act in (button.click, lambda: page.keyboard.press("Enter")):
                act()  # the button has the focus after the click
                direction = heads.nth(k).get_attribute("aria-sort")
                assert tables.nth(i).locator("[aria-sort]").count() == 1
                seen[direction] = [
                    row.locator("th, td").nth(k).evaluate("one => one.dataset.sort ?? one.innerText")
                    for row in tables.nth(i).locator("tbody tr").all()
                ]
            assert set(seen) == {"ascending", "descending"}
            for direction, values in seen.items():
                known = [value for value in values if value != DASH]
                assert values[: len(known)] == known  # without a value: last in both directions
                try:  # a/b is a rate
                    texts = [re.match(r"[$-]*[\d.]+( / [1-9]\d*)?", value.replace(",", "")) for value in known]
                    numbers = [float(Fraction(text[0].replace("$", "").replace(" ", ""))) for text in texts]
                except TypeError:
                    numbers = list(map(str.lower, known))
                assert numbers == sorted(numbers, reverse=direction == "descending")
            n_sorted += 1
    assert n_sorted >= 4


def test_dates_and_digests_are_texts_and_a_total_of_energy_is_a_number(visit):
    page = visit.go("details/1/provenance")
    sessions = page.locator("[aria-label='Sessions and their devices']")
    started = sessions.locator("tbody td:nth-child(2)")
    before = started.all_inner_texts()
    assert before == sorted(before, reverse=True)
    assert len(set(before)) == 2
    sessions.get_by_role("button", name="started").click()
    assert started.all_inner_texts() == sorted(before)
    assert started.first.get_attribute("class") == "text"
    page = visit.go("details/1/costs")
    page.get_by_role("button", name="energy").click()
    energies = page.locator("tbody td:nth-child(5)")
    assert energies.first.inner_text() == "12.53 Wh"  # of all phases
    roots = visit.go().locator("[aria-label=Runs] tbody td:last-child")
    assert roots.evaluate_all("all => all.map((one) => one.className)") == ["text", "text"]
    texts = "['51c390711b81', '5e3456789012', '3D', '2 / 4', '3/1,000', '-$1,000.50', '90 s']"
    numbers = page.evaluate(f"{texts}.map(numberOf).map((x) => (Number.isNaN(x) ? null : x))")
    assert numbers == [None, None, None, 0.5, 0.003, -1000.5, 90]


def test_a_page_is_the_one_of_its_address(site, browser, tmp_path):
    """Also if the data of an earlier page come later, and if a file cannot be loaded, more than once."""
    folder = shutil.copytree(site.index.parent, tmp_path / "site")
    (folder / "data" / "1-tasks.js").unlink()
    visit = Visit(browser, folder / "index.html")
    page = visit.go()
    page.evaluate("""() => {
        const real = load, later = (done) => setTimeout(done, 300);
        window.load = (name) => (name === "0-tasks-0" ? new Promise(later) : Promise.resolve()).then(() => real(name));
    }""")
    page.evaluate("location.hash = '#/task/0/print-03'; setTimeout(() => { location.hash = '#/'; }, 50)")
    page.wait_for_timeout(600)
    assert page.inner_text("main h2") == "Overview"
    for _ in range(2):
        page.evaluate("location.hash = '#/gallery/1'")
        page.wait_for_function("() => document.querySelector('main h2').textContent === 'This page cannot be shown'")
        assert "data/1-tasks.js is missing" in page.inner_text("main")
        page.evaluate("location.hash = '#/'")
        page.wait_for_function("() => document.querySelector('main h2').textContent === 'Overview'")
    visit.close(checked=False)


def test_a_filter_that_a_run_does_not_have_does_not_hide_its_images(visit):
    assert visit.go("gallery/1?disagree=people").locator(".card").count() > 3


def test_two_images_are_compared_at_full_resolution(visit):
    page = visit.go("task/1/t2")
    cards = page.locator(".candidate")
    assert "not accepted: brf 2.50 < 3" in cards.filter(has_text="beta").first.inner_text()
    cards.filter(has_text="beta").first.locator(".frame").click()
    dialog = page.locator("dialog[open]")
    left, right = dialog.get_by_label("left image"), dialog.get_by_label("right image")
    assert left.evaluate("one => one.selectedOptions[0].text") == "beta, image 1"
    assert right.evaluate("one => one.selectedOptions[0].text") == "source"
    right.select_option(label="alpha, image 1")
    assert "not accepted: brf 2.50 < 3" in dialog.inner_text()
    assert dialog.locator("img").evaluate_all("all => all.map((one) => one.alt)") == ["beta, image 1", "alpha, image 1"]
    dialog.locator("img").evaluate_all("all => Promise.all(all.map((one) => one.decode()))")
    assert dialog.locator("img").evaluate_all("all => all.map((one) => one.naturalWidth)") == [320, 320]
    stage = dialog.locator(".stage")
    stage.focus()
    for key, mode in (("s", "slider"), ("f", "flicker"), ("d", "side")):
        page.keyboard.press(key)
        assert stage.get_attribute("data-mode") == mode
    before = dialog.locator("#zoom").inner_text()
    page.keyboard.press("+")
    assert dialog.locator("#zoom").inner_text() != before
    assert len(set(dialog.locator("img").evaluate_all("all => all.map((one) => one.style.transform)"))) == 1
    page.keyboard.press("Escape")
    assert not dialog.count()


def test_the_gallery_has_the_images_of_a_task_next_to_each_other(visit):
    parts = "all => all.map((one) => [...one.querySelectorAll('span, b')].map((part) => part.textContent))"
    names = visit.go("gallery/0").locator(".card").evaluate_all(parts)
    assert len(names) > 10
    assert [task for _, task, *_ in names] == sorted(task for _, task, *_ in names)
    assert {model for model, task, *_ in names if task == names[0][1]} == set(MODELS)
