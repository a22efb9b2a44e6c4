"""Every family as a run on a GPU goes through it, on tensors that only track devices (`tests.fake_cuda`).

Whatever is left on the CPU raises here. Parametrised over the registry and the model cards: a new one is covered by
being listed.
"""

from dataclasses import replace

import pytest
import torch

from local_bench.core.types import digest
from local_bench.generators import staged
from local_bench.generators.architecture import piece, with_config
from local_bench.generators.base import GenerationRequest, Item, Machine
from local_bench.generators.registry import FAMILIES, Sampler
from local_bench.generators.staged import PROBE_STEPS, Staged, family
from local_bench.models.cards import ModelCard, cards
from local_bench.models.weights import resolve
from tests.fake_cuda import DEVICE, MIXED_DEVICES, fake_cuda, values

from .conftest import encode, make_image, mask, small

LONG = "three birds above a red boot on a white table by a window " * 3
FEW_LAYERS = {  # by a config's key; FLUX.2 reads hidden states 10, 20, 30 of Mistral and 9, 18, 27 of Qwen3
    **dict.fromkeys(("num_layers", "num_single_layers", "num_hidden_layers", "text_config.num_hidden_layers"), 2),
    "n_layers": 2,
    **dict.fromkeys(("vision_config.num_hidden_layers", "vision_config.depth"), 2),
}
FEWEST_LAYERS = {"Mistral3ForConditionalGeneration": 31, "Qwen3ForCausalLM": 28}


def on_gpu(dtype: torch.dtype = torch.bfloat16) -> Machine:
    return Machine(DEVICE, dtype, "native")


def requests_for(described: ModelCard, sampler: Sampler) -> list[GenerationRequest]:
    """A short prompt with the fewest images, none where it takes words alone; a long one with up to two."""
    fewest, most = 0 if described.takes.text_alone else 1, min(2, described.takes.pictures)
    images, of_mask = [make_image(0), make_image(1)], mask(0) if described.takes.mask else None
    prompts = (("a red boot", fewest), (LONG, most))
    return [GenerationRequest(prompt, sampler, tuple(images[:n]), of_mask) for prompt, n in prompts]


def batches(generator: Staged, items: list[Item]) -> list[list[Item]]:
    """The first item twice, where the family takes batches; the second alone."""
    one, other = items
    assert not (generator.traits.unbatched_with_images and one.request.input_images)
    return [[one] if generator.traits.max_batch == 1 else [one, replace(one, seed=7)], [other]]


