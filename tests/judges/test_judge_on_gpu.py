"""What vLLM would refuse on a GPU, established by its own checks on the CPU, for every judge card and GPU class."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
import vllm.envs
from safetensors.torch import save_file
from vllm.config import VllmConfig
from vllm.config import vllm as vllm_config_module
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention import selector
from vllm.v1.attention.backends.registry import AttentionBackendEnum, MambaAttentionBackendEnum
from vllm.v1.sample.ops import topk_topp_sampler

from local_bench.core.errors import ConfigError
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.vllm_process import (
    USUAL,
    Attention,
    Engine,
    arguments,
    choose,
    environment,
    model_facts,
    model_runner,
    vllm_model,
)
from local_bench.models.cards import cards
from local_bench.models.weights import resolve
from local_bench.runs import judge_factory as place
from local_bench.runs.judge_factory import JudgeDevice, _engine, _needs, start_timeout_s
from local_bench.runs.progress import Quiet

JUDGES = [card for card in cards().values() if card.role == "judge"]
FAMILIES = {"qwen2-vl": "Qwen2VL", "qwen25-vl": "Qwen2_5_VL", "qwen3-vl": "Qwen3VL", "qwen3-vl-moe": "Qwen3VLMoe"}
FAMILIES |= {"qwen35": "Qwen3_5", "qwen35-moe": "Qwen3_5Moe", "internvl": "InternVL", "gemma3": "Gemma3"}
FAMILIES |= {"gemma4": "Gemma4", "glm4v": "Glm4v", "glm4v-moe": "Glm4vMoe"}
"""The models of a family differ in numbers that vLLM's checks do not read; transformers' defaults are one of them."""
PUBLISHED = {"Glm4vMoe": {"text_config": {"head_dim": 128}}}
"""What vLLM reads, where the defaults are of no published model."""
CAPABILITIES = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
on_every_gpu = pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda c: f"sm{c[0]}{c[1]}")


@pytest.fixture(autouse=True, scope="module")
def platform():
    if current_platform.is_unspecified():
        pytest.skip("vLLM's build for GPUs finds none here")


@pytest.fixture(scope="module")
def model_of(cache, tmp_path_factory):
    """vLLM's description of a model with weights in a folder, or with the default config of classes in transformers."""
    described = {}

    def model(name, dtype="bfloat16", architecture=None):
        folder = name
        if isinstance(name, str):
            folder = tmp_path_factory.getbasetemp() / name
            config = getattr(transformers, f"{name}Config")
            architectures = [architecture or f"{name}ForConditionalGeneration"]
            config(architectures=architectures, **PUBLISHED.get(name, {})).save_pretrained(folder)
        if (name, dtype) not in described:
            described[name, dtype] = vllm_model(folder, dtype)
        return described[name, dtype]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_run_in_subprocess", lambda inspect: inspect())  # instead of a process for each
        patch.setenv("VLLM_CACHE_ROOT", str(tmp_path_factory.mktemp("vllm")))
        yield model


def check_by_vllm(model, engine, capability):
    """Pass the arguments and the environment that a judge would get through vLLM's own checks."""
    parsed = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(arguments(engine))
    invariant = bool(int(environment(engine)["VLLM_BATCH_INVARIANT"]))
    if parsed.attention_backend is not None:
        refused = (
            AttentionBackendEnum[parsed.attention_backend.upper()]
            .get_class()
            .validate_configuration(
                head_size=model.get_head_size(),
                dtype=getattr(torch, parsed.dtype),
                kv_cache_dtype="auto",
                block_size=16,
                use_mla=model.use_mla,
                has_sink=False,
                use_sparse=False,
                use_mm_prefix=model.is_mm_prefix_lm,
                use_per_head_quant_scales=False,
                device_capability=DeviceCapability(*capability),
                attn_type="decoder",
                use_batch_invariant=invariant,
            )
        )
        assert refused == []
    if model.is_hybrid:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_BATCH_INVARIANT", str(int(invariant)))
            assert invariant == vllm.envs.VLLM_BATCH_INVARIANT
            for kind in MambaAttentionBackendEnum:
                if kind.value:
                    selector._cached_get_mamba_attn_backend.__wrapped__(kind)
    return parsed, invariant


