"""Secrets that are planted in the environment, in URLs and in answers of servers are in no file, message or process
list of a run."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from local_bench.cli.main import main
from local_bench.judges.vlm.client import ExternalServer, key_from
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


def test_no_file_of_a_run_has_a_secret(tmp_path, monkeypatch, capfd, server):
    monkeypatch.chdir(tmp_path)
    base()
    judge = {"card": "tiny-qwen3-vl", "base_url": server, "api_key_env": "LOCAL_BENCH_PLANTED"}
    write("c.yaml", CONFIG | {"judge": judge, "suite": {"name": "servimage", "path": "tasks.jsonl"}})
    env = dict.fromkeys(("LOCAL_BENCH_PLANTED", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"), KEY)
    for name, value in (env | {"LOCAL_BENCH_CACHE": str(tmp_path / "cache"), "LOCAL_BENCH_DEBUG": "1"}).items():
        monkeypatch.setenv(name, value)
    for command in ("run c.yaml --run-dir run", "report run", "settle run"):
        main(command.split())
    printed = "".join(capfd.readouterr())
    assert KEY not in printed
    assert (tmp_path / "run/ledger.sqlite").exists()
    assert "$" in printed  # of the settlement

    def files_with_the_key():
        return [path.name for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]

    assert not files_with_the_key()
    (tmp_path / "run/log").write_text(f"Authorization: Bearer {KEY}")
    assert files_with_the_key() == ["log"]


def test_a_key_is_removed_in_every_encoding(monkeypatch):
    monkeypatch.setenv("LOCAL_BENCH_PLANTED", KEY)
    key = key_from("LOCAL_BENCH_PLANTED")
    assert isinstance(key, SecretStr)
    server = ExternalServer("http://127.0.0.1:9/v1", key)
    assert KEY not in f"{server} {server!r} {vars(server)}"


@pytest.fixture
def judged_by(tmp_path, monkeypatch, capsys):
    """Plans a config with these settings of the judge, which is refused; what is printed."""
    monkeypatch.chdir(tmp_path)
    base()

    def plan(**judge):
        write("c.yaml", CONFIG | {"judge": {"card": "tiny-qwen3-vl", "base_url": "http://127.0.0.1:9/v1"} | judge})
        assert main(["plan", "c.yaml"]) == 2
        return "".join(capsys.readouterr())

    return plan


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "HOME", "PATH", "HF_TOKEN", "LOCAL_BENCH_", "vllm_api_key"])
def test_a_config_reads_no_other_variable(name, judged_by, monkeypatch):
    monkeypatch.setenv(name, KEY)
    assert KEY not in judged_by(api_key_env=name)


@pytest.mark.parametrize(
    "url", [f"http://{USER}:{KEY}@h/v1", f"http://h/v1?key={KEY}", f"http://{USER}@h", f"http://h\n{KEY}"]
)
def test_a_url_with_a_secret_is_refused_and_not_printed(url, judged_by, capsys):
    printed = judged_by(base_url=url)
    assert main(["plan", "run.yaml", "--set", f"judge.base_url={url}"]) == 2
    printed += "".join(capsys.readouterr())
    assert KEY not in printed
    assert USER not in printed
