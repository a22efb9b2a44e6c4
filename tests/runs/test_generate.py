"""Generation in a run: batch invariance over buckets, workers and resumption; one encoding; memory; failures."""

import json
import multiprocessing
import re
import shutil
import sqlite3
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from local_bench.analysis.digest import digests
from local_bench.core.errors import ConfigError, LedgerError, LocalBenchError, WeightsError
from local_bench.generators import memory
from local_bench.generators.flux import Flux, FluxKontext
from local_bench.generators.registry import FAMILIES, Sampler
from local_bench.generators.sd3 import StableDiffusion3
from local_bench.generators.staged import Staged
from local_bench.models.cards import card, cards
from local_bench.models.weights import resolve
from local_bench.runs import generate as generating
from local_bench.runs.config import JudgeConfig, RunConfig
from local_bench.runs.executors import processes as workers
from local_bench.runs.executors.base import Executor
from local_bench.runs.generate import _Session
from local_bench.runs.rundir import RunDir
from local_bench.runs.work import shards, shared_prompts
from local_bench.runs.worker import PromptEmbeddings, _exclusive
from tests.orders import Recorded, order, write_orders
from tests.small_references import small_references
from tests.stages import run_stages

from . import job, rows

ASPECTS = {"wide": (192, 96), "tall": (90, 200), "square": (150, 150)}
KONTEXT = {"card": "tiny-flux-kontext", "height": 128, "width": 128}
FLUX = {"card": "tiny-flux", "height": 64, "width": 64}


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """Three orders that edit images of three aspects, and one of text alone."""
    folder = tmp_path_factory.mktemp("orders")
    lines = []
    for name, size in ASPECTS.items():
        gradients = (Image.linear_gradient("L"), Image.radial_gradient("L"), Image.linear_gradient("L").rotate(90))
        Image.merge("RGB", gradients).resize(size).save(folder / f"{name}.png")
        mask = Image.new("L", size, 0)
        mask.paste(255, (size[0] // 4, size[1] // 4, size[0] // 2, size[1] // 2))
        mask.save(folder / f"{name}-mask.png")
        lines.append(order(name, ["first", "second"], source_image=f"{name}.png", mask_image=f"{name}-mask.png"))
    lines.append(order("text", ["a boot"]))
    write_orders(folder / "tasks.jsonl", lines)
    return folder


def config(orders: Path, *models, tasks="tasks.jsonl", limit=None, **engine) -> RunConfig:
    return RunConfig(
        name="t",
        suite={"name": "servimage", "path": str(orders / tasks), "limit": limit},
        models=[{"num_inference_steps": 2} | model for model in models],
        metrics=[],
        engine={"device": "cpu"} | engine,
    )


def generate(run_dir: Path, *arguments, progress=None, **more) -> Path:
    """Generate the run of `config(*arguments, **more)`."""
    run_stages(config(*arguments, **more), run_dir, ("generate",), progress)
    return run_dir


def candidates(run_dir: Path) -> list[sqlite3.Row]:
    return rows(run_dir, "SELECT * FROM candidates ORDER BY position")


def digest_of(run_dir: Path) -> str:
    with RunDir.open(run_dir) as run:
        return digests(run)["candidates"]


@pytest.fixture(scope="module")
def kontext(orders, tmp_path_factory):
    """A finished run of an editing model over three aspects."""
    return generate(tmp_path_factory.mktemp("runs") / "kontext", orders, KONTEXT)


def test_each_edit_has_its_sources_aspect_and_equals_the_one_generated_alone(orders, kontext, tmp_path):
    rows = candidates(kontext)
    made = {(r["task_id"], r["deliverable"]): r for r in rows}
    for name, (width, height) in ASPECTS.items():
        with RunDir.open(kontext) as run, Image.open(run.image(made[name, 1]["pixels_sha256"])) as image:
            assert abs(image.width * height / (image.height * width) - 1) < 0.1, (name, image.size)
            assert image.size == (made[name, 1]["width"], made[name, 1]["height"])
        shutil.copy(orders / f"{name}.png", tmp_path)
        write_orders(tmp_path / "tasks.jsonl", [order(name, ["first", "second"], source_image=f"{name}.png")])
        for row in candidates(generate(tmp_path / name, tmp_path, KONTEXT)):
            assert row["pixels_sha256"] == made[name, row["deliverable"]]["pixels_sha256"]
    assert len({r["pixels_sha256"] for r in rows}) == len(rows)


@pytest.mark.parametrize("engine", [{"workers": 2}, {"batch_order": "shuffle"}, {"offload": "always"}])
def test_workers_order_and_offloading_do_not_change_the_digest(orders, kontext, tmp_path, monkeypatch, engine):
    monkeypatch.setattr(workers, "CONTEXT", multiprocessing.get_context("spawn"))  # as outside the tests
    assert digest_of(generate(tmp_path / "other", orders, KONTEXT, **engine)) == digest_of(kontext)
    metered = (
        "SELECT held_ns, sum(t1_ns - t0_ns) AS metered_ns FROM sessions JOIN meter USING (session) GROUP BY session"
    )
    sessions = rows(tmp_path / "other", metered)
    assert len(sessions) == engine.get("workers", 1)
    assert all(row["held_ns"] == row["metered_ns"] for row in sessions)


def test_a_resumed_run_generates_the_rest_and_encodes_no_prompt_again(orders, kontext, tmp_path, monkeypatch):
    real, calls = FluxKontext.decode, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FluxKontext, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / "cut", orders, KONTEXT)
    done = [row["state"] for row in candidates(tmp_path / "cut")].count("done")
    assert 0 < done < 7
    monkeypatch.setattr(FluxKontext, "encode_text", lambda *_: pytest.fail("a prompt was encoded again"))
    assert digest_of(generate(tmp_path / "cut", orders, KONTEXT)) == digest_of(kontext)
    assert not (tmp_path / "cut" / "encoded").exists()


def test_a_prompt_and_a_source_are_encoded_once_for_all_their_images(orders, tmp_path, monkeypatch):
    calls = []
    for name in ("encode_text", "encode_image"):
        real = getattr(FluxKontext, name)
        monkeypatch.setattr(FluxKontext, name, lambda *a, real=real, name=name: calls.append(name) or real(*a))
    run_dir = generate(tmp_path / "one", orders, KONTEXT | {"attempts": 5}, limit=1)
    assert len(candidates(run_dir)) == 10
    assert sorted(calls) == ["encode_image", "encode_text", "encode_text"]


def test_out_of_memory_halves_the_batch_and_is_reported(orders, tmp_path, monkeypatch):
    real, recorded = Staged.denoise, Recorded()

    def denoise(self, items):
        if len(items) > 2:
            raise torch.OutOfMemoryError("no room")
        return real(self, items)

    monkeypatch.setattr(Staged, "denoise", denoise)
    halved = generate(tmp_path / "halved", orders, FLUX | {"batch_size": 4}, progress=recorded)
    two = generate(tmp_path / "two", orders, FLUX | {"batch_size": 2})
    assert {row["batch_size"] for row in candidates(halved)} == {2}
    assert [row["identity"] for row in candidates(halved)] == [row["identity"] for row in candidates(two)]
    assert digest_of(halved) == digest_of(two)
    assert any("out of memory, continuing with batches of 2" in note for note in recorded.notes)


@pytest.mark.parametrize(
    ("error", "leak", "sizes"),
    [
        (torch.OutOfMemoryError("no room"), 0, [2, 2, 2, 4, 4, 4, 4]),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 1e-3,
         [1, 1, 1, 4, 4, 4, 4]),
    ],
    ids=["neutral", "another batch size changes bytes"],
)  # fmt: skip
def test_out_of_memory_within_a_batch_retains_finished_images(orders, tmp_path, monkeypatch, error, leak, sizes):
    """The batch size that follows differs from the probed one, and is probed before it is used. Libraries report some
    failed allocations as plain RuntimeErrors."""
    real, calls, recorded = Staged.denoise, [], Recorded()

    def denoise(self, items):
        calls.append(len(items))
        if len(items) == 4 and calls.count(4) > 4:  # three of the probe, one full batch
            raise error
        latents = real(self, items)
        return latents + leak * latents.mean(0, keepdim=True) if leak and len(items) == 2 else latents

    monkeypatch.setattr(Staged, "denoise", denoise)
    rows = candidates(generate(tmp_path / "run", orders, FLUX | {"batch_size": 4}, progress=recorded))
    assert sorted(row["batch_size"] for row in rows) == sizes
    assert len({row["identity"] for row in rows}) == 7
    assert any("batches of 2 change output bytes on this machine" in note for note in recorded.notes) == bool(leak)


