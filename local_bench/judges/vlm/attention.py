"""The attention backend of a judge that vLLM runs, and whether vLLM's batch-invariant mode supports the judge.

On a GPU vLLM's own checks decide, without using the GPU. They run in a child process (`python -m
local_bench.judges.vlm.attention WEIGHTS DTYPE CAPABILITY BACKEND…`), because importing vLLM takes seconds and changes
torch's global settings.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from local_bench.core import strictjson
from local_bench.core.environment import variables
from local_bench.core.errors import ConfigError, ServerError, WeightsError
from local_bench.core.tensors import open_tensors

Wanted = Literal["auto", "on", "off"]
Capability = tuple[int, int]
MIN_CAPABILITY: Capability = (8, 0)
"""The compute capability from which on vLLM's batch-invariant mode is used."""
USUAL = ("FLASH_ATTN", "TRITON_ATTN")
"""In order of preference. FlashAttention supports 16-bit dtypes only."""
MASKED = ("TRITON_ATTN",)
"""For attention between image tokens in both directions, and attention sinks: batch-invariant FlashAttention has
neither."""
ATTENTION_LAYERS = frozenset(("attention", "full_attention", "sliding_attention", "chunked_attention"))
"""Values of `layer_types` in config.json."""
_CHECK_S = 600


@dataclass(frozen=True)
class Attention:
    """How vLLM computes a judge's layers."""

    batch_invariant: bool = False
    backend: str | None = None
    """None: vLLM's own choice."""
    recurrent: bool = False
    """Whether the language model has layers other than attention (linear attention, Mamba, short convolutions)."""
    why_not: str = ""
    """Why the answers are not batch-invariant; empty if they are."""


@dataclass(frozen=True)
class ModelFacts:
    """What vLLM reports about a model."""

    other_layers: str
    """The kinds of layers other than attention; empty if there are none."""
    mla: bool
    """Multi-head latent attention."""
    masked: bool
    """Image tokens attend to each other in both directions, or there are attention sinks."""
    refused: dict[str, dict[str, list[str]]]
    """Attention backend -> batch-invariant mode (`on`, `off`) -> the reasons why vLLM does not support the model."""


def on_cpu(weights: Path, wanted: Wanted = "auto", backend: str | None = None) -> Attention:
    """The only choice on a CPU. ConfigError for settings that need a GPU."""
    why_not = "vLLM has no batch-invariant mode on a CPU"
    if wanted == "on":
        raise ConfigError(f"judge.batch_invariant: on is impossible ({why_not}): use auto")
    if backend is not None:
        raise ConfigError(f"judge.attention_backend: {backend} is a choice for GPUs: leave it out on a CPU")
    return Attention(recurrent=is_recurrent(weights), why_not=why_not)


def choose(facts: ModelFacts, capability: Capability, wanted: Wanted = "auto", backend: str | None = None) -> Attention:
    """The attention backend on a GPU, and whether vLLM's batch-invariant mode is on. ConfigError if what the config
    requires is impossible."""
    candidates = (backend,) if backend else () if facts.mla else MASKED if facts.masked else USUAL

    def first(mode: str) -> str | None:
        return next((name for name in candidates if not facts.refused[name][mode]), None)

    why_not = ""
    if capability < MIN_CAPABILITY:
        why_not = f"vLLM's batch-invariant mode needs compute capability 8.0, this GPU has {_dotted(capability)}"
    elif facts.other_layers:
        why_not = f"vLLM has no batch-invariant kernels for layers other than attention ({facts.other_layers})"
    elif not candidates:
        why_not = "vLLM's batch-invariant mode is not used with multi-head latent attention (MLA)"
    elif first("on") is None:
        why_not = f"vLLM's {candidates[0]}: {', '.join(facts.refused[candidates[0]]['on'])}"
    if wanted == "on" and why_not:
        raise ConfigError(
            f"judge.batch_invariant: on is impossible ({why_not}): use auto, or choose another judge"
            + (" or judge.attention_backend" if backend else "")
        )
    batch_invariant = wanted != "off" and not why_not
    chosen = first("on" if batch_invariant else "off")
    if backend and chosen is None:
        raise ConfigError(
            f"judge.attention_backend: {backend} does not support this judge on this GPU "
            f"({', '.join(facts.refused[backend]['off'])}): choose another, or leave it out"
        )
    if wanted == "off":
        why_not = "judge.batch_invariant is off"
    return Attention(batch_invariant, chosen, bool(facts.other_layers), why_not)


