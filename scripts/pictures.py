"""Makes the pictures of the documentation from the run of `local-bench demo`.

    python -m scripts.pictures RUN [--out docs] [--protocol NAME …] [--chromium PATH]

Writes the report's pages: site.png (the overview), task.png (one task with the images of all models) and report.png
(the judge compared with ground truth), and annotate.png, 1280 pixels wide with at most 256 colours; with --protocol
only the annotation page of these protocols, as NAME.png. RUN is copied first, so that its annotations are not changed.
"""

import argparse
import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

WIDTH, HEIGHT = 1280, 900
TASK = "print-03"
PROTOCOL = "pass-fail-criteria"
N_ITEMS = 40


def save(page: Page, file: Path) -> None:
    """What the page shows, as a PNG with a palette."""
    page.wait_for_load_state("networkidle")
    image = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size:,} bytes")


@contextmanager
def annotating(run: Path, protocol: str) -> Iterator[str]:
    """The link of an annotator to a server of this protocol."""
    command = [sys.executable, "-m", "local_bench", "annotate", str(run), "--protocol", protocol, "--json"]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        text = "".join(iter(server.stdout.readline, "}\n")) + "}"
        yield next(one["link"] for one in json.loads(text)["annotators"] if one["name"] == "me")
        server.send_signal(signal.SIGINT)


def annotation(page: Page, link: str, pair: bool) -> None:
    """Go to the first item in English with an input image (or to a pair), and answer all questions but the last."""
    page.goto(link)
    page.wait_for_selector("article")
    page.keyboard.press("Escape")  # the guidelines
    for _ in range(N_ITEMS):
        if pair or (page.query_selector(".thumb") and page.inner_text(".brief").isascii()):
            break
        for key in ("c", "Space", "Enter"):  # cannot tell
            page.keyboard.press(key)
        page.wait_for_timeout(200)
    fields = page.locator(".field")
    for i in range(fields.count() - 1):
        fields.nth(i).locator(".option").first.click()
    page.evaluate("document.getElementById('pace').textContent = ''")  # differs from time to time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--protocol", action="append", default=[])
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        run = Path(scratch) / "demo"
        shutil.copytree(given.run, run)
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox", "--disable-gpu"])

        def new_page() -> Page:
            return browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")

        if not given.protocol:
            page = new_page()
            subprocess.run([sys.executable, "-m", "local_bench", "report", str(run)], check=True)
            for name, where in (("site", ""), ("task", f"#/task/0/{TASK}"), ("report", "#/details/0/truth")):
                page.goto("about:blank")
                page.goto(f"{(run / 'report' / 'index.html').as_uri()}{where}")
                page.wait_for_selector("main h2")
                save(page, given.out / f"{name}.png")
            page.close()
        for protocol in given.protocol or [PROTOCOL]:
            with annotating(run, protocol) as link:
                page = new_page()
                annotation(page, link, protocol == "pairwise")
                save(page, given.out / (f"{protocol}.png" if given.protocol else "annotate.png"))
        browser.close()


if __name__ == "__main__":
    main()
