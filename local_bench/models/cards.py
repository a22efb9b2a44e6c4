"""Model cards: metadata, memory requirements and file sources of each model. Data in `configs/models/*.yaml`."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from local_bench.core.environment import load_object
from local_bench.core.errors import ConfigError, UserError, hint
from local_bench.core.files import config_files, configs_dir, is_safe_id, user_config_dirs
from local_bench.core.yamlfile import Location, Strict, check, load_yaml, read_yaml

LIBRARIES = {"pyiqa": "local_bench.judges.metrics.pyiqa_cards:pyiqa_card"}
"""The function that returns the card for a name `library:name`; these cards have no YAML files."""
MAIN = ""
"""The key of the model itself, as opposed to the card's `parts`."""
SHIPPED = "local_bench.models.shipped:copy"
"""The `build` function of models whose trained weights are in the repository."""
_HOST = r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}|\[[0-9A-Fa-f:.]+\]"
_BASE_URL = re.compile(
    rf"(?:https://(?:[^/@\s]+@)?(?:{_HOST})|http://(?:127\.0\.0\.1|localhost))(?::[0-9]{{1,5}})?(?:/.*)?"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")

_TEMPLATE_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NOT_VARIABLES = frozenset(
    (
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents"),
        *("load_audio_from_video", "max_length", "messages", "padding", "processor_kwargs"),
        *("return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools"),
        "truncation",
    )
)
"""Parameters of `apply_chat_template` itself."""


def _template_variables(variables: dict[str, Any]) -> dict[str, Any]:
    for name in variables:
        if not _TEMPLATE_VARIABLE.fullmatch(name) or name in _NOT_VARIABLES:
            raise ValueError(f"{name[:80]!r} is not a variable of a chat template that a card or config may set")
    return variables


TemplateVariables = Annotated[dict[str, bool | int | float | str], AfterValidator(_template_variables)]
"""Variables of a model's chat template by name, such as `enable_thinking: false`."""


def _processor_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    if "trust_remote_code" in arguments:
        raise ValueError("trust_remote_code is no argument of an image processor that a card may set")
    return arguments


ProcessorArguments = Annotated[dict[str, bool | int | float | str], AfterValidator(_processor_arguments)]
OnOff = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(lambda given: {True: "on", False: "off"}[given] if isinstance(given, bool) else given),
]
"""In YAML, `on` and `off` are true and false."""
_REPO = re.compile(r"(?!.*(?:--|\.\.|\.git$))(?:\b[\w.-]{1,96}\b/)?\b[\w.-]{1,96}\b", re.ASCII)


def _repository(name: str) -> str:
    if not _REPO.fullmatch(name):
        raise ValueError("must be OWNER/NAME or NAME as on the Hub, of letters, digits, '-', '_' and '.'")
    return name


BackendName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]


