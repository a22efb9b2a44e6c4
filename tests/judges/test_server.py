"""Our own server's life, with a small program in vLLM's place where only the process matters."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from local_bench.core.errors import ConfigError, ServerError
from local_bench.judges.vlm.child import Child
from local_bench.judges.vlm.flags import Engine, vllm_version
from local_bench.judges.vlm.server import ExternalServer, ManagedServer


def managed(tmp_path, **more):
    engine = Engine(tmp_path / "no-such-model", "float32", max_model_len=8192, images=4)
    return ManagedServer(engine, Child(tmp_path / "server.log"), start_timeout_s=120, **more)


def test_a_port_in_use_is_an_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"judge.port: {port} is in use"), managed(tmp_path, port=port):
            pass


def test_no_server_at_the_url_is_an_error():
    with pytest.raises(ServerError, match="no judge answers at"), ExternalServer("http://127.0.0.1:9/v1", None):
        pass


@contextmanager
def models_at(reply, status=200):
    """A server whose list of models is `reply`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/v1"
        finally:
            http.shutdown()
            thread.join()


def listed(*models):
    return json.dumps({"data": list(models)}).encode()


@pytest.mark.parametrize("owner", ["vllm", "somebody", None])
def test_image_ids_are_sent_to_vllm_only(owner):
    with models_at(listed({"id": "qwen", "owned_by": owner})) as url, ExternalServer(url, None) as server:
        assert server.model == "qwen"
        assert server.content_ids == (owner == "vllm")


def test_the_requested_model_must_be_served():
    with models_at(listed({"id": "a"}, {"id": "b"})) as url:
        with ExternalServer(url, None, "b") as server:
            assert server.model == "b"
        with (
            pytest.raises(ConfigError, match=r"serves a, b: name the one that is the judge"),
            ExternalServer(url, None, "c"),
        ):
            pass
    with models_at(listed()) as url, pytest.raises(ConfigError, match="serves nothing"), ExternalServer(url, None):
        pass


EXPECTED = ("Qwen/Qwen3-VL-8B-Instruct", "Qwen3-VL-8B-Instruct", "qwen3-vl-8b")


@pytest.mark.parametrize(
    "entry",
    [
        {"id": "Qwen/Qwen3-VL-8B-Instruct"},
        {"id": "qwen3-vl-8b"},
        {"id": "judge", "root": "/models/Qwen3-VL-8B-Instruct"},
        {"id": "x", "root": "/hf/hub/models--Qwen--Qwen3-VL-8B-Instruct/snapshots/0c351dd0"},
    ],
)
def test_the_card_s_model_answers_under_any_of_its_names(entry):
    with models_at(listed(entry)) as url, ExternalServer(url, None, expected=EXPECTED) as server:
        assert server.model == entry["id"]


@pytest.mark.parametrize("entry", [{"id": "llama-3-8b"}, {"id": "judge", "root": "/models/Qwen3-VL-8B-Instruct-FP8"}])
def test_another_model_than_the_card_s_must_be_named(entry):
    with models_at(listed(entry)) as url:
        with (
            pytest.raises(ConfigError, match=r"which is not Qwen/Qwen3-VL-8B-Instruct: choose the judge's card"),
            ExternalServer(url, None, expected=EXPECTED),
        ):
            pass
        with ExternalServer(url, None, entry["id"], expected=EXPECTED) as server:
            assert server.model == entry["id"]


def test_one_of_several_models_must_be_named():
    with models_at(listed({"id": "embedder"}, {"id": "qwen3-vl-8b"})) as url:
        with pytest.raises(ConfigError, match=r"serves embedder, qwen3-vl-8b: name the one"), ExternalServer(url, None):
            pass


@pytest.mark.parametrize(
    "reply",
    [b"", b"<html>", b"[]", b"1", b'{"data":1}', b'{"data":[1]}', b'{"data":[{}]}', b"[" * 100_000, b"\xff\xfe\xfd"],
)
def test_a_server_without_a_list_of_models_is_an_error(reply):
    with models_at(reply) as url, pytest.raises(ServerError, match="no judge answers at"), ExternalServer(url, None):
        pass


def test_a_server_with_another_key_is_an_error():
    with (
        models_at(b"", 401) as url,
        pytest.raises(ServerError, match=r"rejects the key \(status 401\)"),
        ExternalServer(url, SecretStr("k")),
    ):
        pass


def test_an_external_server_is_not_started():
    with pytest.raises(ServerError, match="start it again, then run the same command again"):
        ExternalServer("http://127.0.0.1:9/v1", None).restart()


class Started(Exception):
    """Instead of a process."""


def test_the_server_is_bound_to_the_loopback_and_its_key_is_not_on_the_command_line(tmp_path, monkeypatch):
    started = []

    def start(self, command, environment, pass_fds=()):
        started.append((list(command), dict(environment)))
        raise Started

    monkeypatch.setattr(Child, "start", start)
    servers = [managed(tmp_path) for _ in range(2)]
    for server in servers:
        with pytest.raises(Started), server:
            pass
    (command, environment), (_, again) = started
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert servers[0].base_url == f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1"
    assert "--trust-remote-code" not in command
    assert "--api-key" not in command
    key = environment["VLLM_API_KEY"]
    assert key == servers[0].api_key.get_secret_value()
    assert len(key) >= 32
    assert not [text for text in command if key in text]
    assert again["VLLM_API_KEY"] != key  # a key of its own for every server


@pytest.mark.server
def test_a_failed_start_reports_the_end_of_the_log(tmp_path):
    server = managed(tmp_path)
    with pytest.raises(ServerError, match=r"ended while starting; the last lines of .*server\.log") as caught, server:
        pass
    assert len(str(caught.value).splitlines()) > 3
    assert not server.alive()


@pytest.mark.server
def test_a_proxy_is_not_used_for_the_judge(judge_server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with ExternalServer(judge_server.base_url, judge_server.api_key) as server:
        assert server.model == "judge"
    with (
        pytest.raises(ServerError, match=r"the variable of judge\.api_key_env"),
        ExternalServer(judge_server.base_url, SecretStr("wrong")),
    ):
        pass


GRANDCHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
"""


def _ended(pgid, seconds=20):
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


def test_the_guard_ends_the_process_group_after_its_parent():
    guard = _guarded()
    guard.stdin.close()  # what the kernel does for a parent that was killed
    guard.wait(30)
    assert _ended(guard.pid)


def test_the_guard_ends_the_process_group_on_request():
    guard = _guarded()
    guard.send_signal(signal.SIGTERM)
    guard.wait(30)
    assert _ended(guard.pid)


def test_the_release_of_vllm_is_known():
    assert vllm_version() == "0.32.0"