def test_dependent_batch_slots_reduce_the_batch_size_to_1(orders, tmp_path, monkeypatch):
    real, recorded = Flux.denoise, Recorded()
    monkeypatch.setattr(Flux, "denoise", lambda self, items: (x := real(self, items)) + 1e-3 * x.mean(0, keepdim=True))
    rows = candidates(generate(tmp_path / "run", orders, FLUX, progress=recorded))
    assert {row["batch_size"] for row in rows} == {1}
    assert any("change output bytes on this machine" in note for note in recorded.notes)


def test_images_with_non_finite_values_are_unscored(orders, tmp_path, monkeypatch):
    real = Flux.denoise
    monkeypatch.setattr(Flux, "denoise", lambda self, items: real(self, items) * float("nan"))
    ended = run_stages(config(orders, FLUX | {"batch_size": 1}), tmp_path / "run", ("generate",))
    assert (ended.counts.done, ended.n_failed) == (0, 7)


def test_a_lossy_system_has_its_own_name_and_its_own_images(orders, tmp_path):
    small = FLUX | {"num_inference_steps": 4}
    lossy = [small | {"lossy": {"weights": "float8_e4m3fn"}}, small | {"lossy": {"first_block_cache": 0.5}}]
    rows = candidates(generate(tmp_path / "run", orders, small, *lossy, limit=1))
    assert {row["model"] for row in rows} == {"tiny-flux", "tiny-flux+fp8", "tiny-flux+fbc0.5"}
    assert len({row["pixels_sha256"] for row in rows}) == len(rows)
    assert {row["batch_size"] for row in rows if "fbc" in row["model"]} == {1}  # it depends on all images of a batch
    with pytest.raises(ValueError, match="a lossy system must not be named"):
        config(orders, lossy[0] | {"name": "tiny-flux"})


