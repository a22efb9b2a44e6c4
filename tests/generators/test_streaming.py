"""Weights streamed to a GPU as diffusers does it, with its prefetching chain of hooks, on a device that is emulated:
weights that are not on it are NaN, so a layer that runs before its weights arrive gives NaN."""

import contextlib
from dataclasses import replace

import diffusers.hooks.group_offloading as offloading
import pytest
import torch
from diffusers.hooks.group_offloading import GroupOffloadingHook, ModuleGroup

from local_bench.generators import device as placement
from local_bench.generators.registry import FAMILIES
from local_bench.generators.staged import family

from .conftest import encode, request_for, small

LONG = "three birds above a red boot on a white table by a window"
LATE = {"omnigen": 8}
"""Groups that the first request does not run, and that are copied when they are first used."""


class Backend:
    """A device without streams."""

    def __init__(self, *_):
        pass

    def stream(self, _):
        return contextlib.nullcontext()

    def current_stream(self):
        return self

    def Stream(self):  # diffusers' name
        return self

    def synchronize(self):
        pass


@pytest.fixture
def emulated(monkeypatch):
    """Streams weights to the emulated device; yields the number of groups that were not prefetched, as a list."""
    late: list[ModuleGroup] = []
    real: dict[torch.Tensor, torch.Tensor] = {}  # a tensor of several groups has left when the second one is made

    def copies(group):
        tensors = [t for m in group.modules for t in (*m.parameters(), *m.buffers())]
        own = (*tensors, *group.parameters, *group.buffers) if group.stream else ()
        return {t: real[t] if t in real else real.setdefault(t, t.data.clone()) for t in own}

    def arrive(group):
        group.here = True
        for tensor, value in group.cpu_param_dict.items():
            tensor.data = value

    def leave(group):
        group.here = False
        for tensor, value in group.cpu_param_dict.items():
            tensor.data = torch.full_like(value, float("nan") if value.is_floating_point() else 10**6)

    def before(hook, module, *arguments, **keywords):
        group = hook.group
        if group.onload_leader is None:
            group.onload_leader = module
        if group.onload_leader == module:
            has_weights = [*group.parameters, *(p for m in group.modules for p in m.parameters())]
            if not group.onload_self and has_weights and not getattr(group, "here", False):
                late.append(group)
                group.onload_()
            elif group.onload_self:
                group.onload_()
            if hook.next_group is not None and not hook.next_group.onload_self:
                hook.next_group.onload_()
        return arguments, keywords

    def stream(module, machine):
        devices = {"onload_device": machine.device, "offload_device": torch.device("cpu"), "stream": Backend()}
        copying = {"non_blocking": True, "record_stream": False, "low_cpu_mem_usage": False}
        leaves = offloading.GroupOffloadingType.LEAF_LEVEL
        settings = offloading.GroupOffloadingConfig(offload_type=leaves, **devices, **copying)
        offloading._apply_group_offloading(module, settings)

    monkeypatch.setattr(ModuleGroup, "_init_cpu_param_dict", copies)
    monkeypatch.setattr(ModuleGroup, "_onload_from_memory", arrive)
    monkeypatch.setattr(ModuleGroup, "_offload_to_memory", leave)
    monkeypatch.setattr(GroupOffloadingHook, "pre_forward", before)
    monkeypatch.setattr(offloading, "TorchDeviceBackend", Backend)
    monkeypatch.setattr(placement, "_stream", stream)
    return late


@pytest.mark.parametrize("name", FAMILIES)
def test_streamed_weights_arrive_before_they_are_used(emulated, monkeypatch, machine, name):
    described, sampler = small(name)
    request = request_for(described, sampler, 0)
    requests = [request, replace(request, prompt=LONG)]
    if described.takes.pictures and described.takes.text_alone:
        requests.insert(0, replace(request, input_images=()))
    results = []
    for streamed in ((), ("encode", "denoise")):
        generator = family(name)(described, None, replace(machine, offload=streamed))
        items = encode(generator, requests)
        generator.load_denoiser()
        latents = [generator.denoise([item]) for item in items]
        tensors = [t for item in items for t in item.text.tensors.values()]
        results.append([*tensors, *latents, *(generator.pixels(x, sampler) for x in latents)])
        generator.drop_denoiser()
    assert len(emulated) == LATE.get(name, 0)
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_weights_that_arrive_late_are_noticed(emulated, monkeypatch, machine):
    """The negative control: layers run with what is not on the device."""
    described, sampler = small("flux")
    generator = family("flux")(described, None, replace(machine, offload=("denoise",)))
    items = encode(generator, [request_for(described, sampler, 0)])
    generator.load_denoiser()
    generator.denoise(items)  # the first pass records the order
    monkeypatch.setattr(ModuleGroup, "_onload_from_memory", lambda group: None)
    assert not generator.denoise(items).isfinite().all()
