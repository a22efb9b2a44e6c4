"""The metric phase of a run: continued after a kill; unreadable images are unscored; workers change no score."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest
import torch

from local_bench.analysis.digest import digests
from local_bench.cli.main import main
from local_bench.core.errors import LedgerError, LocalBenchError, PartFailed, WeightsError
from local_bench.judges.metrics import registry
from local_bench.judges.metrics.base import NO_MEMORY
from local_bench.judges.metrics.embeddings import ClipNetwork
from local_bench.models.cards import card
from local_bench.runs import measure
from local_bench.runs.config import EngineConfig, RunConfig
from local_bench.runs.executors.base import Executor
from local_bench.runs.measure import _every
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.runs.work import MetricWorkOrder
from tests.orders import Recorded, noise, order, write_orders
from tests.stages import run_stages
from tests.suites.benchmarks import layouts

from .child import at_call, kill_self

HOST = ["l1_raw", "colorfulness", "ssim"]


@pytest.fixture
def orders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no hub"))
    return EditOrders(tmp_path)


class EditOrders:
    """Orders of edits, with imported images."""

    def __init__(self, root, n=10):
        self.root = root
        for i in range(n):
            noise(root / "sources" / f"t{i}.png", 2 * i, (56, 40))
            noise(root / "made" / f"t{i}.png", 2 * i + 1, (56, 40))
        edit = {"title": "A mug", "brief": "Make it blue."}
        lines = (order(f"t{i}", source_image=f"sources/t{i}.png", **edit) for i in range(n))
        write_orders(root / "tasks.jsonl", lines)

    def run(self, metrics, name="run", stages=("generate", "measure"), require=False, progress=None, **engine):
        config = RunConfig(
            name="t",
            suite={"name": "servimage", "path": "tasks.jsonl"},
            models=[{"card": "imported", "name": "some-api", "imported": {"images": "made"}}],
            metrics=metrics,
            engine={"device": "cpu"} | engine,
        )
        run_stages(config, self.root / name, stages, progress, require_metrics=require)
        with RunDir.open(self.root / name) as done:
            rows = done.store.rows("SELECT * FROM scores ORDER BY work_id, name")
            return [dict(row) for row in rows], digests(done)["scores"]

    def lose_a_score(self, name):
        with RunDir.open(self.root / name) as measured:
            measured.store.write("DELETE FROM scores WHERE work_id = (SELECT min(work_id) FROM scores)")


def test_a_killed_measurement_continues_and_measures_nothing_twice(orders, monkeypatch):
    monkeypatch.setattr("local_bench.judges.metrics.evaluator.PART", 2)
    metrics = [*HOST, "clip_cap:tiny-clip", "clip_src:tiny-clip"]
    complete, digest = orders.run(metrics, "complete")
    assert len(complete) == 50
    assert all(row["value"] is not None for row in complete)
    orders.run(metrics, stages=("generate",))
    for at in (3, 4):
        pid = os.fork()
        if pid == 0:
            at_call(Store, "enter_scores", at, kill_self)
            orders.run(metrics, stages=("measure",))
            os._exit(1)  # not reached
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with RunDir.open(orders.root / "run") as cut:
        (stored,) = cut.store.rows("SELECT count(*) AS n FROM scores")
    assert 0 < stored["n"] < 50
    written, real = [], Store.enter_scores
    monkeypatch.setattr(Store, "enter_scores", lambda store, kind, r: written.extend(r) or real(store, kind, r))
    assert orders.run(metrics, stages=("measure",)) == (complete, digest)
    assert len(written) == 50 - stored["n"]
    written.clear()
    orders.run(metrics, stages=("measure",))
    assert not written


def test_several_workers_give_equal_results(orders):
    metrics = ["l1_raw", "clip_src:tiny-clip"]
    alone, digest = orders.run(metrics, "alone")
    recorded = Recorded()
    assert orders.run(metrics, "two", progress=recorded, workers=2) == (alone, digest)
    assert recorded.done == recorded.begun[-1][1]
    with RunDir.open(orders.root / "two") as two:
        charged = two.store.rows("SELECT session, sum(n_items) AS n FROM meter WHERE phase = 'metric' GROUP BY session")
    assert sorted(row["n"] for row in charged) == [10, 10]


def test_a_killed_worker_ends_the_measurement_and_not_the_phases_after_it(orders, monkeypatch):
    metrics, real = ["l1_raw", "clip_src:tiny-clip"], Executor.do
    complete, digest = orders.run(metrics, "complete")
    orders.run(metrics, stages=("generate",))

    def do(self, *arguments):
        for meter, event in real(self, *arguments):
            self._children[1].process.kill()
            yield meter, event

    monkeypatch.setattr(Executor, "do", do)
    with pytest.raises(LocalBenchError, match=r"measure: worker 1 on cpu ended unexpectedly .*run the same command"):
        orders.run(metrics, stages=("measure", "settle"), workers=2)
    with RunDir.open(orders.root / "run") as run:
        assert all(row.decision for row in run.store.outcomes())
    monkeypatch.setattr(Executor, "do", real)
    assert orders.run(metrics, stages=("measure",), workers=2) == (complete, digest)


def test_a_fault_of_a_worker_ends_the_measurement_whatever_names_it(orders, monkeypatch):
    """On Ray it has the worker's name; nothing would be left out of the next try."""
    tries = iter([PartFailed("it failed", "the worker"), None])
    orders.run(["l1_raw"], stages=("generate",))

    def fail(*arguments):
        raise next(tries) or AssertionError("tried again")

    monkeypatch.setattr(measure, "_measure", fail)
    with pytest.raises(LocalBenchError, match="it failed"):
        orders.run(["l1_raw"], stages=("measure",))


