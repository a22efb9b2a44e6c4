import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from diffusers.models import attention_dispatch

from local_bench.core.errors import ConfigError
from local_bench.generators.numerics import attention_backend, choose_device, choose_devices
from local_bench.generators.staged import deal, family, padded
from local_bench.models.weights import resolve

CPU = torch.device("cpu")


@pytest.mark.parametrize("order", ["plan", "reverse", "shuffle"])
def test_distribution_over_batches_is_complete(order):
    batches = deal(range(10), 4, order)
    assert [len(b) for b in batches] == [4, 4, 2]
    assert sorted(x for b in batches for x in b) == list(range(10))
    assert (batches[0] == [0, 1, 2, 3]) == (order == "plan")


def test_padding_repeats_the_last():
    assert padded([1, 2], 4) == [1, 2, 2, 2]
    assert padded([1, 2], 2) == [1, 2]


def test_a_missing_device_is_an_error_and_workers_need_their_gpus():
    with pytest.raises(ConfigError, match=r"engine\.device"):
        choose_device("tpu9")
    assert choose_devices("cpu", 3) == [CPU] * 3
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="does not exist on this machine"):
            choose_device("cuda:7")
        assert choose_devices("auto", None) == [CPU]


@pytest.fixture
def workstation(monkeypatch):
    """Makes this machine one with GPUs: (name, GiB)."""

    def have(*gpus):
        described = [SimpleNamespace(name=name, total_memory=int(gib * 2**30)) for name, gib in gpus]

        def get(device):
            return described[device if isinstance(device, int) else torch.device(device).index]

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_properties", get)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: get(device).name)

    return have


A6000, DISPLAY, H100 = ("NVIDIA RTX A6000", 47.54), ("NVIDIA T400 4GB", 3.6), ("NVIDIA H100 80GB HBM3", 79.2)


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_unlike_gpus_are_left_out_by_name(workstation, wanted):
    workstation(DISPLAY, A6000, A6000)
    notes = []
    assert [str(device) for device in choose_devices(wanted, None, notes.append)] == ["cuda:1", "cuda:2"]
    assert notes == [
        "engine.device: cuda:0 (NVIDIA T400 4GB) left out, because all workers use GPUs like "
        "cuda:1 (NVIDIA RTX A6000), cuda:2 (NVIDIA RTX A6000)"
    ]
    assert choose_device(wanted) == choose_devices(wanted, 1, notes.append)[0] == torch.device("cuda:1")
    assert len(notes) == 1  # a number of workers is a choice
    assert choose_devices("cuda:0", None, notes.append) == [torch.device("cuda:0")]
    refusal = r"3 workers need 3 GPUs of one model, .*A6000.* unlike them, cuda:0 \(NVIDIA T400"
    with pytest.raises(ConfigError, match=refusal):
        choose_devices(wanted, 3)


def test_equal_gpus_are_all_used(workstation):
    notes = []
    workstation(H100, H100)
    assert len(choose_devices("auto", None, notes.append)) == 2
    workstation(A6000, (A6000[0], 44.4))  # ECC takes a sixteenth
    assert choose_devices("auto", None, notes.append) == [torch.device("cuda:0")]
    assert len(notes) == 1


def test_a_backend_that_does_not_run_or_changes_the_model_is_refused_with_its_reason():
    absent = r"'xformers' does not run on cpu in float32 \(No module named 'xformers'\)"
    reasons = {name: f"{name!r} does not run on cpu" for name in ("flash", "_native_cudnn", "fast")}
    for wanted, reason in (reasons | {"xformers": absent, "sage": "changes the model"}).items():
        with pytest.raises(ConfigError, match=reason):
            attention_backend(wanted, CPU, "float32")
    assert attention_backend("_native_math", CPU, "float32") == "_native_math"
    assert attention_backend("auto", CPU, "bfloat16") == "native"


@pytest.fixture
def xformers(monkeypatch):
    """An xformers that computes with torch's kernel; its calls."""
    calls = []

    def memory_efficient_attention(q_BLHD, k_BLHD, v_BLHD, attn_bias=None, p=0.0, scale=None):
        calls.append(attn_bias)
        heads = [x.transpose(1, 2) for x in (q_BLHD, k_BLHD, v_BLHD)]
        return torch.nn.functional.scaled_dot_product_attention(*heads, attn_bias, p, scale=scale).transpose(1, 2)

    ops = SimpleNamespace(memory_efficient_attention=memory_efficient_attention)
    monkeypatch.setitem(sys.modules, "xformers", SimpleNamespace(ops=ops))
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    monkeypatch.setattr(attention_dispatch, "xops", ops)
    monkeypatch.setattr(attention_dispatch, "_CAN_USE_XFORMERS_ATTN", True)
    return calls


def test_xformers_computes_the_attention_where_it_is_installed(ready, machine, xformers):
    chosen = attention_backend("xformers", CPU, "float32")
    assert (chosen, len(xformers)) == ("xformers", 1)
    assert attention_backend("xformers", CPU, "float32", masks=True) == "xformers"  # it takes masks
    usual = ready("flux")
    generator = family("flux")(usual.card, resolve(usual.card), replace(machine, attention=chosen))
    generator.load_denoiser()
    xformers.clear()
    latents = generator.denoise(usual.items[:1])
    assert len(xformers) >= usual.items[0].request.sampler.num_inference_steps
    assert torch.allclose(latents, usual.generator.denoise(usual.items[:1]), atol=1e-4)
    sd3 = ready("sd3")
    generator = family("sd3")(sd3.card, resolve(sd3.card), replace(machine, attention=chosen))
    with pytest.raises(ConfigError, match="SD3Transformer2DModel supports only torch's own kernels, not 'xformers'"):
        generator.load_denoiser()


def test_xformers_that_does_not_compute_on_this_device_is_refused(xformers, monkeypatch):
    def memory_efficient_attention(*_):
        raise NotImplementedError("No operator found for `memory_efficient_attention_forward` with inputs:\n query")

    monkeypatch.setattr(attention_dispatch.xops, "memory_efficient_attention", memory_efficient_attention)
    with pytest.raises(ConfigError, match=r"does not run on cpu in float32 \(No operator found for"):
        attention_backend("xformers", CPU, "float32")
