"""What a run is, as its YAML says it. Unknown keys are errors; every default stands here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.money import micro_usd, nearest_micro_usd
from local_bench.core.yamlfile import Strict, check, read_yaml
from local_bench.runs.judge_config import JudgeConfig, Name, Number


class SuiteConfig(Strict):
    """What is asked."""

    name: str = "studio"
    path: str | None = None
    """The benchmark's own file, for suites that are read from one; relative to the working folder."""
    written: str | None = None
    """What `extract` wrote about the tasks before the run: evaluation points, checklists, prompts."""
    limit: int | None = Field(None, ge=1)
    """Only the first so many tasks."""
    questions_from: list[str] = Field(default=[])
    """Other benchmarks whose questions the judges answer about the same images (suites/borrowed.py)."""
    sizes_from_rules: bool = False
    """Whether a model makes the size or shape that an order's hard rules ask for, in place of its usual one."""
    part: str | None = None
    """Only the tasks of this category, or of this part of the benchmark (`mini`, `public`, a kind of task)."""


class LossyConfig(Strict):
    """Law 8: what makes a model another one, with a name of its own. All left out: the model itself."""

    weights: Literal["float8_e4m3fn", "float8_e5m2"] | None = None
    """The transformer's weights in 8 bits, computed with in the model's own precision."""
    first_block_cache: Number | None = Field(None, gt=0, lt=1)
    """Skips blocks while the first one's output changes by less than this part."""

    @property
    def suffix(self) -> str:
        """What such a system is called after its model: `+fp8`, `+fbc0.08`."""
        weights = {"float8_e4m3fn": "+fp8", "float8_e5m2": "+fp8e5m2"}.get(self.weights or "", "")
        return weights + (f"+fbc{self.first_block_cache:g}" if self.first_block_cache else "")

    @property
    def settings(self) -> dict[str, str | float]:
        return {key: value for key, value in self.model_dump().items() if value is not None}


class ImportedConfig(Strict):
    """Pictures made elsewhere: by a closed API, another house, or people."""

    images: str
    """A folder (`TASK/N.png`, or `TASK_N.png`, N from 1, with `_ATTEMPT` after it where there are several), or a JSON
    Lines manifest of `task_id`, `deliverable`, `attempt`, `file`, `cost_usd`."""
    cost_usd_per_image: str | None = None
    """What one picture cost where it was made; the manifest's own figures come first."""

    @model_validator(mode="after")
    def _cost_is_money(self) -> "ImportedConfig":
        if self.cost_usd_per_image is not None and not _is_amount(self.cost_usd_per_image, nearest_micro_usd):
            raise ValueError("cost_usd_per_image must be an amount like '0.04'")
        return self


def _is_amount(text: str, read: Callable[[str], int] = micro_usd) -> bool:
    try:
        return read(text) >= 0
    except ValueError:
        return False


IMPORTED = "imported"


class ModelConfig(Strict):
    """One generator, by its card; what is left out comes from the card."""

    card: str
    """A card's name, or `imported` for pictures made elsewhere."""
    name: Name | None = None
    """What this entry is called in results; the card's name if left out."""
    weights: str | None = None
    """A folder that holds the model, instead of the cache."""
    load: Literal["weights", "random"] = "weights"
    """`random`: the card's full architecture with seeded random weights, nothing fetched: for timing."""
    imported: ImportedConfig | None = None
    lossy: LossyConfig = LossyConfig()
    height: int | None = Field(None, ge=16, le=8192, multiple_of=16)
    width: int | None = Field(None, ge=16, le=8192, multiple_of=16)
    num_inference_steps: int | None = Field(None, ge=1, le=1000)
    guidance_scale: Number | None = Field(None, ge=0)
    true_cfg_scale: Number | None = Field(None, ge=0)
    negative_prompt: str | None = None
    image_guidance_scale: Number | None = Field(None, ge=0)
    adapter_scale: Number | None = Field(None, ge=0)
    max_sequence_length: int | None = Field(None, ge=1, le=4096)
    paste_back: bool | None = None
    attempts: int = Field(1, ge=1, le=1000)
    batch_size: int | None = Field(None, ge=1, le=256)
    """The one fixed batch shape; 1 is a choice too. The engine's if left out."""

    @property
    def label(self) -> str:
        return self.name or self.card + self.lossy.suffix

    @model_validator(mode="after")
    def _named_for_what_it_is(self) -> "ModelConfig":
        if (self.card == IMPORTED) != (self.imported is not None):
            raise ValueError("`card: imported` and `imported: {images: …}` go together")
        if self.card == IMPORTED and self.name is None:
            raise ValueError("imported pictures need a `name`: that of the system that made them")
        if self.lossy.suffix and self.name == self.card:
            raise ValueError(f"a lossy system is not {self.card!r} itself: leave `name` out or give it another")
        if self.load == "random" and self.weights is not None:
            raise ValueError("`load: random` reads no weights: leave one of the two out")
        return self


