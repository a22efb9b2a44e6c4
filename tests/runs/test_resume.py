"""Durability with real components: a run killed at any point is completed by the same command with equal digests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from local_bench.analysis.digest import digests
from local_bench.runs.rundir import RunDir

from . import answers

CHILD = Path(__file__).with_name("child.py")
CONFIG = """
name: resume
suite: {name: studio, limit: 5}
models:
  - {card: tiny-flux, height: 64, width: 64, num_inference_steps: 2, batch_size: 2}
judge: {card: tiny-qwen3-vl, rubrics: paper, canaries: false}
metrics: [entropy]
acceptance: {brf: 4.0, veq: 3.0}
"""

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume")
    (path / "run.yaml").write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def fork_server(cache):
    """The process that forks another for every command; the small models are in the tests' cache."""
    with subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture(scope="module")
def command(folder, fork_server, judge_server):
    def run(moment, name, *settings, own_server=False):
        external = [] if own_server else ["--set", f"judge.base_url={judge_server.base_url}"]
        more = [text for setting in settings for text in ("--set", setting)]
        arguments = ["run", "run.yaml", "--run-dir", name, "--json", *external, *more]
        env = {"VLLM_API_KEY": judge_server.api_key.get_secret_value()}
        request = {"moment": moment, "arguments": arguments, "cwd": str(folder), "env": env}
        print(json.dumps(request), file=fork_server.stdin, flush=True)
        return SimpleNamespace(**json.loads(fork_server.stdout.readline()))

    return run


@pytest.fixture(scope="module")
def digest(folder):
    def of(name):
        with RunDir.open(folder / name) as run:
            return digests(run)

    return of


@pytest.fixture(scope="module")
def uninterrupted(command, digest):
    """The digests of an uninterrupted run."""
    ended = command("never", "complete")
    assert ended.returncode == 0, ended.stderr
    found = digest("complete")
    assert set(found) == {"candidates", "verdicts", "scores", "settlement"}
    return found


def test_repeating_the_command_computes_nothing(command, digest, uninterrupted, folder):
    def work():
        with RunDir.open(folder / "complete") as run:
            return run.store.rows("SELECT count(*) AS n FROM meter WHERE phase NOT IN ('idle')")[0]["n"]

    before = work()
    assert command("never", "complete").returncode == 0
    assert digest("complete") == uninterrupted
    assert work() == before


def test_another_batch_order_folder_and_checks_of_the_judge_give_equal_digests(command, digest, uninterrupted):
    assert command("never", "shuffled", "engine.batch_order=shuffle", "judge.canaries=true").returncode == 0
    assert digest("shuffled") == uninterrupted


def test_another_seed_gives_other_digests(command, digest, uninterrupted):
    """The negative control."""
    assert command("never", "seeded", "seed=1").returncode == 0
    other = digest("seeded")
    assert other["candidates"] != uninterrupted["candidates"]
    assert other["verdicts"] != uninterrupted["verdicts"]
    assert other["scores"] != uninterrupted["scores"]


@pytest.mark.parametrize("moment", ["encode", "denoise", "between images", "judge", "ledger write", "settle"])
def test_a_killed_run_continues_with_equal_digests(command, digest, uninterrupted, folder, moment):
    name = moment.replace(" ", "-")
    assert command(moment, name).returncode == -9
    with RunDir.open(folder / name) as run:  # the partial run can be opened
        assert run.store.meta("planned")
    ended = command("never", name)
    assert ended.returncode == 0, ended.stderr
    assert digest(name) == uninterrupted
    assert {p.name for p in (folder / name).rglob(".*")} == {".lock", ".local-bench-site"}


def test_an_interrupted_run_reports_it_and_continues(command, digest, uninterrupted, folder):
    ended = command("interrupt", "interrupted")
    assert ended.returncode == 130
    assert "run the same command again to continue" in ended.stderr
    assert "Traceback" not in ended.stderr
    with RunDir.open(folder / "interrupted") as run:
        assert run.store.rows("SELECT ended FROM sessions")[0]["ended"] == "interrupted"
    assert command("never", "interrupted").returncode == 0
    assert digest("interrupted") == uninterrupted


def test_a_killed_judge_server_is_restarted(command, digest, uninterrupted, folder):
    ended = command("server", "server-killed", "judge.transport=served", "judge.in_flight=2", own_server=True)
    assert ended.returncode == 0, ended.stderr
    assert "stopped responding" in ended.stderr
    assert digest("server-killed") | {"verdicts": uninterrupted["verdicts"]} == uninterrupted
    assert answers(folder / "server-killed") == answers(folder / "complete")
    with RunDir.open(folder / "server-killed") as run:
        assert run.store.rows("SELECT count(*) AS n FROM meter WHERE phase = 'retry'")[0]["n"] == 1


def test_a_full_disk_is_an_error_and_the_run_continues_with_free_space(command, digest, uninterrupted, folder):
    large = ("models.0.height=256", "models.0.width=256", "suite.limit=2")
    ended = command("full disk", "full", *large)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("local-bench: cannot write full/images/")
    assert "free disk space" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not [p for p in (folder / "full" / "images").rglob("*") if p.name.startswith(".")]
    assert command("never", "full", *large).returncode == 0
    assert command("never", "enough-space", *large).returncode == 0
    assert digest("full") == digest("enough-space")


def test_meter_rows_partition_the_held_time(uninterrupted, folder):
    with RunDir.open(folder / "complete") as run:
        for session in run.store.rows("SELECT * FROM sessions"):
            rows = run.store.rows("SELECT t0_ns, t1_ns FROM meter WHERE session = ? ORDER BY t0_ns", session["session"])
            assert [r["t0_ns"] for r in rows] == [0, *(r["t1_ns"] for r in rows[:-1])]
            assert rows[-1]["t1_ns"] == session["held_ns"]
            assert session["ended"] == "done"


def test_no_file_of_the_run_directory_contains_a_path_of_this_machine(uninterrupted, folder):
    texts = [p for p in (folder / "complete").rglob("*") if p.suffix in (".yaml", ".json", ".html", ".csv", ".sqlite")]
    assert len(texts) > 5
    for path in texts:
        assert str(folder).encode() not in path.read_bytes(), path
        assert os.environ["LOCAL_BENCH_CACHE"].encode() not in path.read_bytes(), path


def test_images_are_named_by_their_pixels(uninterrupted, folder):
    from local_bench.core.images import pixel_digest

    paths = list((folder / "complete" / "images").rglob("*.png"))
    assert len(paths) == 6
    for path in paths:
        with Image.open(path) as image:
            assert pixel_digest(image) == path.stem
            assert path.parent.name == path.stem[:2]


def test_another_config_in_the_same_folder_is_refused(command, digest, uninterrupted):
    ended = command("never", "complete", "models.0.num_inference_steps=3")
    assert ended.returncode == 2
    assert "models.tiny-flux.num_inference_steps: 2 in the run, 3 now" in ended.stderr
    assert digest("complete") == uninterrupted


def test_a_lost_image_is_generated_again_with_equal_bytes(command, digest, uninterrupted, folder):
    lost = next((folder / "complete" / "images").rglob("*.png"))
    before = lost.read_bytes()
    lost.unlink()
    assert command("never", "complete").returncode == 0
    assert lost.read_bytes() == before
    assert digest("complete") == uninterrupted
