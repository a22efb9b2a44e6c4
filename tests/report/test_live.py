"""A run in progress: its progress file, its state, and the page that shows it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from types import SimpleNamespace
from unittest.mock import create_autospec

import pynvml
import pytest
import uvicorn
from starlette.testclient import TestClient

from local_bench.annotation.serve import listening_socket
from local_bench.cli.main import main
from local_bench.core.errors import LedgerError
from local_bench.report.site import build, live
from local_bench.report.site.build import write_site
from local_bench.report.site.live import LiveRun, devices
from local_bench.report.site.mark import MARK
from local_bench.report.site.server import Writing, create_app
from local_bench.runs.progress import FILE, Late, Quiet, Recorded
from local_bench.runs.rundir import RunDir, in_progress, take_lock
from local_bench.runs.store import LEDGER, Store
from tests.annotation.conftest import answer_all, make_shop


@pytest.fixture
def shop(tmp_path):
    return make_shop(tmp_path / "shop", 4)


def test_a_report_of_a_run_that_is_written_meanwhile_says_so(shop, capsys, monkeypatch):
    def after_a_settlement(*args):
        with closing(Store(shop.path / LEDGER, write=True)) as store:
            store.set_meta("note", "changed")
        return write_site(*args)

    said = f"another process was writing {shop.path} meanwhile: the results may be of different states"
    arguments = ["report", str(shop.path)]
    assert main(arguments) == 0
    assert said not in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(build, "write_site", after_a_settlement)
        assert main(arguments) == 0
        assert said in capsys.readouterr().err
    lock = take_lock(shop.path)
    assert main(["export", str(shop.path), "--format", "servimage"]) == 0
    assert said in capsys.readouterr().err
    os.close(lock)
    assert main(arguments) == 0
    assert said not in capsys.readouterr().err


def written(path):
    return json.loads((path / "logs" / FILE).read_text())["phases"]


def test_progress_is_passed_on_and_stored_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(Recorded, "EVERY_S", 0)
    recorder = create_autospec(Quiet, instance=True)
    progress = Recorded(recorder, tmp_path / "logs" / FILE)
    progress.note("hello")
    progress.advance(3)  # before any phase
    progress.begin("flux: make", 10)
    progress.advance(4)
    (first,) = written(tmp_path)
    assert (first["phase"], first["n"], first["total"]) == ("flux: make", 4, 10)
    progress.begin("judge", 2)
    progress.advance()
    assert [(one["phase"], one["n"]) for one in written(tmp_path)] == [("flux: make", 4), ("judge", 1)]
    assert [(name, args) for name, args, _ in recorder.method_calls] == [
        *(("note", ("hello",)), ("advance", (3,)), ("begin", ("flux: make", 10)), ("advance", (4,))),
        *(("begin", ("judge", 2)), ("advance", (1,))),
    ]


def test_the_file_is_written_rarely_and_a_phase_is_shown_once_it_has_lasted(tmp_path, monkeypatch):
    progress = Recorded(Quiet(), tmp_path / "logs" / FILE)
    progress.begin("make", 1000)
    for _ in range(999):
        progress.advance()
    assert written(tmp_path)[0]["n"] < 999
    progress.advance()
    assert written(tmp_path)[0]["n"] == 1000
    progress = Recorded(Quiet(), tmp_path / "logs" / FILE / "in-a-file" / FILE)  # which is not fatal
    progress.begin("make", 1)
    progress.advance()
    shown = create_autospec(Quiet, instance=True)
    progress = Late(shown)
    progress.begin("read", 10)
    progress.advance(3)
    assert shown.method_calls == []
    monkeypatch.setattr(Late, "AFTER_S", 0)
    progress.begin("judge", 2)
    progress.advance(2)
    assert [(name, args) for name, args, _ in shown.method_calls] == [("begin", ("judge", 2)), ("advance", (2,))]


def test_readers_of_the_lock_do_not_block_the_start_of_a_run(shop):
    assert not in_progress(shop.path)
    lock = take_lock(shop.path)
    assert in_progress(shop.path)
    with pytest.raises(LedgerError, match="another local-bench process"):
        take_lock(shop.path)
    os.close(lock)
    assert not in_progress(shop.path)
    assert not in_progress(shop.path.parent)
    stopped = threading.Event()

    def open_page():
        while not stopped.is_set():
            in_progress(shop.path)

    thread = threading.Thread(target=open_page)
    thread.start()
    try:
        for _ in range(200):
            os.close(take_lock(shop.path))
    finally:
        stopped.set()
        thread.join()


def test_the_state_has_phases_counts_and_images_and_notices_newer_results(shop):
    watched = LiveRun(shop.path)
    assert watched.state()["phases"] == []
    data = {"phases": [{"phase": "p", "n": 5, "total": 20, "seconds": 10.0}], "updated_utc": "2026-11-24"}
    (shop.path / "logs").mkdir(exist_ok=True)
    (shop.path / "logs" / FILE).write_text(json.dumps(data))
    state = watched.state()
    assert state["phases"] == [{"phase": "p", "n": 5, "total": 20, "seconds": 10.0, "seconds_left": 30}]
    assert (state["counts"]["done"], state["running"], state["changed"]) == (len(shop.images), False, False)
    data["phases"].append({"phase": "q", "n": 2, "total": 3, "seconds": 8.0})  # the first left a model out
    (shop.path / "logs" / FILE).write_text(json.dumps(data))
    assert [phase["seconds_left"] for phase in watched.state()["phases"]] == [None, 4]
    assert {recent["image"] for recent in state["recent"]} <= set(shop.right)
    for damaged in ("", "[]", "{", '{"phases": [{"phase": "x"}]}', '{"phases": 5, "updated_utc": ""}'):
        (shop.path / "logs" / FILE).write_text(damaged)
        assert watched.state()["phases"] == []

    def settle(*options):
        assert main(["settle", str(shop.path), "--set", "acceptance.brf=3", *options]) == 0

    def measure():
        with RunDir.begin(shop.path, RunDir.open(shop.path).config) as run:
            run.store.write("UPDATE scores SET value = value / 2")

    def annotate():
        answer_all(shop.path, "accept", {"a": "annotator"}, lambda *_: True)

    for act, changes in (settle, False), (lambda: settle("--save"), True), (measure, True), (annotate, True):
        assert not watched.state()["changed"]
        assert not watched.state()["changed"]  # the first look has changed nothing
        act()
        assert watched.state()["changed"] == changes, act
        watched.shown = None


def test_gpu_figures(monkeypatch):
    unknown = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    for name, result in {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=87, memory=3),
        "nvmlDeviceGetPowerUsage": 512_000,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5, total=9, free=4),
    }.items():
        monkeypatch.setattr(live.pynvml, name, create_autospec(getattr(pynvml, name), return_value=result))
    known = {"name": "NVIDIA H200", "utilisation": 0.87, "power_w": 512.0}
    assert devices() == [known | {"memory_used_bytes": 5, "memory_total_bytes": 9}]
    live.pynvml.nvmlDeviceGetPowerUsage.side_effect = unknown
    assert "power_w" not in devices()[0]
    live.pynvml.nvmlInit.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert devices() == []


def test_the_server_gives_only_what_is_below_its_secret(shop, tmp_path):
    calls = []
    with RunDir.open(shop.path) as run:
        site = write_site([run], tmp_path / "site", ready=lambda: None)
        writing = Writing(lambda note, ready: (calls.append(1), ready()))
        app = create_app(site.index.parent, "secret", [LiveRun(run.path)], writing)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            sha = client.get("/secret/live.json").json()["runs"][0]["recent"][0]["image"]
            assert client.get(f"/secret/live/{sha}.png").content == run.image(sha).read_bytes()
            for path in (
                *("/", "/index.html", "/other/", "/secret/../run.yaml", "/secret/%2e%2e/%2e%2e/run.yaml"),
                *("/live.json", "/other/live.json", f"/secret/live/{'0' * 64}.png", "/secret/live/..%2Frun.png"),
            ):
                assert client.get(path).status_code == 404, path
            assert client.get("/secret/live.json", headers={"host": "evil.example"}).status_code == 400
            assert client.get("/secret/refresh").status_code == 404
            assert calls == []
            assert client.post("/secret/refresh").text == "writing"
            wait_until(lambda: not writing.active)
            assert calls == [1]
            assert "connect-src 'self'" in client.get("/secret/").text
            assert client.get("/secret/data/summary.js").status_code == 200
    assert "connect-src" not in write_static(shop, tmp_path).index.read_text()


def wait_until(holds):
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert holds()


def test_the_first_page_waits_for_the_site_and_a_figure_for_its_drawing(tmp_path):
    steps, out = [threading.Event() for _ in range(3)], tmp_path / "site"
    (out / "figures").mkdir(parents=True)
    (out / "index.html").write_text("the index")

    def write(note, ready):
        note("a <step>")
        steps[0].wait()
        ready()
        steps[1].wait()
        (out / "figures" / "revenue.svg").write_text("<svg/>")
        steps[2].wait()
        raise LedgerError("damaged")

    failures = []
    writing = Writing(write, failures.append)
    with TestClient(create_app(out, "secret", [], writing), base_url="http://127.0.0.1") as client:
        writing.start()
        wait_until(lambda: writing.step == "a <step>")
        first = client.get("/secret/").text
        assert "a &lt;step&gt;" in first
        assert 'http-equiv="refresh"' in first
        assert client.post("/secret/refresh").status_code == 409
        steps[0].set()
        wait_until(lambda: writing.step is None)
        assert client.get("/secret/").text == "the index"
        threading.Timer(0.5, steps[1].set).start()
        assert client.get("/secret/figures/revenue.svg").text == "<svg/>"
        steps[2].set()
        wait_until(lambda: failures)
        assert client.get("/secret/figures/none.svg").status_code == 404
        assert "damaged" in client.get("/secret/").text


def served(*arguments):
    """`local-bench view` in a process: the output, and the modules that were loaded when the link was printed."""
    code = (
        "import sys; from local_bench.cli import inspect, main; show = inspect.show\n"
        "def printed(text): show(text); show(','.join(sys.modules)); sys.stdout.flush()\n"
        "inspect.show = printed; sys.exit(main.main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "view", *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_the_link_is_printed_first_and_an_unchanged_site_is_reused(shop, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))

    def view():
        server = served(shop.path, "--port", 0)
        try:
            link, modules = server.stdout.readline().strip(), set(server.stdout.readline().strip().split(","))
            assert not modules & {"torch", "numpy", "matplotlib", "starlette", "local_bench.runs.rundir"}
            began = time.monotonic()
            while b"viewer.js" not in urllib.request.urlopen(link).read():
                assert time.monotonic() < began + 60
                time.sleep(0.1)
            for name in ("cost_quality", "none"):  # the last one is answered when all are drawn
                with suppress(urllib.error.HTTPError):
                    urllib.request.urlopen(f"{link}figures/{name}.svg").read()
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
        (mark,) = (tmp_path / "cache" / "sites").glob(f"*/{MARK}")
        return {path: path.stat().st_mtime_ns for path in mark.parent.rglob("*") if path.is_file()}

    first = view()
    assert view() == first
    with RunDir.begin(shop.path, RunDir.open(shop.path).config) as run:
        run.store.set_meta("note", "changed")
    assert {path.name for path, at in view().items() if first.get(path) != at} >= {"summary.js", MARK}


def test_what_cannot_be_shown_ends_the_command(shop, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["view", str(tmp_path / "empty")]) == 2
    assert main(["view", str(shop.path), str(tmp_path)]) == 2
    (shop.path / "ledger.sqlite").write_bytes(b"damaged" * 1000)
    assert main(["view", str(shop.path), "--port", "0"]) == 1
    assert "ledger.sqlite" in capsys.readouterr().err


def write_static(shop, tmp_path):
    with RunDir.open(shop.path) as run:
        return write_site([run], tmp_path / "static")


@pytest.mark.browser
def test_the_page_shows_the_progress_and_takes_new_results(shop, tmp_path, browser):
    (shop.path / "logs").mkdir(exist_ok=True)
    phases = [{"phase": "zebra: make", "n": 3, "total": 12, "seconds": 6.0}]
    (shop.path / "logs" / FILE).write_text(json.dumps({"phases": phases, "updated_utc": "2026-11-24"}))
    lock, again = take_lock(shop.path), []
    with RunDir.open(shop.path) as run:
        site = write_site([run], tmp_path / "site", ready=lambda: None)
    watched = LiveRun(shop.path, ["an earlier state"])
    with listening_socket("127.0.0.1", 0) as bound:
        writing = Writing(lambda note, ready: (again.append(1), ready()))
        app = create_app(site.index.parent, "secret", [watched], writing)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            messages = []
            page = browser.new_page()
            page.on("console", lambda message: messages.append(message.text))
            page.on("pageerror", lambda error: messages.append(str(error)))
            page.goto(f"http://127.0.0.1:{bound.getsockname()[1]}/secret/")
            box = page.locator("#live")
            box.get_by_text("shop: in progress").wait_for()
            assert box.get_by_role("row", name="zebra: make").locator("td").nth(1).inner_text() == "3 / 12"
            assert "18 s" in box.get_by_role("row", name="zebra: make").inner_text()
            assert box.locator(".recent img").count() > 0
            page.route("**/live.json", lambda route: route.fulfill(status=500, body="no JSON"))
            for _ in range(2):
                page.wait_for_event("response", lambda response: response.status == 500)
            assert "in progress" in box.inner_text()
            page.unroute("**/live.json")
            messages[:] = [message for message in messages if "500" not in message]
            page.get_by_role("button", name="Show the newest results below").click()
            page.wait_for_url("**/secret/")
            wait_until(lambda: again)
            assert again == [1]
            assert messages == []
            page.close()
        finally:
            server.should_exit = True
            thread.join()
            os.close(lock)
