"""Annotators in Chromium behind nginx with HTTPS, with the configuration that docs/annotating.md has."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager

import pytest

from local_bench.annotation.database import FILE, AnnotationDatabase
from tests.annotation.conftest import MODELS, make_shop
from tests.annotation.test_browser import chromium
from tests.conftest import ROOT

pytestmark = pytest.mark.browser
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
NAME = "annotate.lab.org"
HOST = "        proxy_set_header Host $host;\n"
RATERS = {"r1": "zh-CN", "r2": "en-US", "r3": "zh-CN", "r4": "en-GB", "r5": "zh-TW"}
"""Annotator -> language of the browser."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def proxy(folder, port, server_port, keeps_host):
    """nginx with the block of the documentation; other names and ports, a certificate of its own."""
    block = re.search(r"```nginx\n(.*?)```", (ROOT / "docs/annotating.md").read_text(), re.DOTALL)[1]
    assert HOST in block
    replaced = {"443": str(port), "8765": str(server_port), "/etc/ssl": str(folder)}
    replaced |= {} if keeps_host else {HOST: ""}
    for old, new in replaced.items():
        block = block.replace(old, new)
    if not (folder / f"{NAME}.pem").exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}",
             "-keyout", f"{folder}/{NAME}.key", "-out", f"{folder}/{NAME}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}{block}}}\n"
    )
    process = subprocess.Popen([NGINX, "-c", str(config), "-p", str(folder), "-e", f"{folder}/error.log"])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def annotation_server(run, port, *options):
    """`local-bench annotate RUN` as a process, stopped as by Ctrl-C; yields what it prints."""
    base = ["--base", f"https://{NAME}:{options[0]}"]
    command = [sys.executable, "-m", "local_bench", "annotate", str(run), "--port", str(port), *base, "--json"]
    with subprocess.Popen([*command, *options[1:]], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


def key_for(rater, sha, field):
    """The score that the rater gives this image."""
    return str(hashlib.sha256(f"{rater} {sha} {field}".encode()).digest()[0] % 6)


async def answer_one(page, rater, pressed):
    """Answer the item on the screen by keyboard."""
    images = await page.eval_on_selector_all(".set button", "all => all.map(one => one.dataset.left.split('/').pop())")
    fields = await page.eval_on_selector_all(
        ".field", "all => all.map(one => [one.closest('.for').dataset.index, one.dataset.field])"
    )
    await page.evaluate("document.querySelector('article').dataset.seen = 1")
    for index, field in fields:
        sha = images[int(index)]
        await page.keyboard.press(key_for(rater, sha, field))
        pressed[rater, sha][field] = int(key_for(rater, sha, field))
    await page.keyboard.press("Enter")
    await page.wait_for_selector("article:not([data-seen]), .finished")


async def answer_until(page, rater, pressed, most=1000):
    while most and await page.query_selector("article"):
        await answer_one(page, rater, pressed)
        most -= 1


@pytest.mark.skipif(NGINX is None, reason="no nginx here: apt-get install nginx-light")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here: apt-get install openssl")
def test_five_raters_behind_https_finish_by_keyboard_across_a_restart(tmp_path):
    """In Chinese and English; the proxy keeps the Host header at first and writes its own after the restart. What is
    stored is what was pressed."""
    shop = make_shop(tmp_path / "run", 6, models=MODELS)
    people = tmp_path / "raters.yaml"
    people.write_text(json.dumps({"annotators": [{"name": rater} for rater in RATERS]}))
    port, server_port = free_port(), free_port()
    first = (port, "--protocol", "scores", "--annotators", str(people), "--repeats", "0.1")
    pressed = defaultdict(dict)

    async def enter(browser, rater, link):
        context = await browser.new_context(
            viewport={"width": 1280, "height": 860}, locale=RATERS[rater], ignore_https_errors=True
        )
        page = await context.new_page()
        page.set_default_timeout(60_000)
        await page.goto(link)
        await page.wait_for_selector("article")
        await page.keyboard.press("Escape")
        language = "zh" if RATERS[rater].startswith("zh") else "en"
        assert await page.get_attribute("html", "lang") == language
        assert ("图像" in await page.inner_text(".field >> nth=0")) == (language == "zh")
        (cookie,) = await context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["domain"]) == (True, True, NAME)
        return page

    async def everyone():
        async with chromium(f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as browser:
            with proxy(tmp_path, port, server_port, keeps_host=True):
                with annotation_server(shop.path, server_port, *first) as printed:
                    links = {one["name"]: one["link"] for one in printed["annotators"]}
                    assert all(link.startswith(f"https://{NAME}:{port}/a/") for link in links.values())
                    pages = {rater: await enter(browser, rater, link) for rater, link in links.items()}
                    await asyncio.gather(*(answer_until(page, rater, pressed, 2) for rater, page in pages.items()))
                await answer_one(pages["r1"], "r1", pressed)  # kept in the browser meanwhile
                assert "1" in await pages["r1"].inner_text("#notice.warn")
            with (
                proxy(tmp_path, port, server_port, keeps_host=False),
                annotation_server(shop.path, server_port, port) as printed,
            ):
                assert printed["protocol"] == "scores"
                assert [one["link"] for one in printed["annotators"]] == [None] * len(RATERS)
                await pages["r1"].wait_for_selector("#notice:not(.warn)")  # it has been sent
                await asyncio.gather(*(answer_until(page, rater, pressed) for rater, page in pages.items()))
                for page in pages.values():
                    assert not await page.query_selector("#notice.warn")

    asyncio.run(everyone())
    with AnnotationDatabase(shop.path / FILE) as database:
        items, answers = database.items(), database.answers()
    assert {one.annotator for one in answers} == set(RATERS)
    assert "repeat" in {one.kind for one in answers}
    stored = {
        (one.annotator, image.pixels_sha256): dict(one.given.values[str(image.deliverable)])
        for one in answers
        for image in items[one.item_id].images
    }
    assert stored == pressed
    n = Counter(one.item_id for one in answers if one.kind == "answer")
    assert set(n) == set(items)
    assert min(n.values()) == 2
    assert sum(n.values()) <= 2 * len(items) + len(RATERS)  # who else had the item on the screen is not stored
    assert {len(scores) for scores in stored.values()} == {2, 3}  # CNS only where there is something to compare with
