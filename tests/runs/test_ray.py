"""A run on the nodes of a Ray cluster: equal bytes to those of one machine, also when nodes fail."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from local_bench.cli.main import main
from local_bench.core.errors import ConfigError, LocalBenchError
from local_bench.core.types import Message, TimeCharged
from local_bench.models.cards import card
from local_bench.runs.config import RunConfig
from local_bench.runs.executors import ray_executor
from local_bench.runs.executors.ray_cluster import TOKEN_PATH, Cluster, NodeFacts, Slot, fetch_on_nodes
from local_bench.runs.executors.ray_executor import RayExecutor, RayReplica
from local_bench.runs.generate import _Session
from local_bench.runs.plan import enter_plan, make_plan
from local_bench.runs.rundir import RunDir
from tests.orders import Recorded
from tests.runs.test_generate import digest_of
from tests.stages import run_stages

from .local_nodes import LocalNodes

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalNodes(tmp_path_factory.mktemp("ray"), 2) as nodes:
        from ray import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes cannot import the tests
        yield nodes


@pytest.fixture
def two_nodes(cluster):
    cluster.set(2)
    return cluster


def small(address, **more) -> RunConfig:
    size = {"height": 64, "width": 64, "num_inference_steps": 2}
    executor = {"executor": "local" if address is None else "ray", "ray": {"address": address, "wait_s": 600, **more}}
    return RunConfig(
        name="t",
        suite={"name": "printshop", "limit": 2},
        models=[{"card": "tiny-flux", "attempts": 3} | size, {"card": "tiny-sd3"} | size],
        metrics=["piqe", "entropy"],
        judge={"card": "mini-judge", "transport": "local", "canaries": address is not None},
        engine={"device": "cpu"} | executor,
    )


@pytest.fixture(scope="module")
def local_run(tmp_path_factory):
    """A run on this machine."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    run_stages(small(None), folder)
    return folder


# ---- small work items, to test failures of workers


@dataclass(frozen=True)
class Order:
    label: ClassVar[str] = "alpha"
    device: str = ""
    on_node: bool = False


def count(order, share):
    """One event per item, with the time it takes."""
    for item in share:
        time.sleep(0.05)
        yield Message(f"{item} {os.getpid()}")
        yield TimeCharged("denoise", 1, time.monotonic_ns())


def fail(order, share):
    yield Message("0 0")
    raise ZeroDivisionError(f"share of {len(share)}")


class Session:
    """Processes small work items on the cluster."""

    def __init__(self, tmp_path, cluster, **more):
        self.recorded = Recorded()
        config = small(cluster.address, **more)
        self.run = RunDir.begin(tmp_path / "run", config)
        enter_plan(self.run, make_plan(config, self.run.path))
        self.done = []

    def remaining(self, share):
        return [item for item in share if item not in self.done]

    def process(self, work, shares, during=lambda item, pid: None):
        executor = RayExecutor(self.run, self.recorded)
        status = "failed"
        try:
            for meter, event in executor.do(work, Order(), shares, self.remaining):
                if isinstance(event, TimeCharged):
                    meter.charge(event.phase, event.n_items, now_ns=event.now_ns)
                    continue
                item, pid = map(int, event.sentence.split())
                self.done.append(item)
                during(item, pid)
            status = "done"
        finally:
            executor.end(status)
            self.run.store.close()
            os.close(self.run._lock)

    def rows(self, sql):
        with RunDir.open(self.run.path) as run:
            return [tuple(row) for row in run.store.rows(sql)]


def shares(n, of):
    return [list(range(i * of, (i + 1) * of)) for i in range(n)]


def test_every_item_is_processed_once_when_a_worker_is_killed(two_nodes, tmp_path):
    session = Session(tmp_path, two_nodes)
    killed = []

    def during(item, pid):
        if item == 2 and not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    session.process(count, shares(4, 6), during)
    assert sorted(session.done) == list(range(24))
    assert any("was lost" in note for note in session.recorded.notes)
    metered = dict(session.rows("SELECT session, sum(t1_ns - t0_ns) FROM meter GROUP BY session"))
    assert metered == dict(session.rows("SELECT session, held_ns FROM sessions"))
    ended = sorted(ended for (ended,) in session.rows("SELECT ended FROM sessions"))
    assert ended in (["done", "lost"], ["done", "done", "lost"])


