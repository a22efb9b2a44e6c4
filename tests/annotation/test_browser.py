"""Annotators in a real browser: five at once, by keyboard alone, with an interrupted network, and accessibility."""

import asyncio
import hashlib
from collections import defaultdict
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from playwright.async_api import async_playwright
from sklearn.metrics import cohen_kappa_score

from local_bench.annotation.ratings import OVERALL, load_annotations
from local_bench.annotation.summary import summary
from local_bench.runs.rundir import RunDir
from local_bench.settle.agreement import krippendorff_alpha
from tests.annotation.conftest import MODELS, live_server, make_shop
from tests.chromium import ARGUMENTS, chromium_path

pytestmark = pytest.mark.browser
AXE = Path(__file__).parents[1] / "data" / "axe.min.js"
CAPTIONS = """[...document.querySelectorAll(".stage figcaption")].map((one) => {
    const text = document.createRange();
    text.selectNodeContents(one);
    const { left, right } = text.getBoundingClientRect();
    const clipped = getComputedStyle(one.parentElement).clipPath !== "none";
    return clipped ? [0, 0] : [left, right];
})"""
"""The edges of what can be read of the captions below the images."""
CLIP = "one => getComputedStyle(one).clipPath"
RATERS = {"r1": 0.0, "r2": 0.1, "r3": 0.2, "r4": 0.3, "r5": 0.4}
"""Annotator -> rate of wrong answers."""


@asynccontextmanager
async def chromium(*more):
    path = chromium_path()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS, *more])
        yield browser
        await browser.close()


@asynccontextmanager
async def at_the_page(browser, link, **more):
    """An annotator's page after the guidelines, with everything that it received."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860}, **more)
    page = await context.new_page()
    page.faults, page.received = [], []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda m: page.faults.append(m.text) if m.type in ("error", "warning") else None)
    page.on("response", lambda response: page.received.append(response))  # noqa: PLW0108 - not a builtin
    await page.goto(link)
    await page.wait_for_selector("article, .finished")
    await page.keyboard.press("Escape")
    yield page
    await context.close()


def wrong(rater, sha):
    """Whether the rater errs about this image: the same in a repeat."""
    return int(hashlib.sha256(f"{rater} {sha}".encode()).hexdigest()[:8], 16) / 2**32 < RATERS[rater]


async def displayed(page):
    """The digests of the item's images, in the order of its questions; empty at the end of the queue."""
    return await page.eval_on_selector_all(".set button", "all => all.map(one => one.dataset.left.split('/').pop())")


async def next_item(page, before):
    """Waits for another item, or the end."""
    await page.wait_for_function(
        """before => { const article = document.querySelector("article"); const main = document.querySelector("main");
            if (main.inert) return false; if (!article) return Boolean(document.querySelector(".finished"));
            if (article.dataset.seen) return false; return true; }""",
        arg=before,
    )


async def answer_all(page, decide, keys=("p", "x")):
    """Answer every item with the keyboard; return what was answered: digest -> decisions."""
    given = defaultdict(list)
    while images := await displayed(page):
        await page.evaluate("document.querySelector('article').dataset.seen = 1")
        for sha in images:
            decision = decide(sha)
            given[sha].append(decision)
            await page.keyboard.press(keys[0] if decision else keys[1])
        if len(images) > 1:
            await page.keyboard.press("Enter")
        await next_item(page, None)
    return given


