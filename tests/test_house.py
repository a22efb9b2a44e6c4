"""The house as a whole: files of one purpose, nothing that must not stand in it."""

import re
import subprocess
import sys

import pytest

from .conftest import ROOT

SOURCES = sorted((ROOT / "local_bench").rglob("*.py"))


def test_no_file_is_longer_than_400_lines():
    assert not [str(p) for p in SOURCES if len(p.read_text().splitlines()) > 400]


@pytest.mark.parametrize(
    "banned",
    [
        r"pickle\.load",
        r"weights_only=False",
        r"trust_remote_code=True",
        r"shell=True",
        r"(?<![.\w])eval\(",
        r"0\.0\.0\.0",
        r"\| *safe\b",
    ],
)
def test_what_must_not_stand_in_the_house(banned):
    texts = [*SOURCES, *(ROOT / "local_bench").rglob("*.j2")]
    assert not [str(p) for p in texts if re.search(banned, p.read_text())]


def test_the_arrows_point_one_way():
    ended = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "0 broken" in ended.stdout


def test_the_locks_name_no_host_and_hash_everything():
    for kind in ("cpu", "cuda"):
        text = (ROOT / "requirements" / f"{kind}.lock").read_text()
        assert "://" not in text
        pins = re.findall(r"^[a-z0-9._-]+(?:\[[a-z,]+\])?==", text, re.M)
        assert len(pins) > 100
        assert text.count("--hash=sha256:") >= len(pins)


@pytest.mark.xdist_group("together")
def test_groups_reach_the_scheduler(request):
    """Else every worker starts the judge's servers and makes every module's fixtures, and nothing says so."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("tests do not run side by side here")
    assert request.node.nodeid.endswith("@together")
