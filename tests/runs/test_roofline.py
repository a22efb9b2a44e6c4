"""No accepted timing is below its floor, and no floor is above the computed operations."""

import json
from dataclasses import replace

import pytest
import torch
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit import calculate_dimensions
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from local_bench.core.errors import LedgerError
from local_bench.generators.registry import Sampler, traits
from local_bench.models.cards import card
from local_bench.models.gpus import gpu
from local_bench.runs import roofline as floors
from local_bench.runs.config import LossyConfig, RunConfig
from local_bench.runs.roofline import (
    Timing,
    _kind,
    generated_kinds,
    impossible_timings,
    operations,
    peak_flop_per_s,
    store_operations,
    timing,
)
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import BusyTime, Store
from local_bench.runs.work import WorkOrder
from local_bench.runs.worker import Worker
from scripts.count_flops import count_modules, sizes
from tests.orders import order, write_orders
from tests.stages import run_stages

from . import plain_order

H100, H200, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
S = 1_000_000_000
PFLOP = 10**15


# ---- figures


def test_figures_follow_from_the_sums():
    three = Timing(3, 3, 6 * S, (H100,), flop=3 * PFLOP, least_flop=3 * PFLOP, peak_flop_per_s=790e12)
    assert three.seconds_per_image == pytest.approx(2)
    assert three.floor_s_per_image == pytest.approx(1000 / 790)
    assert three.times_floor == pytest.approx(2 * 0.79)
    assert three.utilisation == pytest.approx(1 / (2 * 0.79))
    unknown = replace(three, peak_flop_per_s=None)
    assert (unknown.floor_s, unknown.times_floor) == (None, None)
    nothing = Timing(0, 0, 0, ())
    figures = (nothing.seconds_per_image, nothing.flop_per_image, nothing.floor_s_per_image, nothing.utilisation)
    assert figures == (None, None, None, None)


def test_peak_rates_are_weighted_by_the_time_of_their_devices():
    assert peak_flop_per_s([BusyTime(H100, 3 * S, 1), BusyTime(A100, S, 1)]) == pytest.approx((3 * 790e12 + 312e12) / 4)
    assert peak_flop_per_s([BusyTime(H100, 0, 1)]) == 790e12
    assert peak_flop_per_s([BusyTime(H100, S, 1), BusyTime("cpu", S, 1)]) is None
    assert peak_flop_per_s([]) is None


# ---- from a ledger


@pytest.fixture
def store(tmp_path):
    """Two images of 1 PFLOP and one of 4 by `flux`, which took 8 s on an H100: their floor is 7.6 s."""
    store = Store(tmp_path / "ledger.sqlite", create=True)
    store.write("INSERT INTO tasks VALUES ('t', 0, 'c', 1, '{}', NULL)")
    for i, side in enumerate((512, 512, 1024)):
        store.write(
            """INSERT INTO candidates (work_id, position, task_id, deliverable, model, attempt, prompt, work, seed,
               height, width, state) VALUES (?, ?, 't', ?, 'flux', 1, 'p', '{"pictures": []}', 0, ?, ?, 'done')""",
            *(f"w{i}", i, i, side, side),
        )
    noted(store)
    session(store, H100, ("denoise", 7, 3), ("decode", 1, 3))
    return store


def noted(store, times=1, **more):
    kinds = {
        f"{side}x{side}": {"flop": times * flop, "least_flop": times * flop, "planned_batch_size": 1}
        for side, flop in ((512, PFLOP), (1024, 4 * PFLOP))
    }
    store.set_meta("operations:flux", json.dumps({"kinds": kinds} | more))


def session(store, device, *rows, model="flux"):
    number = store.rows("SELECT count(*) + 1 AS n FROM sessions")[0]["n"]
    store.write("INSERT INTO sessions VALUES (?, 'then', ?, 0, 'done')", number, device)
    at = 0
    for phase, seconds, n in rows:
        row = (number, at, at + int(seconds * S), phase, model, n)
        store.write("INSERT INTO meter VALUES (?, ?, ?, ?, ?, ?, NULL)", *row)
        at += int(seconds * S)


def change(store, factor):
    store.write("UPDATE meter SET t1_ns = t0_ns + (t1_ns - t0_ns) * ? / 100", factor)


def test_a_run_is_compared_with_the_lower_bound_of_its_images(store):
    assert timing(store, "flux").floor_s == pytest.approx(6000 / 790)
    assert impossible_timings(store) == []
    change(store, 94)
    assert impossible_timings(store) == [
        "flux: its 3 images were denoised and decoded in 7.52 s, but their operations take at least 7.59 s on "
        f"{H100}: the clock, the device's name or the model is wrong."
    ]


def test_long_and_short_impossible_times_have_no_exponent(store):
    change(store, 1e-5)
    assert "decoded in 0.0000008 s, but" in impossible_timings(store)[0]
    noted(store, 10**6)
    change(store, 10**9)
    assert "decoded in 8 s, but their operations take at least 7,590,000 s on" in impossible_timings(store)[0]


