"""What only runs on a GPU, as far as a CPU can prove it: traced graphs, parts left behind, kernels that torch refuses.

Parametrised over every family, lossy way and GPU class of `configs/gpus.yaml`: a new one is covered by being listed.
"""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from local_bench.core.errors import is_out_of_memory
from local_bench.generators import capacity, numerics
from local_bench.generators import device as placement
from local_bench.generators.base import GenerationRequest, Machine
from local_bench.generators.device import make_lossy
from local_bench.generators.registry import FAMILIES, traits
from local_bench.generators.staged import as_rgb8, family, warm_up
from local_bench.models.cards import cards
from local_bench.models.gpus import gpu, gpus

from .conftest import encode, make_image, mask, request_for, small

VARIANTS = {"plain": {}, "float8": {"weights": "float8_e4m3fn"}, "cache": {"first_block_cache": 0.08}}
CASES = [(name, v) for name in FAMILIES for v in VARIANTS if set(VARIANTS[v]) <= set(traits(name).lossy_settings)]
PRECISIONS = sorted({(c.family, c.dtype) for c in cards().values() if c.family in FAMILIES and c.dtype != "float32"})


@pytest.fixture
def traced(monkeypatch):
    """torch.compile that traces and counts, but compiles nothing."""
    counter = CompileCounterWithBackend("eager")
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: real(*a, **{**k, "backend": counter}))
    torch._dynamo.reset()
    yield counter
    torch._dynamo.reset()


def of_size(request: GenerationRequest, height: int, width: int) -> GenerationRequest:
    return replace(
        request,
        sampler=replace(request.sampler, height=height, width=width),
        input_images=tuple(make_image(0, width, height) for _ in request.input_images),
        mask=request.mask and mask(0, width, height),
    )


@pytest.mark.parametrize(("name", "variant"), [case for case in CASES if case[1] != "float8" or case[0] == "flux"])
def test_blocks_are_full_graphs_for_every_size_and_prompt_length(machine, traced, name, variant):
    described, sampler = small(name)
    lossy = VARIANTS[variant]
    compiled = numerics.compiles(None, torch.device("cuda"), (), lossy)
    assert compiled == (variant != "float8")  # its hooks on every layer cannot be traced into one graph
    generator = family(name)(described, None, replace(machine, compile=compiled, lossy=lossy))
    short = request_for(described, sampler, 0)
    long = replace(short, prompt="three birds above a red boot on a white table by a window " * 3)
    sizes = [(64, 80), (96, 64), (64, 128)]  # by FLUX.2's pipelines, an input image has at least 64 pixels
    items = encode(generator, [short, long, *(of_size(short, *size) for size in sizes)])
    generator.load_denoiser()
    warm_up(generator, items[-1], 1)
    graphs = traced.frame_count
    assert (graphs > 0) == compiled
    for item in items:
        assert generator.denoise([item]).isfinite().all()
    assert traced.frame_count == graphs


def test_graphs_of_another_batch_size_are_counted(machine, traced):
    """The negative control: batch sizes are static."""
    described, sampler = small("flux")
    generator = family("flux")(described, None, replace(machine, compile=True))
    (item,) = encode(generator, [request_for(described, sampler, 0)])
    generator.load_denoiser()
    warm_up(generator, item, 1)
    graphs = traced.frame_count
    generator.denoise([item, item])
    assert traced.frame_count == 2 * graphs


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_compiled_does_not_depend_on_the_first_item(machine, name):
    """Inductor's choices follow the lengths that it sees: they are those of the canonical form of every item."""
    described, sampler = small(name)
    generator = family(name)(described, None, machine)
    one = request_for(described, sampler, 0)
    other = of_size(replace(one, prompt="three birds above a red boot on a white table"), 64, 96)
    canonical = [generator.canonical(item) for item in encode(generator, [one, other])]
    assert canonical[0].shape == canonical[1].shape
    assert one.shape != other.shape


@pytest.mark.parametrize(("name", "dtype"), PRECISIONS)
def test_every_family_runs_in_the_precision_of_its_cards(machine, name, dtype):
    """Small models have float32."""
    dtype = getattr(torch, dtype)
    described, sampler = small(name)
    generator = family(name)(described, None, replace(machine, dtype=dtype))
    items = encode(generator, [request_for(described, sampler, 0)])
    generator.load_denoiser()
    assert {t.dtype for t in getattr(generator.pipe, generator.denoiser).state_dict().values()} == {dtype}
    generator.pixels(generator.denoise(items), sampler)
    assert generator.finite.all()


@pytest.mark.parametrize(("name", "variant"), [case for case in CASES if case[1] != "plain"])
def test_every_part_of_a_lossy_model_goes_to_the_device(machine, name, variant):
    """`test_fake_cuda` runs what is not lossy."""
    described, _ = small(name)
    on_meta = replace(machine, device=torch.device("meta"), lossy=VARIANTS[variant])
    generator = family(name)(described, None, machine)
    for load, place, parts in (
        (generator.load_encoder, placement.place_encoder, generator.encoders),
        (generator.load_denoiser, placement.place_denoiser, generator.denoiser),
    ):
        load()
        if generator.pipe is None:
            continue
        place(generator.pipe, parts, on_meta)
        modules = [part for part in generator.pipe.components.values() if isinstance(part, torch.nn.Module)]
        assert {p.device.type for module in modules for p in module.parameters()} <= {"meta"}


