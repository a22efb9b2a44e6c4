"""Times commands that load no model, each as a process of its own: the best of N, in seconds.

    scripts/bench_start_up.py [--repeats N]

`plan` is timed on 3 and on 30,000 orders in ServImage's form, written for it, with shipped configs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from local_bench.core.paths import configs_dir

CONFIG = "servimage-flux1-dev.yaml"
PANEL = "servimage-open-weights.yaml"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--repeats", type=int, default=3)
    repeats = asked.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {n: write_orders(folder / f"{n}.jsonl", n) for n in (3, 30_000)}
        lines = {"--help": ["--help"], "models list": ["models", "list"], "doctor": ["doctor"]}
        for n, file in files.items():
            for config in (CONFIG, PANEL):
                arguments = ["plan", str(configs_dir() / "runs" / config), "--set", f"suite.path={file}"]
                lines[f"plan {config}, {n:,} orders"] = [*arguments, "--gpu", "a6000"]
        width = max(map(len, lines))
        for label, arguments in lines.items():
            print(f"{label:{width}}  {min(timed(arguments) for _ in range(repeats)):6.2f} s", flush=True)
    return 0


def write_orders(file: Path, n: int) -> Path:
    """`n` orders with one to three images each."""
    with file.open("w", encoding="utf-8") as out:
        for i in range(n):
            order = {
                "task_id": f"order-{i}",
                "category": ("Product", "Portrait", "Logo", "Poster", "Scene")[i % 5],
                "price_usd": 10 + i % 90,
                "title": f"Order {i}",
                "brief": f"A red boat on a green sea with {i % 17} birds, picture {i}.",
                "deliverables": ["an image"] * (1 + i % 3),
                "evaluation_points": ["The boat is red", "The sea is green", f"There are {i % 17} birds"],
            }
            out.write(json.dumps(order) + "\n")
    return file


def timed(arguments: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "local_bench", *arguments], check=True, capture_output=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    raise SystemExit(main())
