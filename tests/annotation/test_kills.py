"""The annotation server is killed at random moments while annotators answer.

Every client sends a request again, with the same id, until it is acknowledged, as the page does; one answer in twenty
is withdrawn. At the end the database has each answer that was acknowledged and not withdrawn exactly once.
"""

import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx2

from local_bench.annotation.app import COOKIE, csrf_token
from local_bench.annotation.database import AnnotationDatabase
from tests.conftest import ROOT


@dataclass
class Server:
    """The server's process, started again after each kill."""

    command: list[str]
    url: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    def start(self):
        self.process = subprocess.Popen(self.command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.url, new_tokens, _ = json.loads(self.process.stdout.readline())
        self.tokens |= new_tokens

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@dataclass
class Annotator:
    """One client; `acknowledged` are its answers that were not withdrawn, by item and kind."""

    server: Server
    name: str
    rng: random.Random
    acknowledged: dict[tuple[str, str], bool] = field(default_factory=dict)

    def work(self, stop):
        while not stop.is_set():
            self.answer()

    def answer(self):
        (item,) = self.send("GET", "/queue?n=1").json()["items"]
        value, request_id = self.rng.random() < 0.5, f"{self.rng.getrandbits(128):032x}"
        body = {"request_id": request_id, "item_id": item["item_id"], "kind": item["kind"]}
        answer = self.send("POST", "/answer", body | {"values": {"1": {"overall": value}}})
        assert answer.status_code == 200, answer.text
        self.acknowledged[item["item_id"], item["kind"]] = value
        if self.rng.random() < 0.05:
            number = self.send("GET", "/queue?n=1").json()["last"]
            undo = self.send("POST", "/undo", {"number": number})
            assert undo.status_code in (200, 409)  # 409: an earlier copy of the request was carried out
            del self.acknowledged[item["item_id"], item["kind"]]

    def send(self, method, path, body=None):
        token = self.server.tokens[self.name]
        headers, cookies = {"X-CSRF-Token": csrf_token(token)}, {COOKIE: token}
        while True:
            try:
                url = self.server.url + path
                return httpx2.request(method, url, json=body, headers=headers, cookies=cookies, timeout=30)
            except httpx2.TransportError:
                time.sleep(0.05)


def test_no_acknowledged_answer_is_lost_or_doubled(tmp_path):
    rng = random.Random(0)
    command = [sys.executable, "-m", "scripts.bench_annotate", "--serve", str(tmp_path), "--items", "4000"]
    server = Server([*command, "--clients", "3"])
    server.start()
    annotators = [Annotator(server, name, random.Random(name)) for name in sorted(server.tokens)]
    stop = threading.Event()
    with ThreadPoolExecutor() as threads:
        working = [threads.submit(annotator.work, stop) for annotator in annotators]
        for _ in range(4):
            time.sleep(rng.uniform(0.02, 0.6))
            server.kill()
            server.start()
        stop.set()
    server.kill()
    for work in working:
        work.result()
    with AnnotationDatabase(tmp_path / "annotations.sqlite") as database:
        answers = database.answers()
    stored = [((a.annotator, a.item_id, a.kind), a.given.values["1"]["overall"]) for a in answers]
    acknowledged = {(a.name, *key): value for a in annotators for key, value in a.acknowledged.items()}
    assert acknowledged  # how many depends on the machine's load
    assert sorted(stored) == sorted(acknowledged.items())
