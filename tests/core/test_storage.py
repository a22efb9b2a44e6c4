import errno
import os
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from local_bench.core import files
from local_bench.core.errors import PathError, StorageError
from local_bench.core.files import storage_errors, write_atomic
from local_bench.models.fetch import fill
from local_bench.runs.store import Store


def test_a_write_replaces_the_complete_file(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_files_and_folders_have_the_permissions_that_the_umask_leaves(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "file", b"one")
        files.append(tmp_path / "log", b"one")
        fill(tmp_path / "weights", [])
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"file": 0o666 & ~mask, "log": 0o666 & ~mask, "weights": 0o777 & ~mask}


def test_a_crash_before_the_rename_leaves_the_old_file_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    monkeypatch.setattr(files.os, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    monkeypatch.setattr(files.os, "fdopen", lambda *_: full)
    with pytest.raises(StorageError, match="No space left on device; free disk space"):
        write_atomic(tmp_path / "file", b"x" * 10_000)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        *((number, "free disk space and run") for number in (errno.ENOSPC, errno.EDQUOT)),
        *((number, "fix its permissions and run") for number in (errno.EROFS, errno.EACCES, errno.EPERM)),
        *((errno.EIO, "check the disk and run"), (errno.EFBIG, "free disk space or raise `ulimit -f` and run")),
    ],
)
def test_a_refused_write_has_one_remedy(number, remedy):
    with pytest.raises(StorageError) as refused, storage_errors(Path("run")):
        raise OSError(number, os.strerror(number))
    sentence = f"cannot write run: {os.strerror(number)}; {remedy} the same command again; committed results are kept"
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("pragma", "remedy"), [("query_only = 1", "fix its permissions and"), ("max_page_count = 1", "free disk space and")]
)
def test_a_ledger_that_cannot_be_written_has_one_remedy(tmp_path, pragma, remedy):
    with closing(Store(tmp_path / "ledger.sqlite", create=True, write=True)) as store:
        store.write(f"PRAGMA {pragma}")
        with pytest.raises(StorageError, match=remedy):
            store.set_meta("key", "x" * 100_000)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("I/O error: No space left on device (os error 28)", StorageError),
        ("I/O error: Not a directory (os error 20)", PathError),
        ("header too large", RuntimeError),
    ],
)
def test_errors_of_libraries_in_rust_are_those_of_the_system(text, error):
    with pytest.raises(error), storage_errors(Path("model.safetensors")):
        raise RuntimeError(text)
