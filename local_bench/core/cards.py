"""Model cards: what a model is, what it needs and where its files come from. Data in `configs/models/*.yaml`."""

import difflib
from pathlib import Path
from typing import Literal

from pydantic import Field

from local_bench.core.errors import ConfigError
from local_bench.core.paths import configs_dir
from local_bench.core.yamlfile import Strict, load_yaml


class Source(Strict):
    """Where the weights come from: a repository on the Hub, or a small model that we build with seeded weights."""

    repo: str | None = None
    revision: str | None = None
    """The full commit that `models fetch` takes; None takes what `main` is, and the weights' digest tells which."""
    build: str | None = None
    """`package.module:function`, called with the folder to fill."""
    version: int = 1
    """Of what `build` makes; a higher number makes it anew."""


class SamplerDefaults(Strict):
    """What the authors recommend; a run's config may say otherwise."""

    height: int = Field(1024, ge=16, multiple_of=16)
    width: int = Field(1024, ge=16, multiple_of=16)
    num_inference_steps: int = Field(28, ge=1)
    guidance_scale: float = Field(3.5, ge=0)
    max_sequence_length: int = Field(512, ge=1)


class ModelCard(Strict):
    """One model: a generator of images, a judge of them, or what a metric is read off."""

    name: str
    role: Literal["generator", "judge", "metric"]
    family: str
    """Which code runs it."""
    title: str
    source: Source
    licence: str
    gated: bool = False
    """Whether its authors ask you to accept terms before `models fetch` can take it."""
    parameters_b: float
    """Billions of parameters, encoders included."""
    vram_gb: float
    """Decimal GB that the largest stage needs at the default size, batch 1, bfloat16."""
    pflop_per_image: float | None = None
    """10^15 operations an image at the defaults, counted; the floor under any honest timing."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    sampler: SamplerDefaults = SamplerDefaults()
    judge_max_pixels: int = 1024 * 1024
    """For a judge: images are resized to at most this many pixels."""
    patch: int = 28
    """For a judge: image sides are multiples of this (patch x merge)."""


def cards() -> dict[str, ModelCard]:
    """All shipped cards by name."""
    return {path.stem: _load(path) for path in sorted((configs_dir() / "models").glob("*.yaml"))}


def card(name: str, role: str) -> ModelCard:
    """The card of that name. ConfigError names the nearest one, or says that it is of the other role."""
    known = {n: c for n, c in cards().items() if c.role == role}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise ConfigError(f"there is no {role} {name!r}: {hint} (`local-bench models list`)")


def _load(path: Path) -> ModelCard:
    loaded = load_yaml(path, ModelCard)
    if loaded.name != path.stem:
        raise ConfigError(f"{path}: the card's name {loaded.name!r} must be the file's")
    return loaded