def test_a_node_that_leaves_is_replaced_by_one_that_joins(two_nodes, tmp_path):
    two_nodes.set(1)
    session = Session(tmp_path, two_nodes)
    pids = set()

    def during(item, pid):
        pids.add(pid)
        if item == 2:
            two_nodes.kill(0)  # while its worker still works: another node takes seconds to start
            two_nodes.add()

    session.process(count, shares(3, 8), during)
    assert sorted(session.done) == list(range(24))
    assert len(pids) == 2


def test_too_many_lost_workers_end_the_run_and_finished_items_are_stored(two_nodes, tmp_path):
    session = Session(tmp_path, two_nodes, max_losses=1)
    with pytest.raises(LocalBenchError, match=r"2 workers of the Ray cluster were lost .*finished work is kept"):
        session.process(count, shares(4, 6), lambda item, pid: os.kill(pid, signal.SIGKILL))
    assert session.done


def test_a_fault_of_the_work_itself_is_not_repeated(two_nodes, tmp_path):
    session = Session(tmp_path, two_nodes)
    with pytest.raises(LocalBenchError, match=r"alpha: the worker on \S+ failed \(ZeroDivisionError.*, see .*worker-"):
        session.process(fail, shares(1, 2))
    (log,) = (path.read_text() for path in (session.run.path / "logs").glob("worker-*.log"))
    assert "ZeroDivisionError: share of 2" in log


def test_a_lost_head_node_is_reported_before_ray_ends_the_process(two_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_executor, "_WATCH_S", 0.05)
    session = Session(tmp_path, two_nodes)
    executor = RayExecutor(session.run, session.recorded)
    assert executor.cluster.reaches_head()
    time.sleep(0.5)
    assert session.recorded.notes == []
    executor.cluster._head = "127.0.0.1:1"
    until = time.monotonic() + 30
    while not session.recorded.notes and time.monotonic() < until:
        time.sleep(0.05)
    executor.end("done")
    (note,) = session.recorded.notes
    assert "head node of the Ray cluster cannot be reached" in note
    assert "run the same command again" in note


def test_a_cluster_that_the_run_has_closed_is_not_reported_as_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_executor, "_WATCH_S", 0.01)
    executor = object.__new__(RayExecutor)
    executor._ended, executor.progress = threading.Event(), Recorded()
    executor.cluster = SimpleNamespace(reaches_head=executor._ended.set)  # the run ends during the attempt: no answer
    executor._watch_head()
    assert executor.progress.notes == []


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_head_node_is_reached_at_either_kind_of_address(family, host):
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no such address")
    cluster = object.__new__(Cluster)
    with listening:
        cluster._head = f"{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        assert cluster.reaches_head()
    assert not cluster.reaches_head()


def test_work_that_failed_is_not_continued_in_the_next_work(two_nodes, tmp_path):
    """The next model's, whose events would be those of the failed one, or whose order would wait for a busy worker."""
    session = Session(tmp_path, two_nodes)
    executor = RayExecutor(session.run, session.recorded)

    def items(numbers):
        events = executor.do(count, Order(), numbers, lambda share: share)
        return (event.sentence.split() for _, event in events if isinstance(event, Message))

    def fail_with_two_workers():
        pids = set()
        with executor.stage():
            for _, pid in items(shares(2, 200)):
                pids.add(pid)
                if len(pids) == 2:
                    raise LocalBenchError("failed")

    with pytest.raises(LocalBenchError, match="failed"):
        fail_with_two_workers()
    assert sorted(item for item, _ in items([["a", "b"], ["c"]])) == ["a", "b", "c"]
    executor.end("done")


def facts_of(**more):
    facts = {"device": "cpu", "capability": None, "numerics": {"device": "cpu"}, "now_ns": 0, "sees_run": True}
    return NodeFacts(**facts | more)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (facts_of(sees_run=False), "put the run directory on a file system that all nodes share"),
        (facts_of(numerics={"device": "A100"}), "would compute other bytes (device: A100 instead of cpu)"),
        (LocalBenchError("has no torch: install it"), "has no torch: install it"),
    ],
)
def test_unusable_nodes_are_reported_and_excluded(tmp_path, monkeypatch, facts, reason):
    recorded = Recorded()
    monkeypatch.setattr(ray_executor, "Cluster", lambda engine: None)
    with RunDir.begin(tmp_path / "run", small("auto")) as run:
        nodes = RayExecutor(run, recorded)
        first, other = (Slot(node_id, node_id, 0, 1) for node_id in ("node1", "node2"))
        assert nodes.accept(first, facts_of())
        assert not nodes.accept(other, facts)
        assert nodes.refused == {"node2"}
        nodes._ended.set()  # there is no cluster whose head can be lost
        (note,) = recorded.notes
        assert note.startswith("the node node2 is not used: it ")
        assert reason in note


