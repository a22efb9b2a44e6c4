"""Takes screenshots of the annotation page for every protocol, on the run of `local-bench demo`.

    python -m scripts.show_annotation RUN FOLDER [--chromium PATH]

Writes FOLDER/PROTOCOL.png (1280 x 860), PROTOCOL-tablet.png (Chinese) and lead.png. RUN is copied first.
"""

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright

from local_bench.judges.people.protocol import protocol_files

KEYS = {
    "accept": "ar",
    "pass-fail": "px",
    "pass-fail-criteria": "136",
    "scores": "546",
    "points": "yxy",
    "pairwise": "",
}


async def screenshots(links: dict[str, str], folder: Path, protocol: str, chromium: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        await page.goto(links["me"])
        await page.wait_for_selector("article")
        await page.keyboard.press("Escape")
        for _ in range(40):  # an item with an input image, or several images
            if await page.query_selector(".thumb") or protocol == "pairwise":
                break
            await page.keyboard.press("c")
            await page.keyboard.press("Space")
            await page.keyboard.press("Enter")
            await page.wait_for_timeout(200)
        for key in KEYS.get(protocol, "")[:-1]:
            await page.keyboard.press(key)
            await page.wait_for_timeout(200)
        await page.wait_for_timeout(400)
        await page.screenshot(path=folder / f"{protocol}.png")
        await page.set_viewport_size({"width": 834, "height": 1112})
        await page.select_option("#language", "zh")
        await page.wait_for_selector("html[lang=zh] article")
        await page.wait_for_timeout(400)
        await page.screenshot(path=folder / f"{protocol}-tablet.png")
        await page.select_option("#language", "en")
        await page.wait_for_selector("html[lang=en] article")
        await page.goto(links["lead"])
        await page.set_viewport_size({"width": 1280, "height": 600})
        await page.screenshot(path=folder / "lead.png")
        await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run"
        shutil.copytree(given.run, copy)
        for protocol in protocol_files():
            command = [sys.executable, "-m", "local_bench", "annotate", str(copy), "--protocol", protocol, "--json"]
            server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            text = ""
            while not text.rstrip().endswith("\n}"):
                text += server.stdout.readline()
            links = {one["name"]: one["link"] for one in json.loads(text)["annotators"]}
            try:
                asyncio.run(screenshots(links, given.folder, protocol, given.chromium))
            finally:
                server.send_signal(signal.SIGINT)
                server.wait()
            print(given.folder / f"{protocol}.png")


if __name__ == "__main__":
    main()
