"""The config of a judge, and the allowed names and numbers in a config."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.files import path_fault
from local_bench.core.paths import is_safe_id
from local_bench.core.yamlfile import Strict
from local_bench.judges.vlm.judge import BUILT_IN, JudgeSpec
from local_bench.judges.vlm.rubrics import HYPE_USABLE, RubricSet, Variant, rubrics_of
from local_bench.judges.vlm.vllm_process import check_extra_args
from local_bench.models.cards import BackendName, ModelCard, OnOff, TemplateVariables, cards


def _safe(name: str) -> str:
    if not is_safe_id(name):
        raise ValueError("use letters, digits, '.', '_' and '-', starting with a letter or digit")
    return name


def _text(value: Any) -> Any:
    """A whole number as the text that was written; anything else unchanged."""
    return str(value) if type(value) is int else value


Name = Annotated[str, BeforeValidator(_text), AfterValidator(_safe)]
"""A name, which may be a number: `name: 7`, `name: 007`."""


def _possible_path(text: str) -> str:
    fault = path_fault(text)
    if fault:
        raise ValueError(f"this is not a path: {fault}")
    return text


PathText = Annotated[str, AfterValidator(_possible_path)]
"""A path that a file can have, whether or not it exists."""

_KEY_VARIABLE = re.compile(r"VLLM_API_KEY|OPENAI_API_KEY|LOCAL_BENCH_[A-Z0-9_]{1,64}")
_URL = re.compile(r"https?://[A-Za-z0-9._:/~%\[\]-]+")


def _check_url(url: str) -> None:
    """ValueError, which does not repeat the URL, unless it is plain HTTP(S) without credentials."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise ValueError("base_url must not contain a user name or password: put the server's key into VLLM_API_KEY")
    if not parts.hostname or not _URL.fullmatch(url):
        raise ValueError("base_url must be a URL like http://host:8000/v1")


def _with_source(repo: str) -> str:
    """The name of the judge's card with this repository or folder. ValueError if there is none."""
    folder = str(Path(repo).resolve())
    for name, described in cards().items():
        if described.role == "judge" and (described.source.repo == repo or described.source.folder == folder):
            return name
    raise ValueError(f"no judge's card has the source {repo[:200]!r}: run `local-bench models add {repo[:200]}` first")


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

    @property
    def wanted_backend(self) -> str | None:
        """The attention backend that the config requires, by `attention_backend` or in `extra_args`."""
        parts = [text for arg in self.extra_args for text in arg.split("=", 1)]
        flag = "--attention-backend"
        return self.attention_backend or (parts[parts.index(flag) + 1] if flag in parts else None)

    def rubric_set(self, described: ModelCard) -> RubricSet:
        """The judge's rubric set. ConfigError if its card supports another one only."""
        if self.rubrics and described.rubrics and self.rubrics != described.rubrics:
            raise ConfigError(
                f"judge.rubrics: {described.name} was trained on the rubrics {described.rubrics!r} and does not "
                "support "
                f"{self.rubrics!r}: set judge.rubrics={described.rubrics} or choose another judge"
            )
        variant = self.rubrics or rubrics_of(described).variant
        if variant == "verbatim" and (self.protocol != "json" or self.hype_usable):
            raise ConfigError(
                "judge.rubrics: `verbatim` has the authors' criteria and answer formats: use protocol json without "
                "hype_usable, or judge.rubrics=paper"
            )
        asks_more = self.hype_usable and variant != "miniature"  # the miniature's rubric includes it
        return RubricSet(variant, (HYPE_USABLE,) if asks_more else ())

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
        return {key: value for key, value in data.items() if key != "repo"} | {"card": _with_source(repo)}

    @model_validator(mode="after")
    def _check_transport(self) -> "JudgeConfig":
        if self.base_url is not None and self.transport not in ("auto", "served"):
            raise ValueError(f"base_url is used over HTTP only: remove `transport: {self.transport}`")
        if self.base_url is not None:
            _check_url(self.base_url)
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
