"""A run directory may be untrusted: nothing is read or written through a link in it."""

import os
from contextlib import contextmanager

import pytest

from local_bench.core.errors import UserError
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir

CONFIG = RunConfig(name="linked", models=[{"card": "tiny-flux"}])
FILES = ("ledger.sqlite", "run.yaml", "provenance.json", ".lock", "ledger.backup.sqlite", "ledger.sqlite-journal")
FOLDERS = ("report", "exports", "images", "inputs", "logs")


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    with RunDir.begin(path, CONFIG):
        pass
    return path


def content(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("name", [*FILES, *FOLDERS, "report/index.html", "images/ab", "logs/judge.log"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_a_run_directory_is_refused_and_not_followed(run_dir, tmp_path, name, dangling):
    outside = tmp_path / "outside"
    outside.mkdir()
    target, link = outside / "target", run_dir / name
    link.parent.mkdir(exist_ok=True)
    if not dangling:
        target.mkdir() if name in (*FOLDERS, "images/ab") else target.touch()
    if link.exists():
        link.rename(target)
    link.symlink_to(target)
    before = content(outside)
    for opened in (lambda: RunDir.begin(run_dir, CONFIG), lambda: RunDir.open(run_dir)):
        with pytest.raises(UserError, match=r"is a symbolic link|it has no run\.yaml"):
            opened()
    assert content(outside) == before


def test_a_folder_that_a_run_in_progress_removes_meanwhile_is_no_fault(run_dir, monkeypatch):
    passing, scandir = run_dir / "encoded", os.scandir

    @contextmanager
    def removed_after_the_listing(folder):
        with scandir(folder) as entries:
            found = list(entries)
        if passing.exists():
            passing.rmdir()
        yield found

    passing.mkdir()
    monkeypatch.setattr(os, "scandir", removed_after_the_listing)
    with RunDir.open(run_dir) as run:
        assert run.config == CONFIG
    assert not passing.exists()


def test_the_run_directory_itself_may_be_reached_through_a_link(run_dir, tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path)
    with RunDir.begin(tmp_path / "runs" / "run", CONFIG), RunDir.open(tmp_path / "runs" / "run") as run:
        assert run.config == CONFIG