def on_gpu(
    weights: Path, dtype: str, capability: Capability, wanted: Wanted = "auto", backend: str | None = None
) -> Attention:
    """As `choose`, for the model in `weights`. ServerError if vLLM cannot serve it."""
    facts = _facts_of_child(weights, dtype, capability, (backend,) if backend else USUAL)
    return choose(facts, capability, wanted, backend)


def is_recurrent(weights: Path) -> bool:
    """Whether config.json has language-model layers other than attention, as far as that is known without vLLM."""
    try:
        config = strictjson.read(weights / "config.json", WeightsError, missing="it has no config.json")
        text = config.get("text_config", config)
        return bool(_other_layers(text.get("layer_types"))) or "linear_num_key_heads" in text
    except (WeightsError, AttributeError):
        return False  # loading the weights gives the error


@cache
def _facts_of_child(weights: Path, dtype: str, capability: Capability, backends: tuple[str, ...]) -> ModelFacts:
    command = [sys.executable, "-m", __name__, str(weights), dtype, _dotted(capability), *backends]
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_BATCH_INVARIANT": "0"}
    try:
        done = subprocess.run(
            command,
            check=False,
            env={**os.environ, **variables(), **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_S,
        )
        return ModelFacts(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        reason = f"its checks took more than {_CHECK_S} s"
    except (IndexError, ValueError, TypeError):
        said = [line.strip() for line in done.stderr.splitlines() if not line.lstrip().startswith("For further")]
        reason = next(filter(None, reversed(said)), "no output")[:300]
    broken = "ImportError" in reason or "ModuleNotFoundError" in reason
    do = "repair the installation (`scripts/setup`)" if broken else "fetch it again, or choose another judge"
    raise ServerError(f"vLLM cannot serve the judge in {weights} ({reason}): {do}")


def vllm_model(weights: Path, dtype: str) -> Any:
    """vLLM's `ModelConfig` of the model in `weights`. Imports vLLM, and needs no GPU."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(weights), dtype=dtype, generation_config="vllm").create_model_config()  # type: ignore[arg-type]


def model_facts(model: Any, capability: Capability, backends: Sequence[str]) -> ModelFacts:
    """What vLLM reports about `model` (a `ModelConfig`) on a GPU of this compute capability."""
    kinds = getattr(model.hf_text_config, "layer_types", None) or ()
    other_layers = ""
    if model.is_hybrid or model.is_attention_free or model.has_inner_state:
        other_layers = _other_layers(kinds) or model.architecture
    sinks = any("sink" in name for name in _tensor_names(Path(model.model)))
    return ModelFacts(
        other_layers=other_layers,
        mla=model.use_mla,
        masked=model.is_mm_prefix_lm or sinks,
        refused={
            name: {
                mode: _refused(
                    name,
                    capability,
                    head_size=model.get_head_size(),
                    dtype=model.dtype,
                    kv_cache_dtype="auto",
                    block_size=None,
                    use_mla=model.use_mla,
                    has_sink=sinks,
                    use_sparse=False,
                    use_mm_prefix=model.is_mm_prefix_lm,
                    use_per_head_quant_scales=False,
                    attn_type="decoder",
                    has_sliding_window=model.get_sliding_window() is not None or "sliding_attention" in kinds,
                    use_batch_invariant=mode == "on",
                )
                for mode in ("on", "off")
            }
            for name in backends
        },
    )


def _refused(name: str, capability: Capability, **model: object) -> list[str]:
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    try:
        backend = AttentionBackendEnum[name].get_class()
    except (KeyError, ValueError):
        return [f"vLLM has no attention backend {name}"]
    except ImportError as e:
        return [f"it cannot be imported: {e}"]
    return list(backend.validate_configuration(device_capability=DeviceCapability(*capability), **model))  # type: ignore[arg-type]


def _tensor_names(weights: Path) -> set[str]:
    names: set[str] = set()
    for file in sorted(weights.glob("*.safetensors")):
        with open_tensors(file) as tensors:
            names.update(tensors.keys())
    return names


def _other_layers(kinds: object) -> str:
    listed = kinds if isinstance(kinds, list | tuple) else ()
    return ", ".join(sorted({str(kind) for kind in listed} - ATTENTION_LAYERS))


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


if __name__ == "__main__":
    folder, precision, dotted, *names = sys.argv[1:]
    major, minor = map(int, dotted.split("."))
    found = model_facts(vllm_model(Path(folder), precision), (major, minor), names)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