def test_denoising_and_decoding_of_this_model_on_all_devices_count(store):
    change(store, 50)  # 4 s here
    session(store, H100, ("load", 100, 0), ("warm-up", 100, 0), ("encode", 100, 3), ("retry", 100, 0))
    session(store, H100, ("denoise", 100, 9), ("decode", 100, 9), model="other")
    assert impossible_timings(store)
    session(store, H200, ("denoise", 3.7, 0))
    assert impossible_timings(store) == []
    assert timing(store, "flux").devices == (H100, H200)


def test_repeated_images_have_the_lower_bound_of_the_smallest(store):
    session(store, H100, ("denoise", 1.2, 1), ("decode", 0.1, 1))
    assert impossible_timings(store) == []
    assert timing(store, "flux").floor_s == pytest.approx(7000 / 790)
    session(store, H100, ("denoise", 0.1, 3), ("decode", 0.1, 3))
    assert "at least 12.7 s" in impossible_timings(store)[0]


@pytest.mark.parametrize("device", ["cpu", "AMD Instinct MI300X"])
def test_an_unknown_device_has_no_lower_bound(store, device):
    change(store, 1)
    store.write("UPDATE sessions SET device = 'NVIDIA A100-SXM4-40GB-of-dreams'")
    assert impossible_timings(store)  # its name begins with that of a known device
    store.write("UPDATE sessions SET device = ?", device)
    assert impossible_timings(store) == []
    assert timing(store, "flux").no_floor == "no floor for this device"
    assert timing(store, "flux").flop_per_image == 2 * PFLOP  # the operations are counted


def test_without_a_complete_count_no_lower_bound_exists(store):
    change(store, 1)
    store.write("UPDATE candidates SET height = 768 WHERE work_id = 'w0'")
    assert timing(store, "flux").no_floor == "not counted"
    store.write("DELETE FROM meta WHERE key = 'operations:flux'")
    assert timing(store, "flux").no_floor == "not counted"
    noted(store, uncounted="no floor: its cache skips work")
    store.write("UPDATE candidates SET height = 512 WHERE work_id = 'w0'")
    assert timing(store, "flux").no_floor == "no floor: its cache skips work"
    assert impossible_timings(store) == []
    noted(store)
    assert impossible_timings(store)


def test_without_metered_time_no_lower_bound_exists(store):
    store.write("DELETE FROM meter")
    assert timing(store, "flux").no_floor == "not metered"
    session(store, H100, ("decode", 0, 3))  # a time of zero is below the floor
    assert "in 0 s" in impossible_timings(store)[0]


@pytest.mark.parametrize("text", ["{", "[]", '{"kinds": {"512x512": {"flop": -1}}}', '{"other": 1}'])
def test_unreadable_counts_are_an_error(store, text):
    store.set_meta("operations:flux", text)
    with pytest.raises(LedgerError, match="the operation counts of 'flux' cannot be read") as caught:
        impossible_timings(store)
    assert "\n" not in str(caught.value)


# ---- counted


@pytest.mark.parametrize(
    ("name", "size", "input_size", "tokens"),
    [
        ("tiny-flux", (496, 512), None, None),  # of about the card's area, and so counted at that
        ("tiny-flux2", (512, 512), (64, 80), 20),
        ("tiny-qwen-image", (512, 512), None, None),
        ("tiny-qwen-image-edit", (512, 512), (256, 2976), 16 * 186),
    ],
)
def test_a_lower_bound_is_at_most_the_exact_count_and_near_it(tmp_path, name, size, input_size, tokens):
    large = card(name, "generator")
    large = large.model_copy(update={"sampler": large.sampler.model_copy(update={"height": 512, "width": 512})})
    sampler = replace(Sampler(**large.sampler.model_dump()), height=size[0], width=size[1])
    work_order = plain_order(large, tmp_path)
    least = _kind(work_order, sampler, [tokens] if input_size else []).least_flop
    exact_sizes = sizes(large, sampler, 1 if input_size else 0, text_tokens=1)
    exact = count_modules(large, replace(exact_sizes, pictures=(input_size,) if input_size else ()))
    exact = replace(exact, steps=sampler.num_inference_steps)
    assert 0.5 < least / (exact.denoise_flop + exact.decode_flop) <= 1


def test_input_images_are_resized_as_by_their_pipelines():
    assert traits("flux2").input_size(640, 480) == (480, 640)
    assert traits("flux2").input_size(4000, 1000) == (512, 2048)  # a megapixel
    assert traits("omnigen").input_size(4000, 1000) == (256, 1024)
    assert traits("omnigen").input_size(640, 480) == (480, 640)
    assert traits("qwen_image_edit").input_size(100, 100) == (1024, 1024)
    height, width = traits("qwen_image_edit_plus").input_size(320, 100)
    assert (width, height) == calculate_dimensions(1024 * 1024, 3.2)[:2]


# ---- computed operations