class Source(Strict):
    """Where the weights come from: a Hub repository, a URL, a local folder, or a function that builds a model."""

    repo: Annotated[str, AfterValidator(_repository)] | None = None
    revision: str | None = None
    """The full commit that `models fetch` downloads. If null, pass it with `--revision`."""
    base_url: str | None = None
    """The URL that `files` are relative to when they are not on the Hub; preferably at a pinned commit."""
    files: list[str] = Field(default=[])
    """Download only these files; pickled ones are converted (models/convert.py). If empty, all files needed to load the
    model."""
    sha256: dict[str, str] = Field(default={})
    """Known sha256 digests of `files`, before conversion."""
    folder: str | None = None
    """A local folder, for custom cards; relative to the card's file."""
    gather: str | None = None
    """`package.module:function` that `models fetch` calls to download files that cannot be listed in the card;
    `revision` is then a version defined by that function."""
    build: str | None = None
    """`package.module:function`, called with the output folder and the card."""
    version: int = 1
    """Version of the model that `build` writes; increase it to rebuild."""
    model: str | None = None
    """The shipped card whose model `build` copies, in a card that extends it."""

    @property
    def random(self) -> bool:
        """Whether the model is untrained: a small model with seeded random weights."""
        return self.build is not None and self.build != SHIPPED

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        places = (self.repo, self.base_url, self.folder, self.gather, self.build)
        if sum(place is not None for place in places) != 1:
            raise ValueError("give one of repo, base_url, folder, gather and build")
        if self.base_url is not None and not self.files:
            raise ValueError("base_url needs files: list the files to download")
        if self.base_url is not None and not _BASE_URL.fullmatch(self.base_url):
            raise ValueError("base_url must begin with https:// and the name of a host")
        if self.files and self.repo is None and self.base_url is None:
            raise ValueError("files needs a repo or a base_url: remove files")
        for file in self.files:
            path = PurePosixPath(file)
            if path.is_absolute() or ".." in path.parts or file != path.as_posix() or set("\0\\?#%") & set(file):
                raise ValueError(f"files: {file!r} is not a plain relative path")
        unknown = next((file for file in self.sha256 if file not in self.files), None)
        if unknown is not None:
            raise ValueError(f"sha256 has {unknown!r}, which is not in files")
        invalid = next((file for file, digest in self.sha256.items() if not _SHA256.fullmatch(digest)), None)
        if invalid is not None:
            raise ValueError(f"sha256 of {invalid!r} must be 64 hex digits in lower case")
        return self


class SamplerDefaults(Strict):
    """The sampler settings recommended by the model's authors; a run config can override those that are not null."""

    height: int = Field(1024, ge=16, le=8192, multiple_of=16)
    width: int = Field(1024, ge=16, le=8192, multiple_of=16)
    """For a model with `size_from_picture`, height x width is the area and the first input image sets the aspect
    ratio."""
    num_inference_steps: int = Field(28, ge=1, le=1000)
    guidance_scale: float | None = Field(None, ge=0)
    true_cfg_scale: float | None = Field(None, ge=0)
    """Classifier-free guidance with a second forward pass on `negative_prompt`, for models whose `guidance_scale` is
    distilled or absent."""
    negative_prompt: str | None = None
    image_guidance_scale: float | None = Field(None, ge=0)
    """Guidance towards the source image (InstructPix2Pix, OmniGen)."""
    adapter_scale: float | None = Field(None, ge=0)
    """The weight of an IP-Adapter's image prompt."""
    max_sequence_length: int | None = Field(None, ge=1, le=1_000_000)
    """Maximum prompt length of the long text encoder, in tokens."""
    paste_back: bool | None = None
    """For a model with `takes.mask`: whether pixels outside the mask are copied from the source image."""


class Takes(Strict):
    """The inputs a generator accepts in addition to a prompt."""

    text_alone: bool = True
    """Whether it supports text-to-image generation."""
    pictures: int = Field(0, ge=0, le=1000)
    """Maximum number of input images: the source image first, then the reference images."""
    roles: list[Literal["source", "reference", "condition"]] = Field(
        default=["source", "reference", "condition"], min_length=1
    )
    """What an input image can be to the model: an image to edit, a reference (an image prompt), a control image such as
    a depth map. Benchmarks whose images have such roles skip the tasks with others."""
    size_from_picture: bool = False
    """Whether the output has the aspect ratio of the first input image."""
    size_multiple: int = Field(16, ge=1, le=8192)
    """Output height and width are then multiples of this."""
    min_side: int = Field(1, ge=1, le=8192)
    """Minimum height and width of an input image, in pixels."""
    max_aspect: float | None = Field(100, ge=1)
    """Maximum ratio of the longer to the shorter side of an input image; null for none. Language models and CLIP's
    image encoder fail, or need many gigabytes, for longer ones."""
    mask: bool = False
    condition: str | None = None
    """The kind of control image (depth, canny, pose), if the input is one rather than an image to edit."""


class Thinking(Strict):
    """How a judge writes its thoughts before its answer. They are stored as text, and no number is read from them."""

    budget_tokens: int = Field(ge=1, le=2**20)
    """Maximum number of tokens of the thought, in addition to those of the answer."""
    end: str = Field(min_length=1, max_length=64)
    """The text that ends the thought, such as `</think>`; the answer follows directly."""


