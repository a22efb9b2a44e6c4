"""What a run is, as its YAML says it. Unknown keys are errors; every default stands here."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.money import micro_usd
from local_bench.core.paths import is_safe_id
from local_bench.core.yamlfile import Strict, check, finite, read_yaml


def _safe(name: str) -> str:
    if not is_safe_id(name):
        raise ValueError("use letters, digits, '.', '_' and '-', starting with a letter or digit")
    return name


Name = Annotated[str, AfterValidator(_safe)]
Number = Annotated[float, AfterValidator(finite)]


class SuiteConfig(Strict):
    """What is asked."""

    name: str = "studio"
    path: str | None = None
    """The benchmark's own file, for suites that are read from one; relative to the working folder."""
    limit: int | None = Field(None, ge=1)
    """Only the first so many tasks."""


class ModelConfig(Strict):
    """One generator, by its card; what is left out comes from the card."""

    card: str
    name: Name | None = None
    """What this entry is called in results; the card's name if left out."""
    weights: str | None = None
    """A folder that holds the model, instead of the cache."""
    height: int | None = Field(None, ge=16, le=8192, multiple_of=16)
    width: int | None = Field(None, ge=16, le=8192, multiple_of=16)
    num_inference_steps: int | None = Field(None, ge=1, le=1000)
    guidance_scale: Number | None = Field(None, ge=0)
    max_sequence_length: int | None = Field(None, ge=1, le=4096)
    attempts: int = Field(1, ge=1, le=1000)
    batch_size: int | None = Field(None, ge=1, le=256)
    """The one fixed batch shape; 1 is a choice too. The engine's if left out."""

    @property
    def label(self) -> str:
        return self.name or self.card


class JudgeConfig(Strict):
    """Who looks: a vLLM server that we start and stop, or one that runs at `base_url`."""

    card: str = "tiny-qwen3-vl"
    weights: str | None = None
    base_url: str | None = None
    """`http://host:port/v1` of a server that serves this card's model."""
    api_key_env: str = "VLLM_API_KEY"
    """The environment variable that holds an external server's key."""
    served_model: str | None = None
    """The model's name at `base_url`; the first that it lists if left out."""
    port: int | None = Field(None, ge=1, le=65535)
    """For our own server; a free one if left out."""
    in_flight: int = Field(32, ge=1, le=4096)
    max_pixels: int | None = Field(None, ge=1024)
    max_tokens: int = Field(64, ge=8, le=4096)
    request_timeout_s: Number = Field(300.0, gt=0)
    start_timeout_s: Number = Field(600.0, gt=0)
    max_restarts: int = Field(3, ge=0)
    seed: int = Field(0, ge=0)
    extra_args: list[str] = Field(default=[])
    """More arguments for our own server."""


class AcceptanceConfig(Strict):
    """The stated rule: a deliverable is accepted when every score that applies to it reaches its threshold."""

    rule: Literal["threshold"] = "threshold"
    brf: Number = Field(3.0, ge=0, le=5)
    veq: Number = Field(3.0, ge=0, le=5)


class SettlementConfig(Strict):
    """How the money is counted."""

    gpu: str | None = None
    """A row of the price table; the device at hand if left out."""
    price: Literal["low", "mid", "high"] = "mid"
    usd_per_hour: str | None = None
    """The lab's own price for an hour of the device, instead of the table's."""
    coverage_min: Number = Field(0.98, ge=0, le=1)
    """Below this part of the orders' value settled, the report says so on its face."""

    @model_validator(mode="after")
    def _own_price_is_money(self) -> "SettlementConfig":
        try:
            sound = self.usd_per_hour is None or micro_usd(self.usd_per_hour) >= 0
        except ValueError:
            sound = False
        if not sound:
            raise ValueError("usd_per_hour must be an amount like '1.79'")
        return self


class EngineConfig(Strict):
    """On what, and in which order. Nothing here but `device`, `batch_size` and `attention_backend` decides bytes."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    batch_size: int = Field(4, ge=1, le=256)
    batch_order: Literal["plan", "reverse", "shuffle"] = "plan"
    """How candidates are dealt into batches; results do not depend on it."""
    threads: int = Field(1, ge=1, le=256)
    """CPU threads for torch; part of the numerics signature."""
    attention_backend: str = "auto"
    """A diffusers attention backend; `auto` pins the one known to be exact on this GPU."""
    io_workers: int = Field(2, ge=1, le=64)


class RunConfig(Strict):
    """A whole run."""

    name: Name
    seed: int = Field(0, ge=0)
    suite: SuiteConfig = SuiteConfig()
    models: list[ModelConfig] = Field(min_length=1)
    judge: JudgeConfig = JudgeConfig()
    metrics: list[str] = Field(default=["piqe", "entropy"])
    acceptance: AcceptanceConfig = AcceptanceConfig()
    settlement: SettlementConfig = SettlementConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _labels_differ(self) -> "RunConfig":
        labels = [m.label for m in self.models]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise ValueError(f"two models are called {min(twice)!r}: give each its own `name`")
        return self


def load_config(path: Path, settings: tuple[str, ...] = ()) -> RunConfig:
    """The config at `path` with `key.sub=value` settings laid over it. ConfigError names line and nearest right key."""
    data, lines = read_yaml(path)
    if isinstance(data, dict):
        for setting in settings:
            _apply(data, setting)
    return check(data, RunConfig, str(path), lines)


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
