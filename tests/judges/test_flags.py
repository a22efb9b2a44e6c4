"""vLLM's arguments: no remote code, no secret, and only what was requested."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from local_bench.core.errors import ServerError
from local_bench.judges.vlm import flags as module
from local_bench.judges.vlm.attention import Attention
from local_bench.judges.vlm.flags import (
    EXTRA_SWITCHES,
    EXTRA_VALUES,
    Engine,
    arguments,
    check_extra_args,
    environment,
    model_runner,
    require_vllm,
)


@pytest.fixture
def cpu(tmp_path):
    return Engine(tmp_path, "float32", 8192, 4)


@pytest.fixture
def gpu(tmp_path):
    return Engine(tmp_path, "bfloat16", 16384, 8, gpu=0, memory_share=0.85, attention=Attention(backend="FLASH_ATTN"))


def value(flags, flag):
    assert flags.count(flag) == 1, flag
    return flags[flags.index(flag) + 1]


@pytest.fixture(params=["cpu", "gpu", "two gpus"])
def engine(request, cpu, gpu):
    return {"cpu": cpu, "gpu": gpu, "two gpus": replace(gpu, gpus=2)}[request.param]


def test_flags_run_no_model_code_and_open_no_port(engine):
    flags = arguments(engine)
    for flag in ("--trust-remote-code", "--api-key", "--host", "--port", "--allowed-local-media-path"):
        assert not [text for text in flags if text.startswith(flag)]


def test_flags_that_decide_answers_are_set_on_every_device(engine, tmp_path):
    flags = arguments(engine)
    assert value(flags, "--model") == str(tmp_path)
    assert value(flags, "--dtype") == engine.dtype
    assert value(flags, "--seed") == "0"
    assert value(flags, "--generation-config") == "vllm"  # the model's own file would change temperature and the like
    assert value(flags, "--max-model-len") == str(engine.max_model_len)
    assert json.loads(value(flags, "--limit-mm-per-prompt")) == {"image": engine.images, "video": 0}
    assert json.loads(value(flags, "--structured-outputs-config")) == {
        "backend": "xgrammar",
        "disable_any_whitespace": True,
    }


def test_flags_of_the_cpu(cpu):
    flags = arguments(cpu)
    assert "--enforce-eager" in flags
    assert value(flags, "--block-size") == "32"
    assert "--no-enable-chunked-prefill" in flags  # chunked prefill of a seeded request crashes vLLM there
    for length, batched in ((4096, 8192), (8192, 8192), (24576, 24576)):  # ... so a step can hold the longest
        assert value(arguments(replace(cpu, max_model_len=length)), "--max-num-batched-tokens") == str(batched)
    for flag in ("--gpu-memory-utilization", "--max-num-seqs", "--tensor-parallel-size", "--attention-backend"):
        assert flag not in flags


def test_flags_of_a_gpu(gpu):
    flags = arguments(replace(gpu, batched_tokens=4096, sequences=64))
    assert value(flags, "--gpu-memory-utilization") == "0.850"
    assert value(flags, "--max-num-batched-tokens") == "4096"
    assert value(flags, "--max-num-seqs") == "64"
    assert "--enforce-eager" not in flags
    assert "--no-enable-chunked-prefill" not in flags
    assert "--block-size" not in flags


def test_several_gpus_share_one_model(gpu):
    assert "--tensor-parallel-size" not in arguments(gpu)
    flags = arguments(replace(gpu, gpus=4))
    assert value(flags, "--tensor-parallel-size") == "4"
    assert value(flags, "--mm-encoder-tp-mode") == "data"
    assert value(flags, "--distributed-executor-backend") == "mp"


def test_the_user_s_flags_come_last_and_take_precedence(engine):
    added = ("--max-num-seqs", "8", "--quantization", "fp8")
    assert arguments(replace(engine, extra_args=added))[-4:] == list(added)
    assert arguments(replace(engine, extra_args=added))[:-4] == arguments(engine)


@pytest.mark.parametrize("of_the_user", [None, "0", "1"])
@pytest.mark.parametrize("enabled", [False, True])
def test_the_config_alone_decides_batch_invariance(engine, enabled, of_the_user, monkeypatch):
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    if of_the_user:
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", of_the_user)
    set_so = replace(engine, attention=replace(engine.attention, batch_invariant=enabled))
    assert environment(set_so)["VLLM_BATCH_INVARIANT"] == ("1" if enabled else "0")
    assert arguments(set_so) == arguments(engine)


def test_without_batch_invariance_compiled_code_is_not_chosen_by_timing(cpu, gpu, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_DETERMINISTIC", raising=False)
    invariant = replace(gpu, attention=Attention(batch_invariant=True))
    found = [environment(engine).get("TORCHINDUCTOR_DETERMINISTIC") for engine in (gpu, invariant, cpu)]
    assert found == ["1", None, None]
    assert "--no-enable-flashinfer-autotune" in arguments(gpu)
    assert "--no-enable-flashinfer-autotune" in arguments(invariant)
    assert "--no-enable-flashinfer-autotune" not in arguments(cpu)


def test_torch_reads_the_variable_that_is_set(gpu):
    code = "from torch._inductor import config; print(config.deterministic)"
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment(gpu), capture_output=True, text=True
    )
    assert ended.stdout.split() == ["True"]


def test_the_attention_backend_is_chosen_on_a_gpu_only(cpu, gpu):
    assert value(arguments(gpu), "--attention-backend") == "FLASH_ATTN"
    assert "--attention-backend" not in arguments(replace(gpu, attention=Attention()))  # MLA: vLLM's own choice


def test_layers_other_than_attention_have_arguments_of_their_own(cpu, gpu):
    recurrent = Attention(recurrent=True)
    assert value(arguments(replace(gpu, attention=recurrent)), "--gdn-prefill-backend") == "triton"
    assert "--gdn-prefill-backend" not in arguments(gpu)
    assert "--no-enable-prefix-caching" in arguments(replace(cpu, attention=recurrent))
    assert "--no-enable-prefix-caching" not in arguments(cpu)


@pytest.mark.parametrize(("of_the_user", "runner"), [(None, "V2"), ("0", "V1"), ("1", "V2")])
def test_the_model_runner_is_the_user_s_choice(gpu, monkeypatch, of_the_user, runner):
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    if of_the_user:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", of_the_user)
    assert model_runner() == runner
    assert environment(gpu).get("VLLM_USE_V2_MODEL_RUNNER") == of_the_user


@pytest.mark.parametrize(
    ("visible", "first", "n", "mine"),
    [
        (None, 0, 1, "0"),
        (None, 3, 1, "3"),
        (None, 2, 2, "2,3"),
        ("", 1, 1, "1"),
        ("5", 0, 1, "5"),
        ("4,5,6,7", 2, 1, "6"),
        ("4,5,6,7", 2, 2, "6,7"),
        ("GPU-aa,GPU-bb", 1, 1, "GPU-bb"),
    ],
)
def test_a_child_sees_its_own_gpus_only(gpu, monkeypatch, visible, first, n, mine):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert environment(replace(gpu, gpu=first, gpus=n))["CUDA_VISIBLE_DEVICES"] == mine


def test_the_cpu_hides_no_gpus(cpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert environment(cpu)["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_the_child_is_offline_without_telemetry(engine, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("LAB", "ours")
    flags = environment(engine)
    assert flags["HF_HUB_OFFLINE"] == flags["TRANSFORMERS_OFFLINE"] == "1"
    assert flags["VLLM_NO_USAGE_STATS"] == flags["DO_NOT_TRACK"] == "1"
    assert flags["LAB"] == "ours"
    assert "VLLM_API_KEY" not in flags


def test_an_engine_on_one_device_is_its_own_worker(cpu, gpu, monkeypatch):
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    for engine, alone in ((cpu, "0"), (gpu, "0"), (replace(gpu, gpus=2), None)):
        assert environment(engine).get("VLLM_ENABLE_V1_MULTIPROCESSING") == alone


def test_the_environment_of_this_process_stays_as_it_is(engine, monkeypatch):
    before = dict(os.environ)
    environment(engine)["X"] = "y"
    assert dict(os.environ) == before


def test_the_release_of_vllm_is_known():
    assert module.vllm_version() == "0.32.0"


def test_missing_vllm_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setattr(module, "vllm_version", lambda: None)
    with pytest.raises(ServerError, match=r"vLLM is not installed: run .* judge\.base_url"):
        require_vllm()


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--max-num-seqs", "8", "--quantization=fp8"],
        ["--enforce-eager", "--no-enable-prefix-caching", "--gpu-memory-utilization", "0.5"],
    ],
)
def test_flags_for_speed_memory_and_limits_may_be_added(given):
    check_extra_args(given)


@pytest.mark.parametrize(
    "given",
    [
        ["--tool-parser-plugin", "evil.py"],
        ["--tool-parser-plugin=evil.py"],
        ["--host", "0.0.0.0"],
        ["--max-num-seq", "8"],  # an abbreviation
        ["--max_num_seqs", "8"],
        ["--max-num-seqs.x", "8"],
        ["--compilation-config.pass_config.x", "1"],
        ["--config", "more.yaml"],
        ["--trust-remote-code"],
        ["-O3"],
        ["8"],
        [""],
        ["--max-num-seqs"],
        ["--max-num-seqs", "--trust-remote-code"],
        ["--max-num-seqs="],
        ["--quantization", "../evil"],
        ["--quantization", "a b"],
        ["--enforce-eager=1"],
        ["--enforce-eager", "evil.py"],
    ],
)
def test_other_flags_are_refused(given):
    with pytest.raises(ValueError, match=r"may add: .*--max-num-seqs|needs a number or an identifier"):
        check_extra_args(given)


@pytest.mark.server
def test_vllm_has_every_flag_that_may_be_added():
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = EngineArgs.add_cli_args(FlexibleArgumentParser())._option_string_actions
    assert {flag for flag in EXTRA_VALUES if options[flag].nargs is None} == EXTRA_VALUES
    assert {flag for flag in EXTRA_SWITCHES if options[flag].nargs == 0} == EXTRA_SWITCHES
