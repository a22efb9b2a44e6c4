"""Law 8: ways to be quicker or smaller that change what the model draws. Each is a system of its own, with a name.

`weights: float8_e4m3fn` keeps the transformer's weights in 8 bits and computes in the model's own precision.
`first_block_cache: 0.08` skips blocks while the first one's output changes by less than that part; it decides over the
whole batch, so such a system draws one picture at a time.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from local_bench.core.errors import ConfigError

NEIGHBOURS_MATTER = ("first_block_cache",)


def check_lossy(lossy: Iterable[str], family: str, ways: Sequence[str]) -> None:
    """ConfigError for a lossy way that a family does not have."""
    other = next((way for way in lossy if way not in ways), None)
    if other is not None:
        raise ConfigError(f"lossy.{other}: the family {family} has only {', '.join(ways)}: leave it out")


def make_lossy(module: Any, lossy: dict[str, Any]) -> None:
    """Turns a denoiser into the lossy system that the config names."""
    import torch
    from diffusers import FirstBlockCacheConfig

    storage = lossy.get("weights")
    if storage is not None:
        module.enable_layerwise_casting(storage_dtype=getattr(torch, storage), compute_dtype=module.dtype)
    threshold = lossy.get("first_block_cache")
    if threshold is not None:
        module.enable_cache(FirstBlockCacheConfig(threshold=threshold))
