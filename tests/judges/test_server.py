"""Our own server's life, with a small program in vLLM's place where only the process matters."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from pydantic import SecretStr

from local_bench.core.errors import ConfigError, ServerError
from local_bench.judges.vlm import vllm_process
from local_bench.judges.vlm.client import ExternalServer, ManagedServer
from local_bench.judges.vlm.vllm_process import Child, Engine
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge_factory import external

from .test_caps import answering, serving


def managed(tmp_path, **more):
    engine = Engine(tmp_path / "no-such-model", "float32", max_model_len=8192, images=4)
    return ManagedServer(tmp_path / "server.log", engine, start_timeout_s=120, **more)


def test_a_port_in_use_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_process, "unusable_vllm", lambda _: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"judge.port: {port} is in use"), managed(tmp_path, port=port):
            pass


def refused(url, message, error=ConfigError, *arguments, **options):
    with pytest.raises(error, match=message), ExternalServer(url, *arguments or [None], **options):
        pass


def test_no_server_at_the_url_is_an_error():
    refused("http://127.0.0.1:9/v1", "no judge answers at", ServerError)


@contextmanager
def models_at(reply, status=200):
    """A server whose list of models is `reply`."""
    with serving(models=answering(reply, status)) as (url, _):
        yield url


def listed(*models):
    return json.dumps({"data": list(models)}).encode()


@pytest.mark.parametrize("owner", ["vllm", "somebody", None])
def test_image_ids_are_sent_to_vllm_only(owner):
    with models_at(listed({"id": "qwen", "owned_by": owner})) as url, ExternalServer(url, None) as server:
        assert server.model == "qwen"
        assert server.content_ids == (owner == "vllm")


def test_one_of_several_models_must_be_named_and_served():
    with models_at(listed({"id": "embedder"}, {"id": "qwen3-vl-8b"})) as url:
        with ExternalServer(url, None, "embedder") as server:
            assert server.model == "embedder"
        for name in ("", "c"):
            refused(url, "serves embedder, qwen3-vl-8b: name the one that is the judge", ConfigError, None, name)
    with models_at(listed()) as url:
        refused(url, "serves nothing")


EXPECTED = ("Qwen/Qwen3-VL-8B-Instruct", "Qwen3-VL-8B-Instruct", "qwen3-vl-8b")


@pytest.mark.parametrize(
    ("entry", "is_expected"),
    [
        ({"id": "Qwen/Qwen3-VL-8B-Instruct"}, True),
        ({"id": "qwen3-vl-8b"}, True),
        ({"id": "judge", "root": "/models/Qwen3-VL-8B-Instruct"}, True),
        ({"id": "x", "root": "/hf/hub/models--Qwen--Qwen3-VL-8B-Instruct/snapshots/0c351dd0"}, True),
        ({"id": "llama-3-8b"}, False),
        ({"id": "judge", "root": "/models/Qwen3-VL-8B-Instruct-FP8"}, False),
    ],
)
def test_the_card_s_model_answers_under_any_of_its_names_and_another_must_be_named(entry, is_expected):
    with models_at(listed(entry)) as url:
        if not is_expected:
            message = "which is not Qwen/Qwen3-VL-8B-Instruct: choose the judge's card"
            refused(url, message, ConfigError, None, expected=EXPECTED)
        with ExternalServer(url, None, "" if is_expected else entry["id"], expected=EXPECTED) as server:
            assert server.model == entry["id"]


def test_a_judge_of_a_folder_is_told_by_its_card_s_and_its_folder_s_name(tmp_path, monkeypatch):
    """Such a card accepted any single model."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "local-bench/models/our-judge.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("name: our-judge\nextends: tiny-qwen3-vl\nsource: {folder: ../../tuned/step-900}\n")
    for entry in ({"id": "our-judge"}, {"id": "judge", "root": "/scratch/step-900"}):
        with models_at(listed(entry)) as url, external(JudgeConfig(card="our-judge", base_url=url)) as server:
            assert server.model == entry["id"]
    with models_at(listed({"id": "llama-3-8b"})) as url:
        config = JudgeConfig(card="our-judge", base_url=url)
        with pytest.raises(ConfigError, match="serves llama-3-8b, which is not our-judge"), external(config):
            pass
        with external(config.model_copy(update={"served_model": "llama-3-8b"})) as server:
            assert server.model == "llama-3-8b"


@pytest.mark.parametrize(
    ("reply", "status", "message"),
    [
        *(
            (reply, 200, "no judge answers at")
            for reply in (b"", b"<html>", b"[]", b"1", b'{"data":1}', b'{"data":[1]}')
        ),
        *((reply, 200, "no judge answers at") for reply in (b'{"data":[{}]}', b"[" * 100_000, b"\xff\xfe\xfd")),
        (b"", 401, r"rejects the key \(status 401\)"),
    ],
)
def test_a_server_without_a_list_of_models_is_an_error(reply, status, message):
    with models_at(reply, status) as url:
        refused(url, message, ServerError)


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
    monkeypatch.setattr(vllm_process, "unusable_vllm", lambda _: None)
    servers = [managed(tmp_path) for _ in range(2)]
    for server in servers:
        with pytest.raises(Started), server:
            pass
    (command, environment), (_, again) = started
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert servers[0].base_url == f"http://127.0.0.1:{command[command.index('--port') + 1]}/v1"
    key = environment["VLLM_API_KEY"]
    assert key == servers[0].api_key.get_secret_value()
    assert len(key) >= 32
    assert not [text for text in command if key in text or text in ("--trust-remote-code", "--api-key")]
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
    refused(judge_server.base_url, r"the variable of judge\.api_key_env", ServerError, SecretStr("wrong"))


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


@pytest.mark.parametrize("end", ["its parent has ended", "it is asked to"])
def test_the_guard_ends_the_process_group(end):
    guard = subprocess.Popen(
        [sys.executable, "-m", "local_bench.judges.vlm.guard", sys.executable, "-c", GRANDCHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdout.readline() == b"up\n"
    if end == "its parent has ended":
        guard.stdin.close()  # what the kernel does for a parent that was killed
    else:
        guard.send_signal(signal.SIGTERM)
    guard.wait(30)
    assert _ended(guard.pid)
