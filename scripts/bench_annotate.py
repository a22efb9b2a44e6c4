"""Measures how long annotators wait for the next item: 20,000 items, 10 annotators at once, beside an empty handler.

    python -m scripts.bench_annotate [--items N] [--clients N] [--requests N] [--json FILE]

The server runs in a process of its own with a real database; every client alternates the next item (`/queue`), the
answer (`/answer`, committed to disk), and a handler that does nothing (`/favicon.ico`). The first and the last tenth of
the items are measured: the database is filled by all annotators in between.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import httpx2

from local_bench.annotation.app import csrf_token
from local_bench.annotation.database import AnnotationDatabase
from local_bench.annotation.protocol import Answer, Item, ItemImage, TaskView, load_protocol
from local_bench.annotation.serve import address_of, listening_socket, serve
from local_bench.annotation.session import Queue, Session, add_people

PER_TASK = 10


def items_of(n: int) -> list[Item]:
    return [Item("pass-fail", f"task-{i // PER_TASK}", (ItemImage(1, f"{i:064x}"),)) for i in range(n)]


def task(name: str) -> TaskView:
    brief = "A poster for a jazz concert: a saxophone in front of a night sky, the title in warm yellow letters. " * 5
    return TaskView(name, "Poster", "Concert poster", brief, (brief[:120],), ("The title is legible",), "f" * 64, ())


def run_server(folder: Path, n: int, clients: int) -> None:
    names = [f"r{i}" for i in range(clients)]
    protocol = load_protocol("pass-fail").model_copy(update={"raters": clients})
    with AnnotationDatabase(folder / "annotations.sqlite", create=True) as database:
        items = items_of(n)
        database.add_items(items)
        tokens = add_people(database, dict.fromkeys(names, "annotator"), "en")
        began = time.perf_counter()
        tasks = {f"task-{i}": task(f"task-{i}") for i in range(n // PER_TASK + 1)}
        session = Session(protocol, Queue(protocol, items, 1, 0.05), database, tasks, lambda sha: b"")
        opened_s = time.perf_counter() - began
        bound = listening_socket("127.0.0.1", 0)
        address = address_of(bound, "127.0.0.1", None)
        serve(session, bound, address, lambda: print(json.dumps([address.base, tokens, opened_s]), flush=True))


async def annotator(url: str, token: str, requests: int, found: dict[str, list[float]]) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        await client.get(f"/a/{token}")
        headers = {"X-CSRF-Token": csrf_token(token)}
        for i in range(requests):
            began = time.perf_counter()
            (item, *_) = (await client.get("/queue?n=1")).json()["items"]
            found["next item"].append(time.perf_counter() - began)
            body = {"request_id": f"{time.time_ns():016x}{i:016x}{token.encode().hex()[:24]}", "elapsed_ms": 900}
            body |= {"item_id": item["item_id"], "kind": item["kind"], "values": {"1": {"overall": i % 3 > 0}}}
            began = time.perf_counter()
            answer = await client.post("/answer", json=body, headers=headers)
            found["answer"].append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            began = time.perf_counter()
            await client.get("/favicon.ico")
            found["empty handler"].append(time.perf_counter() - began)


def measure(url: str, tokens: dict[str, str], requests: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = {"next item": [], "answer": [], "empty handler": []}

    async def everyone() -> None:
        await asyncio.gather(*(annotator(url, token, requests, found) for token in tokens.values()))

    asyncio.run(everyone())
    result = {}
    for name, times in found.items():
        result[name] = {
            "p50_ms": round(1000 * median(times), 2),
            "p95_ms": round(1000 * quantiles(times, n=20)[-1], 2),
            "max_ms": round(1000 * max(times), 2),
            "n": len(times),
        }
    empty = result["empty handler"]["p95_ms"]
    return result | {"p95_over_empty_handler": {name: round(of["p95_ms"] / empty, 1) for name, of in result.items()}}


def fill(path: Path, names: list[str], share: float) -> int:
    """Enter answers of everyone for a share of all items, as if given before."""
    with AnnotationDatabase(path) as database:
        items = sorted(database.items())
        given = Answer({"1": {"overall": True}})
        rows = [
            (
                f"fill-{name}-{i}",
                name,
                item_id,
                "answer",
                json.dumps(given.content),
                900,
                "2026-01-01T00:00:00.000+00:00",
            )
            for i, item_id in enumerate(items[: int(share * len(items))])
            for name in names
        ]
        with database._transaction():
            database._db.executemany(
                "INSERT OR IGNORE INTO answers (request_id, annotator, item_id, kind, content, elapsed_ms, saved_utc)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
        return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--requests", type=int, default=100, help="per client")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        run_server(given.serve, given.items, given.clients)
        return
    result: dict[str, object] = {"n_items": given.items, "n_clients": given.clients}
    tokens: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "scripts.bench_annotate", "--serve", folder]
        command += ["--items", str(given.items), "--clients", str(given.clients)]
        for phase in ("empty database", "nine tenths answered"):
            if phase != "empty database":
                names = sorted(tokens)
                n = fill(Path(folder) / "annotations.sqlite", names, 0.9)
                print(f"{n} answers entered")
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            url, fresh, opened_s = json.loads(server.stdout.readline())
            tokens |= fresh
            try:
                found = measure(url, tokens, given.requests)
            finally:
                server.terminate()
                server.wait()
            result[phase] = found | {"opened_s": round(opened_s, 2)}
            print(phase, json.dumps(result[phase], indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
