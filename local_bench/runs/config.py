"""The config of a run and of its judges, as its YAML file gives it. Unknown keys are errors; all defaults are defined
here."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from local_bench.core.errors import ConfigError, short
from local_bench.core.files import is_safe_id, path_fault
from local_bench.core.strictjson import natural
from local_bench.core.types import Unsupported
from local_bench.core.yamlfile import Amount, ExactAmount, Location, Strict, check, read_yaml, yaml_text, yaml_value
from local_bench.judges.vlm.judge import BUILT_IN, JudgeSpec
from local_bench.judges.vlm.rubrics import DEFAULT, HYPE_USABLE, RubricSet, Variant
from local_bench.judges.vlm.vllm_process import check_extra_args
from local_bench.models.cards import BackendName, ModelCard, OnOff, TemplateVariables, cards


def _safe(name: str) -> str:
    if not is_safe_id(name):
        raise ValueError("use letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit")
    return name


Name = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value), AfterValidator(_safe)]
"""A name, which may be a number: `name: 7`, `name: 007`."""


def _possible_path(text: str) -> str:
    if fault := path_fault(text):
        raise ValueError(f"this is not a path: {fault}")
    return text


PathText = Annotated[str, AfterValidator(_possible_path)]
"""A path that a file can have, whether or not it exists."""

_KEY_VARIABLE = re.compile(r"VLLM_API_KEY|OPENAI_API_KEY|LOCAL_BENCH_[A-Z0-9_]{1,64}")
_URL = re.compile(r"https?://[A-Za-z0-9._:/~%\[\]-]+")


class JudgeConfig(Strict):
    """A judge: its model card, protocol and transport."""

    card: str = ""
    """The judge's model card; there is no default, and names are checked before a run. Instead of it, `repo:
    OWNER/NAME` or a folder: the card with that source."""
    name: Name | None = None
    """The judge's name in results; defaults to the card's name."""
    weights: PathText | None = None
    protocol: Literal["json", "logit"] = "json"
    """`json`: a JSON object constrained by a schema. `logit`: the probabilities of one label token per criterion;
    the score is their mean."""
    transport: str = "auto"
    """`embedded`: vLLM's engine in a child process, without HTTP. `served`: a vLLM server, started by local-bench or
    running at `base_url`. `local`: transformers, without vLLM. `auto`: served if `base_url` is set, else embedded if
    vLLM is installed, else local. Any other name is a judge of an installed plug-in (judges.vlm.judge)."""
    base_url: str | None = None
    """`http://host:port/v1` of a server that serves this card's model."""
    api_key_env: str = "VLLM_API_KEY"
    """The environment variable that holds an external server's key: VLLM_API_KEY, OPENAI_API_KEY or LOCAL_BENCH_…"""
    served_model: str | None = None
    """The model's name at `base_url`. Required where the server lists several, or one that is not the card's."""
    port: int | None = Field(None, ge=1, le=65535)
    """The port of a managed server; defaults to a free port."""
    in_flight: int | None = Field(None, ge=1, le=4096)
    """Concurrent requests to a server (default 128)."""
    rubrics: Variant | None = None
    """The rubric set: `improved` (local-bench's), `paper` (each benchmark's published criteria), `verbatim` (the
    authors' prompts word for word, with protocol `json`), `miniature` (that of the trained miniature judge). Defaults
    to the card's set, else `improved`."""
    hype_usable: bool = False
    """Adds local-bench's third criterion, `usable`, to HYPE-EDIT-1's rubric; an image must then meet it to pass."""
    max_pixels: int | None = Field(None, ge=1024)
    """Maximum pixels per image; larger images are downscaled. Defaults to the card's value."""
    source_max_pixels: int | None = Field(None, ge=1024, le=16_777_216)
    """The same for questions that compare with a source image: 4194304 keeps details that are lost at 1 MP."""
    max_tokens: int | None = Field(None, ge=8, le=8192)
    """Maximum tokens per answer; defaults to each rubric's value."""
    request_timeout_s: float = Field(300.0, gt=0)
    """How long a judge may give no answer at all. A server that answers others, or asks to wait, is waited for."""
    start_timeout_s: float | None = Field(None, gt=0)
    """Timeout for a managed judge to load; defaults to ten minutes, more for large weights."""
    max_restarts: int = Field(3, ge=0)
    seed: int = Field(0, ge=0)
    canaries: bool = True
    """Whether to check the judge for batch invariance and test it for prompt injection first."""
    batch_invariant: OnOff = "auto"
    """Whether a judge that vLLM runs on a GPU uses vLLM's batch-invariant mode. `auto`: the card's value, else on where
    vLLM supports it for the model and the GPU. `on` is an error where it does not."""
    attention_backend: BackendName | None = None
    """vLLM's attention backend on a GPU (FLASH_ATTN, TRITON_ATTN, …). Defaults to the card's, else to a batch-invariant
    one that supports the model."""
    chat_template_kwargs: TemplateVariables = Field(default={})
    """Variables of the judge's chat template, added to those of its card."""
    extra_args: list[str] = Field(default=[])
    """Additional vLLM arguments of a managed engine or server (`judges.vlm.vllm_process.EXTRA_VALUES`)."""

    @property
    def label(self) -> str:
        chosen = ("" if self.protocol == "json" else self.protocol, self.rubrics or "")
        return self.name or "-".join([self.card, *filter(None, chosen)])

    def rubric_set(self, described: ModelCard) -> RubricSet:
        """The judge's rubric set. ConfigError if its card supports another one only."""
        if self.rubrics and described.rubrics and self.rubrics != described.rubrics:
            raise ConfigError(
                f"judge.rubrics: {described.name} was trained on the rubrics {described.rubrics!r} and does not "
                f"support {self.rubrics!r}: set judge.rubrics={described.rubrics} or choose another judge"
            )
        variant = self.rubrics or described.rubrics or DEFAULT
        if variant == "verbatim" and (self.protocol != "json" or self.hype_usable):
            raise ConfigError(
                "judge.rubrics: `verbatim` has the authors' criteria and answer formats: use protocol json without "
                "hype_usable, or judge.rubrics=paper"
            )
        return RubricSet(variant, (HYPE_USABLE,) if self.hype_usable and variant != "miniature" else ())  # which has it

    @property
    def plugin(self) -> str | None:
        """The judge of an installed package; None for one by vLLM or transformers."""
        return None if self.transport in BUILT_IN else self.transport

    def spec(self, described: ModelCard, weights_sha256: str, dtype: str) -> JudgeSpec:
        """The judge with these weights."""
        return JudgeSpec(
            card=described.name,
            weights_sha256=weights_sha256,
            dtype=dtype,
            max_pixels=self.max_pixels or described.judge_max_pixels,
            patch=described.patch,
            seed=self.seed,
            protocol=self.protocol,
            min_pixels=described.judge_min_pixels,
            max_tokens=self.max_tokens,
            extra_args=() if self.base_url else tuple(self.extra_args),
            rubrics=self.rubric_set(described),
            source_max_pixels=self.source_max_pixels,
            mm_processor_kwargs=None
            if described.mm_processor_kwargs is None
            else tuple(sorted(described.mm_processor_kwargs.items())),
            thinking=described.thinking,
            chat_template_kwargs=tuple(sorted((described.chat_template_kwargs | self.chat_template_kwargs).items())),
            plugin=self.plugin,
        )

    @model_validator(mode="before")
    @classmethod
    def _card_of_repo(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(repo := data.get("repo"), str) or data.get("card"):
            return data
        folder = str(Path(repo).resolve())
        for name, described in cards().items():
            if described.role == "judge" and (described.source.repo == repo or described.source.folder == folder):
                return {key: value for key, value in data.items() if key != "repo"} | {"card": name}
        shown = repo[:200]
        raise ValueError(f"no judge's card has the source {shown!r}: run `local-bench models add {shown}` first")

    @model_validator(mode="after")
    def _check_transport(self) -> "JudgeConfig":
        if self.base_url is not None and self.transport not in ("auto", "served"):
            raise ValueError(f"base_url is used over HTTP only: remove `transport: {self.transport}`")
        if self.base_url is not None:  # the errors do not repeat it
            try:
                parts = urlsplit(self.base_url)
                _ = parts.port  # raises ValueError for an invalid port
            except ValueError:
                parts = urlsplit("")
            if parts.username is not None or parts.password is not None:
                raise ValueError(
                    "base_url must not contain a user name or password: put the server's key into VLLM_API_KEY"
                )
            if not parts.hostname or not _URL.fullmatch(self.base_url):
                raise ValueError("base_url must be a URL like http://host:8000/v1")
        if not _KEY_VARIABLE.fullmatch(self.api_key_env):
            raise ValueError(
                "api_key_env must be VLLM_API_KEY, OPENAI_API_KEY or a name that starts with LOCAL_BENCH_: put the "
                "key into one of these"
            )
        check_extra_args(self.extra_args)
        if self.base_url is not None and (self.batch_invariant != "auto" or self.attention_backend is not None):
            raise ValueError(
                "batch_invariant and attention_backend are settings of a judge that local-bench starts: remove them, "
                "and start the server at base_url with them"
            )
        return self


class SuiteConfig(Strict):
    """The benchmark and which of its tasks to run."""

    name: str = "studio"
    path: PathText | None = None
    """The benchmark's own file or folder, for suites that read one; relative to the working folder."""
    written: PathText | None = None
    """The output file of `extract`: evaluation points, checklists and prompts of the tasks."""
    limit: int | None = Field(None, ge=1)
    """Run only the first N tasks."""
    questions_from: list[str] = Field(default=[])
    """Other benchmarks whose questions the judges also answer about the same images (suites/questions_from.py)."""
    sizes_from_rules: bool = False
    """Whether images are generated in the size or aspect ratio that a task's hard rules require, instead of the
    model's default."""
    shard: str | None = None
    """`i/n`: run only the i-th of n shards of the tasks, in a run directory of its own (`local-bench merge`)."""
    part: str | None = None
    """Run only the tasks of this category or of this part of the benchmark (`mini`, `public`, a task type)."""
    unsupported: Unsupported | None = None
    """What a model does with a task that has input images which it does not take. `text_only`: it generates from the
    text and the images that it takes. `unscored`: the task counts for it, undecided. `skip`: as `unscored`, and the
    benchmark's own numbers leave the task out. Defaults to the benchmark's protocol: `skip` for IDEA-Bench, HYPE-EDIT-1
    and ICE-Bench, else `text_only`."""

    @field_validator("shard")
    @classmethod
    def _check_shard(cls, shard: str | None) -> str | None:
        if shard is not None:
            parse_shard(shard)
        return shard


class LossyConfig(Strict):
    """Lossy optimisations. With any of them set, the model is reported as a separate one under a name of its own."""

    weights: Literal["float8_e4m3fn", "float8_e5m2"] | None = None
    """Store the transformer's weights in 8 bits; computation stays in the model's precision."""
    first_block_cache: float | None = Field(None, gt=0, lt=1)
    """Skip transformer blocks while the relative change of the first block's output is below this threshold."""

    @property
    def suffix(self) -> str:
        """The suffix of the model's name: `+fp8`, `+fbc0.08`."""
        weights = {"float8_e4m3fn": "+fp8", "float8_e5m2": "+fp8e5m2"}.get(self.weights or "", "")
        return weights + (f"+fbc{self.first_block_cache:g}" if self.first_block_cache else "")

    @property
    def settings(self) -> dict[str, str | float]:
        return self.model_dump(exclude_none=True)


class ImportedConfig(Strict):
    """Images generated outside local-bench: by an API, another lab, or people."""

    images: PathText
    """A folder (`TASK/N.png`, or `TASK_N.png` if that is no image of another task, N from 1, with `_ATTEMPT` after it
    where there are several), or a JSON Lines manifest of `task_id`, `deliverable`, `attempt`, `file`, `cost_usd`."""
    cost_usd_per_image: Amount | None = None
    """The cost of one image, in USD; values in the manifest take precedence."""


def parse_shard(text: str) -> tuple[int, int]:
    """(i, n) of a shard `i/n`, 1 <= i <= n. ValueError for any other text."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})/([1-9][0-9]{0,4})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"shard {text!r} is not i/n with 1 <= i <= n, such as 2/4")
    return int(match[1]), int(match[2])


IMPORTED = "imported"


class ModelConfig(Strict):
    """One generator, given by its model card; settings that are omitted come from the card."""

    card: str
    """The name of a model card, or `imported` for images generated elsewhere."""
    name: Name | None = None
    """The model's name in results; defaults to the card's name."""
    weights: PathText | None = None
    """A folder with the model's weights, used instead of the cache."""
    load: Literal["weights", "random"] = "weights"
    """`random`: the card's full architecture with seeded random weights, without a download; for timing."""
    imported: ImportedConfig | None = None
    lossy: LossyConfig = LossyConfig()
    height: int | None = Field(None, ge=16, le=8192, multiple_of=16)
    width: int | None = Field(None, ge=16, le=8192, multiple_of=16)
    num_inference_steps: int | None = Field(None, ge=1, le=1000)
    guidance_scale: float | None = Field(None, ge=0)
    true_cfg_scale: float | None = Field(None, ge=0)
    negative_prompt: str | None = None
    image_guidance_scale: float | None = Field(None, ge=0)
    adapter_scale: float | None = Field(None, ge=0)
    max_sequence_length: int | None = Field(None, ge=1, le=4096)
    paste_back: bool | None = None
    attempts: int = Field(1, ge=1, le=1000)
    batch_size: int | None = Field(None, ge=1, le=256)
    """The fixed batch size; defaults to `engine.batch_size`."""

    @property
    def label(self) -> str:
        return self.name or self.card + self.lossy.suffix

    @model_validator(mode="after")
    def _check_name(self) -> "ModelConfig":
        if (self.card == IMPORTED) != (self.imported is not None):
            raise ValueError("`card: imported` and `imported: {images: …}` go together")
        if self.card == IMPORTED and self.name is None:
            raise ValueError("imported images need a `name`: that of the system that generated them")
        if self.lossy.suffix and self.name == self.card:
            raise ValueError(f"a lossy system must not be named {self.card!r}: leave `name` out or choose another")
        if self.load == "random" and self.weights is not None:
            raise ValueError("`load: random` reads no weights: remove `load` or `weights`")
        return self


class AcceptanceConfig(Strict):
    """The acceptance rule: a deliverable is accepted if every score that applies to it reaches its threshold."""

    rule: Literal["threshold"] = "threshold"
    brf: float = Field(3.0, ge=0, le=5)
    veq: float = Field(3.0, ge=0, le=5)
    cns: float = Field(3.0, ge=0, le=5)
    """Applies to edits and image sets only."""
    rules: bool = False
    """Whether an image must also satisfy every hard rule of its task (score `rules`), if the task has any."""

    @property
    def thresholds(self) -> dict[str, float]:
        return {"brf": self.brf, "veq": self.veq, "cns": self.cns}


class SettlementConfig(Strict):
    """Prices and other settings of the settlement."""

    gpu: str | None = None
    """A row of the price table; defaults to the row of the device that was used."""
    price: Literal["low", "mid", "high"] = "mid"
    usd_per_hour: ExactAmount | None = None
    """The lab's own price of one device-hour in USD; overrides the price table."""
    usd_per_kwh: ExactAmount | None = None
    """The electricity price in USD, for hourly prices that do not include electricity: in the break-even against an
    API, which is unknown where a device's energy was not measured. Costs and profits do not include it."""
    api_usd_per_image: dict[str, Amount] = Field(default={})
    """Model name -> price of one image at an API, in USD; reported next to the measured cost."""
    coverage_min: float = Field(0.98, ge=0, le=1)
    """The report shows a warning if the settled fraction of the tasks' total price is below this value."""


class RayConfig(Strict):
    """The Ray cluster of `executor: ray`. Its nodes need the same environment as this machine, and the run directory
    and the weights at the same paths."""

    address: str | None = None
    """`HOST:PORT` of the cluster's head node, or `auto` for the cluster of this machine. By default a cluster of this
    machine alone is started, and stopped at the end."""
    gpu_type: str | None = None
    """Use only nodes with this type of GPU, by Ray's names: `H100`, `A100`, `RTX-A6000`, … Bytes are equal on GPUs of
    one type only."""
    max_losses: int = Field(10, ge=0)
    """Stop after this many workers or judges were lost, finished work kept."""
    wait_s: float = Field(600.0, gt=0)
    """Stop if the cluster has no usable node for this long, finished work kept."""
    shares_per_worker: int = Field(2, ge=1, le=64)
    """Number of shares of a model's images per worker. With more, a node that joins gets work sooner; a model is loaded
    once per share."""


class EngineConfig(Strict):
    """Devices and scheduling. Only `device`, `batch_size`, `attention_backend`, `compile`, `threads` and, on a GPU,
    `offload` can change the bytes of images; `metric_batch_size` can change the last digits of scores."""

    executor: Literal["local", "ray"] = "local"
    """`local`: this machine's devices. `ray`: the nodes of a Ray cluster, which can join and leave."""
    ray: RayConfig = RayConfig()
    device: str = "auto"
    """`auto` (every GPU of the model with the most memory, or the CPU), `cpu`, `cuda` or `cuda:N`."""
    workers: int | None = Field(None, ge=1, le=64)
    """Number of worker processes, each with a GPU of its own; defaults to all GPUs of `device`, and to 1 on a CPU."""
    batch_size: int | None = Field(None, ge=1, le=256)
    """The fixed batch size of all models; by default the planner chooses the size that fills the device."""
    compile: bool | None = None
    """Whether to compile the transformer's blocks (torch.compile); defaults to true on a GPU and false on a CPU.
    Streamed weights are never compiled."""
    offload: Literal["auto", "always"] = "auto"
    """`auto`: stream weights that do not fit from host memory; `always`: stream all of them. A streamed transformer is
    not compiled, so on a GPU its images differ from those of a compiled one."""
    batch_order: Literal["plan", "reverse", "shuffle"] = "plan"
    """The order in which candidates are put into batches; results do not depend on it."""
    threads: int = Field(1, ge=1, le=256)
    """Number of CPU threads of torch; part of the numerics signature."""
    attention_backend: str = "auto"
    """A diffusers attention backend; `auto` selects the one known to be deterministic and batch-invariant on this
    GPU."""
    io_workers: int = Field(2, ge=1, le=64)
    """Number of threads that read and preprocess images while the device computes."""
    encodings_gb: float = Field(20.0, gt=0)
    """Disk space for a model's encoded prompts, in decimal GB (4 to 16 MB per prompt). If they take more, the
    candidates are generated in windows, and the encoders are loaded once per window."""
    metric_batch_size: int | None = Field(None, ge=1, le=1024)
    """The fixed batch size of metric networks that support batches; defaults to each network's own."""


class RunConfig(Strict):
    """The config of a run."""

    name: Name
    seed: int = Field(0, ge=0)
    suite: SuiteConfig = SuiteConfig()
    models: list[ModelConfig] = Field(min_length=1)
    judge: JudgeConfig | None = None
    """The judge of the images; `null` for a run without one. `run` requires this key."""
    panel: list[JudgeConfig] = Field(default=[])
    """Further judges of the same images."""
    panel_word: Literal["mean", "majority"] = "mean"
    """How a panel's answers are combined: the mean of the scores, or the majority answer."""
    order_swap: bool = False
    """Whether image sets are judged in both orders."""
    metrics: list[str] = Field(default=["piqe", "entropy"])
    acceptance: AcceptanceConfig = AcceptanceConfig()
    settlement: SettlementConfig = SettlementConfig()
    engine: EngineConfig = EngineConfig()

    @property
    def judges(self) -> list[JudgeConfig]:
        return [] if self.judge is None else [self.judge, *self.panel]

    @property
    def required_judge(self) -> JudgeConfig:
        """`judge`. ConfigError for a run without one."""
        if self.judge is None:
            raise ConfigError("judge: this command needs a judge, and the config has none: add --set judge.card=NAME")
        return self.judge

    @property
    def whole(self) -> "RunConfig":
        """The config of all shards together."""
        return self.model_copy(update={"suite": self.suite.model_copy(update={"shard": None})})

    @model_validator(mode="after")
    def _check_labels(self) -> "RunConfig":
        if self.judge is None and self.panel:
            raise ValueError("a panel is added to a judge: give `judge` too")
        for what, labels in (("models", [m.label for m in self.models]), ("judges", [j.label for j in self.judges])):
            twice = {label for label in labels if labels.count(label) > 1}
            if twice:
                raise ValueError(f"two {what} are called {min(twice)!r}: give each its own `name`")
        seen: dict[tuple[str | None, str], str] = {}
        for judge in self.judges:
            same = seen.setdefault((judge.plugin, judge.model_dump_json(exclude=_NOT_THE_JUDGE)), judge.label)
            if same != judge.label:
                raise ValueError(f"{same!r} and {judge.label!r} are the same judge under two names: remove one")
        return self


_NOT_THE_JUDGE = {
    *("name", "transport", "port", "api_key_env", "in_flight", "request_timeout_s", "start_timeout_s", "max_restarts"),
    *("canaries", "batch_invariant", "attention_backend"),
}
"""Settings of how a judge is run: judges that differ in these alone are one judge. Two servers may have different
models; what they serve is compared when they are contacted."""


ONLY_MODEL = "--model"
"""The setting that restricts a config to one of its models, or replaces them by a model card."""


def load_config(path: Path, settings: tuple[str, ...] = (), *, servers: bool = True) -> RunConfig:
    """Load the config at `path` and apply `key.sub=value` settings. A ConfigError names the line and the closest valid
    key.

    With `servers=False` the file's `base_url` and `api_key_env` are ignored; only `settings` can set them.
    """
    data, lines = read_yaml(path)
    places: dict[Location, int | str] = dict(lines)
    if isinstance(data, dict):
        if not servers:
            panel = data.get("panel")
            for judge in (data.get("judge"), *(panel if isinstance(panel, list) else ())):
                if isinstance(judge, dict):
                    judge.pop("base_url", None)
                    judge.pop("api_key_env", None)
        changed: dict[str, Any] = {}
        for setting in settings:
            if not setting.startswith(f"{ONLY_MODEL}="):
                key = apply_setting(data, setting)
                if key[0] == "models" and len(key) > 2:
                    changed[setting] = data["models"][key[1]]
                places = {at: line for at, line in places.items() if at[: len(key)] != key}
                places[key] = "--set"
        # keep the models with one of these names or cards; names without a match are added as cards
        names = [s.partition("=")[2] for s in settings if s.startswith(f"{ONLY_MODEL}=")]
        if names:
            entries = data.get("models")
            models = [m for m in entries if isinstance(m, dict)] if isinstance(entries, list) else []
            found = {name: [m for m in models if name in (str(m.get("name")), m.get("card"))] for name in names}
            kept = [m for name in names for m in found[name]]
            for setting, model in changed.items():
                if not any(m is model for m in kept):
                    raise ConfigError(f"--set {setting} is of a model that --model leaves out: remove one of them")
            data["models"] = [m for name in names for m in found[name] or [{"card": name}]]
    return check(data, RunConfig, str(path), places)


def load_config_to_judge(path: Path, settings: tuple[str, ...] = (), *, allow_remote: bool = False) -> RunConfig:
    """As `load_config`, for a run directory's `run.yaml` when judges will be contacted.

    The directory may come from someone else, so its file must not decide which server receives images and an API key.
    ConfigError if it has a `base_url` that `settings` do not repeat. With `allow_remote` its servers are contacted; the
    variable of a key is taken from `settings` alone in any case.
    """
    stored, allowed = load_config(path, settings), load_config(path, settings, servers=False)
    if allow_remote:
        pairs = zip(allowed.judges, stored.judges, strict=True)
        judges = [judge.model_copy(update={"base_url": other.base_url}) for judge, other in pairs]
        return allowed.model_copy(update={"judge": next(iter(judges), None), "panel": judges[1:]})
    for i, (stored_judge, allowed_judge) in enumerate(zip(stored.judges, allowed.judges, strict=True)):
        if stored_judge.base_url is not None and allowed_judge.base_url is None:
            key = "judge" if i == 0 else f"panel.{i - 1}"
            raise ConfigError(
                f"{path} names the judge server {stored_judge.base_url}, but a run directory must not decide where "
                f"images and keys are sent: if you trust this server, add `--set {key}.base_url={stored_judge.base_url}"
                f"` (and `--set {key}.api_key_env=NAME` if its key is not in VLLM_API_KEY), or --allow-remote"
            )
    return allowed


def engine_settings(settings: tuple[str, ...]) -> EngineConfig:
    """The default engine settings with `engine.key=value` settings applied. ConfigError for any other key."""
    data: dict[str, Any] = {}
    for setting in settings:
        if not setting.startswith("engine."):
            raise ConfigError(f"--set {setting!r}: without a run only engine.KEY=VALUE settings are used: remove it")
        apply_setting(data, setting)
    return check(data.get("engine", {}), EngineConfig, "--set engine", {})


def dump_config(config: RunConfig) -> str:
    """The resolved config as YAML, with all defaults; absolute paths are reduced to their last component."""
    return yaml_text(_portable(config.model_dump()), sort_keys=False)


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_portable(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def apply_setting(data: dict[str, Any], setting: str) -> tuple[int | str, ...]:
    """Set the value at a dotted path of `data`, and return the path; indices of lists are numbers. ConfigError if there
    is no such place."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {short(setting, 200)} is not of the form key.sub=value: use that form")
    try:
        value = yaml_value(text)
    except ValueError as e:
        raise ConfigError(f"--set {short(setting, 200)}: the value is not valid YAML ({e}): quote it") from None
    at: Any = data
    path: list[int | str] = []
    *parents, last = key.split(".")
    for step in parents:
        place: Any = _index(at, step, setting) if isinstance(at, list) else step
        path.append(place)
        inner = at[place] if isinstance(at, list) else at.get(place)
        if inner is None:
            inner = at[place] = {}
        if not isinstance(inner, dict | list):
            raise ConfigError(
                f"--set {short(setting, 200)}: {short(step)} is {short(inner)} and has no keys: set the whole value"
            )
        at = inner
    path.append(_index(at, last, setting) if isinstance(at, list) else last)
    at[path[-1]] = value
    return tuple(path)


def _index(at: list[Any], step: str, setting: str) -> int:
    index = natural(step)
    if index is None or index >= len(at):
        valid = f"give one of 0 to {len(at) - 1}" if at else "it is empty, so set the whole list"
        raise ConfigError(f"--set {short(setting, 200)}: {short(step)} is not an index of the list: {valid}")
    return index
