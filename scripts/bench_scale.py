"""Time and memory of planning, settling, digesting and verifying synthetic runs of many candidates.

    python -m scripts.bench_scale [--candidates 17000 1000000] [--steps plan store settle ...]
        [--out benchmarks/scale.json] [--work DIR] [--note TEXT]

A run has four imported models on tasks with one deliverable, each candidate with one metric score, three judge scores
and a decision. `settle` is the first settlement, `again` one that changes nothing, `report` writes the exported tables
and the page. Images are not read; with `--files` each has a file, which `settle` and `again` find by listing folders.
Each step runs in a process of its own; `cpu_s` is its processor time in all threads, memory its peak resident size.
Entries of `--out` for other steps and sizes are kept.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS = ("alpha", "beta", "gamma", "delta")
STEPS = ("plan", "store", "settle", "again", "report", "digest", "root", "verify", "compare")


def _config(folder: Path) -> Any:
    from local_bench.runs.config import RunConfig

    return RunConfig(
        name="scale",
        suite={"name": "servimage", "path": str(folder / "tasks.jsonl")},
        models=[{"card": "tiny-flux", "name": name, "num_inference_steps": i + 1} for i, name in enumerate(MODELS)],
        metrics=["entropy"],
    )


def write_tasks(folder: Path, n: int) -> None:
    """Write a task file for `n` candidates."""
    with (folder / "tasks.jsonl").open("w") as file:
        for i in range(n // len(MODELS)):
            line = {
                "task_id": f"task-{i:07}",
                "category": ("Portrait", "Product", "Digital")[i % 3],
                "price_usd": 5 + i % 90,
                "title": f"Task {i}",
                "brief": "A poster for a mountain hut, at dusk, with one lantern.",
                "deliverables": ["the poster"],
                "evaluation_points": ["It is dusk", "There is one lantern"],
            }
            file.write(json.dumps(line) + "\n")


def plan(folder: Path) -> None:
    from local_bench.runs.plan import make_plan

    planned = make_plan(_config(folder), files=False)
    assert planned.candidates


def store(folder: Path) -> None:
    """Store the plan, then results as a run would have them, and the record of its contents."""
    from local_bench.core.types import Score, digest
    from local_bench.runs.plan import enter_plan, make_plan
    from local_bench.runs.rundir import RunDir
    from local_bench.runs.store.contents import file_digests, record

    config = _config(folder)
    with RunDir.begin(folder / "run", config) as run:
        enter_plan(run, make_plan(config, files=False))
        with run.store.transaction():
            run.store.write(
                """UPDATE candidates SET state = 'done', identity = work_id, pixels_sha256 = work_id, batch_size = 1,
                   truncated = '{}'"""
            )
        for kind, names in (("metric", ("entropy",)), ("judge", ("brf", "cns", "veq"))):
            rows = run.store.rows("SELECT work_id FROM candidates ORDER BY work_id")
            run.store.enter_scores(
                kind,
                (
                    (row["work_id"], Score(name, (int(row["work_id"][k : k + 2], 16) % 11) / 2))
                    for row in rows
                    for k, name in enumerate(names)
                ),
            )
        run.store.set_meta("metric:entropy", json.dumps({"name": digest("entropy")}))
        record(run.store, file_digests(run.path))


def settle(folder: Path) -> None:
    from local_bench.analysis.settlement import accounting
    from local_bench.runs.image_store import ImageStore
    from local_bench.runs.stages import ran

    if not (folder / "run" / "images").exists():
        ImageStore.check = lambda self, store, **_: []  # type: ignore[method-assign]
    with ran(_config(folder), folder / "run", ("settle",)) as run:
        assert accounting(run.store, run.config.settlement).settlements


def again(folder: Path) -> None:
    settle(folder)


def report(folder: Path) -> None:
    """The exports; the pages are measured by `scripts.bench_site`."""
    from local_bench.analysis.settlement import accounting
    from local_bench.report.site.paper import write_exports
    from local_bench.runs.rundir import RunDir

    with RunDir.open(folder / "run") as run:
        write_exports(run, accounting(run.store, run.config.settlement), print)


def files(folder: Path) -> None:
    """A file of one byte for each image."""
    from local_bench.core.images import image_path
    from local_bench.runs.rundir import RunDir

    with RunDir.open(folder / "run") as run:
        for digest in run.store.image_digests():
            path = image_path(run.path / "images", digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")


def digest(folder: Path) -> None:
    from local_bench.analysis.digest import digests
    from local_bench.runs.rundir import RunDir

    with RunDir.open(folder / "run") as run:
        assert digests(run)


def root(folder: Path) -> None:
    from local_bench.runs.rundir import RunDir
    from local_bench.runs.store.contents import root as root_of

    with RunDir.open(folder / "run") as run:
        assert root_of(run.store)


def verify(folder: Path) -> None:
    """All checks of rows; image files do not exist here."""
    from local_bench.runs.rundir import RunDir
    from local_bench.runs.verify import CHECKS

    with RunDir.open(folder / "run") as run:
        for name, check in CHECKS.items():
            if name != "images":
                for _ in zip(check(run), range(20), strict=False):
                    pass


def compare(folder: Path) -> None:
    from local_bench.analysis.compare import compare as compared
    from local_bench.runs.rundir import RunDir

    with RunDir.open(folder / "run") as a, RunDir.open(folder / "run") as b:
        assert compared(a, b, every_pair=True).rows


def _step(name: str, folder: Path) -> None:
    import local_bench.runs.stages  # noqa: F401  # start-up is not what is measured
    from local_bench.core.environment import collect_rarely

    collect_rarely()  # as `local-bench` does

    begun, cpu_begun = time.perf_counter(), time.process_time()
    globals()[name](folder)
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": round(seconds, 2), "cpu_s": round(cpu_s, 2), "peak_mib": round(peak)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[17_000, 1_000_000])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--note", help="a sentence about the measurement, such as what else ran on the machine")
    parser.add_argument("--work", type=Path, help="keep the synthetic runs in this folder")
    parser.add_argument(
        "--files", action="store_true", help="write a file for each image, which takes 4 GB per million"
    )
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        _step(args.step, args.folder)
        return
    results: dict[str, Any] = {"candidates": {}}
    if args.out and args.out.exists():
        results = json.loads(args.out.read_text())
    command = " ".join(["python -m scripts.bench_scale", *sys.argv[1:]])
    results |= {"command": command, "processors": os.cpu_count()}
    results |= {"note": args.note} if args.note else {}
    with tempfile.TemporaryDirectory() as scratch:
        for n in args.candidates:
            folder = (args.work or Path(scratch)) / str(n)
            folder.mkdir(parents=True, exist_ok=True)
            write_tasks(folder, n)
            of: dict[str, Any] = results["candidates"].setdefault(str(n), {})
            for step in args.steps:
                command = [sys.executable, "-m", "scripts.bench_scale", "--step", step, "--folder", str(folder)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                lines = done.stdout.strip().splitlines()
                of[step] = json.loads(lines[-1]) if not done.returncode else {"error": done.stderr[-400:]}
                print(f"{n:>9,} {step:8}{of[step]}", flush=True)
                if step == "store" and args.files:
                    files(folder)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
