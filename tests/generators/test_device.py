"""Placement of models: offloading and random weights change no bytes, compiled blocks are batch invariant, lossy
settings change bytes."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from diffusers.models.attention_dispatch import _AttentionBackendRegistry

from local_bench.core.errors import ConfigError
from local_bench.generators.device import attend
from local_bench.generators.numerics import attention_backend, compiles, signature
from local_bench.generators.registry import FAMILIES
from local_bench.generators.staged import family

from .conftest import encode, request_for


def drawn(generator, items):
    sampler = items[0].request.sampler
    return [generator.decode(generator.denoise([item]), sampler)[0].tobytes() for item in items]


def copied_weights(name, ready, machine):
    """A generator whose weights are torch's own copies, two items and the denoiser: on a CPU the last bit of a matrix
    product depends on the address of a weight, which in a file is aligned otherwise."""
    mine = ready(name)
    generator = family(name)(mine.card, mine.weights, machine)
    items = encode(generator, [request_for(mine.card, mine.sampler, i) for i in range(2)])
    generator.load_denoiser()
    denoiser = getattr(generator.pipe, generator.denoiser)
    for weight in denoiser.parameters():
        weight.data = weight.data.clone()
    return generator, items, denoiser


@pytest.mark.parametrize("name", ["flux", "qwen_image", "instruct_pix2pix"])
def test_blocks_leave_the_device_while_an_image_is_decoded(ready, machine, name):
    """The plan of a card of 48 GB for Qwen-Image: away they are not used, and back they are equal."""
    resident, resident_items, _ = copied_weights(name, ready, machine)
    generator, items, denoiser = copied_weights(name, ready, replace(machine, parked_gb=1e-5))
    before = {name: weight.clone() for name, weight in denoiser.state_dict().items()}
    parked = generator._parking._weights
    assert 1e-5 <= sum(host.nbytes for _, host in parked) / 1e9 < sum(w.nbytes for w in before.values()) / 1e9
    real, addresses = generator.latents_to_pixels, [weight.data_ptr() for weight, _ in parked]

    def decoding(latents, sampler):
        assert [weight.data_ptr() for weight, _ in parked] == [host.data_ptr() for _, host in parked]
        assert not set(addresses) & {weight.data_ptr() for weight, _ in parked}
        return real(latents, sampler)

    generator.latents_to_pixels = decoding
    for item, expected in zip(items, drawn(resident, resident_items), strict=True):
        assert drawn(generator, [item]) == [expected]
        assert all(torch.equal(weight, before[name]) for name, weight in denoiser.state_dict().items())


@pytest.mark.parametrize("name", FAMILIES)
def test_random_weights_equal_the_saved_ones(ready, machine, name):
    """`load: random` builds in memory what the small models are on disk: the same architecture, the same seeds.

    Weights are compared and not images: on a CPU the last bit of a matrix product depends on the address of a weight.
    """
    mine = ready(name)
    built = family(name)(mine.card, None, machine)
    built.load_denoiser()
    saved = getattr(mine.generator.pipe, built.denoiser).state_dict()
    mine_too = getattr(built.pipe, built.denoiser).state_dict()
    assert set(saved) == set(mine_too)
    assert all(torch.equal(saved[key], mine_too[key]) for key in saved)
    assert built.denoise(mine.items[:1]).isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("lossy", [{"weights": "float8_e4m3fn"}, {"first_block_cache": 0.9}])
def test_a_lossy_model_gives_other_bytes_and_is_reproducible(ready, machine, name, lossy):
    mine, lossy_machine = ready(name), replace(machine, lossy=lossy)
    if not {*lossy} <= {*mine.generator.traits.lossy_settings}:
        with pytest.raises(ConfigError, match=f"the family {name} supports only"):
            family(name)(mine.card, mine.weights, lossy_machine).load_denoiser()
        return
    generator = family(name)(mine.card, mine.weights, lossy_machine)
    items = encode(generator, [item.request for item in mine.items[:2]])
    generator.load_denoiser()
    first, second = drawn(generator, items)
    assert drawn(generator, items[::-1]) == [second, first]
    assert [first, second] != drawn(mine.generator, mine.items[:2])


def test_the_denoiser_is_not_compiled_when_it_is_offloaded():
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert (compiles(None, gpu, ()), compiles(None, cpu, ())) == (True, False)
    assert (compiles(True, cpu, ("encode",)), compiles(True, gpu, ("denoise",))) == (True, False)


def test_kernels_without_masks_are_refused_for_models_with_masks():
    cpu = torch.device("cpu")
    for requested in ("_native_flash", "_native_cudnn", "flash"):
        with pytest.raises(ConfigError, match="attention mask"):
            attention_backend(requested, cpu, "bfloat16", masks=True)
    assert attention_backend("_native_math", cpu, "bfloat16", masks=True) == "_native_math"
    assert {name for name in FAMILIES if family(name).masks} == {"pixart_sigma", "omnigen", "z_image"}


def test_the_kernel_of_a_gpu_class_is_pinned(monkeypatch):
    gpu = torch.device("cuda", 0)
    for capability, kernel in (((8, 0), "_native_flash"), ((8, 6), "_native_flash"), ((9, 0), "_native_cudnn")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert attention_backend("auto", gpu, "bfloat16") == kernel
        assert attention_backend("auto", gpu, "bfloat16", masks=True) == "_native_efficient"
        assert attention_backend("auto", gpu, "float32") == "native"
    assert attention_backend("auto", gpu, "bfloat16", {"sm90": "_native_flash"}) == "_native_flash"


def test_the_kernel_of_a_class_that_ignores_the_backend_is_pinned_by_torch(ready, machine, monkeypatch):
    """SD3's processors ignore `set_attention_backend`: on a GPU torch's own switch pins the kernel instead."""
    pinned, switch = [], "local_bench.generators.device.sdpa_kernel"
    monkeypatch.setattr(switch, lambda *a, **k: pinned.append(a[0]) or nullcontext())
    on_gpu = replace(machine, device=torch.device("cuda", 0), attention="_native_flash")
    for name, supported in (("sd3", False), ("flux", True)):
        pinned.clear()
        with attend(ready(name).generator.pipe.transformer, on_gpu):
            pass
        assert bool(pinned) is not supported


def test_the_kernel_of_a_model_is_not_that_of_the_process(ready, machine):
    """What is counted or generated next in this process, with another kernel, must not use it."""

    def active():
        return _AttentionBackendRegistry.get_active_backend()[0].value

    mine, used = ready("flux"), []
    before = active()
    generator = family("flux")(mine.card, mine.weights, replace(machine, attention="_native_math"))
    generator.load_denoiser()
    assert active() == before != "_native_math"
    generator.pipe.transformer.register_forward_pre_hook(lambda *_: used.append(active()))
    generator.denoise(mine.items[:1])
    assert set(used) == {"_native_math"}
    assert active() == before


def test_the_signature_contains_what_determines_bytes():
    cpu = torch.device("cpu")
    plain, xformers = (signature(cpu, backend, "float32") for backend in ("native", "xformers"))
    assert plain not in (signature(cpu, "native", "float32", compiled=True), signature(cpu, "native", "bfloat16"))
    assert ("xformers" in plain, "xformers" in xformers) == (False, True)  # its release
    assert {"torch", "diffusers", "device", "attention", "dtype", "compiled"} <= set(plain)
