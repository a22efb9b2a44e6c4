"""What vLLM would refuse on a GPU, established by its own checks on the CPU, for every judge card and GPU class."""

import json

import pytest
import torch
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.sample.ops import topk_topp_sampler

from local_bench.judges.vlm.flags import Engine, arguments, environment
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.models.cards import cards
from local_bench.models.gpus import gpus
from local_bench.models.weights import resolve
from local_bench.runs import device as place
from local_bench.runs.device import JudgeDevice
from local_bench.runs.judge_factory import _engine, start_timeout_s
from local_bench.runs.progress import Quiet

JUDGES = [card for card in cards().values() if card.role == "judge"]
HEAD_SIZE = 128
"""Of all Qwen2-VL, Qwen2.5-VL and Qwen3-VL language models."""


def head_size(described):
    if not described.source.build:
        return HEAD_SIZE
    text = json.loads((resolve(described) / "config.json").read_text())
    text = text.get("text_config", text)
    return text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]


@pytest.mark.parametrize("known", gpus().values(), ids=lambda known: known.name)
@pytest.mark.parametrize("described", JUDGES, ids=lambda card: card.name)
def test_vllm_takes_the_backend_with_the_judges_dtype_and_batch_invariance(cache, tmp_path, described, known):
    engine = Engine(tmp_path, described.dtype, 8192, 1, gpu=0, batch_invariant=True)
    flags = arguments(engine)
    backend = AttentionBackendEnum[flags[flags.index("--attention-backend") + 1]].get_class()
    number = known.gpu_class.removeprefix("sm")
    refused = backend.validate_configuration(
        head_size=head_size(described),
        dtype=getattr(torch, described.dtype),
        kv_cache_dtype="auto",
        block_size=16,
        use_mla=False,
        has_sink=False,
        use_sparse=False,
        use_mm_prefix=False,
        use_per_head_quant_scales=False,
        device_capability=DeviceCapability(int(number[:-1]), int(number[-1])),
        attn_type=AttentionType.DECODER,
        use_batch_invariant=True,
    )
    assert refused == []


def test_a_backend_of_16_bits_is_refused_a_judge_of_32():
    """The negative control: vLLM's check does refuse."""
    assert not AttentionBackendEnum.FLASH_ATTN.get_class().supports_dtype(torch.float32)


def test_sampling_needs_no_compiler(tmp_path, monkeypatch):
    engine = Engine(tmp_path, "bfloat16", 8192, 1, gpu=0)
    monkeypatch.setattr(topk_topp_sampler.current_platform, "is_cuda", lambda: True)
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", environment(engine)["VLLM_USE_FLASHINFER_SAMPLER"])
    assert topk_topp_sampler.flashinfer_sampler_supported() is False


def test_vllm_measures_its_vision_encoder_with_our_largest_image(cache):
    described = cards()["tiny-qwen3-vl"]
    spec = JudgeSpec(described.name, "0" * 64, "float32", described.judge_max_pixels, described.patch, 0, "json")
    engine = _engine(described, resolve(described), spec, [JudgeDevice("cpu", None)], [], 1.0)
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
