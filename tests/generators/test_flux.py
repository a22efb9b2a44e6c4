"""The stages against diffusers' own one-shot call, and law 2: batches never change bytes."""

import itertools

import pytest
import torch
from diffusers import FluxPipeline

from local_bench.core.identity import seed_of
from local_bench.generators.base import Sampler
from local_bench.generators.batches import batch_is_neutral

from .conftest import PROMPTS, SAMPLER


def draw(flux, batch):
    """RGB bytes of a batch of (prompt index, seed)."""
    generator, conditionings = flux
    noise = torch.cat([generator.noise(seed, SAMPLER) for _, seed in batch])
    latents = generator.denoise([conditionings[i] for i, _ in batch], noise, SAMPLER)
    return [image.tobytes() for image in generator.decode(latents, SAMPLER)]


def test_the_stages_give_the_bytes_of_the_pipeline_itself(flux, flux_weights):
    pipe = FluxPipeline.from_pretrained(flux_weights, dtype=torch.float32, local_files_only=True)
    whole = pipe(
        PROMPTS[1],
        height=64,
        width=64,
        num_inference_steps=3,
        guidance_scale=3.5,
        max_sequence_length=64,
        generator=torch.Generator("cpu").manual_seed(11),
    ).images[0]
    assert draw(flux, [(1, 11)]) == [whole.tobytes()]


def test_in_a_fixed_shape_slot_neighbours_and_padding_change_nothing(flux):
    canary = (0, 5)
    alone = draw(flux, [canary] * 4)[0]
    for others in itertools.permutations([(1, 6), (2, 7), (3, 8)], 3):
        for slot in range(4):
            batch = [*others[:slot], canary, *others[slot:]]
            assert draw(flux, batch)[slot] == alone


def test_another_batch_shape_does_change_bytes(flux):
    """The negative control: without the fixed shape the law would not hold."""
    alone = {seed: draw(flux, [(seed % 5, seed)])[0] for seed in range(12)}
    assert any(draw(flux, [(seed % 5, seed)] * 4)[0] != alone[seed] for seed in range(12))


def test_the_probe_says_so(flux):
    generator, conditionings = flux
    assert batch_is_neutral(generator, conditionings, SAMPLER, 4)


def test_the_probe_sees_a_batch_that_leaks(flux, monkeypatch):
    generator, conditionings = flux
    real = generator.denoise
    monkeypatch.setattr(generator, "denoise", lambda c, n, s: real(c, n + 1e-3 * n.mean(dim=0, keepdim=True), s))
    assert not batch_is_neutral(generator, conditionings, SAMPLER, 4)


def test_prompt_and_seed_both_matter(flux):
    one, other_prompt, other_seed = draw(flux, [(0, 1), (1, 1), (0, 2)])
    assert len({one, other_prompt, other_seed}) == 3


def test_noise_is_of_the_image_alone(flux):
    generator, _ = flux
    assert torch.equal(generator.noise(seed_of("a"), SAMPLER), generator.noise(seed_of("a"), SAMPLER))
    assert not torch.equal(generator.noise(seed_of("a"), SAMPLER), generator.noise(seed_of("b"), SAMPLER))
    assert generator.noise(1, SAMPLER).dtype == torch.float32


@pytest.mark.parametrize(("length", "lost"), [(64, {"clip": 0, "t5": 0}), (5, {"clip": 0, "t5": 3})])
def test_what_an_encoder_does_not_read_is_counted(flux_weights, machine, length, lost):
    from local_bench.generators.flux import Flux

    generator = Flux(flux_weights, machine)
    generator.load_encoder()
    assert generator.encode("a door", Sampler(64, 64, 1, 1.0, length)).truncated_tokens == lost