def test_only_streamed_parts_stay_on_the_host(machine):
    described, _ = small("flux")
    generator = family("flux")(described, None, machine)
    generator.load_denoiser()
    pipe = generator.pipe
    make_lossy(pipe.transformer, VARIANTS["float8"])  # its hooks are not streaming's
    placement._rest_to_device(pipe, ("transformer",), replace(machine, device=torch.device("meta")))
    assert {p.device.type for p in pipe.transformer.parameters()} == {"cpu"}
    assert {p.device.type for p in pipe.vae.parameters()} == {"meta"}


BY_KERNEL = {repr((c.family, c.dtype, c.attention)): c for c in cards().values() if c.role == "generator" and c.family}


@pytest.mark.parametrize("gpu_class", sorted({known.gpu_class for known in gpus().values()}))
@pytest.mark.parametrize("described", BY_KERNEL.values(), ids=lambda described: described.name)
def test_the_pinned_kernel_is_one_that_torch_and_diffusers_run_under_determinism(
    monkeypatch, machine, gpu_class, described
):
    """For every combination that decides the kernel of a card on a GPU."""
    number = gpu_class.removeprefix("sm")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (int(number[:-1]), int(number[-1])))
    gpu = torch.device("cuda", 0)
    kind = family(described.family)
    chosen = numerics.attention_backend("auto", gpu, described.dtype, described.attention, kind.masks)
    assert chosen in ("native", *placement._KERNELS)
    if described.dtype == "float32":
        assert chosen == "native"  # flash and cuDNN kernels take 16 bits only
    if kind.masks:
        assert chosen in ("native", "_native_efficient")
    on_gpu = Machine(gpu, getattr(torch, described.dtype), chosen)
    assert torch.are_deterministic_algorithms_enabled()
    for module in (torch.nn.Identity(), _TakesABackend()):
        with placement.attend(module, on_gpu):
            # ATen's check_cudnn_deterministic: no cuDNN attention under determinism unless it only warns
            assert torch.is_deterministic_algorithms_warn_only_enabled() == (chosen == "_native_cudnn")
            assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()


class _TakesABackend(torch.nn.Module):
    """A module that diffusers' `set_attention_backend` reaches."""

    def __init__(self):
        super().__init__()
        self.processor = SimpleNamespace(_attention_backend=None)


def test_an_operation_without_a_deterministic_kernel_is_an_error_with_cudnn_attention():
    numerics.set_determinism(1)
    with numerics.cudnn_attention_allowed(), pytest.raises(UserWarning, match="deterministic implementation"):
        warnings.warn("histc_cuda does not have a deterministic implementation, but you set ...", stacklevel=1)


def test_torch_has_a_folder_for_its_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "cache"))  # torch creates nothing above `torch/kernels`
    numerics.set_determinism(1)
    assert (tmp_path / "a" / "cache").is_dir()


def test_benchmarking_and_filling_are_off(machine):
    placement.compile_regions(torch.nn.Module())
    assert torch._inductor.config.deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory
    gpu_like = numerics.signature(torch.device("cpu"), "native", "bfloat16", compiled=True)
    assert gpu_like["inductor"] == "deterministic"


@pytest.mark.parametrize("name", ["flux", "flux2", "pixart_sigma"])  # one of each image processor
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pixels_rounded_on_the_device_are_those_of_diffusers(ready, name, dtype):
    processor = ready(name).generator.pipe.image_processor
    torch.manual_seed(1)
    pixels = (torch.randn(2, 3, 16, 24) * 0.7).to(dtype)
    pixels[0, 0, 0, :6] = torch.tensor([-1.0, 1.0, 0.0, -3.0, 3.0, 1 / 255], dtype=dtype)
    theirs = processor.postprocess(pixels, output_type="pil")
    assert [image.tobytes() for image in theirs] == [x.numpy().tobytes() for x in as_rgb8(pixels)]


FAILED_ALLOCATIONS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    MemoryError(),
)


def test_every_kind_of_failed_allocation_is_recognised_and_no_other_error():
    others = (RuntimeError("CUDA error: an illegal memory access"), ValueError("out of memory"))
    assert [error for error in (*FAILED_ALLOCATIONS, *others) if is_out_of_memory(error)] == [*FAILED_ALLOCATIONS]


@pytest.mark.parametrize(
    ("files", "own", "limit"),
    [
        ({"a/b/memory.max": "max", "a/memory.max": "8000000000"}, "0::/a/b\n", 8_000_000_000),
        ({"a/b/memory.max": "3", "a/memory.max": "8"}, "0::/a/b\n", 3),
        ({"memory.max": "5"}, "0::/\n", 5),
        ({"memory/x/memory.limit_in_bytes": "7"}, "3:cpu:/x\n4:memory:/x\n", 7),
        ({}, "0::/a\n", None),
    ],
)
def test_a_control_groups_limit_is_the_smallest_of_its_parents(tmp_path, files, own, limit):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert capacity.cgroup_limit(tmp_path, own) == limit


def test_plans_follow_the_model_of_the_gpu_and_not_what_is_free(monkeypatch):
    h100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30_000_000_000, 85_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h100)
    assert capacity.device_memory_gb(torch.device("cuda", 0)) == gpu("h100").memory_gb
    assert capacity.free_memory_gb(torch.device("cuda", 0)) == 32
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10_000_000_000, 20_000_000_000))
    assert capacity.device_memory_gb(torch.device("cuda", 0)) == 20  # a MIG instance
