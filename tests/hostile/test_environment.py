"""Unusable file systems and limits are reported before anything is written."""

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile.harness import run
from tests.hostile.inputs import CONFIG, base, write


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_reported(number, monkeypatch):
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = Path("own/ledger.sqlite").read_bytes()
    for command in (["settle", "own"], ["annotate", "forget", "own", "r01", "--yes"]):
        outcome = run(command, statuses=(1,))
        assert not outcome.faults
        assert "does not lock files" in outcome.err
    assert Path("own/ledger.sqlite").read_bytes() == before
    assert run(["digest", "own"], statuses=(0,)).faults == []


SIZE = 64 * 1024
GENERATING = {key: value for key, value in CONFIG.items() if key != "judge"}
GENERATING |= {"models": [{"card": "tiny-flux"}], "metrics": []}


@contextmanager
def mounted(folder: Path, free: int) -> Iterator[Path]:
    """A file system of SIZE bytes, of which some are free."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (folder / "fill").write_bytes(b"x" * (SIZE - free))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("free", [0, 4096, SIZE])
def test_a_full_cache_is_reported(free, tmp_path, monkeypatch):
    write("c.yaml", GENERATING)
    with mounted(tmp_path / "small", free) as small:
        monkeypatch.setenv("LOCAL_BENCH_CACHE", str(small / "cache"))
        outcome = run(["generate", "c.yaml", "--run-dir", "new"], statuses=(1,))
        assert not outcome.faults
        assert "No space left on device" in outcome.err
        assert [path for path in small.rglob("*") if path.is_file()] == [small / "fill"]


def test_a_file_in_the_place_of_the_cache_is_reported(tmp_path, monkeypatch):
    write("c.yaml", GENERATING)
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "tasks.jsonl"))
    outcome = run(["generate", "c.yaml", "--run-dir", "new"], statuses=(2,))
    assert not outcome.faults
    assert "Not a directory" in outcome.err


@pytest.mark.parametrize("free", [0, 24, 56])
def test_a_full_disk_leaves_the_exported_tables_as_they_were(free):
    with mounted(Path("own/exports"), free * 1024) as exports:
        outcome = run(["report", "own"], statuses=(1,))
        assert not outcome.faults
        assert outcome.err.count("\n") == 1
        assert [path.name for path in exports.iterdir()] == ["fill"]