class AcceptanceConfig(Strict):
    """The stated rule: a deliverable is accepted when every score that applies to it reaches its threshold."""

    rule: Literal["threshold"] = "threshold"
    brf: Number = Field(3.0, ge=0, le=5)
    veq: Number = Field(3.0, ge=0, le=5)
    cns: Number = Field(3.0, ge=0, le=5)
    """For edits and sets; it does not apply to the rest."""
    rules: bool = False
    """Whether an image must also meet every hard rule of its order (score `rules`), where the order has any."""

    @property
    def thresholds(self) -> dict[str, float]:
        return {"brf": self.brf, "veq": self.veq, "cns": self.cns}


class SettlementConfig(Strict):
    """How the money is counted."""

    gpu: str | None = None
    """A row of the price table; the device at hand if left out."""
    price: Literal["low", "mid", "high"] = "mid"
    usd_per_hour: str | None = None
    """The lab's own price for an hour of the device, instead of the table's."""
    usd_per_kwh: str | None = None
    """Of electricity, for an hour's price that does not hold it; it counts where the device's energy was measured."""
    api_usd_per_image: dict[str, str] = Field(default={})
    """What an image of a model of this run would cost at an API, by the model's label; beside the meter's cost."""
    coverage_min: Number = Field(0.98, ge=0, le=1)
    """Below this part of the orders' value settled, the report says so on its face."""

    @model_validator(mode="after")
    def _own_price_is_money(self) -> "SettlementConfig":
        if self.usd_per_hour is not None and not _is_amount(self.usd_per_hour):
            raise ValueError("usd_per_hour must be an amount like '1.79'")
        if self.usd_per_kwh is not None and not _is_amount(self.usd_per_kwh):
            raise ValueError("usd_per_kwh must be an amount like '0.30'")
        wrong = next(
            (model for model, text in self.api_usd_per_image.items() if not _is_amount(text, nearest_micro_usd)), None
        )
        if wrong is not None:
            raise ValueError(f"api_usd_per_image: {wrong}'s price must be an amount in quotation marks like '0.04'")
        return self


class EngineConfig(Strict):
    """On what, and in which order. Only `device`, `batch_size`, `attention_backend`, `compile` and `threads` can decide
    bytes."""

    device: str = "auto"
    """`auto` (every GPU, or the CPU), `cpu`, `cuda` or `cuda:N`."""
    workers: int | None = Field(None, ge=1, le=64)
    """Processes that make pictures, each on a GPU of its own; one a GPU if left out, 1 on the CPU."""
    batch_size: int | None = Field(None, ge=1, le=256)
    """The one fixed batch shape for every model; chosen by what fills the device if left out."""
    compile: bool | None = None
    """Whether the transformer's blocks are compiled; left out: on a GPU yes, on the CPU no. Never while they stream."""
    offload: Literal["auto", "always"] = "auto"
    """What does not fit streams in from host memory; `always` lets everything stream. Changes no bytes."""
    batch_order: Literal["plan", "reverse", "shuffle"] = "plan"
    """How candidates are dealt into batches; results do not depend on it."""
    threads: int = Field(1, ge=1, le=256)
    """CPU threads for torch; part of the numerics signature."""
    attention_backend: str = "auto"
    """A diffusers attention backend; `auto` pins the one known to be exact on this GPU."""
    io_workers: int = Field(2, ge=1, le=64)
    """Threads that read and prepare pictures beside the device."""
    encodings_gb: Number = Field(20.0, gt=0)
    """Decimal GB that a model's encoded prompts may take on disk at a time (4 to 16 MB a prompt); what is more is made
    in windows, with the encoders loaded once a window."""
    metric_batch_size: int | None = Field(None, ge=1, le=1024)
    """The one fixed batch for those networks of metrics that take several pictures; each one's own if left out."""


class RunConfig(Strict):
    """A whole run."""

    name: Name
    seed: int = Field(0, ge=0)
    suite: SuiteConfig = SuiteConfig()
    models: list[ModelConfig] = Field(min_length=1)
    judge: JudgeConfig = JudgeConfig()
    panel: list[JudgeConfig] = Field(default=[])
    """More judges over the same images."""
    panel_word: Literal["mean", "majority"] = "mean"
    """What a panel says: the mean of its scores, or the answer that most give."""
    order_swap: bool = False
    """Whether the images of a set are judged in both orders."""
    metrics: list[str] = Field(default=["piqe", "entropy"])
    acceptance: AcceptanceConfig = AcceptanceConfig()
    settlement: SettlementConfig = SettlementConfig()
    engine: EngineConfig = EngineConfig()

    @property
    def judges(self) -> list[JudgeConfig]:
        return [self.judge, *self.panel]

    @model_validator(mode="after")
    def _labels_differ(self) -> "RunConfig":
        for what, labels in (("models", [m.label for m in self.models]), ("judges", [j.label for j in self.judges])):
            twice = {label for label in labels if labels.count(label) > 1}
            if twice:
                raise ValueError(f"two {what} are called {min(twice)!r}: give each its own `name`")
        seen: dict[str, str] = {}
        for judge in self.judges:
            same = seen.setdefault(judge.model_dump_json(include=_WHO_JUDGES), judge.label)
            if same != judge.label:
                raise ValueError(f"{same!r} and {judge.label!r} are the same judge under two names: leave one out")
        return self