def test_a_metric_without_weights_is_unscored_until_they_exist(orders, monkeypatch):
    recorded = Recorded()
    rows, _ = orders.run(["l1_raw", "clip_src"], progress=recorded)
    assert [r["unscored"] for r in rows if r["name"] == "clip_src"] == [measure.NO_WEIGHTS] * 10
    assert all(r["value"] is not None for r in rows if r["name"] == "l1_raw")
    (note,) = (sentence for sentence in recorded.notes if "clip_src" in sentence)
    assert "clip-vit-l-14-336" in note
    assert "local-bench models fetch clip-vit-l-14-336" in note
    with pytest.raises(WeightsError, match="models fetch clip-vit-l-14-336"):
        orders.run(["l1_raw", "clip_src"], "required", require=True)
    assert not (orders.root / "required").exists()

    monkeypatch.setattr(registry, "metric_card", lambda name: card("tiny-clip", "metric") if "clip" in name else None)
    monkeypatch.setattr(measure, "metric_card", registry.metric_card)
    rows, _ = orders.run(["l1_raw", "clip_src"], stages=("measure",))
    assert all(r["value"] is not None for r in rows)


def test_a_score_for_which_memory_ran_out_is_computed_again(orders, monkeypatch):
    def full(self, prepared):
        raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")

    with monkeypatch.context() as crowded:
        crowded.setattr(ClipNetwork, "run", full)
        rows, _ = orders.run(["l1_raw", "clip_src:tiny-clip"], metric_batch_size=1)
    assert [r["unscored"] for r in rows if "clip" in r["name"]] == [NO_MEMORY] * 10
    again, digest = orders.run(["l1_raw", "clip_src:tiny-clip"], stages=("measure",), metric_batch_size=1)
    assert all(r["value"] is not None for r in again)
    assert orders.run(["l1_raw", "clip_src:tiny-clip"], "undisturbed", metric_batch_size=1) == (again, digest)