def test_other_numerics_are_refused(orders, kontext, tmp_path):
    """A lost image is not generated again by another torch release, and another thread count is refused."""
    other = shutil.copytree(kontext, tmp_path / "run")
    with pytest.raises(ConfigError, match="threads"):
        generate(other, orders, KONTEXT, threads=2)
    with RunDir.begin(other, config(orders, KONTEXT)) as run:
        run.image(candidates(kontext)[0]["pixels_sha256"]).unlink()
        key = f"numerics:{KONTEXT['card']}"
        run.store.set_meta(key, json.dumps(run.store.json_meta(key) | {"torch": "1.0"}))
    with pytest.raises(LedgerError, match=r"started with other numerics \(torch: 1\.0 then"):
        generate(other, orders, KONTEXT)


@pytest.mark.slow
def test_every_family_gives_equal_bytes_for_all_settings(orders, tmp_path, monkeypatch):
    """All families in one run: uninterrupted, and interrupted and continued by two workers in another order."""
    small_references(monkeypatch.setattr)  # workers have them from tests.forked
    small = {"height": 64, "width": 64, "num_inference_steps": 2}
    models = [{"card": c.name} | small for c in cards().values() if c.role == "generator" and c.source.random]
    assert len(models) == len(FAMILIES)
    rows = candidates(generate(tmp_path / "complete", orders, *models, limit=1))
    assert {row["state"] for row in rows} == {"done"}
    assert len({row["pixels_sha256"] for row in rows}) == len(rows) == 2 * len(FAMILIES)

    real, made = Staged.pixels, []

    def interrupted(self, *arguments):
        made.append(type(self).__name__)
        if made[-1] == "InstructPix2Pix":
            raise KeyboardInterrupt
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Staged, "pixels", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / "other", orders, *models, limit=1)
    assert any(row["state"] == "done" for row in candidates(tmp_path / "other"))
    generate(tmp_path / "other", orders, *models, limit=1, workers=2, batch_order="reverse")
    other = {row["work_id"]: row["pixels_sha256"] for row in candidates(tmp_path / "other")}
    assert {row["model"] for row in rows if other[row["work_id"]] != row["pixels_sha256"]} == set()
    assert digest_of(tmp_path / "other") == digest_of(tmp_path / "complete")