def test_five_concurrent_raters_and_their_statistics(tmp_path):
    shop = make_shop(tmp_path / "run", 4, attempts=2)
    people = dict.fromkeys(RATERS, "annotator") | {"boss": "lead"}

    async def work(browser, live, rater, bodies):
        async with at_the_page(browser, live.link(rater)) as page:
            given = await answer_all(page, lambda sha: shop.right[sha] ^ wrong(rater, sha))
            for response in page.received:
                bodies.append(response.url.encode() + repr(await response.all_headers()).encode())
                if response.status == 200:
                    bodies.append(await response.body())
            assert page.faults == []
            return given

    async def everyone(live):
        bodies = []
        async with chromium() as browser:
            found = await asyncio.gather(*(work(browser, live, rater, bodies) for rater in RATERS))
            async with at_the_lead(browser, live) as (page, response):
                bodies.append(await response.body())
                assert "Krippendorff" in await page.inner_text("main")
        return dict(zip(RATERS, found, strict=True)), bodies

    with live_server(shop.path, "pass-fail", people, repeats=0.1) as live:
        given, bodies = asyncio.run(everyone(live))
        found = summary(live.session)
    assert len(bodies) > 200
    for secret in MODELS:
        assert not any(secret.encode() in body for body in bodies)

    planned = {rater: {sha: right ^ wrong(rater, sha) for sha, right in shop.right.items()} for rater in RATERS}
    for rater, of in given.items():
        assert {sha: decisions[0] for sha, decisions in of.items()} == planned[rater]
    repeated = sum(len(decisions) - 1 for of in given.values() for decisions in of.values())
    assert repeated > 0
    images = list(shop.right)
    majority = {sha: sum(planned[rater][sha] for rater in RATERS) >= 3 for sha in images}

    # the lead's view
    assert (found.n_items, found.n_complete) == (len(images), len(images))
    (overall,) = found.fields
    pairs = [(planned[a][sha], planned[b][sha]) for a, b in combinations(RATERS, 2) for sha in images]
    assert overall.raw.value == pytest.approx(fmean(x == y for x, y in pairs))
    of_rater = {rater: [planned[rater][sha] for sha in images] for rater in RATERS}
    kappas = [cohen_kappa_score(of_rater[a], of_rater[b]) for a, b in combinations(RATERS, 2)]
    assert overall.kappa.value == pytest.approx(fmean(kappas))
    units = [[planned[rater][sha] for rater in RATERS] for sha in images]
    assert overall.alpha.value == pytest.approx(krippendorff_alpha(units, "nominal").value)
    by_name = {one.name: one for one in found.annotators}
    for rater in RATERS:
        rest = {sha: [planned[r][sha] for r in RATERS if r != rater] for sha in images}
        decided = {sha: sum(of) > 2 for sha, of in rest.items() if sum(of) != 2}
        assert by_name[rater].agreement.value == pytest.approx(
            fmean(planned[rater][sha] == majority_of for sha, majority_of in decided.items())
        )
        assert by_name[rater].repeats.value in (None, 1.0)  # an error is the same the second time
        assert by_name[rater].n_answers == len(images)
    assert by_name["boss"].n_answers == 0
    assert {one.n_open for one in found.annotators} == {0}

    # into the numbers of the run
    with RunDir.open(shop.path) as run:
        people_of = load_annotations(shop.path, run, {})
        by_work = {row.work_id: row.image for row in run.store.candidates()}
    assert {work_id: r.decision for work_id, r in people_of.consensus[OVERALL].items()} == {
        work_id: majority[sha] for work_id, sha in by_work.items()
    }
    assert set(people_of.raters) == set(RATERS)


@asynccontextmanager
async def at_the_lead(browser, live, **more):
    context = await browser.new_context(**more)
    page = await context.new_page()
    yield page, await page.goto(live.link("boss"))
    await context.close()


def test_two_annotators_and_a_third_who_adjudicates(tmp_path):
    shop = make_shop(tmp_path / "run", 6)
    people = {"r1": "annotator", "r4": "annotator", "judge": "adjudicator"}

    async def work(live):
        async with chromium() as browser:
            for name in ("r1", "r4"):
                async with at_the_page(browser, live.link(name)) as page:
                    await answer_all(page, lambda sha, name=name: shop.right[sha] ^ wrong(name, sha), ("a", "r"))
            async with at_the_page(browser, live.link("judge")) as page:
                text = await page.inner_text("main")
                assert "Adjudication" in text
                assert "r1" not in text
                assert "r4" not in text
                given = await answer_all(page, lambda sha: shop.right[sha], ("a", "r"))
                assert page.faults == []
                return given

    with live_server(shop.path, "accept", people) as live:
        adjudicated = asyncio.run(work(live))
        assert summary(live.session).n_disputed == 0
    disputed = {sha for sha in shop.right if wrong("r4", sha)}  # r1 never errs
    assert disputed <= set(adjudicated)
    with RunDir.open(shop.path) as run:
        found = load_annotations(shop.path, run, {})
        assert {w: r.decision for w, r in found.consensus[OVERALL].items()} == {
            row.work_id: shop.right[row.image] for row in run.store.candidates()
        }
    assert set(found.raters) == {"r1", "r4"}  # the adjudicator is not a rater
    assert found.tied == {}


