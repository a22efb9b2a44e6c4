"""GPUs by name: what they hold and how fast they can be. Data in `configs/gpus.yaml`."""

import difflib
import re
from functools import cache

from pydantic import Field

from local_bench.core.errors import ConfigError
from local_bench.core.paths import configs_dir
from local_bench.core.yamlfile import Strict, load_yaml


class Gpu(Strict):
    """One kind of GPU."""

    name: str
    """As in the price table."""
    title: str
    matches: list[str]
    """Words of the names that such devices give themselves."""
    gpu_class: str
    """Its generation, as kernels are built for it: sm80, sm86, sm89, sm90."""
    memory_gb: float = Field(gt=0)
    """Decimal GB that a program sees."""
    peak_tflops: float = Field(gt=0)
    """Dense bfloat16, 10^12 operations a second: a timing that beats it is wrong."""
    sustained_eager: float = Field(gt=0, le=1)
    """The part of the peak that a diffusion transformer reaches as it is …"""
    sustained_compiled: float = Field(gt=0, le=1)
    """… and compiled."""
    host_gb_per_s: float = Field(gt=0)
    """Copies from pinned host memory, decimal GB."""
    board_w: float = Field(gt=0)
    """The board's power limit: energy is planned with it, and so not too low."""
    judge_batched_tokens: int = Field(ge=2048)
    """Tokens that the judge's server takes in one step (vLLM's max_num_batched_tokens), pictures' included; also how
    many tokens of pictures it holds at a time, so never fewer than one picture has."""
    judge_sequences: int = Field(ge=1)
    """Questions that it works on at once (vLLM's max_num_seqs)."""
    source: str

    def tflops(self, compiled: bool) -> float:
        """The rate to plan with, 10^12 operations a second."""
        return self.peak_tflops * (self.sustained_compiled if compiled else self.sustained_eager)


class _Gpus(Strict):
    gpus: list[Gpu] = Field(min_length=1)


@cache
def gpus() -> dict[str, Gpu]:
    """All GPUs that we know, by name."""
    return {known.name: known for known in load_yaml(configs_dir() / "gpus.yaml", _Gpus).gpus}


def gpu(name: str) -> Gpu:
    """The GPU of that name; a part will do that only one name has. ConfigError names the nearest."""
    known = gpus()
    if name in known:
        return known[name]
    alike = [n for n in known if name.lower() in n]
    if len(alike) == 1:
        return known[alike[0]]
    near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near and not alike else f"there are {', '.join(alike or known)}"
    raise ConfigError(f"there is no GPU {name!r} in {configs_dir() / 'gpus.yaml'}: {hint}")


def gpu_of(device_name: str) -> Gpu | None:
    """The GPU that gives itself such a name ("NVIDIA H200"); None for the CPU and for one that we do not know."""
    for known in gpus().values():
        if any(re.search(rf"\b{re.escape(words)}\b", device_name) for words in known.matches):
            return known
    return None