SIZES = {"wide": (400, 150), "small": (90, 66), "photo": (400, 300)}
MODELS = ("tiny-flux", "tiny-flux-kontext", "tiny-flux2", "tiny-omnigen")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Small models at 128 x 128 over images of many sizes: the run, and each model's order and operations.

    One image is made at a time, so that no padding is computed.
    """
    folder = tmp_path_factory.mktemp("floors")
    orders: dict[str, WorkOrder] = {}
    computed: dict[str, int] = {}
    lines = [order("text")]
    for name, size in SIZES.items():
        Image.effect_noise(size, 50).convert("RGB").save(folder / f"{name}.png")
        lines.append(order(name, source_image=f"{name}.png", reference_images=["small.png"]))
    write_orders(folder / "tasks.jsonl", lines)
    begin = Worker.__init__

    def counting(self, work_order):
        begin(self, work_order)
        orders[work_order.label] = work_order
        for stage in ("denoise", "pixels"):
            setattr(self._generator, stage, counted(getattr(self._generator, stage), computed, work_order.label))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "__init__", counting)
        settings = {"height": 128, "width": 128, "num_inference_steps": 2, "batch_size": 1}
        models = [{"card": name} | settings for name in MODELS]
        models[0]["lossy"] = {"weights": "float8_e4m3fn"}  # the same operations
        suite = {"name": "servimage", "path": str(folder / "tasks.jsonl")}
        config = RunConfig(name="t", suite=suite, models=models, metrics=[], engine={"device": "cpu"})
        run_stages(config, folder / "run", ("generate",))
    with RunDir.open(folder / "run") as run:
        for work_order in orders.values():
            store_operations(run.store, work_order)
    return folder / "run", orders, computed


def counted(stage, computed, label):
    def attention(query, key, value, *_, **__):
        return sdpa_flop_count(query, key, value)

    def run(*arguments):
        cpu = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
        with FlopCounterMode(display=False, custom_mapping=cpu) as counter:
            out = stage(*arguments)
        computed[label] = computed.get(label, 0) + counter.get_total_flops()
        return out

    return run


def test_no_floor_is_above_the_computed_operations(real):
    run_dir, orders, computed = real
    shares = {}
    with RunDir.open(run_dir) as run:
        for label in orders:
            found = timing(run.store, label)
            assert found.n_images == found.n_made
            assert found.least_flop <= found.flop
            shares[label] = found.least_flop / computed[label]
    assert all(share <= 1 + 1e-9 for share in shares.values()), shares
    same_sizes = ("tiny-flux+fp8", "tiny-flux-kontext")  # all is padded or brought to one size
    assert all(shares[label] > 0.89 for label in same_sizes), shares  # 0.9 if that size is not the card's
    assert all(share > 0.1 for share in shares.values()), shares


def test_input_images_of_another_size_are_counted_as_another_kind(real):
    with RunDir.open(real[0]) as run:
        found = operations(run.store, "tiny-flux2")
        assert sorted(found.picture_tokens.values()) == [5 * 4, 25 * 9, 25 * 18]
        kinds = {kind for kind, _ in generated_kinds(run.store, "tiny-flux2", found)}
        assert kinds == set(found.kinds)
        assert "112x144+450+20" in kinds
        flop = {kind: found.kinds[kind].flop for kind in kinds}
        assert flop["112x144+450+20"] > flop["128x128"]
        assert operations(run.store, "tiny-flux-kontext").picture_tokens == {}


def test_a_run_on_a_device_that_cannot_be_so_fast_is_a_warning(real, monkeypatch):
    with RunDir.open(real[0]) as run:
        assert impossible_timings(run.store) == []
        slow = gpu("a6000").model_copy(update={"peak_tflops": 1e-6})
        monkeypatch.setattr(floors, "gpu_of", lambda _: slow)
        assert any(found.startswith("tiny-flux+fp8: its 4 images") for found in impossible_timings(run.store))


def with_settings(work_order, **changes):
    model = work_order.model
    return replace(
        work_order, model=replace(model, config=model.config.model_copy(update={"name": model.label} | changes))
    )


def test_lossy_and_uncounted_models_have_no_lower_bound_and_planned_batch_sizes_are_stored(real):
    run_dir, orders, _ = real
    with RunDir.open(run_dir) as run:
        work_order = orders["tiny-flux+fp8"]
        store_operations(run.store, with_settings(work_order, lossy=LossyConfig(first_block_cache=0.1)))
        assert timing(run.store, work_order.label).no_floor == "no floor: its cache skips work"
        bare = work_order.card.model_copy(update={"architecture": {}})
        store_operations(run.store, replace(work_order, model=replace(work_order.model, card=bare)))
        assert timing(run.store, work_order.label).no_floor == "not counted"
        store_operations(run.store, work_order)
        assert timing(run.store, work_order.label).no_floor == "no floor for this device"
        for batch_size, planned in ((None, 4), (2, 2), (1, 1)):
            store_operations(run.store, with_settings(orders["tiny-flux-kontext"], batch_size=batch_size))
            kinds = operations(run.store, "tiny-flux-kontext").kinds.values()
            assert {kind.planned_batch_size for kind in kinds} == {planned}