Phase = Literal["encode", "denoise", "decode", "component"]
OF_JUDGES = (
    *("judge_max_pixels", "judge_min_pixels", "patch", "image_tokens", "mm_processor_kwargs", "thinking", "context"),
    *("max_model_len", "rubrics", "chat_template_kwargs", "batch_invariant", "attention_backend"),
    "tensor_parallel_size",
)
"""Fields of a judge's card, which have their defaults in all others."""
_OF_GENERATORS = (
    *("pipeline", "lora", "vram_by_phase_gb", "pflop_per_image", "takes", "attention", "architecture", "reduced"),
    *("sampler", "call"),
)


class ModelCard(Strict):
    """One model: an image generator, a judge, or the feature extractor of a metric."""

    name: str
    role: Literal["generator", "judge", "metric"]
    family: str
    """The implementation that runs the model."""
    title: str
    pipeline: str | None = None
    """For the family `diffusers`: the pipeline's class."""
    source: Source
    parts: dict[str, Source] = Field(default={})
    """Components from other repositories, by name (an adapter, its image encoder)."""
    lora: dict[str, float] = Field(default={})
    """LoRA adapters fused into a generator's denoiser, in this order: part name -> scale."""
    licence: str
    gated: bool = False
    """Whether the licence terms must be accepted on the Hub before download."""
    parameters_b: float = Field(ge=0, le=100_000)
    """Billions of parameters, including encoders."""
    active_parameters_b: float | None = Field(None, ge=0)
    """For a mixture-of-experts judge: billions of parameters used per token."""
    vram_gb: float = Field(ge=0)
    """Decimal GB of GPU memory: for a generator, the largest stage at the default size, batch size 1, bfloat16; for a
    judge, the weights plus the minimum needed for serving."""
    vram_by_phase_gb: dict[Phase, Annotated[float, Field(ge=0)]] = Field(default={})
    """Decimal GB of GPU memory of each generation phase: encode, denoise, decode. For the family `diffusers` also of
    the largest `component`: where the sum does not fit, the components are moved to the GPU one by one."""
    pflop_per_image: float | None = Field(None, ge=0, le=1_000_000)
    """10^15 floating-point operations per image at the default settings; gives a lower bound on the generation time."""
    takes: Takes = Takes()
    attention: dict[Annotated[str, Field(pattern=r"^sm[0-9]{2,3}$")], str] = Field(default={})
    """diffusers attention backend by GPU class (sm80, sm86, sm89, sm90, sm100), where it differs from the default."""
    architecture: dict[str, str | bool] = Field(default={})
    """The pipeline's components: component name -> architecture in configs/architectures.yaml."""
    reduced: dict[str, dict[str, int]] | None = None
    """For the card with which `doctor --gpu` checks its family: component -> key of its config (dotted) -> a smaller
    value. Widths stay, but for FLUX.2's text encoder, whose 30th layer is used."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    sampler: SamplerDefaults = SamplerDefaults()
    call: dict[str, bool | int | float | str | None] = Field(default={})
    """For the family `diffusers`: further arguments of the pipeline's `__call__`, the same for all images."""
    judge_max_pixels: int = Field(1024 * 1024, ge=1, le=2**30)
    """For a judge: larger images are downscaled to at most this many pixels."""
    judge_min_pixels: int = Field(1, ge=1, le=2**30)
    """For a judge: smaller images are upscaled to at least this many pixels, as the model's processor would do."""
    patch: int = Field(28, ge=1, le=8192)
    """For a judge: image height and width are multiples of this (patch size x merge size)."""
    image_tokens: int | None = Field(None, ge=1, le=2**20)
    """For a judge: the most tokens of one image of any size, for a model with a fixed number of them per image or per
    tile. If null, one token per patch x patch pixels."""
    mm_processor_kwargs: ProcessorArguments | None = None
    """For a judge: the arguments of its image processor (`--mm-processor-kwargs` of vLLM). If null, `max_pixels`, the
    pixels of the largest image in any question, which not all processors have; `{}` for none."""
    thinking: Thinking | None = None
    """For a judge that writes its thoughts before its answer. If null, its first token belongs to the answer."""
    context: int = Field(8192, ge=1, le=2**30)
    """For a judge: the model's context length in tokens, prompt and answer together."""
    max_model_len: int = Field(8192, ge=1, le=2**30)
    """For a judge: the default `max_model_len` of its vLLM server, which determines the size of the KV cache."""
    rubrics: Literal["improved", "paper", "miniature"] | None = None
    """For a judge trained on one version of the rubrics: the only version it supports."""
    chat_template_kwargs: TemplateVariables = Field(default={})
    """For a judge: variables of its chat template. `{enable_thinking: false}` for models that otherwise write their
    thoughts before the answer."""
    batch_invariant: OnOff = "auto"
    """For a judge: as `judge.batch_invariant`, where the config has `auto`."""
    attention_backend: BackendName | None = None
    """For a judge: vLLM's attention backend on GPUs, where the config has none."""
    tensor_parallel_size: int = Field(1, ge=1, le=1024)
    """For a judge: the number of 80 GB GPUs it is served on in bfloat16; `vram_gb` is then their total."""

    @property
    def sources(self) -> dict[str, Source]:
        """The sources of the model itself (`MAIN`) and of its parts."""
        return {MAIN: self.source, **self.parts}

    def tokens_of_image(self, pixels: int) -> float:
        """For a judge: the most tokens of an image with this number of pixels."""
        return self.image_tokens or pixels / self.patch**2

    @model_validator(mode="after")
    def _check_card(self) -> Self:
        missing = next((name for name in self.lora if name not in self.parts), None)
        if missing is not None:
            raise ValueError(f"lora: {missing!r} is not in parts: add a part with its source")
        if (self.call or self.pipeline) and self.family != "diffusers":
            raise ValueError("call and pipeline: only the family `diffusers` has them")
        if self.architecture and self.family == "diffusers":
            raise ValueError("architecture: the family `diffusers` reads its components from the model: remove it")
        for role, fields in (("judge", OF_JUDGES), ("generator", _OF_GENERATORS)):
            default = type(self).model_fields
            stray = next((name for name in fields if getattr(self, name) != default[name].default), None)
            if stray is not None and self.role != role:
                raise ValueError(f"{stray}: only {role}s have it, and this is a {self.role}: remove it")
        if self.parameters_b and self.vram_gb > 300 + 20 * self.parameters_b:  # a small judge may take a whole GPU
            raise ValueError(
                f"vram_gb is {self.vram_gb:g} with parameters_b {self.parameters_b:g}: give decimal GB and billions"
            )
        if self.max_model_len > self.context:
            raise ValueError(f"max_model_len is {self.max_model_len}, more than the model's context of {self.context}")
        if (least := max(self.judge_min_pixels, self.patch**2)) > self.judge_max_pixels:
            raise ValueError(f"judge_max_pixels is {self.judge_max_pixels}, and the least (or one patch) is {least}")
        if self.active_parameters_b and self.active_parameters_b > self.parameters_b > 0:
            raise ValueError(f"active_parameters_b is {self.active_parameters_b:g}, more than parameters_b")
        return self


