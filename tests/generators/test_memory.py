"""Memory by phase against the published table; what fits, what streams, what is refused, how many at once."""

from dataclasses import replace

import pytest

from local_bench.generators.memory import FILLS_GPU_FLOP, RESERVE_GB, plan_memory
from local_bench.generators.operations import usual_input_images
from local_bench.generators.registry import Sampler
from local_bench.models.cards import card, cards
from local_bench.models.gpus import gpu


def plan(name, /, input_images=0, batch_size=None, capacity_gb=None, host_gb=None, attempts=1, lossy=None, **other):
    described = card(name, "generator")
    sampler = replace(Sampler(**described.sampler.model_dump()), **other)
    return plan_memory(described, sampler, batch_size, capacity_gb, host_gb, input_images, attempts, lossy)


QWEN = {"height": 1024, "width": 1024}


@pytest.mark.parametrize(
    ("name", "other", "all_resident_gb", "staged_gb"),
    [
        ("flux1-dev", {}, 33.8, 26),
        ("sd35-large", {}, 27.5, 19),
        ("qwen-image", QWEN, 57.7, 42.5),
        ("flux2-dev", {}, 113, 67),
        ("flux2-klein-4b", {}, 16, 10.5),
    ],
)
def test_the_published_table_comes_out(name, other, all_resident_gb, staged_gb):
    planned = plan(name, **other)
    assert planned.all_resident_gb == pytest.approx(all_resident_gb, rel=0.1)
    staged = max(planned.phases["denoise"].total_gb, planned.phases["decode"].total_gb)
    assert staged == pytest.approx(staged_gb, rel=0.1)
    assert planned.phases["denoise"].fits is None


@pytest.mark.parametrize(
    ("gpu_name", "offload"), [("a100-40", ("denoise",)), ("a6000", ()), ("a100-80", ()), ("h200", ())]
)
def test_qwen_image_fits_48_gb_and_streams_on_40(gpu_name, offload):
    planned = plan("qwen-image", capacity_gb=gpu(gpu_name).memory_gb, **QWEN)
    assert (planned.refused, planned.offload) == (None, offload)
    assert all(phase.fits for phase in planned.phases.values())
    if offload:
        (sentence,) = planned.sentences
        assert "offloaded to host memory (about 82 GB)" in sentence
        assert planned.host_gb == pytest.approx(82, abs=1)
        assert planned.peak_gb <= gpu(gpu_name).memory_gb - RESERVE_GB
    else:
        assert (planned.sentences, planned.host_gb) == ((), 0)


@pytest.mark.parametrize("capacity_gb", [47.6, 48.3, 51.0])
@pytest.mark.parametrize("name", [c.name for c in cards().values() if c.name.startswith("qwen-image")])
def test_qwen_image_is_resident_on_every_card_of_48_gb(name, capacity_gb):
    """With and without ECC: if decoding at 1328 x 1328 does not fit, some blocks leave the device meanwhile."""
    described = cards()[name]
    planned = plan(name, capacity_gb=capacity_gb, input_images=usual_input_images(described))
    assert (planned.offload, planned.refused) == ((), None)
    assert all(phase.fits for phase in planned.phases.values())
    assert planned.parked_gb < 3
    assert planned.host_gb == 2 * planned.parked_gb
    assert planned.parked_gb > 0 or planned.peak_gb < capacity_gb - RESERVE_GB


def test_streamed_parts_need_host_memory():
    refused = plan("qwen-image", capacity_gb=42.5, host_gb=64, **QWEN)
    assert "82 GB of pinned host memory, and this machine has 64 GB" in refused.refused
    assert plan("qwen-image", capacity_gb=42.5, host_gb=128, **QWEN).refused is None
    assert plan("qwen-image", capacity_gb=51.5, host_gb=16, **QWEN).refused is None, "nothing streams"


def test_a_size_that_fits_nowhere_is_refused_with_the_reason():
    planned = plan("flux2-klein-4b", capacity_gb=25.2, height=4096, width=4096)
    assert planned.refused.startswith("to decode it needs")
    assert "the device has 25.2 GB" in planned.refused
    assert not all(phase.fits for phase in planned.phases.values())


