"""The browser in which pages are tested."""

import os
import shutil
from pathlib import Path

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def chromium_path() -> Path:
    """A skip where there is none. Playwright would start its own driver to find one, and that needs libatomic, which a
    bare Debian does not have."""
    if path := shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome"):
        return Path(path)
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache/ms-playwright"))
    installed = sorted(folder.glob("chromium-*/chrome-linux*/chrome"))
    if not installed:
        pytest.skip("no Chromium here: apt-get install chromium, or playwright install chromium")
    return installed[-1]