def test_shares_are_even_complete_and_deterministic():
    jobs = [job(f"{i:02}", f"prompt {i % 5}", i, Sampler(64 + 64 * (i % 2), 64, 2)) for i in range(40)]
    shares = shards(jobs, 3)
    assert shares == shards(jobs[::-1], 3)
    assert sorted(job.work_id for share in shares for job in share) == [job.work_id for job in jobs]
    assert max(map(len, shares)) - min(map(len, shares)) <= 4
    for share in shares[1:]:
        assert not {(j.prompt, j.sampler.height) for j in share} & {(j.prompt, j.sampler.height) for j in shares[0]}
    assert len(shards(jobs[:1], 3)) == 1


def test_a_killed_worker_is_an_error_and_nothing_is_lost(orders, kontext, tmp_path, monkeypatch):
    real = Executor.do

    def do(self, *arguments):
        for meter, event in real(self, *arguments):
            if type(event).__name__ == "ImagesFinished" and event.results and meter is self._meters[1]:
                self._children[1].process.kill()
            yield meter, event

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "do", do)
        with pytest.raises(LocalBenchError, match=r"worker 1 on cpu ended unexpectedly \(exit -9\)"):
            generate(tmp_path / "run", orders, KONTEXT, workers=2)
    assert any(row["state"] == "done" for row in candidates(tmp_path / "run"))
    assert digest_of(generate(tmp_path / "run", orders, KONTEXT)) == digest_of(kontext)


@pytest.mark.parametrize("idle", [False, True])
def test_a_killed_worker_leaves_the_models_after_it_generated(orders, tmp_path, monkeypatch, idle):
    real = Executor.do

    def do(self, work, order, *arguments):
        killed = order.label == "killed"
        if killed and idle:
            self._children[1].process.kill()
            self._children[1].process.join()
        for meter, event in real(self, work, order, *arguments):
            if killed and not idle:
                self._children[1].process.kill()
            yield meter, event

    monkeypatch.setattr(Executor, "do", do)
    models = [KONTEXT | {"name": "before"}, KONTEXT | {"name": "killed", "num_inference_steps": 1}, FLUX]
    settings, recorded = config(orders, *models, workers=2), Recorded()
    with pytest.raises(LocalBenchError, match=r"killed: worker 1 on cpu ended unexpectedly \(exit -9\): finished work"):
        run_stages(settings, tmp_path / "run", ("generate",), recorded)
    assert "a model cannot be generated: the models after it are generated first" in recorded.notes
    states = {(row["model"], row["state"]) for row in candidates(tmp_path / "run")}
    assert {("before", "done"), ("killed", "planned"), ("tiny-flux", "done")} <= states
    assert not {("before", "planned"), ("tiny-flux", "planned")} & states