def test_each_phase_streams_independently():
    klein = {gb: plan("flux2-klein-4b", capacity_gb=gb).offload for gb in (12, 9.6)}
    assert klein == {12: (), 9.6: ("encode", "denoise")}
    dev = {gb: plan("flux2-dev", capacity_gb=gb).offload for gb in (70, 51.5, 42.5)}
    assert dev == {70: (), 51.5: ("denoise",), 42.5: ("encode", "denoise")}


@pytest.mark.parametrize(
    ("name", "other", "size"),
    [
        ("flux1-dev", {}, 1),  # 74 TFLOP a pass
        ("sd35-large", {}, 1),  # 31, run as a guided pair
        ("flux2-klein-4b", {}, 1),  # 35
        ("flux2-klein-4b", {"height": 768, "width": 768}, 2),  # 20
        ("tiny-flux", {}, 4),
    ],
)
def test_batch_size_one_where_one_image_fills_the_gpu(name, other, size):
    planned = plan(name, **other)
    assert planned.batch_size == size
    counted = planned.operations
    at_once = counted.forward_flop * (counted.passes if counted.together else 1)
    assert size == 1 or size * at_once < FILLS_GPU_FLOP
    assert size == 4 or 2 * size * at_once >= FILLS_GPU_FLOP


def test_memory_makes_batches_smaller():
    four = plan("tiny-sd3")
    assert four.batch_size == 4
    one = plan("tiny-sd3", batch_size=1)
    between = (four.phases["denoise"].total_gb + one.phases["denoise"].total_gb) / 2
    assert plan("tiny-sd3", capacity_gb=RESERVE_GB + between).batch_size == 2
    per_image = (four.phases["denoise"].tensors_gb - one.phases["denoise"].tensors_gb) / 3
    assert one.phases["denoise"].tensors_gb == pytest.approx(per_image)
    assert four.phases["decode"] == one.phases["decode"], "images are decoded one by one"


@pytest.mark.parametrize(
    ("name", "given", "size"),
    [
        ("tiny-qwen-image", {}, 1),  # prompts of other lengths cannot share a batch
        ("tiny-qwen-image", {"attempts": 3}, 2),
        ("tiny-qwen-image", {"attempts": 4}, 4),
        ("tiny-qwen-image-edit-plus", {"attempts": 4, "input_images": 1}, 1),  # its pipeline makes one a call
        ("tiny-omnigen", {}, 1),
        ("tiny-flux2", {}, 4),
        ("tiny-flux2", {"input_images": 1}, 1),  # images are shared over a batch
        ("tiny-flux", {"lossy": {"first_block_cache": 0.1}}, 1),  # it decides over the batch
        ("tiny-flux", {"batch_size": 16}, 16),  # the requested size is used
    ],
)
def test_a_familys_own_limit_comes_first(name, given, size):
    assert plan(name, **given).batch_size == size


def test_a_batch_size_above_the_limit_is_reported():
    planned = plan("tiny-omnigen", batch_size=8)
    assert (planned.batch_size, planned.sentences) == (1, ("the batch size is limited to 1 here, not 8",))


def test_eight_bit_weights_fit_where_the_model_does_not():
    planned = plan("qwen-image", capacity_gb=42.5, lossy={"weights": "float8_e4m3fn"}, **QWEN)
    assert planned.offload == ()
    assert planned.phases["denoise"].weights_gb == pytest.approx(20.4, rel=0.05)


def test_images_are_read_where_the_family_reads_them():
    early, late = plan("tiny-flux-kontext", input_images=1), plan("tiny-flux-kontext")
    assert early.phases["encode"].tensors_gb > late.phases["encode"].tensors_gb
    edit = plan("tiny-qwen-image-edit", input_images=1)
    assert edit.phases["denoise"].tensors_gb >= edit.operations.picture_live_bytes / 1e9
    assert edit.phases["encode"].weights_gb == pytest.approx(edit.operations.encoder_bytes / 1e9)