def assert_images(pixels: torch.Tensor, batch: list[Item]) -> None:
    sampler = batch[0].request.sampler
    assert (pixels.device, pixels.dtype) == (DEVICE, torch.uint8)
    assert pixels.shape == (len(batch), sampler.height, sampler.width, 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_runs_whole_on_the_device_and_what_stays_on_the_cpu_is_an_error(monkeypatch, machine, name):
    """Its VAE, and a conditioning tensor."""
    described, sampler = small(name)
    sampler = replace(sampler, num_inference_steps=PROBE_STEPS, negative_prompt="a blurred photo")
    usual = staged.cat
    assert torch.are_deterministic_algorithms_enabled()
    with fake_cuda(weights_have_values=False):
        generator = family(name)(described, resolve(described), on_gpu())
        items = encode(generator, requests_for(described, sampler))
        generator.load_denoiser()
        for batch in batches(generator, items):
            latents = generator.denoise(batch)
            assert_images(generator.pixels(latents, batch[0].request.sampler), batch)
        generator.pipe.vae.to("cpu")
        with pytest.raises(RuntimeError, match=MIXED_DEVICES):
            generator.pixels(latents, batch[0].request.sampler)
        if name not in ("omnigen", "instruct_pix2pix"):  # without encoded text; moved by the pipeline itself
            monkeypatch.setattr(staged, "cat", lambda tensors, _, dtype: usual(tensors, torch.device("cpu"), dtype))
            with pytest.raises(RuntimeError, match=MIXED_DEVICES):
                generator.denoise(items[:1])


@pytest.mark.parametrize(
    "operation",
    [torch.histc, lambda x: torch.median(x, 0), lambda x: torch.cumsum(x, 0), lambda x: torch.bincount(x.long(), x)],
    ids=["histc", "median", "cumsum", "bincount"],
)
def test_an_operation_without_a_deterministic_kernel_is_an_error(machine, operation):
    with fake_cuda():
        x = torch.rand(9).to(DEVICE)
        assert torch.cumsum(x.long(), 0).device == DEVICE
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            operation(x)


def test_an_index_on_the_device_into_what_is_not_is_an_error(machine):
    with fake_cuda(), pytest.raises(RuntimeError, match="indices should be either on cpu"):
        torch.rand(9)[torch.tensor([1, 2]).to(DEVICE)]


@pytest.mark.parametrize("name", ["flux", "qwen_image_edit"])
def test_values_on_the_fake_device_are_those_of_the_cpu(ready, name):
    mine = ready(name)
    with fake_cuda():
        generator = family(name)(mine.card, mine.weights, on_gpu(torch.float32))
        items = encode(generator, [item.request for item in mine.items[:1]])
        generator.load_denoiser()
        pixels = values(generator.pixels(generator.denoise(items), mine.sampler))
    on_cpu = mine.generator.pixels(mine.generator.denoise(mine.items[:1]), mine.sampler)
    assert pixels is not None
    assert (pixels.int() - on_cpu.int()).abs().max() <= 2  # of 255
    assert on_cpu.float().std() > 10


def real_cards() -> list[ModelCard]:
    """Those with the published architectures, one of each."""
    real = [c for c in cards().values() if c.role == "generator" and not c.name.startswith(("tiny", "mini"))]
    return [*{digest([c.family, c.architecture]): c for c in reversed(real) if c.architecture}.values()][::-1]


def with_few_layers(described: ModelCard) -> ModelCard:
    """The card at its full width, with two layers of each kind, or as many as the pipeline reads."""
    changes: dict[str, dict[str, int]] = {}
    for component, part in described.architecture.items():
        if not isinstance(part, str) or (made_of := piece(part)).model is None:
            continue
        for key, few in FEW_LAYERS.items():
            outer, _, last = key.rpartition(".")
            if last in (made_of.config.get(outer, {}) if outer else made_of.config):
                fewest = FEWEST_LAYERS.get(made_of.model, few) if "vision" not in key else few
                changes.setdefault(component, {})[key] = fewest
    return with_config(described, changes)


@pytest.fixture
def full_size_references(monkeypatch):
    """Qwen's editors with their own sizes again (`references` of conftest)."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as edit
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

    monkeypatch.setattr(edit, "calculate_dimensions", lambda *a: (*plus.calculate_dimensions(*a), None))
    monkeypatch.setattr(plus, "VAE_IMAGE_SIZE", 1024 * 1024)
    monkeypatch.setattr(plus, "CONDITION_IMAGE_SIZE", 384 * 384)


@pytest.mark.parametrize("described", real_cards(), ids=lambda described: described.name)
def test_a_real_architecture_at_full_width_and_its_own_size_runs_on_the_device(
    machine, full_size_references, described
):
    sampler = Sampler(**described.sampler.model_dump() | {"num_inference_steps": 1})  # small models go through several
    if described.family == "omnigen":  # whose masks are quadratic in the tokens
        sampler = replace(sampler, height=512, width=512)
    size = sampler.width, sampler.height
    input_images = tuple(make_image(kind, *size) for kind in range(min(2, described.takes.pictures)))
    with fake_cuda(weights_have_values=False):
        generator = family(described.family)(with_few_layers(described), None, on_gpu())
        items = encode(
            generator, [GenerationRequest(LONG, sampler, input_images, mask(0) if described.takes.mask else None)]
        )
        generator.load_denoiser()
        transformer = getattr(generator.pipe, generator.denoiser)
        assert sum(p.numel() for p in transformer.parameters()) > 5e7  # the small models have less than a million
        assert_images(generator.pixels(generator.denoise(items), sampler), items)
