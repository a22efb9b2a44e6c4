"""The judge's child process: what it leaves behind."""

import os
import sys
import tempfile
import time

from local_bench.judges.vlm.child import _MAX_SOCKET_FOLDER, Child, _temporary_files

WRITES = """
import os, sys, tempfile, time
open(os.path.join(tempfile.gettempdir(), "left"), "w").close()
print(tempfile.gettempdir(), flush=True)
time.sleep(60)
"""


def test_temporary_files_are_removed_with_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
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


def test_sockets_are_in_another_folder_if_their_paths_are_too_long(tmp_path):
    short, long = tmp_path.parents[-2] / "s", tmp_path / ("n" * _MAX_SOCKET_FOLDER)
    assert _temporary_files(short, {})["VLLM_RPC_BASE_PATH"] == str(short)
    assert _temporary_files(long, {})["VLLM_RPC_BASE_PATH"] == tempfile.gettempdir()
    assert _temporary_files(short, {"TORCHINDUCTOR_CACHE_DIR": "/c"})["TORCHINDUCTOR_CACHE_DIR"] == "/c"