def engine_for(model, capability, **wanted):
    attention = choose(model_facts(model, capability, USUAL), capability, **wanted)
    return Engine(model.model, str(model.dtype).removeprefix("torch."), 8192, 1, gpu=0, attention=attention)


FIRST = {described.family: described for described in reversed(JUDGES) if not described.source.build}
"""One judge of each family: its other cards differ in nothing that vLLM's checks read."""
EVERY = [(described, capability) for described in FIRST.values() for capability in CAPABILITIES]
EVERY += [(described, (9, 0)) for described in JUDGES if described not in FIRST.values()]


@pytest.mark.parametrize(
    ("described", "capability"), EVERY, ids=lambda x: getattr(x, "name", None) or "sm{}{}".format(*x)
)
def test_vllm_takes_the_arguments_of_every_judge_on_every_gpu(model_of, described, capability):
    model = model_of(resolve(described) if described.source.build else FAMILIES[described.family], described.dtype)
    recurrent = described.family.startswith("qwen35")
    engine = engine_for(model, capability, wanted="auto" if recurrent else "on")
    engine = replace(engine, mm_processor_kwargs=described.mm_processor_kwargs or {})
    parsed, invariant = check_by_vllm(model, engine, capability)
    assert invariant is not recurrent
    triton = described.dtype == "float32" or described.family.startswith("gemma")
    assert parsed.attention_backend == ("TRITON_ATTN" if triton else "FLASH_ATTN")
    assert parsed.enable_flashinfer_autotune is False


@on_every_gpu
@pytest.mark.parametrize(
    ("name", "architecture", "backend", "why_not"),
    [
        ("Gemma3", None, "TRITON_ATTN", ""),
        ("Qwen3_5", None, "FLASH_ATTN", "layers other than attention (linear_attention)"),
        ("Qwen3_5Moe", None, "FLASH_ATTN", "layers other than attention (linear_attention)"),
        ("Lfm2Vl", None, "FLASH_ATTN", "layers other than attention (Lfm2VlForConditionalGeneration)"),
        ("DeepseekV3", "DeepseekV3ForCausalLM", None, "(MLA)"),
    ],
)
def test_other_models_get_what_vllm_supports(model_of, name, architecture, backend, why_not, capability):
    model = model_of(name, architecture=architecture)
    engine = engine_for(model, capability)
    parsed, invariant = check_by_vllm(model, engine, capability)
    assert (parsed.attention_backend, invariant) == (backend, not why_not)
    assert why_not in engine.attention.why_not
    assert parsed.gdn_prefill_backend == ("triton" if "other" in why_not else None)
    if why_not:
        with pytest.raises(ConfigError, match=r"judge\.batch_invariant: on is impossible .*: use auto, or choose"):
            engine_for(model, capability, wanted="on")


def test_the_checks_of_vllm_do_refuse(model_of):
    """The negative control: batch invariance for every model, as it was once, does not start."""
    for name, backend, error in (
        ("Qwen3_5", "FLASH_ATTN", "batch_invariant mode is not supported for"),
        ("Gemma3", "FLASH_ATTN", "partial multimodal token full attention not supported"),
    ):
        engine = replace(engine_for(model_of(name), (9, 0)), attention=Attention(True, backend))
        with pytest.raises((RuntimeError, AssertionError), match=error):
            check_by_vllm(model_of(name), engine, (9, 0))
    assert not AttentionBackendEnum.FLASH_ATTN.get_class().supports_dtype(torch.float32)


def test_an_older_gpu_gets_triton_without_batch_invariance(model_of):
    model = model_of("Qwen3VL", "float16")
    engine = engine_for(model, (7, 5))
    assert check_by_vllm(model, engine, (7, 5))[0].attention_backend == "TRITON_ATTN"
    assert (engine.attention.batch_invariant, "compute capability 8.0" in engine.attention.why_not) == (False, True)


