"""Kills the annotation server at random moments while annotators answer, and checks every acknowledged answer.

    python -m scripts.kill_annotation [--kills N] [--clients N] [--seed N] [--json FILE]

Every client sends a request again, with the same id, until it is acknowledged, as the page does; one answer in twenty
is withdrawn. At the end the database must have each answer that was acknowledged and not withdrawn exactly once, with
its values, and no other.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from local_bench.judges.people.app import COOKIE, csrf_token
from local_bench.judges.people.database import AnnotationDatabase


@dataclass
class Server:
    """The server's process, started again after each kill."""

    command: list[str]
    url: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url, fresh, _ = json.loads(self.process.stdout.readline())
        self.tokens |= fresh

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Annotator:
    """One client; `given` are its acknowledged answers that were not withdrawn."""

    server: Server
    name: str
    rng: random.Random
    given: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    """(item, kind) -> (request id, value)"""
    resent: int = 0
    undone: int = 0

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            found = self.send("GET", "/queue?n=1").json()
            (item,) = found["items"]
            value, request_id = self.rng.random() < 0.5, f"{self.rng.getrandbits(128):032x}"
            body = {"request_id": request_id, "item_id": item["item_id"], "kind": item["kind"]}
            answer = self.send("POST", "/answer", body | {"values": {"1": {"overall": value}}})
            assert answer.status_code == 200, answer.text
            self.given[item["item_id"], item["kind"]] = (request_id, value)
            if self.rng.random() < 0.05:
                number = self.send("GET", "/queue?n=1").json()["last"]
                undo = self.send("POST", "/undo", {"number": number})
                assert undo.status_code in (200, 409)  # 409: an earlier copy of the request was carried out
                del self.given[item["item_id"], item["kind"]]
                self.undone += 1

    def send(self, method: str, path: str, body: object = None) -> httpx2.Response:
        while True:
            token = self.server.tokens[self.name]
            try:
                headers, cookies = {"X-CSRF-Token": csrf_token(token)}, {COOKIE: token}
                return httpx2.request(
                    method, self.server.url + path, json=body, headers=headers, cookies=cookies, timeout=30
                )
            except httpx2.TransportError:
                self.resent += 1
                time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "scripts.bench_annotate", "--serve", folder, "--items", "4000"]
        server = Server([*command, "--clients", str(given.clients)])
        server.start()
        clients = [Annotator(server, name, random.Random(f"{given.seed} {name}")) for name in sorted(server.tokens)]
        stop = threading.Event()
        threads = [threading.Thread(target=one.work, args=(stop,)) for one in clients]
        for thread in threads:
            thread.start()
        for _ in range(given.kills):
            time.sleep(rng.uniform(0.02, 0.6))
            server.kill()
            server.start()
        stop.set()
        for thread in threads:
            thread.join()
        server.kill()
        with AnnotationDatabase(Path(folder) / "annotations.sqlite") as database:
            stored = database.answers()
    expected = {
        (one.name, item_id, kind): value for one in clients for (item_id, kind), (_, value) in one.given.items()
    }
    found = {(one.annotator, one.item_id, one.kind): one.given.values["1"]["overall"] for one in stored}
    result = {
        "kills": given.kills,
        "acknowledged": len(expected),
        "withdrawn": sum(one.undone for one in clients),
        "resent_requests": sum(one.resent for one in clients),
        "lost": len(expected.keys() - found.keys()),
        "not_acknowledged_but_stored": len(found.keys() - expected.keys()),
        "doubled": len(stored) - len(found),
        "other_values": sum(found[key] != value for key, value in expected.items() if key in found),
    }
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    if any(result[name] for name in ("lost", "not_acknowledged_but_stored", "doubled", "other_values")):
        sys.exit(1)


if __name__ == "__main__":
    main()