def test_the_keyboard_alone_completes_a_session(tmp_path):
    """Every field, a note, reasons, `cannot tell`, undo, zoom, views, dialogs and the next image; no pointer."""
    shop = make_shop(tmp_path / "run", 4, models=MODELS[:1])

    async def work(live):
        async with chromium() as browser, at_the_page(browser, live.link("ann")) as page:
            press = page.keyboard.press
            await press("?")
            assert await page.is_visible("#legend")
            await press("Escape")
            await press("g")
            assert await page.is_visible("#guidelines")
            await press("Escape")
            for key in ("+", "+", "ArrowLeft", "-", "Home", "d", "s", "Shift+ArrowRight", "f", "f", "d", "]", "["):
                await press(key)
            await press("t")
            await press("Space")
            await press("n")
            await page.keyboard.type("z, a and r are letters here")
            await press("Escape")
            first = await displayed(page)
            await press("c")
            await press("Space")
            await press("Enter")  # cannot tell
            await page.wait_for_function("before => !document.querySelector(`[data-left$='${before}']`)", arg=first[0])
            await press("z")
            await page.wait_for_function("before => document.querySelector(`[data-left$='${before}']`)", arg=first[0])
            assert await page.input_value("textarea") == "z, a and r are letters here"
            assert await page.is_checked("[name=reason]")
            for _ in range(15):  # held
                await page.keyboard.down("a")
                await page.wait_for_timeout(40)
            await page.keyboard.up("a")
            assert (await page.inner_text("#counts")).startswith("1 answered" if len(first) == 1 else "0 answered")
            assert len(await page.query_selector_all("input:checked[name^=f]")) == (0 if len(first) == 1 else 1)
            await answer_all(page, lambda sha: shop.right[sha], ("a", "r"))
            assert page.faults == []

    with live_server(shop.path, "accept", {"ann": "annotator"}) as live:
        asyncio.run(work(live))
        stored = live.session.database.answers()
    assert len({one.item_id for one in stored}) == len(stored) == 4
    noted = [one.given for one in stored if one.given.note]
    assert [(one.note, one.reasons) for one in noted] == [("z, a and r are letters here", ("missing_requirement",))]
    assert all(one.given.cannot_tell is None for one in stored)


def test_a_digit_gives_that_score_and_on_a_phone_only_the_page_scrolls(tmp_path):
    """Key 0 is score 0, key 5 is score 5; `Home` resets the zoom."""
    shop = make_shop(tmp_path / "run", 3, models=MODELS[:1])

    async def work(live):
        async with chromium() as browser, at_the_page(browser, live.link("ann")) as page:
            await page.wait_for_function("() => document.querySelector('#zoom').textContent")  # the image is there
            fitted = await page.inner_text("#zoom")
            await page.keyboard.press("+")
            assert await page.inner_text("#zoom") != fitted
            await page.keyboard.press("Home")
            assert await page.inner_text("#zoom") == fitted
            for keys in ("012", "345"):
                for field in await page.eval_on_selector_all(".field", "all => all.map(one => one.dataset.field)"):
                    await page.keyboard.press(keys[("brf", "veq", "cns").index(field)])
                await page.evaluate("document.querySelector('article').dataset.seen = 1")
                await page.keyboard.press("Enter")
                await next_item(page, None)
            for width, height in ((375, 500), (834, 400)):
                await page.set_viewport_size({"width": width, "height": height})
                hidden = await page.evaluate(
                    """[...document.querySelectorAll("main *")].filter((one) => one.scrollHeight > one.clientHeight + 1
                       && ["auto", "scroll"].includes(getComputedStyle(one).overflowY)).map((one) => one.className)"""
                )
                assert hidden == []

    with live_server(shop.path, "scores", {"ann": "annotator"}) as live:
        asyncio.run(work(live))
        first, second = live.session.database.answers()
    for answer, scores in ((first, (0, 1, 2)), (second, (3, 4, 5))):
        for values in answer.given.values.values():
            assert values == dict(zip(("brf", "veq", "cns")[: len(values)], scores, strict=False))