def test_a_share_uses_its_own_gpu(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(measure, "_numerics", lambda order: {})
    next(measure.measure_share(MetricWorkOrder(("l1_raw",), EngineConfig(), "cuda:1"), []))
    next(measure.measure_share(MetricWorkOrder(("l1_raw",), EngineConfig(), "cpu"), []))
    assert chosen == ["cuda:1"]


def test_scores_of_another_metric_identity_are_refused(orders, monkeypatch):
    orders.run(["l1_raw"])
    orders.lose_a_score("run")
    real = measure.identity_of
    monkeypatch.setattr(measure, "identity_of", lambda *a: real(*a) | {"preprocessing": "another filter"})
    with pytest.raises(LedgerError, match="l1_raw was measured with other weights or by another release"):
        orders.run(["l1_raw"], stages=("measure",))


def test_a_run_continues_on_another_cpu_except_for_scores_of_networks(orders, monkeypatch):
    formulas, network = ["l1_raw", "ssim", "entropy"], ["clip_src:tiny-clip"]
    for name, metrics in (("pixels", formulas), ("run", network)):
        orders.run(metrics, name)
        orders.lose_a_score(name)
    with RunDir.open(orders.root / "run") as measured_run:
        cpu = measured_run.store.json_meta("metric:clip_src:tiny-clip")["cpu"]
    other = {"capability": "AVX2", "float32": "0" * 16}
    monkeypatch.setattr(measure.numerics, "cpu_arithmetic", lambda: other)
    rows, _ = orders.run(formulas, "pixels")
    assert len(rows) == 30
    with pytest.raises(LedgerError, match="continue on a machine with the same CPU") as caught:
        orders.run(network)
    before = f"clip_src:tiny-clip was measured on a CPU with {cpu['capability']} (float32 {cpu['float32']})"
    assert before in str(caught.value)
    assert "on a CPU with AVX2 (float32 0000000000000000)" in str(caught.value)


def test_only_float32_networks_on_the_cpu_record_its_arithmetic():
    networks = ["clip_src:tiny-clip", "clipiqa:tiny-clipiqa", "face_ref:tiny-faces"]
    formulas = ["ssim", "entropy", "piqe", "pyiqa:gmsd", "brisque:tiny-brisque", "niqe:tiny-niqe"]

    def recording(device):
        return [name for name in networks + formulas if measure.CPU in measure.identity_of(name, device)]

    assert recording("cpu") == networks
    assert recording("cuda:0") == ["face_ref:tiny-faces"]  # faces are found on the CPU


def test_cpu_arithmetic_is_equal_in_every_process_and_changes_with_the_instruction_set():
    code = "from local_bench.generators import numerics; import json; print(json.dumps(numerics.cpu_arithmetic()))"

    def arithmetic(**settings):
        return json.loads(subprocess.check_output([sys.executable, "-c", code], env=os.environ | settings))

    cpu = measure.numerics.cpu_arithmetic()
    assert arithmetic() == cpu
    if cpu["capability"] != "DEFAULT":
        assert arithmetic(ATEN_CPU_CAPABILITY="default")["capability"] == "DEFAULT"
        assert arithmetic(ONEDNN_MAX_CPU_ISA="SSE41")["float32"] != cpu["float32"]  # which the capability does not show


def test_memory_does_not_grow_with_the_number_of_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    orders = EditOrders(tmp_path, n=400)
    orders.run(HOST, stages=("generate",))
    peaks, real = [], Store.enter_scores

    def noted(*arguments):
        real(*arguments)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    monkeypatch.setattr(Store, "enter_scores", noted)
    rows, _ = orders.run(HOST, stages=("measure",))
    assert len(rows) == 1200
    assert peaks[-1] - peaks[2] < 16  # MiB over the last five sixths


def test_prompts_that_clip_cuts_are_counted_for_the_whole_run(orders, capsys):
    lines = [json.loads(line) for line in (orders.root / "tasks.jsonl").read_text().splitlines()]
    long = {"brief": "Make the mug blue and its handle green. " * 15}
    write_orders(orders.root / "tasks.jsonl", [*(line | long for line in lines[:4]), *lines[4:]])
    progress = Recorded()
    orders.run(["clip_cap:tiny-clip", "l1_raw"], progress=progress)
    (note,) = (note for note in progress.notes if "77 tokens" in note)
    assert note.startswith("clip_cap:tiny-clip: 4 of 10 captions have more than 77 tokens")
    assert main(["measure", "run", "--json"]) == 0  # nothing is left to be measured
    cut = json.loads(capsys.readouterr().out)["captions_cut"]
    assert cut == {"clip_cap:tiny-clip": {"n": 10, "n_cut": 4, "max_tokens": 77}}
    assert main(["verify", "run"]) == 0


def test_a_value_outside_its_range_is_unscored_in_a_run(orders, monkeypatch):
    monkeypatch.setattr("local_bench.judges.metrics.pixels.similarity", lambda image, source: 1.5)
    rows, _ = orders.run(["ssim", "l1_raw"])
    ssim = [row for row in rows if row["name"] == "ssim"]
    assert {row["unscored"] for row in ssim} == {"the metric gave a number outside its range, from 0 to 1"}
    assert all(row["value"] is None for row in ssim)
    assert all(row["value"] is not None for row in rows if row["name"] == "l1_raw")


def test_each_item_has_its_own_metrics_mask_and_caption(tmp_path):
    path = layouts.ice(tmp_path / "data")
    for n in range(1, 6):
        layouts.write_image(tmp_path / "made" / f"i{n}.png", 10 + n)
    suite = {"name": "ice-bench", "path": str(path)}
    model = {"card": "imported", "name": "theirs", "imported": {"images": str(tmp_path / "made")}}
    metrics = ["entropy", "l1_raw", "clip_cap:tiny-clip", "colorfulness", "l1_depth:tiny-depth", "clip_ref:tiny-clip"]
    config = RunConfig(name="t", suite=suite, models=[model], metrics=metrics, engine={"device": "cpu"})
    run_stages(config, tmp_path / "run", ("generate",))
    with RunDir.open(tmp_path / "run") as run:
        items = [row["task_id"] for row in run.store.rows("SELECT task_id FROM candidates ORDER BY task_id")]
        selected = dict(zip(items, _every(run), strict=True))
    more = {
        "i1": set(),
        "i2": {"l1_raw"},
        "i3": {"l1_raw"},
        "i4": {"clip_ref:tiny-clip"},
        "i5": {"l1_depth:tiny-depth"},
    }
    of_all = {"entropy", "clip_cap:tiny-clip"}
    assert {item: set(names) - of_all for item, (_, names) in selected.items()} == more
    assert all(of_all <= set(names) for _, names in selected.values())
    subjects = {item: subject for item, (subject, _) in selected.items()}
    assert (subjects["i2"].mask is None, subjects["i3"].mask is None) == (True, False)
    assert subjects["i2"].caption == "A green box."  # the description of the result, not the instruction
    assert (len(subjects["i4"].references), subjects["i4"].source) == (1, None)
