"""Judging through our client against one request at a time, side by side in one process on one server.

    .venv/bin/python scripts/bench_judge.py [--repeats 3] [--out benchmarks/judge.json]

64 questions through our client against the same kind of 64 sent one by one. Wanted: at least 3 times faster. Both ways
alternate; the ratio is of the sums. Seconds are of this machine on this day, ratios are the claim.
"""

import argparse
import asyncio
import functools
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from local_bench.core.cards import card
from local_bench.core.images import pixel_digest
from local_bench.core.nouns import Question
from local_bench.core.quiet import quiet_libraries
from local_bench.core.weights import resolve
from local_bench.generators.numerics import set_determinism
from local_bench.judges.vlm.client import Client
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.server import ManagedServer, server_arguments, server_environment
from local_bench.runs.provenance import versions

N_QUESTIONS = 64
POINTS = ("It is night", "There is a boot", "The ground is white", "Two greens are used")


def questions(rng: np.random.Generator, images: dict[str, Image.Image]) -> list[tuple[int, Question]]:
    """Four questions each about pictures that the server has not seen."""
    asked = []
    for _ in range(N_QUESTIONS // len(POINTS)):
        picture = Image.fromarray(rng.integers(0, 256, (128, 128, 3), dtype=np.uint8))
        sha = pixel_digest(picture)
        images[sha] = picture
        for point in POINTS:
            slots = (("title", "A poster"), ("brief", "A poster for a mountain hut."), ("point", point))
            asked.append((len(asked), Question("brf", 0, (sha,), slots)))
    return asked


def judge(repeats: int) -> dict[str, float | int]:
    described = card("tiny-qwen3-vl", "judge")
    weights = resolve(described)
    spec = JudgeSpec(described.name, "bench", "float32", described.judge_max_pixels, described.patch, 64, 0)
    images: dict[str, Image.Image] = {}
    rng = np.random.default_rng(0)

    @functools.lru_cache(maxsize=64)
    def show(sha256: str) -> str:
        return spec.data_uri(images[sha256])

    async def ask(client: Client) -> float:
        asked = questions(rng, images)
        begun = time.perf_counter()
        found = [verdict async for _, verdict in client.ask(asked)]
        assert len(found) == N_QUESTIONS
        assert all(verdict.answer for verdict in found)
        return time.perf_counter() - begun

    with tempfile.TemporaryDirectory() as folder:
        server = ManagedServer(
            arguments=lambda port: server_arguments(weights, port, "float32", False, described.judge_max_pixels),
            environment=lambda key: server_environment(key, False, False),
            log=Path(folder) / "server.log",
            start_timeout_s=600,
        )
        with server:

            def client(in_flight: int) -> Client:
                return Client(server, lambda q: spec.request(q, server.model, show), in_flight, 300)

            asyncio.run(ask(client(8)))  # grammar and kernels are made at the first use
            one_s = many_s = 0.0
            for _ in range(repeats):
                one_s += asyncio.run(ask(client(1)))
                many_s += asyncio.run(ask(client(32)))
    return {
        "questions": N_QUESTIONS,
        "in_flight": 32,
        "one_by_one_s": round(one_s, 2),
        "ours_s": round(many_s, 2),
        "times_faster": round(one_s / many_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    quiet_libraries()
    set_determinism(1)
    result = {
        "command": "scripts/bench_judge.py",
        "repeats": arguments.repeats,
        "machine": f"{platform.machine()}, CPU",
        "packages": versions(),
        "judge": judge(arguments.repeats),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
