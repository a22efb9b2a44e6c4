"""A judge of a run, as the run's YAML says it; and what names and numbers in such a file may be."""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.paths import is_safe_id
from local_bench.core.yamlfile import Strict, finite
from local_bench.judges.vlm.flags import check_extra_args
from local_bench.judges.vlm.rubrics import Variant
from local_bench.judges.vlm.variants import HYPE_USABLE, RubricSet, rubrics_of
from local_bench.models.cards import ModelCard


def _safe(name: str) -> str:
    if not is_safe_id(name):
        raise ValueError("use letters, digits, '.', '_' and '-', starting with a letter or digit")
    return name


Name = Annotated[str, AfterValidator(_safe)]
Number = Annotated[float, AfterValidator(finite)]

_KEY_VARIABLE = re.compile(r"VLLM_API_KEY|OPENAI_API_KEY|LOCAL_BENCH_[A-Z0-9_]{1,64}")
_URL = re.compile(r"https?://[A-Za-z0-9._:/~%\[\]-]+")


def _check_url(url: str) -> None:
    """ValueError, which does not repeat the URL, unless it is plain HTTP(S) without credentials."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no port
    except ValueError:
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise ValueError("base_url must not contain a user name or password: put the server's key into VLLM_API_KEY")
    if not parts.hostname or not _URL.fullmatch(url):
        raise ValueError("base_url must be a URL like http://host:8000/v1")


class JudgeConfig(Strict):
    """Who looks, how it answers, and what carries the questions to it."""

    card: str = "tiny-qwen3-vl"
    name: Name | None = None
    """What this judge is called in a panel; the card's name if left out."""
    weights: str | None = None
    protocol: Literal["json", "logit"] = "json"
    """`json`: a schema-bound object. `logit`: the probabilities of one token a criterion; the score is their mean."""
    transport: str = "auto"
    """`embedded`: vLLM's engine in a process of ours, without HTTP. `served`: vLLM's server, ours or the one at
    `base_url`. `local`: transformers, without vLLM. `auto`: served for a `base_url`, else embedded, else local. Any
    other name is a judge of an installed package (judges.vlm.plugin)."""
    base_url: str | None = None
    """`http://host:port/v1` of a server that serves this card's model."""
    api_key_env: str = "VLLM_API_KEY"
    """The environment variable that holds an external server's key: VLLM_API_KEY, OPENAI_API_KEY or LOCAL_BENCH_…"""
    served_model: str | None = None
    """The model's name at `base_url`; the first that it lists if left out."""
    port: int | None = Field(None, ge=1, le=65535)
    """For our own server; a free one if left out."""
    in_flight: int | None = Field(None, ge=1, le=4096)
    """Concurrent requests to a server (default 128)."""
    rubrics: Variant | None = None
    """The wording of the questions: `improved` (ours), `paper` (each benchmark's own criteria), `miniature` (that of
    the trained miniature judge). Left out: the one that the card names, else `improved`."""
    hype_usable: bool = False
    """Whether HYPE-EDIT-1's judge also answers our third criterion, `usable`, and an image needs it to pass."""
    max_pixels: int | None = Field(None, ge=1024)
    """Each image is resized to at most so many pixels; the card's number if left out."""
    source_max_pixels: int | None = Field(None, ge=1024, le=16_777_216)
    """The same for the images of questions that compare with a source: 4194304 keeps details that 1 MP loses."""
    max_tokens: int | None = Field(None, ge=8, le=8192)
    """At most so many tokens an answer; each rubric's own number if left out."""
    request_timeout_s: Number = Field(300.0, gt=0)
    """For the whole of one request at a server, retries included; an embedded judge may be silent for so long."""
    start_timeout_s: Number | None = Field(None, gt=0)
    """For our own judge to load; ten minutes, and longer for large weights, if left out."""
    max_restarts: int = Field(3, ge=0)
    seed: int = Field(0, ge=0)
    canaries: bool = True
    """Whether the judge is first checked for batch invariance and tested for prompt injection."""
    extra_args: list[str] = Field(default=[])
    """More of vLLM's arguments, for an engine or server of our own (`judges.vlm.flags.EXTRA_VALUES`)."""

    @property
    def label(self) -> str:
        chosen = ("" if self.protocol == "json" else self.protocol, self.rubrics or "")
        return self.name or "-".join([self.card, *(word for word in chosen if word)])

    def rubric_set(self, described: ModelCard) -> RubricSet:
        """The wording of this judge's questions. ConfigError where its card answers another one only."""
        if self.rubrics and described.rubrics and self.rubrics != described.rubrics:
            raise ConfigError(
                f"judge.rubrics: {described.name} was trained on the rubrics {described.rubrics!r} and cannot answer "
                f"{self.rubrics!r}: set judge.rubrics={described.rubrics} or choose another judge"
            )
        variant = self.rubrics or rubrics_of(described).variant
        asks_more = self.hype_usable and variant != "miniature"  # which has it as a criterion like the others
        return RubricSet(variant, (HYPE_USABLE,) if asks_more else ())

    @model_validator(mode="after")
    def _can_be_reached_so(self) -> "JudgeConfig":
        if self.base_url is not None and self.transport not in ("auto", "served"):
            raise ValueError(f"base_url is asked over HTTP: leave `transport: {self.transport}` out")
        if self.base_url is not None:
            _check_url(self.base_url)
        if not _KEY_VARIABLE.fullmatch(self.api_key_env):
            raise ValueError(
                "api_key_env must be VLLM_API_KEY, OPENAI_API_KEY or a name that starts with LOCAL_BENCH_: put the "
                "key into one of these"
            )
        check_extra_args(self.extra_args)
        return self
