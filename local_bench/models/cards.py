"""Model cards: what a model is, what it needs and where its files come from. Data in `configs/models/*.yaml`."""

import importlib
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.paths import configs_dir, is_safe_id, user_config_dirs
from local_bench.core.suggest import hint
from local_bench.core.yamlfile import Strict, check, load_yaml, read_yaml

LIBRARIES = {"pyiqa": "local_bench.judges.metrics.pyiqa_cards:pyiqa_card"}
"""Who makes the cards that are called `library:name`, for they are too many to be files."""
SHIPPED = "local_bench.models.shipped:copy"
"""What builds the models whose trained weights lie in the repository."""
_BASE_URL = re.compile(r"https://[^/]+(/.*)?|http://(127\.0\.0\.1|localhost)(:\d+)?(/.*)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Source(Strict):
    """Where the weights come from: a repository on the Hub, elsewhere on the web, or a small model that we build with
    seeded weights."""

    repo: str | None = None
    revision: str | None = None
    """The full commit that `models fetch` takes. Without one nothing is fetched: it must be given by hand."""
    base_url: str | None = None
    """Where `files` lie when that is not the Hub; best at a pinned commit of theirs."""
    files: list[str] = Field(default=[])
    """Only these are taken; pickled ones are converted (core/convert.py). All that a model is loaded from if empty."""
    sha256: dict[str, str] = Field(default={})
    """Of `files`, before they are converted, where it is known."""
    folder: str | None = None
    """A folder on this machine, for a lab's own cards; relative to the card's file."""
    gather: str | None = None
    """`package.module:function`, which `models fetch` calls to bring what only code can name; `revision` is its own."""
    build: str | None = None
    """`package.module:function`, called with the folder to fill and the card."""
    version: int = 1
    """Of what `build` makes; a higher number makes it anew."""

    @property
    def random(self) -> bool:
        """Whether nothing was ever learnt: a small model with seeded random weights."""
        return self.build is not None and self.build != SHIPPED

    @model_validator(mode="after")
    def _from_one_place(self) -> Self:
        if sum(where is not None for where in (self.repo, self.base_url, self.folder, self.gather, self.build)) != 1:
            raise ValueError("give one of repo, base_url, folder, gather and build")
        if self.base_url is not None and not self.files:
            raise ValueError("base_url needs files: name those to take from there")
        if self.base_url is not None and not _BASE_URL.fullmatch(self.base_url):
            raise ValueError("base_url must begin with https://")
        if self.files and self.repo is None and self.base_url is None:
            raise ValueError("files are of a repo or a base_url: leave them out")
        for file in self.files:
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or file != path.as_posix() or set("\0\\?#%") & set(file):
                raise ValueError(f"files: {file!r} is no plain relative path")
        strange = next((file for file in self.sha256 if file not in self.files), None)
        if strange is not None:
            raise ValueError(f"sha256 names {strange!r}, which is not in files")
        wrong = next((file for file, digest in self.sha256.items() if not _SHA256.fullmatch(digest)), None)
        if wrong is not None:
            raise ValueError(f"sha256 of {wrong!r} must be 64 hex digits in lower case")
        return self


class SamplerDefaults(Strict):
    """What the authors recommend; a run's config may say otherwise for what is not null here."""

    height: int = Field(1024, ge=16, multiple_of=16)
    width: int = Field(1024, ge=16, multiple_of=16)
    """For a model with `size_from_picture`, height x width is the area and the first picture gives the aspect."""
    num_inference_steps: int = Field(28, ge=1)
    guidance_scale: float | None = Field(None, ge=0)
    true_cfg_scale: float | None = Field(None, ge=0)
    """Guidance by a second forward pass on `negative_prompt`, where `guidance_scale` is distilled or absent."""
    negative_prompt: str | None = None
    image_guidance_scale: float | None = Field(None, ge=0)
    """How strictly the source picture is kept (InstructPix2Pix, OmniGen)."""
    adapter_scale: float | None = Field(None, ge=0)
    """How strongly an IP-Adapter's picture counts."""
    max_sequence_length: int | None = Field(None, ge=1)
    """Tokens that the long text encoder reads."""
    paste_back: bool | None = None
    """Of a model with `takes.mask`: whether the source's own pixels replace the result's outside the mask."""


class Takes(Strict):
    """What a generator can be given besides words."""

    text_alone: bool = True
    """Whether it makes a picture from words alone."""
    pictures: int = Field(0, ge=0)
    """How many input pictures it looks at: the source first, then the references."""
    size_from_picture: bool = False
    """Whether the result takes the first picture's aspect."""
    size_multiple: int = 16
    """Of what the result's sides are multiples then."""
    min_side: int = 1
    """Pixels that each side of a picture must have at least."""
    max_aspect: float | None = None
    """How many times longer one side may be than the other."""
    mask: bool = False
    condition: str | None = None
    """What its picture is when that is no picture to edit: depth, canny, pose."""


class ModelCard(Strict):
    """One model: a generator of images, a judge of them, or what a metric is read off."""

    name: str
    role: Literal["generator", "judge", "metric"]
    family: str
    """Which code runs it."""
    title: str
    source: Source
    parts: dict[str, Source] = Field(default={})
    """What comes from other repositories, by name (an adapter, its image encoder)."""
    lora: dict[str, float] = Field(default={})
    """LoRA adapters fused into a generator's denoiser, in this order: the name of a part -> its scale."""
    licence: str
    gated: bool = False
    """Whether its authors ask you to accept terms before `models fetch` can take it."""
    parameters_b: float
    """Billions of parameters, encoders included."""
    vram_gb: float
    """Decimal GB that the largest stage needs at the default size, batch 1, bfloat16; a judge's weights and the least
    it can be served in."""
    vram_by_phase_gb: dict[str, float] = Field(default={})
    """Decimal GB of each of a generator's phases: encode, denoise, decode."""
    pflop_per_image: float | None = None
    """10^15 operations an image at the defaults, counted; the floor under any honest timing."""
    takes: Takes = Takes()
    attention: dict[str, str] = Field(default={})
    """The diffusers attention backend by GPU class (sm80, sm86, sm89, sm90, sm100), where ours is not right for it."""
    architecture: dict[str, str | bool] = Field(default={})
    """The pieces (configs/architectures.yaml) that make up a generator's pipeline, by the pipeline's own names."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    sampler: SamplerDefaults = SamplerDefaults()
    judge_max_pixels: int = 1024 * 1024
    """For a judge: images are resized to at most this many pixels …"""
    judge_min_pixels: int = Field(1, ge=1)
    """… and smaller ones to at least this many: the model's processor would do the same unseen."""
    patch: int = 28
    """For a judge: image sides are multiples of this (patch x merge)."""
    context: int = Field(8192, ge=1)
    """For a judge: the tokens that the model itself can take in one question and its answer."""
    max_model_len: int = Field(8192, ge=1)
    """For a judge: the tokens that it is served with unless a run says otherwise; memory is set aside for them."""
    rubrics: Literal["improved", "paper", "miniature"] | None = None
    """For a judge that was trained on one wording of the rubrics: the only one that it answers."""
    tensor_parallel_size: int = Field(1, ge=1)
    """For a judge: over how many GPUs of 80 GB it is split in bfloat16; `vram_gb` is then of all of them together."""

    @model_validator(mode="after")
    def _adapters_are_parts(self) -> Self:
        missing = next((name for name in self.lora if name not in self.parts), None)
        if missing is not None:
            raise ValueError(f"lora: {missing!r} is not among parts: say there where its file comes from")
        if self.lora and self.role != "generator":
            raise ValueError("lora: only generators take adapters")
        return self

    @model_validator(mode="after")
    def _served_within_its_context(self) -> Self:
        if self.max_model_len > self.context:
            raise ValueError(f"max_model_len is {self.max_model_len}, more than the model's context of {self.context}")
        return self


def cards() -> dict[str, ModelCard]:
    """All cards by name: the shipped ones, then a lab's own. ConfigError for an own card with a shipped card's name."""
    found = {path.stem: _load(path) for path in sorted((configs_dir() / "models").glob("*.yaml"))}
    for folder in user_config_dirs():
        for path in sorted((folder / "models").glob("*.yaml")):
            found.setdefault(path.stem, _own(path))
    return found


def card(name: str, role: str) -> ModelCard:
    """The card of that name, or of that `library:name`. ConfigError names the nearest one there is of this role."""
    library, colon, inner = name.partition(":")
    if colon and library in LIBRARIES:
        found = _of_library(library, inner)
        if found is None or found.role != role:
            raise ConfigError(f"{name} is no {role} that has files of its own: there is nothing to fetch or to show")
        return found
    if is_safe_id(name):
        shipped = configs_dir() / "models" / f"{name}.yaml"
        own = [path for folder in user_config_dirs() if (path := folder / "models" / f"{name}.yaml").is_file()]
        if (own or shipped.is_file()) and (found := _own(own[0]) if own else _load(shipped)).role == role:
            return found
    known = {n: c for n, c in cards().items() if c.role == role}
    suggestion = hint(name, known, f"there are {', '.join(known)}")
    raise ConfigError(f"there is no {role} {name!r}: {suggestion} (`local-bench models list`)")


def _own(path: Path) -> ModelCard:
    """A lab's own card. It cannot run code, and it cannot have the name of a shipped one: results would be mistaken.

    With `extends: NAME` it has all that the shipped card NAME has and it does not set itself; parts are added.
    """
    data, lines = read_yaml(path)
    if (configs_dir() / "models" / path.name).is_file():
        raise ConfigError(f"{path}: {path.stem!r} is the name of a card of local-bench: give your card another name")
    if isinstance(data, dict):
        sources = [data.get("source"), *(parts.values() if isinstance(parts := data.get("parts"), dict) else ())]
        for source in sources:
            if isinstance(source, dict) and {"build", "gather"} & source.keys():
                raise ConfigError(
                    f"{path}: `build` and `gather` are for the cards of local-bench: give repo, base_url or folder"
                )
            if isinstance(source, dict) and isinstance(source.get("folder"), str):
                source["folder"] = str(path.parent.absolute() / Path(source["folder"]).expanduser())
        data = _extended(path, data)
    return _checked(path, check(data, ModelCard, str(path), lines))


def _extended(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    name = data.pop("extends", None)
    if name is None:
        return data
    shipped = configs_dir() / "models" / f"{name}.yaml"
    if not (isinstance(name, str) and is_safe_id(name) and shipped.is_file()):
        raise ConfigError(f"{path}: extends: there is no shipped card {name!r} (`local-bench models list`)")
    base: dict[str, Any] = read_yaml(shipped)[0]
    parts = {**(base.get("parts") or {}), **(data.get("parts") or {})}
    return base | data | ({"parts": parts} if parts else {})


def _load(path: Path) -> ModelCard:
    written = path.stat()
    return _parsed(path, written.st_mtime_ns, written.st_size)


@cache
def _parsed(path: Path, mtime_ns: int, size: int) -> ModelCard:
    """Parsed once a process, and again where the file has changed."""
    return _checked(path, load_yaml(path, ModelCard))


def _checked(path: Path, loaded: ModelCard) -> ModelCard:
    if loaded.name != path.stem:
        raise ConfigError(f"{path}: the card's name {loaded.name!r} must be the file's")
    return loaded


def _of_library(library: str, name: str) -> ModelCard | None:
    """The card of a library's own model; None for one that needs no file."""
    module, _, function = LIBRARIES[library].partition(":")
    found: ModelCard | None = getattr(importlib.import_module(module), function)(name)
    return found
