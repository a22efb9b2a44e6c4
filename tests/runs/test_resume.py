"""Durability with real components: a run killed at any point is completed by the same command with equal digests."""

import os

import pytest

from local_bench.analysis.digest import digests
from local_bench.runs.rundir import RunDir

from . import answers, rows

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
def command(folder, forked_command):
    """Runs the config in a folder, up to a moment."""

    def run(name, *settings, **more):
        return forked_command(folder, "run", "run.yaml", "--run-dir", name, settings=settings, **more)

    return run


@pytest.fixture(scope="module")
def digest(folder):
    def digests_in(name):
        with RunDir.open(folder / name) as run:
            return digests(run)

    return digests_in


@pytest.fixture(scope="module")
def uninterrupted(command, digest):
    """The digests of an uninterrupted run."""
    ended = command("complete")
    assert ended.returncode == 0, ended.stderr
    assert set(digest("complete")) == {"candidates", "verdicts", "scores", "settlement"}
    return digest("complete")


def test_repeating_the_command_computes_nothing(command, digest, uninterrupted, folder):
    work = "SELECT count(*) AS n FROM meter WHERE phase NOT IN ('idle')"
    before = rows(folder / "complete", work)[0]["n"]
    assert command("complete").returncode == 0
    assert digest("complete") == uninterrupted
    assert rows(folder / "complete", work)[0]["n"] == before


def test_another_batch_order_folder_and_checks_of_the_judge_give_equal_digests(command, digest, uninterrupted):
    assert command("shuffled", "engine.batch_order=shuffle", "judge.canaries=true").returncode == 0
    assert digest("shuffled") == uninterrupted


def test_another_seed_gives_other_digests(command, digest, uninterrupted):
    """The negative control."""
    assert command("seeded", "seed=1").returncode == 0
    other = digest("seeded")
    assert {name for name in other if other[name] != uninterrupted[name]} >= {"candidates", "verdicts", "scores"}


@pytest.mark.parametrize("moment", ["encode", "denoise", "between images", "judge", "ledger write", "settle"])
def test_a_killed_run_continues_with_equal_digests(command, digest, uninterrupted, folder, moment):
    name = moment.replace(" ", "-")
    assert command(name, moment=moment).returncode == -9
    with RunDir.open(folder / name) as run:  # the partial run can be opened
        assert run.store.meta("planned")
    ended = command(name)
    assert ended.returncode == 0, ended.stderr
    assert digest(name) == uninterrupted
    assert {p.name for p in (folder / name).rglob(".*")} == {".lock", ".local-bench-site"}


def test_an_interrupted_run_reports_it_and_continues(command, digest, uninterrupted, folder):
    ended = command("interrupted", moment="interrupt")
    assert ended.returncode == 130
    assert "run the same command again to continue" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert rows(folder / "interrupted", "SELECT ended FROM sessions")[0]["ended"] == "interrupted"
    assert command("interrupted").returncode == 0
    assert digest("interrupted") == uninterrupted


def test_a_killed_judge_server_is_restarted(command, digest, uninterrupted, folder):
    settings = ("judge.transport=served", "judge.in_flight=2")
    ended = command("server-killed", *settings, moment="server", own_server=True)
    assert ended.returncode == 0, ended.stderr
    assert "stopped responding" in ended.stderr
    assert digest("server-killed") | {"verdicts": uninterrupted["verdicts"]} == uninterrupted
    assert answers(folder / "server-killed") == answers(folder / "complete")
    assert rows(folder / "server-killed", "SELECT count(*) AS n FROM meter WHERE phase = 'retry'")[0]["n"] == 1


def test_a_full_disk_is_an_error_and_the_run_continues_with_free_space(command, digest, uninterrupted, folder):
    large = ("models.0.height=256", "models.0.width=256", "suite.limit=2")
    ended = command("full", *large, moment="full disk")
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("local-bench: cannot write full/images/")
    assert "free disk space" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not [p for p in (folder / "full" / "images").rglob("*") if p.name.startswith(".")]
    assert command("full", *large).returncode == 0
    assert command("enough-space", *large).returncode == 0
    assert digest("full") == digest("enough-space")


def test_meter_rows_partition_the_held_time(uninterrupted, folder):
    for session in rows(folder / "complete", "SELECT * FROM sessions"):
        meter = rows(folder / "complete", f"SELECT * FROM meter WHERE session = {session['session']} ORDER BY t0_ns")
        assert [r["t0_ns"] for r in meter] == [0, *(r["t1_ns"] for r in meter[:-1])]
        assert (meter[-1]["t1_ns"], session["ended"]) == (session["held_ns"], "done")
        assert {r["energy_mj"] for r in meter} == {None}  # a CPU has no counter


def test_no_file_of_the_run_directory_contains_a_path_of_this_machine(uninterrupted, folder):
    texts = [p for p in (folder / "complete").rglob("*") if p.suffix in (".yaml", ".json", ".html", ".csv", ".sqlite")]
    assert len(texts) > 5
    for path in texts:
        assert str(folder).encode() not in path.read_bytes(), path
        assert os.environ["LOCAL_BENCH_CACHE"].encode() not in path.read_bytes(), path