def test_attention_sinks_are_found_in_the_weights(model_of, tmp_path):
    transformers.Qwen3VLConfig(architectures=["Qwen3VLForConditionalGeneration"]).save_pretrained(tmp_path)
    model = model_of(tmp_path)
    assert model_facts(model, (8, 0), USUAL).masked is False
    save_file({"model.layers.0.self_attn.sinks": torch.zeros(2)}, tmp_path / "model.safetensors")
    facts = model_facts(model, (8, 0), USUAL)
    assert facts.refused["FLASH_ATTN"]["off"]
    assert choose(facts, (8, 0)).backend == "TRITON_ATTN"


def test_the_config_chooses_within_what_vllm_supports(model_of):
    model = model_of("Qwen3VL")
    facts = model_facts(model, (9, 0), ("TRITON_ATTN", "FLASHMLA", "NO_SUCH"))
    assert choose(facts, (9, 0), "auto", "TRITON_ATTN") == Attention(True, "TRITON_ATTN")
    assert choose(facts, (9, 0), "off", "TRITON_ATTN") == Attention(
        False, "TRITON_ATTN", why_not="judge.batch_invariant is off"
    )
    for backend in ("FLASHMLA", "NO_SUCH"):
        with pytest.raises(ConfigError, match=rf"judge\.attention_backend: {backend} does not support this judge"):
            choose(facts, (9, 0), "auto", backend)
        with pytest.raises(ConfigError, match=r"judge\.batch_invariant: on is impossible .* judge\.attention_backend"):
            choose(facts, (9, 0), "on", backend)


@pytest.mark.parametrize(("of_the_user", "runner"), [(None, "V2"), ("0", "V1"), ("1", "V2")])
def test_the_model_runner_on_a_gpu_is_the_one_that_is_recorded(tmp_path, monkeypatch, of_the_user, runner):
    """vLLM's rule, on a machine where Triton works."""
    monkeypatch.setattr(vllm_config_module, "HAS_TRITON", True)
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    if of_the_user:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", of_the_user)
    assert VllmConfig().use_v2_model_runner is (runner == "V2")
    assert model_runner() == runner
    variables = environment(Engine(tmp_path, "bfloat16", 8192, 1, gpu=0))
    assert variables.get("VLLM_USE_V2_MODEL_RUNNER") == of_the_user


def test_sampling_needs_no_compiler(tmp_path, monkeypatch):
    engine = Engine(tmp_path, "bfloat16", 8192, 1, gpu=0)
    monkeypatch.setattr(topk_topp_sampler.current_platform, "is_cuda", lambda: True)
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", environment(engine)["VLLM_USE_FLASHINFER_SAMPLER"])
    assert topk_topp_sampler.flashinfer_sampler_supported() is False


def test_vllm_measures_its_vision_encoder_with_our_largest_image(cache):
    described = cards()["tiny-qwen3-vl"]
    spec = JudgeSpec(described.name, "0" * 64, "float32", described.judge_max_pixels, described.patch, 0, "json")
    engine = _engine(
        resolve(described), spec, [JudgeDevice("cpu", None)], _needs(described, spec, []), 1.0, Attention()
    )
    flags = arguments(engine)
    assert json.loads(flags[flags.index("--mm-processor-kwargs") + 1]) == {"max_pixels": described.judge_max_pixels}


def test_large_weights_have_a_longer_start_timeout(tmp_path):
    (tmp_path / "a").mkdir()
    with (tmp_path / "a/model.safetensors").open("wb") as file:
        file.truncate(147_000_000_000)  # a sparse file of a 72B judge's size
    assert start_timeout_s(tmp_path) == 600 + 1470


def test_vllms_share_leaves_memory_for_its_own_process(monkeypatch):
    monkeypatch.setattr(place, "memory_gb", lambda gpu: (80.0, 85.0))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with place.reserve_memory("judge", 20, [JudgeDevice("NVIDIA H100", 0)], Quiet()) as share:
        assert share * 85.0 <= 80.0 - 1.2  # a CUDA context
        assert share > 0.9