def cards(refuse: Callable[[str], None] = lambda _: None) -> dict[str, ModelCard]:
    """All cards by name: the built-in ones, then the custom ones. A custom card that is not valid, or has a built-in
    card's name, is left out, and `refuse` is called with the reason."""
    by_name = {path.stem: _load(path) for path in sorted((configs_dir() / "models").glob("*.yaml"))}
    for folder in user_config_dirs():
        for path in sorted((folder / "models").glob("*.yaml")):
            try:
                by_name.setdefault(path.stem, _custom(path))
            except UserError as e:
                refuse(str(e))
    return by_name


def card(name: str, role: str) -> ModelCard:
    """The card with this name or `library:name`. ConfigError for an unknown name suggests the nearest of this role."""
    library, colon, inner = name.partition(":")
    if colon and library in LIBRARIES:
        described: ModelCard | None = load_object(LIBRARIES[library], library)(inner)  # None: a model without files
        if described is None or described.role != role:
            raise ConfigError(f"{name} is not a {role} with weights: there is nothing to fetch or to show")
        return described
    if is_safe_id(name):
        files = config_files(f"models/{name}.yaml")
        custom = files and files[0].parent.parent != configs_dir()
        if files and (described := (_custom if custom else _load)(files[0])).role == role:
            return described
    by_name = cards()
    of_role = [n for n, c in by_name.items() if c.role == role]
    own = "; for a card of your own give the folder with its models/ as --config-dir" * (not user_config_dirs())
    suggestion = hint(name, of_role, f"available: {', '.join(of_role)}")
    if name in by_name:
        suggestion, own = f"it is a {by_name[name].role}", ""
    raise ConfigError(f"unknown {role} {name!r}: {suggestion} (`local-bench models list`){own}")