_WHO_JUDGES = {"card", "weights", "protocol", "max_pixels", "max_tokens", "seed", "extra_args"}


ONLY_MODEL = "--model"
"""The key of a setting that keeps one model, or takes a card in its place."""


def load_config(path: Path, settings: tuple[str, ...] = (), *, servers: bool = True) -> RunConfig:
    """The config at `path` with `key.sub=value` settings laid over it. ConfigError names line and nearest right key.

    Without `servers` the file's own `base_url` and `api_key_env` are ignored: only `settings` can name them.
    """
    data, lines = read_yaml(path)
    if isinstance(data, dict):
        if not servers:
            _forget_servers(data)
        for setting in settings:
            if not setting.startswith(f"{ONLY_MODEL}="):
                _apply(data, setting)
        _keep_models(data, [s.partition("=")[2] for s in settings if s.startswith(f"{ONLY_MODEL}=")])
    return check(data, RunConfig, str(path), lines)


def _keep_models(data: dict[Any, Any], names: list[str]) -> None:
    """Leaves those of the config's models that have one of these names or cards, and adds cards that it has not."""
    if not names:
        return
    given = data.get("models")
    models = [model for model in given if isinstance(model, dict)] if isinstance(given, list) else []
    found = [[m for m in models if name in (m.get("name"), m.get("card"))] or [{"card": name}] for name in names]
    data["models"] = [model for matching in found for model in matching]


def load_config_to_judge(path: Path, settings: tuple[str, ...] = ()) -> RunConfig:
    """As `load_config` for a run directory's `run.yaml`, where judges are to be contacted.

    The directory may be someone else's, so its file names neither the server that images and a key are sent to nor the
    variable that holds the key: ConfigError where it has a `base_url` that `settings` do not repeat.
    """
    stored, named = load_config(path, settings), load_config(path, settings, servers=False)
    for i, (theirs, ours) in enumerate(zip(stored.judges, named.judges, strict=True)):
        if theirs.base_url is not None and ours.base_url is None:
            key = "judge" if i == 0 else f"panel.{i - 1}"
            raise ConfigError(
                f"{path} names the judge server {theirs.base_url}, and a run directory does not decide where images "
                f"and keys are sent: if you trust this server add `--set {key}.base_url={theirs.base_url}` (and "
                f"`--set {key}.api_key_env=NAME` if its key is not in VLLM_API_KEY)"
            )
    return named


def _forget_servers(data: dict[Any, Any]) -> None:
    panel = data.get("panel")
    for judge in (data.get("judge"), *(panel if isinstance(panel, list) else ())):
        if isinstance(judge, dict):
            judge.pop("base_url", None)
            judge.pop("api_key_env", None)


def engine_settings(settings: tuple[str, ...]) -> EngineConfig:
    """The engine's defaults with `engine.key=value` settings laid over them. ConfigError for any other key."""
    data: dict[str, Any] = {}
    for setting in settings:
        if not setting.startswith("engine."):
            raise ConfigError(f"--set {setting!r}: without a run only engine.KEY=VALUE means anything: leave it out")
        _apply(data, setting)
    return check(data.get("engine", {}), EngineConfig, "--set engine", {})


def _apply(data: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting!r} is not of the form key.sub=value: write it so")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {setting!r}: the value is not valid YAML: quote it") from None
    at: Any = data
    *parents, last = key.split(".")
    for step in parents:
        at = _inside(at, step, setting)
    if isinstance(at, list):
        at[_index(at, last, setting)] = value
    else:
        at[last] = value


def _inside(at: Any, step: str, setting: str) -> Any:
    if isinstance(at, list):
        return at[_index(at, step, setting)]
    inner = at.setdefault(step, {})
    if inner is None:
        inner = at[step] = {}
    if not isinstance(inner, dict | list):
        raise ConfigError(f"--set {setting!r}: {step!r} holds {inner!r} and no keys: set it whole")
    return inner


def _index(at: list[Any], step: str, setting: str) -> int:
    if not step.isdigit() or int(step) >= len(at):
        raise ConfigError(f"--set {setting!r}: {step!r} is not one of the list's places 0 to {len(at) - 1}")
    return int(step)


def dump_config(config: RunConfig) -> str:
    """The resolved config as YAML: every default written out, of absolute paths only the last name (law: portable)."""
    return yaml.safe_dump(_portable(config.model_dump()), sort_keys=False, allow_unicode=True)


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_portable(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
