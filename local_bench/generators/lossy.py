"""Lossy settings: faster or smaller, but they change the generated images. Each combination is a separate system.

`weights: float8_e4m3fn` stores the transformer's weights in 8 bits and computes in the model's own precision.
`first_block_cache: 0.08` skips blocks while the relative change of the first block's output is below that threshold.
It decides for the whole batch, so such a system runs with batch size 1.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from local_bench.core.errors import ConfigError

NEIGHBOURS_MATTER = ("first_block_cache",)


def check_lossy(lossy: Iterable[str], family: str, supported: Sequence[str]) -> None:
    """Raise ConfigError for a lossy setting that the family does not support."""
    other = next((way for way in lossy if way not in supported), None)
    if other is not None:
        raise ConfigError(f"lossy.{other}: the family {family} supports only {', '.join(supported)}: remove it")


def make_lossy(module: Any, lossy: dict[str, Any]) -> None:
    """Apply the config's lossy settings to a denoiser."""
    import torch
    from diffusers import FirstBlockCacheConfig

    storage = lossy.get("weights")
    if storage is not None:
        module.enable_layerwise_casting(storage_dtype=getattr(torch, storage), compute_dtype=module.dtype)
    threshold = lossy.get("first_block_cache")
    if threshold is not None:
        module.enable_cache(FirstBlockCacheConfig(threshold=threshold))
