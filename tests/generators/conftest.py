"""The small FLUX, loaded once, with a few encoded prompts."""

from pathlib import Path

import pytest
import torch

from local_bench.core.quiet import quiet_libraries
from local_bench.generators.base import Conditioning, Machine, Sampler
from local_bench.generators.flux import Flux
from local_bench.generators.numerics import set_determinism

SAMPLER = Sampler(64, 64, 3, 3.5, 64)
PROMPTS = ["a red boot", "a blue box on a white table", "three birds", "a door", "a poster of a mountain hut at night"]


@pytest.fixture(scope="session")
def machine() -> Machine:
    set_determinism(1)
    return Machine(torch.device("cpu"), torch.float32, "native")


@pytest.fixture(scope="session")
def flux(flux_weights: Path, machine: Machine) -> tuple[Flux, list[Conditioning]]:
    quiet_libraries()
    generator = Flux(flux_weights, machine)
    generator.load_encoder()
    conditionings = [generator.encode(prompt, SAMPLER) for prompt in PROMPTS]
    generator.drop_encoder()
    generator.load_denoiser()
    return generator, conditionings
