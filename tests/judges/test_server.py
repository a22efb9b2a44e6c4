"""Our own server's life, with a small program in vLLM's place where only the process matters."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from local_bench.core.errors import ConfigError, ServerError
from local_bench.judges.vlm import server as module
from local_bench.judges.vlm.server import ExternalServer, ManagedServer, server_arguments, server_environment


def managed(tmp_path, **more):
    return ManagedServer(
        arguments=lambda port: ["--model", str(tmp_path / "no-such-model"), "--port", str(port)],
        environment=lambda key: server_environment(key, on_gpu=False, batch_invariant=False),
        log=tmp_path / "server.log",
        start_timeout_s=120,
        **more,
    )


def test_a_port_in_use_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"judge.port: {port} is in use"), managed(tmp_path, port=port):
            pass


def test_no_server_at_the_url_is_one_sentence():
    with pytest.raises(ServerError, match="no judge answers at"), ExternalServer("http://127.0.0.1:9/v1", None):
        pass


def test_the_server_is_bound_to_the_loopback_and_its_key_is_not_on_the_command_line(tmp_path):
    arguments = server_arguments(tmp_path, 1234, "float32", on_gpu=False, max_pixels=16384)
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert "--trust-remote-code" not in arguments
    assert "--api-key" not in arguments
    assert server_environment("k", on_gpu=False, batch_invariant=False)["VLLM_API_KEY"] == "k"


@pytest.mark.server
def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path):
    server = managed(tmp_path)
    with pytest.raises(ServerError, match=r"ended while starting; the last lines of .*server\.log") as caught, server:
        pass
    assert len(str(caught.value).splitlines()) > 3
    assert not server.alive()


@pytest.mark.server
def test_a_proxy_of_the_lab_does_not_stand_between_us_and_the_judge(judge_server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with ExternalServer(judge_server.base_url, judge_server.api_key) as server:
        assert server.model == "judge"
    with pytest.raises(ServerError, match=r"check judge\.api_key_env"), ExternalServer(judge_server.base_url, "wrong"):
        pass


GRANDCHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
"""


def _gone(pgid, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(pgid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def _guarded():
    guard = subprocess.Popen(
        [sys.executable, "-m", "local_bench.judges.vlm.guard", sys.executable, "-c", GRANDCHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdout is not None
    assert guard.stdout.readline() == b"up\n"
    return guard


def test_the_guard_ends_the_whole_group_when_its_parent_has_gone():
    guard = _guarded()
    guard.stdin.close()  # what the kernel does for a parent that was killed
    guard.wait(30)
    assert _gone(guard.pid)


def test_the_guard_ends_the_whole_group_when_it_is_told_to():
    guard = _guarded()
    guard.send_signal(signal.SIGTERM)
    guard.wait(30)
    assert _gone(guard.pid)


def test_the_release_of_vllm_is_known():
    assert module.vllm_version() == "0.32.0"