# ---- complete runs


def test_a_run_continued_on_nodes_that_fail_in_each_phase_equals_a_local_run(
    two_nodes, local_run, tmp_path, monkeypatch
):
    """The run directory's path is relative."""
    monkeypatch.chdir(tmp_path)
    failed = []

    def once(what):
        if what not in failed:
            failed.append(what)
            two_nodes.kill(0)  # while its worker still works: another node takes seconds to start
            two_nodes.add()

    real_event, real_charge = RayExecutor._event, RayReplica.charge

    def event(self, *arguments):
        for meter, received in real_event(self, *arguments):
            yield meter, received
            if isinstance(received, TimeCharged) and received.phase in ("denoise", "metric"):
                once(received.phase)

    def charge(self, phase, n_items):
        if n_items:
            once("judge")
        return real_charge(self, phase, n_items)

    commit = _Session._commit

    def interrupt(self, meter, results):
        commit(self, meter, results)
        raise KeyboardInterrupt

    monkeypatch.setattr(RayExecutor, "_event", event)
    monkeypatch.setattr(RayReplica, "charge", charge)
    with pytest.MonkeyPatch.context() as patch:  # started locally, continued on the cluster
        patch.setattr(_Session, "_commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_stages(small(None), Path("run"))
    recorded = Recorded()
    run_stages(small(two_nodes.address), Path("run"), progress=recorded)
    assert failed == ["denoise", "metric", "judge"]
    assert digest_of(tmp_path / "run") == digest_of(local_run)
    with RunDir.open(tmp_path / "run") as run:
        assert not run.image_store.check(run.store, decode=True)
        phases = {row[0] for row in run.store.rows("SELECT DISTINCT phase FROM meter")}
        lost = run.store.rows("SELECT * FROM sessions WHERE ended = 'lost'")
    assert {"load", "encode", "denoise", "metric", "judge"} <= phases
    assert len(lost) >= 2
    assert any("lost" in note or "stopped responding" in note for note in recorded.notes), recorded.notes


def test_models_are_fetched_and_compared_on_every_node(two_nodes, capsys):
    assert main(["models", "fetch", "tiny-flux", "--on-nodes", two_nodes.address, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["nodes"]) == 3  # with the head
    assert {node["weights_sha256"] for node in printed["nodes"]} == {printed["tiny-flux"]["weights_sha256"]}
    (found, *_) = fetch_on_nodes(two_nodes.address, [card("tiny-flux", "generator")], {}, {"tiny-flux": "0" * 64})
    assert found.error == "its files differ from those of this machine: fetch the same commit on both"


# ---- connection


def test_a_wrong_token_is_reported_with_one_sentence(cluster, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_text("b" * 64)
    code = (
        "from local_bench.runs.executors.ray_cluster import Cluster\n"
        "from local_bench.runs.config import EngineConfig\n"
        f"Cluster(EngineConfig(executor='ray', ray={{'address': {cluster.address!r}}}))\n"
    )
    env = os.environ | {TOKEN_PATH: str(wrong)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode
    assert "engine.ray.address: " in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"device": "cuda:1"}, "engine.device: cuda:1 is one GPU of one machine"),
        ({"ray": {"address": "127.0.0.1:1"}}, "engine.ray.address: no Ray cluster can be used at 127.0.0.1:1"),
    ],
)
def test_settings_that_cannot_work_are_refused(cluster, tmp_path, engine, message):
    of_engine = RunConfig(name="t", models=[{"card": "tiny-flux"}], engine={"executor": "ray"} | engine).engine
    with pytest.raises(ConfigError, match=message):
        run_stages(small("auto").model_copy(update={"engine": of_engine}), tmp_path / "run", ("generate",))


def test_a_cluster_without_nodes_ends_the_run_after_the_waiting_time(two_nodes, tmp_path):
    """The last test, because its nodes are not replaced."""
    session = Session(tmp_path, two_nodes, wait_s=3)
    with pytest.raises(LocalBenchError, match="has had no usable node for 3 s"):
        session.process(count, shares(1, 6), lambda item, pid: two_nodes.set(0))
