"""The judge's child process: what it leaves behind."""

import os
import sys
import tempfile
import time
from pathlib import Path

from local_bench.judges.vlm import vllm_process as module
from local_bench.judges.vlm.vllm_process import _MAX_SOCKET_FOLDER, Child, _temporary_files

WRITES = """
import os, sys, tempfile, time
open(os.path.join(tempfile.gettempdir(), "left"), "w").close()
print(tempfile.gettempdir(), flush=True)
time.sleep(60)
"""


def test_temporary_files_are_removed_with_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(module, "_MAX_SOCKET_FOLDER", 1000)
    (tmp_path / "tmp").mkdir()
    child = Child(tmp_path / "log")
    child.start([sys.executable, "-c", WRITES], os.environ)
    until = time.monotonic() + 60
    while not child.log.read_text().endswith("\n") and time.monotonic() < until:
        time.sleep(0.05)
    (folder,) = (tmp_path / "tmp").iterdir()
    assert child.log.read_text().strip() == str(folder)
    assert [path.name for path in folder.iterdir()] == ["left"]
    child.stop()
    assert not list((tmp_path / "tmp").iterdir())


def test_a_long_folder_for_temporary_files_is_replaced_by_a_short_one(tmp_path, monkeypatch):
    """On clusters TMPDIR has the project, the user and the job in it, and sockets do not fit there."""
    long = tmp_path / "scratch" / "project_0123456789" / "user_abcdefgh" / "slurm_job_12345678"
    long.mkdir(parents=True)
    monkeypatch.setattr(module, "_SHORT", ("/nowhere", "/tmp"))
    for set_to in (str(long), "/tmp"):
        monkeypatch.setattr(tempfile, "tempdir", set_to)
        folder = module._short_scratch()
        assert (folder.parent, folder.stat().st_mode & 0o077) == (Path("/tmp"), 0)
        folder.rmdir()
    assert not list(long.iterdir())


def test_sockets_are_in_another_folder_if_their_paths_are_too_long(tmp_path):
    short, long = tmp_path.parents[-2] / "s", tmp_path / ("n" * _MAX_SOCKET_FOLDER)
    assert _temporary_files(short, {})["VLLM_RPC_BASE_PATH"] == str(short)
    assert _temporary_files(long, {})["VLLM_RPC_BASE_PATH"] == "/tmp"
    assert _temporary_files(short, {"TORCHINDUCTOR_CACHE_DIR": "/c"})["TORCHINDUCTOR_CACHE_DIR"] == "/c"