def test_a_batch_is_started_before_the_previous_one_is_committed(orders, tmp_path, monkeypatch):
    real, events = Staged.denoise, []
    monkeypatch.setattr(Staged, "denoise", lambda self, items: events.append("started") or real(self, items))
    commit = _Session._commit
    monkeypatch.setattr(_Session, "_commit", lambda self, *a: events.append("committed") or commit(self, *a))
    generate(tmp_path / "run", orders, FLUX | {"batch_size": 1})
    assert events == ["started", "started", *["committed", "started"] * 5, "committed", "committed"]


@pytest.mark.parametrize("stage", ["load_encoder", "load_denoiser"])
def test_weights_that_do_not_fit_are_an_error_of_their_model(orders, tmp_path, monkeypatch, stage):
    """The models after it are generated, with the memory that it took."""
    faulty, alive = [], []
    real = StableDiffusion3.load_denoiser

    def load(self):
        faulty.append(weakref.ref(self))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.\nGPU 0 has …")

    def load_other(self):
        alive.extend(generator for generator in (reference() for reference in faulty) if generator is not None)
        real(self)

    monkeypatch.setattr(Flux, stage, load)
    monkeypatch.setattr(StableDiffusion3, "load_denoiser", load_other)
    other = FLUX | {"card": "tiny-sd3"}
    with pytest.raises(LocalBenchError, match=r"tiny-flux: memory ran out while its weights were loaded on cpu .*GiB"):
        generate(tmp_path / "run", orders, FLUX, other, limit=1)
    assert {(row["model"], row["state"]) for row in candidates(tmp_path / "run")} == {
        ("tiny-flux", "planned"),
        ("tiny-sd3", "done"),
    }
    assert faulty
    assert not alive


def test_workers_share_the_hosts_memory(orders, tmp_path, monkeypatch):
    def plan(*_, host_gb, **more):
        planned.append(host_gb)
        raise KeyboardInterrupt

    planned = []
    monkeypatch.setattr(memory, "plan_memory", plan)
    monkeypatch.setattr(generating, "device_memory_gb", lambda device: 80.0)
    monkeypatch.setattr(generating, "host_memory_gb", lambda: 64.0)
    for n in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / str(n), orders, FLUX, workers=n, limit=1)
    assert planned == [64.0, 32.0]


def test_workers_load_one_at_a_time_if_host_memory_is_too_small_for_all(orders, tmp_path, monkeypatch):
    real, locks = generating.order_on, []

    def ordered(*a, **k):
        locks.append(k["load_lock"])
        if k["load_lock"] is None:
            raise KeyboardInterrupt  # the continuation of such runs is tested elsewhere
        return real(*a, **k)

    monkeypatch.setattr(generating, "order_on", ordered)
    for n, host_gb in ((1, 1e-9), (2, 64.0)):
        monkeypatch.setattr(generating, "host_memory_gb", lambda host_gb=host_gb: host_gb)
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / str(n), orders, FLUX, workers=n)
    monkeypatch.setattr(generating, "host_memory_gb", lambda: 1e-9)
    run_dir = generate(tmp_path / "locked", orders, FLUX, workers=2)
    assert locks == [None, None, run_dir / ".loading"]
    assert [row["state"] for row in candidates(run_dir)] == ["done"] * 7


def test_exclusive_loading_waits_for_the_previous_worker(tmp_path):
    begun, acquired = threading.Event(), threading.Event()

    def second():
        begun.set()
        with _exclusive(tmp_path / ".loading"):
            acquired.set()

    thread = threading.Thread(target=second)
    with _exclusive(tmp_path / ".loading"):
        thread.start()
        assert begun.wait(10)
        assert not acquired.wait(0.2)
    assert acquired.wait(10)
    thread.join()