def _custom(path: Path) -> ModelCard:
    """Load a custom card. It cannot run code or reuse the name of a built-in card.

    With `extends: NAME` it inherits from the card NAME what it does not set; mappings other than `source` key by key.
    """
    data, lines = _custom_fields(path, ())
    return _checked(path, check(data, ModelCard, str(path), lines))


def _custom_fields(path: Path, extended_by: tuple[Path, ...]) -> tuple[Any, dict[Location, int]]:
    """The fields of a custom card with those that it inherits, and their lines; `extended_by` are the cards that extend
    it."""
    data, lines = read_yaml(path)
    if (configs_dir() / "models" / path.name).is_file():
        raise ConfigError(f"{path}: {path.stem!r} is the name of a built-in card: give your card another name")
    if not isinstance(data, dict):
        return data, lines
    sources = [data.get("source"), *(parts.values() if isinstance(parts := data.get("parts"), dict) else ())]
    for source in sources:
        if isinstance(source, dict) and {"build", "gather"} & source.keys():
            raise ConfigError(
                f"{path}: only built-in cards can have `build` and `gather`: give repo, base_url or folder"
            )
        if isinstance(source, dict) and isinstance(source.get("folder"), str):
            source["folder"] = str(path.parent.absolute() / Path(source["folder"]).expanduser())
    name = data.pop("extends", None)
    if name is None:
        return data, lines
    shipped = configs_dir() / "models" / f"{name}.yaml"
    files = config_files(f"models/{name}.yaml") if isinstance(name, str) and is_safe_id(name) else []
    if not files:
        raise ConfigError(f"{path}: extends: unknown card {name!r} (`local-bench models list`)")
    if files[0] in (path, *extended_by):
        raise ConfigError(f"{path}: extends: {name!r} is extended by this card and extends it: remove one of them")
    base = read_yaml(shipped)[0] if files[0] == shipped else _custom_fields(files[0], (*extended_by, path))[0]
    if not isinstance(base, dict):
        raise ConfigError(f"{path}: extends: {files[0]} is no card: correct it")
    if files[0] == shipped and base["source"].get("build") == SHIPPED:
        base["source"]["model"] = name
    for key in base.keys() & data.keys() - {"source"}:
        if isinstance(base[key], dict) and isinstance(data[key], dict):
            data[key] = base[key] | data[key]
    return base | data, lines


def _load(path: Path) -> ModelCard:
    stat = path.stat()
    return _parsed(path, stat.st_mtime_ns, stat.st_size)


@cache
def _parsed(path: Path, mtime_ns: int, size: int) -> ModelCard:
    """Parse a card once per process and again when the file has changed."""
    return _checked(path, load_yaml(path, ModelCard))


def _checked(path: Path, loaded: ModelCard) -> ModelCard:
    if loaded.name != path.stem:
        raise ConfigError(f"{path}: the card's name {loaded.name!r} must match the file name")
    return loaded
