"""Unusable file systems and limits are reported before anything is written."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tests.hostile.harness import run
from tests.hostile.inputs import base
from tests.hostile.test_files import finished_run  # noqa: F401


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_reported(number, finished_run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    base(finished_run)

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = Path("own/ledger.sqlite").read_bytes()
    outcome = run(["settle", "own"], statuses=(1,))
    assert not outcome.faults
    assert "does not lock files" in outcome.err
    assert Path("own/ledger.sqlite").read_bytes() == before
    assert run(["digest", "own"], statuses=(0,)).faults == []
