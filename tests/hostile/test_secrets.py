"""Secrets that are planted in the environment, in URLs and in answers of servers are in no file, message or process
list of a run."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from local_bench.cli.main import main
from local_bench.core.environment import variables
from local_bench.judges.vlm.server import ExternalServer, key_from
from tests.hostile.inputs import CONFIG, base, write

KEY = "planted-key-7f3a"
USER = "planted-user-91"


class Echo(BaseHTTPRequestHandler):
    """A server that gives every header of a request back, as a hostile or a careless one could."""

    def _answer(self) -> None:
        body = json.dumps({"error": dict(self.headers), "data": [{"id": "m"}]}).encode()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200 if self.path.endswith("/models") else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}/v1"
        found.shutdown()


def test_no_file_of_a_run_has_a_secret(tmp_path, monkeypatch, server, capfd):
    monkeypatch.chdir(tmp_path)
    base()
    judge = {"card": "tiny-qwen3-vl", "base_url": server, "api_key_env": "LOCAL_BENCH_PLANTED"}
    write("c.yaml", CONFIG | {"judge": judge, "suite": {"name": "servimage", "path": "tasks.jsonl"}})
    for name in variables():
        monkeypatch.setenv(name, os.environ.get(name, ""))  # set back afterwards
    for name in ("LOCAL_BENCH_PLANTED", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCAL_BENCH_DEBUG", "1")
    for command in (["run", "c.yaml", "--run-dir", "run"], ["report", "run"], ["settle", "run"]):
        main(command)
    assert KEY not in "".join(capfd.readouterr())
    found = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert (tmp_path / "run/ledger.sqlite").exists()
    assert not found


def test_a_key_is_removed_in_every_encoding(monkeypatch):
    monkeypatch.setenv("LOCAL_BENCH_PLANTED", KEY)
    key = key_from("LOCAL_BENCH_PLANTED")
    assert isinstance(key, SecretStr)
    server = ExternalServer("http://127.0.0.1:9/v1", key)
    assert KEY not in f"{server} {server!r} {vars(server)}"


@pytest.mark.parametrize(
    "url", [f"http://{USER}:{KEY}@h/v1", f"http://h/v1?key={KEY}", f"http://{USER}@h", f"http://h\n{KEY}"]
)
def test_a_url_with_a_secret_is_refused_and_not_printed(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base()
    write("c.yaml", CONFIG | {"judge": {"card": "tiny-qwen3-vl", "base_url": url}})
    for argv in (["plan", "c.yaml"], ["plan", "run.yaml", "--set", f"judge.base_url={url}"]):
        assert main(argv) == 2
        printed = "".join(capsys.readouterr())
        assert KEY not in printed
        assert USER not in printed