def test_encodings_beyond_the_disk_limit_are_computed_in_windows_with_equal_bytes(orders, tmp_path, monkeypatch):
    loads, sizes = [], []
    load, put = Flux.load_encoder, PromptEmbeddings.put
    monkeypatch.setattr(Flux, "load_encoder", lambda self: loads.append(1) or load(self))

    def counted(self, key, encoded):
        written = put(self, key, encoded)
        sizes.append(sum(path.stat().st_size for path in self._folder.rglob("*.safetensors")))
        return written

    monkeypatch.setattr(PromptEmbeddings, "put", counted)
    model = FLUX | {"attempts": 2}
    complete = generate(tmp_path / "complete", orders, model)
    assert len(loads) == 1
    total = max(sizes)
    sizes.clear(), loads.clear()
    for n in (1, 2):
        windows = generate(tmp_path / str(n), orders, model, encodings_gb=1e-9, workers=n)
        assert digest_of(windows) == digest_of(complete)
        assert not (windows / "encoded").exists()
    assert len(loads) == 7  # a window a prompt; workers are processes of their own
    assert max(sizes) < total / 3


def test_a_prompt_or_image_of_two_workers_is_shared():
    def planned(work_id, prompt, *input_images):
        return job(work_id, prompt, 0, Sampler(64, 64, 2), *input_images)

    shares = [[planned("1", "a"), planned("2", "b", "x")]]
    shares.append([planned("3", "a"), planned("4", "c", "x"), planned("5", "d", "y")])
    assert shared_prompts(shares) == {"a", "b", "c"}


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_model_that_cannot_be_loaded_does_not_stop_those_after_it(orders, tmp_path, n_workers):
    """They were not generated, and could not be in this run: a model cannot be removed from it."""
    broken = shutil.copytree(resolve(card("tiny-flux", "generator")), tmp_path / "broken")
    weights = broken / "transformer/diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    del tensors[min(tensors)]
    save_file(tensors, weights, {"format": "pt"})
    models = [FLUX | {"name": "before"}, FLUX | {"name": "broken", "weights": str(broken)}]
    models.append(FLUX | {"name": "after", "num_inference_steps": 3})
    settings = config(orders, *models, limit=2, workers=n_workers)
    recorded = Recorded()
    sentence = rf"{broken} cannot be loaded .its files lack weights of transformer"
    with pytest.raises(WeightsError, match=sentence):
        run_stages(settings, tmp_path / "run", ("generate",), recorded)
    assert any(re.search(sentence, note) for note in recorded.notes)  # at once, not only at the end
    assert "a model cannot be loaded: the models after it are generated first" in recorded.notes
    with RunDir.open(tmp_path / "run") as run:
        assert {row.model for row in run.store.candidates() if row.state == "done"} == {"before", "after"}
        assert {row.model: row.n_planned for row in run.store.progress() if row.n_planned} == {"broken": 4}


def test_a_model_that_does_not_fit_leaves_the_others_judged_and_settled(orders, tmp_path, monkeypatch):
    free = iter([0.0])
    monkeypatch.setattr(generating, "free_memory_gb", lambda device: next(free, 80.0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="small"))
    judge = {"card": "mini-judge", "transport": "local", "canaries": False}
    models = [FLUX | {"name": "large"}, FLUX | {"name": "small", "num_inference_steps": 3}]
    settings = config(orders, *models, limit=1).model_copy(update={"judge": JudgeConfig(**judge)})
    with pytest.raises(ConfigError, match=r"large: it needs .* GB of cpu"):
        run_stages(settings, tmp_path / "run")
    with RunDir.open(tmp_path / "run") as run:
        assert {row.model: row.state for row in run.store.candidates()} == {"large": "planned", "small": "done"}
        decisions = {row.candidate.model: row.decision for row in run.store.outcomes()}
        assert (decisions["large"].accepted, decisions["large"].unscored) == (None, "its image has not been made")
        assert decisions["small"].accepted is not None
        assert {v.work_id for v in run.store.verdicts()} == {row.work_id for row in run.store.candidates("small")}
