"""Measures the report of a large synthetic run, and its pages in Chromium.

    python -m scripts.bench_site [--tasks 1070] [--models 16] [--side 256] [--json FILE] [--work DIR]

The run has 1 to 4 images per task and model (about 33,000), three scores and a decision each, and four verdicts for
every one. `report --out` is timed the first time and again, each in a process of its own with its peak memory (its own
and that of its largest child process, of which there are two); then Chromium opens the site from the disk: bytes and
time of the first view, time of a filter and of a search, and the renderer's memory. `view` is started twice, without
a site and with the one of the first time: seconds from the start of the command to the link, to the first page (which
says what is computed), to the overview and to the last figure. `--run RUN` measures `view` of an existing run and
nothing else.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

MEASURE = """
import json, resource, sys, time
from pathlib import Path
import local_bench.runs.stages
from local_bench.report.site.build import write_site
from local_bench.runs.rundir import RunDir
if __name__ == "__main__":
    begun = time.perf_counter()
    with RunDir.open(Path(sys.argv[1])) as run:
        write_site([run], Path(sys.argv[2]), 2)
    own, child = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = round(time.perf_counter() - begun, 1)
    print(json.dumps({"seconds": seconds, "peak_mib": round(own), "child_peak_mib": round(child)}))
"""


def _image(job: tuple[str, int, int]) -> str:
    """Store one image with a gradient and some noise, and return its digest."""
    import numpy as np
    from PIL import Image

    from local_bench.core.images import store_image

    folder, seed, side = job
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 1, side)[:, None, None] * rng.integers(0, 255, 3) + rng.integers(0, 40, (side, side, 1))
    return store_image(Path(folder), Image.fromarray(np.clip(ramp + rng.integers(0, 60, 3), 0, 255).astype("uint8")))


def make_run(path: Path, n_tasks: int, n_models: int, side: int) -> int:
    """Write the synthetic run and return the number of its images."""
    from local_bench.core.types import Score, Task, digest
    from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
    from local_bench.runs.rundir import RunDir
    from local_bench.runs.store import Candidate, VerdictRow

    rng = random.Random(1)
    models = [f"model-{i:02}" for i in range(n_models)]
    config = RunConfig(
        name="large",
        suite={"name": "servimage", "path": "tasks.jsonl"},
        models=[ModelConfig(card="tiny-flux", name=name) for name in models],
        judge=JudgeConfig(card="tiny-qwen3-vl"),
        metrics=[],
    )
    tasks = [
        Task(
            task_id=f"task-{i:05}",
            category=("Portrait", "Product", "Digital")[i % 3],
            price_micro_usd=rng.randrange(5, 300) * 1_000_000,
            title=f"Poster {i}",
            brief="A poster for a jazz concert: a saxophone before a night sky, the title in warm yellow letters. " * 4,
            deliverables=tuple(f"image {k}" for k in range(1 + i % 4 if i % 4 < 3 else 2)),
            evaluation_points=("the title is legible", "there is a saxophone", "it is night"),
        )
        for i in range(n_tasks)
    ]
    keys = [(t, m, d) for t in tasks for m in models for d in range(1, len(t.deliverables) + 1)]
    judge = digest({"judge": 1})
    with RunDir.begin(path, config) as run:
        with ProcessPoolExecutor(2) as pool:
            jobs = [(str(run.path / "images"), k, side) for k in range(len(keys))]
            shas = list(pool.map(_image, jobs, chunksize=256))
        rows = []
        for k, ((task, model, deliverable), sha) in enumerate(zip(keys, shas, strict=True)):
            work = {"task": task.task_id, "model": model, "deliverable": deliverable, "attempt": 1}
            work["sampler"] = {"height": side, "width": side}
            made = {"state": "done", "identity": digest([work]), "pixels_sha256": sha, "batch_size": 4}
            rows.append(Candidate.planned(k, model, task.brief, work, **made, truncated_json="{}"))
        run.store.enter_plan(range(len(tasks)), tasks, rows)
        run.store.set_meta("judges", json.dumps({judge: "judge"}))
        scores = {row.work_id: rng.random() for row in rows}
        run.store.enter_scores(
            "judge", ((w, Score(name, round(5 * x, 2))) for w, x in scores.items() for name in ("brf", "veq", "cns"))
        )
        run.store.enter_decisions((w, int(x > 0.4), None, 0) for w, x in sorted(scores.items()))
        raw = '{"evidence": "the title is cut off at the right edge", "met": 1}'
        run.store.enter_verdicts(
            VerdictRow(w, "brf", point, 0, "0" * 64, "1" * 64, judge, '{"met": 1}', None, None, raw)
            for w in scores
            for point in range(4)
        )
    return len(rows)


def view_twice(run: Path, cache: Path) -> dict[str, dict[str, float]]:
    """Seconds of `local-bench view` without and with a site in the cache."""
    shutil.rmtree(cache, ignore_errors=True)
    return {name: _view(run, cache) for name in ("view_first", "view_again")}


def _view(run: Path, cache: Path) -> dict[str, float]:
    begun = time.perf_counter()
    seconds: dict[str, float] = {}

    def get(name: str, path: str) -> str:
        with urlopen(link + path) as response:
            text = response.read().decode()
        seconds[name] = round(time.perf_counter() - begun, 2)
        return str(text)

    environment = os.environ | {"LOCAL_BENCH_CACHE": str(cache)}
    command = [sys.executable, "-m", "local_bench", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        seconds["link_s"] = round(time.perf_counter() - begun, 2)
        get("first_page_s", "")
        while "viewer.js" not in get("overview_s", ""):
            time.sleep(0.05)
        for file in re.findall(r'"file":"([^"]+)"', get("data_s", "data/summary.js")):
            get("figures_s", f"figures/{file}")
        server.send_signal(signal.SIGINT)
    return seconds


def renderer_mib() -> int:
    """Proportional set size of the largest renderer process."""
    found = [0]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (path / "cmdline").read_bytes():
                lines = (path / "smaps_rollup").read_text().splitlines()
                found.append(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) // 1024)
        except OSError:
            continue
    return max(found)


def in_chromium(index: Path, chromium: str) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    folder = index.parent
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        begun = time.perf_counter()
        page.goto(index.as_uri())
        page.wait_for_selector("main table")
        first_s = time.perf_counter() - begun
        n_bytes = sum((folder / url.removeprefix(folder.as_uri() + "/")).stat().st_size for url in set(requested))
        begun = time.perf_counter()
        page.goto(f"{index.as_uri()}#/gallery/0")
        page.wait_for_selector(".card")
        gallery_s = time.perf_counter() - begun
        timed = """async ([name, value]) => {
            const field = document.querySelector(`[name=${name}]`); field.value = value;
            const begun = performance.now(); field.dispatchEvent(new Event("input", {bubbles: true}));
            document.querySelector(".cards").getBoundingClientRect(); return performance.now() - begun; }"""
        filters = [("model", "model-03"), ("decision", "rejected"), ("score", "brf"), ("max", "1.5"), ("sort", "up")]
        filter_ms = [page.evaluate(timed, list(one)) for one in filters]
        page.evaluate("document.querySelector('form.filters').reset()")
        search_ms = [page.evaluate(timed, ["q", text]) for text in ("p", "poster 77", "task-00512", "night")]
        memory = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        renderer = renderer_mib()
        browser.close()
    return {
        "first_view_s": round(first_s, 2),
        "first_view_bytes": n_bytes,
        "gallery_s": round(gallery_s, 2),
        "filter_ms_max": round(max(filter_ms)),
        "search_ms_max": round(max(search_ms)),
        "script_heap_mib": round(memory),
        "renderer_mib": renderer,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1070)
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, help="keep the run and the site in this folder")
    parser.add_argument("--run", type=Path, help="measure `view` of this run only")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.work or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if given.run:
            print(json.dumps(view_twice(given.run, folder / "cache"), indent=2))
            return
        if not (folder / "large" / "run.yaml").exists():
            make_run(folder / "large", given.tasks, given.models, given.side)
        from local_bench.runs.rundir import RunDir

        with RunDir.open(folder / "large") as run:
            result: dict[str, Any] = {"n_images": run.store.counts().done, "n_tasks": given.tasks, "side": given.side}
        script = folder / "measure.py"
        script.write_text(MEASURE)
        shutil.rmtree(folder / "site", ignore_errors=True)
        site = str(folder / "site")
        for name in ("report_first", "report_again"):
            command = [sys.executable, str(script), str(folder / "large"), site]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            result[name] = json.loads(done.stdout)
            print(name, result[name], flush=True)
        result |= view_twice(folder / "large", folder / "cache")
        result |= in_chromium(folder / "site" / "index.html", given.chromium)
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
