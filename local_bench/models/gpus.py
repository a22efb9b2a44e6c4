"""GPU models: memory, throughput and power. Data in `configs/gpus.yaml`."""

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache

from pydantic import Field

from local_bench.core.errors import ConfigError
from local_bench.core.files import configs_dir
from local_bench.core.yamlfile import Strict, load_yaml

_WHOLE = r"\b{}\b(?! D\b| Laptop\b)"


class Gpu(Strict):
    """One GPU model."""

    name: str
    """The name used in the price table."""
    title: str
    matches: list[str]
    """Substrings of the device names reported by CUDA."""
    gpu_class: str
    """Compute capability: sm80, sm86, sm89, sm90, sm100, sm120."""
    memory_gb: float = Field(gt=0)
    """Usable memory, decimal GB."""
    peak_tflops: float = Field(gt=0)
    """Dense bfloat16 peak, 10^12 operations per second; an upper bound for checking timings."""
    sustained_eager: float = Field(gt=0, le=1)
    """Fraction of the peak that a diffusion transformer reaches in eager mode."""
    sustained_compiled: float = Field(gt=0, le=1)
    """Fraction of the peak that it reaches with torch.compile."""
    host_gb_per_s: float = Field(gt=0)
    """Bandwidth of copies from pinned host memory, decimal GB per second."""
    board_w: float = Field(gt=0)
    """The board's power limit in watts, used as an upper bound when estimating energy."""
    judge_batched_tokens: int = Field(ge=2048)
    """vLLM's max_num_batched_tokens for the judge's server, image tokens included. Also limits the cached image tokens,
    so it must be at least the tokens of one image."""
    judge_sequences: int = Field(ge=1)
    """vLLM's max_num_seqs for the judge's server."""
    source: str

    def tflops(self, compiled: bool) -> float:
        """Expected throughput, 10^12 operations per second."""
        return self.peak_tflops * (self.sustained_compiled if compiled else self.sustained_eager)


class _Gpus(Strict):
    gpus: list[Gpu] = Field(min_length=1)


@cache
def gpus() -> dict[str, Gpu]:
    """All known GPUs by name."""
    return {entry.name: entry for entry in load_yaml(configs_dir() / "gpus.yaml", _Gpus).gpus}


def gpu(name: str) -> Gpu:
    """The GPU with this name or unique part of a name. ConfigError for an unknown name suggests the nearest one."""
    by_name, name = gpus(), name.lower()
    if name in by_name:
        return by_name[name]
    containing = [n for n in by_name if name in n]
    if len(containing) == 1:
        return by_name[containing[0]]
    near = difflib.get_close_matches(name, by_name, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near and not containing else f"available: {', '.join(containing or by_name)}"
    raise ConfigError(f"unknown GPU {name!r} in {configs_dir() / 'gpus.yaml'}: {hint}")


def gpu_of(device_name: str) -> Gpu | None:
    """The GPU with this CUDA device name ("NVIDIA H200"); None for the CPU and for unknown GPUs."""
    match = best_match(device_name, {name: entry.matches for name, entry in gpus().items()})
    return None if match is None else gpus()[match]


def best_match(device_name: str, matches: Mapping[str, Sequence[str]]) -> str | None:
    """The key with the longest of its `matches` in the device's name, as whole words; None without a match.

    "NVIDIA H100 PCIe" is an H100 PCIe, not an H100. A notebook's "RTX 4090 Laptop GPU" and an "RTX 4090 D" are not an
    RTX 4090.
    """
    lengths = {
        name: max((len(part) for part in parts if re.search(_WHOLE.format(re.escape(part)), device_name)), default=0)
        for name, parts in matches.items()
    }
    best = max(lengths, key=lambda name: lengths[name], default=None)
    return best if best and lengths[best] else None
