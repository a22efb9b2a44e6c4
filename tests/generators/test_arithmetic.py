"""What models are made of and what they compute, against published counts and against sums done by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from local_bench.generators import operations
from local_bench.generators.architecture import build
from local_bench.generators.memory import plan_memory
from local_bench.generators.operations import count, usual_input_images, usual_size
from local_bench.generators.registry import Sampler
from local_bench.models.cards import card, cards
from scripts.count_flops import counted_at, measure, parameters


def usual(name, **other):
    described = card(name, "generator")
    return described, replace(Sampler(**described.sampler.model_dump()), **other)


PUBLISHED_BILLIONS = {"flux1-dev": 11.90, "flux1-schnell": 11.89, "flux1-control": 11.90, "sd3-medium": 2.03}
PUBLISHED_BILLIONS |= {"sd35-medium": 2.24, "sd35-large": 8.06, "qwen-image": 20.43, "qwen-image-2511": 20.43}
PUBLISHED_BILLIONS |= {"flux2-dev": 32.22, "flux2-klein-4b": 3.88, "flux2-klein-9b": 9.08, "pixart-sigma": 0.611}
PUBLISHED_BILLIONS = {f"{name}-transformer": billions for name, billions in PUBLISHED_BILLIONS.items()}
PUBLISHED_BILLIONS |= {"pix2pix-unet": 0.860, "clip-l-text": 0.123, "clip-g-text-projected": 0.695}
PUBLISHED_BILLIONS |= {"clip-l-vision": 0.304, "t5-xxl": 4.76, "qwen25-vl-7b": 8.29, "qwen3-4b": 4.02, "qwen3-8b": 8.19}
PUBLISHED_BILLIONS |= {"mistral-small-24b": 24.01, "flux1-vae": 0.0838, "qwen-vae": 0.1269}


@pytest.mark.parametrize(("piece", "billions"), PUBLISHED_BILLIONS.items(), ids=PUBLISHED_BILLIONS)
def test_a_piece_has_its_published_parameters(piece, billions):
    assert parameters(build(piece, "meta", torch.bfloat16)) / 1e9 == pytest.approx(billions, rel=0.01)


def test_omnigen_has_its_published_parameters_with_its_table_of_positions():
    module = build("omnigen-transformer", "meta", torch.bfloat16)
    assert sum(t.numel() for t in module.state_dict().values()) / 1e9 == pytest.approx(3.88, rel=0.01)


@pytest.mark.parametrize(
    ("name", "input_images", "forward_tflop", "passes", "pflop"),
    [
        ("flux1-dev", 0, 74.4, 1, 3.73),
        ("sd35-large", 0, 31.1, 2, 1.76),  # guidance doubles
        ("flux1-kontext-dev", 1, 165.5, 1, 4.98),  # an image doubles the tokens, and attention more than that
        ("flux2-klein-4b", 0, 34.8, 1, 0.15),
    ],
)
def test_the_published_table_comes_out(name, input_images, forward_tflop, passes, pflop):
    counted = count(*usual(name), input_images)
    assert counted.forward_flop / 1e12 == pytest.approx(forward_tflop, rel=0.03)
    assert counted.passes == passes
    assert counted.pflop == pytest.approx(pflop, rel=0.03)


def test_totals_are_sums_of_their_parts():
    described, sampler = usual("tiny-sd3")
    total = count(described, sampler)
    assert total.total_flop == total.encode_flop + 3 * 2 * total.forward_flop + total.decode_flop
    assert count(described, replace(sampler, num_inference_steps=6)).denoise_flop == 2 * total.denoise_flop
    unguided = count(described, replace(sampler, guidance_scale=1.0))
    assert (unguided.denoise_flop, unguided.encode_flop) == (total.denoise_flop // 2, total.encode_flop // 2)


def test_input_images_and_text_add_operations():
    described, sampler = usual("tiny-qwen-image-edit-plus")
    one, two = count(described, sampler, 1), count(described, sampler, 2)
    assert two.forward_flop > 1.5 * one.forward_flop
    assert two.picture_flop > 1.9 * one.picture_flop
    four, five = count(described, sampler, 4), count(described, sampler, 5)
    assert five.forward_flop - four.forward_flop == four.forward_flop - count(described, sampler, 3).forward_flop


def test_a_card_without_an_architecture_uses_its_own_figures():
    described, sampler = usual("flux1-dev")
    alone = described.model_copy(update={"architecture": {}})
    assert count(alone, sampler).pflop == pytest.approx(described.pflop_per_image)
    planned = plan_memory(alone, sampler, capacity_gb=80)
    assert {n: p.total_gb for n, p in planned.phases.items()} == pytest.approx(described.vram_by_phase_gb)
    assert (planned.batch_size, planned.offload, planned.refused) == (1, (), None)
    assert plan_memory(alone, sampler, capacity_gb=16).refused


def test_sizes_of_about_the_same_area_are_counted_once():
    described, sampler = usual("flux1-kontext-dev")
    assert usual_size(described, replace(sampler, height=832, width=1248)) == sampler
    small = replace(sampler, height=512, width=512)
    assert usual_size(described, small) == small


# ---- the instruments themselves


def test_a_matrix_product_counts_twice_its_dimensions_and_its_live_tensors():
    layer = nn.Linear(300, 500, bias=False, device="meta")
    cost = measure(layer, lambda: layer(torch.empty(7, 300, device="meta")))
    assert cost.flop == 2 * 7 * 300 * 500
    assert cost.live_bytes == 4 * 7 * (300 + 500)


def test_released_tensors_do_not_count():
    def release():
        x = torch.empty(1000, device="meta")
        for _ in range(10):
            x = x + 1

    def keep():
        xs = [torch.empty(1000, device="meta")]
        for _ in range(10):
            xs.append(xs[-1] + 1)

    assert measure(nn.Identity(), release).live_bytes == 2 * 4000
    assert measure(nn.Identity(), keep).live_bytes == 11 * 4000


@pytest.mark.parametrize("heads_of_keys", [8, 2])
def test_attention_is_one_kernel(heads_of_keys):
    query = torch.empty(1, 8, 2000, 64, device="meta")
    key = torch.empty(1, heads_of_keys, 1000, 64, device="meta")
    cost = measure(
        nn.Identity(), lambda: nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=heads_of_keys < 8)
    )
    assert cost.flop == 2 * 2 * 8 * 2000 * 1000 * 64
    scores = 4 * 8 * 2000 * 1000
    assert cost.live_bytes < scores / 4


SHIPPED = [name for name, described in cards().items() if described.role == "generator" and described.architecture]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_card_ships_its_counts(name):
    described, sampler = usual(name)
    assert operations.counts_key(described) in operations.shipped_counts(), "run scripts/count_flops.py --write"
    for input_images in range(min(described.takes.pictures, operations.SHIPPED_IMAGES) + 1):
        assert count(described, sampler, input_images).steps == sampler.num_inference_steps


TINY = [name for name in SHIPPED if name.startswith("tiny-")]


@pytest.mark.parametrize("name", [*TINY, "flux1-dev", "sd35-large", "pixart-sigma"])
def test_shipped_counts_are_what_is_counted(name):
    described, sampler = usual(name)
    input_images = usual_input_images(described)
    shipped = count(described, sampler, input_images)
    assert replace(counted_at(described, sampler, input_images), steps=sampler.num_inference_steps) == shipped
    if name in TINY:
        assert min(shipped.forward_flop, shipped.decode_flop) > 0
        assert shipped.pflop == pytest.approx(described.pflop_per_image, rel=0.03)


FEW_TOKENS = ("tiny-z-image", "tiny-pixart", "tiny-pix2pix")
"""Their short prompts and padding are more than their images."""


@pytest.mark.parametrize("factor", [0.75, 2.5])
@pytest.mark.parametrize("name", [*(name for name in TINY if name not in FEW_TOKENS), "pixart-sigma"])
def test_counts_at_other_sizes_follow_from_the_shipped_ones(name, factor):
    described, sampler = usual(name)
    side = int(sampler.height * factor) // 16 * 16
    sampler = replace(sampler, height=side, width=side)
    input_images = usual_input_images(described)
    exact, near = counted_at(described, sampler, input_images), count(described, sampler, input_images)
    fields = dict.fromkeys(("encode_flop", "picture_flop", "forward_flop", "decode_flop"), 0.12)
    fields |= dict.fromkeys(("picture_live_bytes", "forward_live_bytes", "decode_live_bytes"), 0.15)
    for field, rel in fields.items():
        assert getattr(near, field) == pytest.approx(getattr(exact, field), rel=rel), field


@pytest.mark.parametrize("changes", [{"max_sequence_length": 32}, {"guidance_scale": 1.0}])
def test_counts_of_other_settings_follow_from_the_cards(changes):
    described, sampler = usual("tiny-sd3", **changes)
    exact, near = counted_at(described, sampler), count(described, sampler)
    assert (near.passes, near.together) == (exact.passes, exact.together)
    assert near.encode_flop == pytest.approx(exact.encode_flop, rel=0.25)
    assert 0.8 * exact.forward_flop <= near.forward_flop <= exact.forward_flop


def test_a_folder_of_configs_need_not_ship_counts(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCAL_BENCH_CONFIGS", str(tmp_path))
    operations.shipped_counts.cache_clear()
    try:
        assert operations.shipped_counts() == {}
    finally:
        operations.shipped_counts.cache_clear()