def test_answers_given_without_a_network_are_sent_later(tmp_path):
    shop = make_shop(tmp_path / "run", 6, models=MODELS[:1])

    async def work(live):
        async with chromium() as browser, at_the_page(browser, live.link("ann")) as page:
            await page.wait_for_timeout(300)  # items are loaded ahead
            await page.context.set_offline(True)
            for n in range(1, 4):
                images = await displayed(page)
                for sha in images:
                    await page.keyboard.press("a" if shop.right[sha] else "r")
                if len(images) > 1:
                    await page.keyboard.press("Enter")
                await page.wait_for_function(
                    "n => document.querySelector('#notice').textContent.includes(n)", arg=str(n)
                )
            assert live.session.database.answers() == []
            await page.context.set_offline(False)
            for _ in range(200):
                if len(live.session.database.answers()) == 3:
                    break
                await page.wait_for_timeout(100)
            await page.reload()
            await page.wait_for_selector("article")
            await answer_all(page, lambda sha: shop.right[sha], ("a", "r"))

    with live_server(shop.path, "accept", {"ann": "annotator"}) as live:
        asyncio.run(work(live))
        stored = live.session.database.answers()
    assert len({one.item_id for one in stored}) == len(stored) == 6
    for one in stored:
        item = live.session.queue.by_id[one.item_id]
        for image in item.images:
            assert one.given.values[str(image.deliverable)]["overall"] is shop.right[image.pixels_sha256]


def test_an_answer_from_another_address_is_named_as_such_and_kept(tmp_path):
    """As behind a proxy that writes its own Host header, without --base."""
    shop = make_shop(tmp_path / "run", 4, models=MODELS[:1])

    async def elsewhere(route):
        headers = route.request.headers | {"origin": "https://annotate.lab.org"}
        await route.fulfill(response=await route.fetch(headers=headers))

    async def work(live):
        async with chromium() as browser, at_the_page(browser, live.link("ann"), locale="zh-CN") as page:
            await page.route("**/answer", elsewhere)
            for _ in await displayed(page):
                await page.keyboard.press("a")
            await page.keyboard.press("Enter")
            await page.wait_for_selector("#notice.warn")
            assert "答案来自服务器不认识的地址" in await page.inner_text("#notice")
            await page.unroute("**/answer")
            await page.wait_for_selector("#notice:not(.warn)")
            assert len(live.session.database.answers()) == 1

    with live_server(shop.path, "accept", {"ann": "annotator"}, language="") as live:
        asyncio.run(work(live))


@pytest.mark.parametrize("protocol", ["accept", "points", "pairwise"])
def test_no_serious_fault_of_accessibility(tmp_path, protocol):
    """axe-core on the page with its dialogs, in both languages, on a wide screen and a tablet; and the lead's page."""
    shop = make_shop(tmp_path / "run", 4)

    async def check(page, where):
        await page.evaluate(AXE.read_text())
        found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [fault for fault in found["violations"] if fault["impact"] in ("serious", "critical")] == [], where

    async def work(live):
        async with chromium() as browser:
            more = {"bypass_csp": True}  # axe is evaluated in the page
            async with at_the_page(browser, live.link("ann"), **more) as page:
                for dialog in ("g", "?"):
                    await page.keyboard.press(dialog)
                    await check(page, dialog)
                    await page.keyboard.press("Escape")
                for key in ("t", "n", "c"):
                    await page.keyboard.press(key)
                    await page.keyboard.press("Escape")
                await check(page, "item")
                if protocol == "pairwise":
                    await page.keyboard.press("s")
                    (left, _), (right, end) = await page.evaluate(CAPTIONS)
                    assert left < right < end
                    assert await page.locator(".stage .right .frame").evaluate(CLIP) == "inset(0px 0px 0px 50%)"
                await page.set_viewport_size({"width": 834, "height": 1112})
                await page.select_option("#language", "zh")
                await page.wait_for_selector("html[lang=zh] article")
                await check(page, "tablet, Chinese")
                await page.emulate_media(color_scheme="dark")
                await check(page, "dark")
            async with at_the_lead(browser, live, **more) as (page, _):
                await check(page, "lead")

    with live_server(shop.path, protocol, {"ann": "annotator", "boss": "lead"}) as live:
        asyncio.run(work(live))
