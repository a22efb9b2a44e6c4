"""A judge: its identity and the requests for a question; its connection; and judges of other packages.

An entry point `name = "package.module:Class"` in the group `local_bench.judges` refers to a subclass of `Judge`; a
config selects it with `judge: {card: …, transport: name}`. The card describes the model and its weights.
"""

import importlib.metadata
import io
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from PIL import Image

from local_bench.core.environment import entry_points, load_object, made_by
from local_bench.core.errors import ConfigError, ServerError
from local_bench.core.types import Question, Verdict, digest
from local_bench.judges.vlm.protocols import (
    PREPARATION,
    VERSIONS,
    Prepared,
    Protocol,
    Reply,
    Request,
    Shown,
    failed,
    protocol_for,
    read,
    texts,
)
from local_bench.judges.vlm.rubrics import DEFAULT_SET, RubricSet, system
from local_bench.models.cards import Thinking

K = TypeVar("K")
PLUGINS = "local_bench.judges"
BUILT_IN = ("auto", "served", "embedded", "local")
Served = tuple[tuple[str, str | int], ...]
"""Id, root and context length of the model of an external server, as far as it lists them, by name."""


@dataclass(frozen=True)
class JudgeSpec:
    """Everything that determines a verdict except the question and the machine."""

    card: str
    weights_sha256: str
    dtype: str
    max_pixels: int
    patch: int
    seed: int
    protocol: Protocol = "json"
    min_pixels: int = 1
    """Smaller images are enlarged to this size, as the model's own processor does."""
    max_tokens: int | None = None
    """Maximum number of tokens per answer; None: the rubric's value."""
    extra_args: tuple[str, ...] = ()
    """Additional engine arguments. They may change answers, so they are part of the identity."""
    rubrics: RubricSet = DEFAULT_SET
    """The variant of the rubrics."""
    source_max_pixels: int | None = None
    """The pixel budget of each image in a question with a source image; None: `max_pixels`."""
    chat_template_kwargs: tuple[tuple[str, bool | int | float | str], ...] = ()
    """Variables of the model's chat template, in the order of their names."""
    mm_processor_kwargs: tuple[tuple[str, bool | int | float | str], ...] | None = None
    """The card's arguments of the image processor, in the order of their names; None: ours."""
    thinking: Thinking | None = None
    """How the model writes its thoughts before the answer; None: it does not."""
    served: Served = ()
    """What an external server said that it serves."""
    plugin: str | None = None
    """Name of the judge of an installed package; None for judges by vLLM and transformers."""

    @cached_property
    def judge_id(self) -> str:
        """The machine-independent identity: model, weights, protocol, image preparation and system prompt."""
        newer = {  # older digests do not have them
            "rubrics": None if self.rubrics.variant == "miniature" else self.rubrics.variant,
            "options": self.rubrics.options,
            "chat_template_kwargs": dict(self.chat_template_kwargs),
            "thinking": self.thinking and self.thinking.model_dump(),
            "served": dict(self.served),
            "plugin": self.plugin,
            "source_max_pixels": self.source_max_pixels,
        }
        newer = {name: value for name, value in newer.items() if value}
        if self.mm_processor_kwargs is not None:
            newer["mm_processor_kwargs"] = dict(self.mm_processor_kwargs)
        return digest(
            {
                "card": self.card,
                "weights": self.weights_sha256,
                "dtype": self.dtype,
                "protocol": VERSIONS[self.protocol],
                "images": PREPARATION
                | {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels, "multiple": self.patch},
                "system": system().model_dump(),
                "max_tokens": self.max_tokens,
                "seed": self.seed,
                "extra_args": self.extra_args,
            }
            | newer
        )

    def question_id(self, question: Question, numerics: dict[str, Any]) -> str:
        """The identity of `question` for this judge on a machine with this numerics signature."""
        question = self.rubrics.fitted(question)
        return digest(
            {
                "judge": self.judge_id,
                "rubric": self.rubrics[question.rubric].sha256,
                "images": question.images,
                "roles": question.roles,
                "sheet": None if question.collage is None else [question.collage.rows, question.collage.count],
                "slots": question.slots,
                "seed": self._seed(question),
                "numerics": numerics,
            }
        )

    def requests(self, question: Question) -> list[Request]:
        """The requests for `question`: one with `json`; one per criterion, with a common prefix, with `logit`."""
        rubric, question = self.rubrics[question.rubric], self.rubrics.fitted(question)
        as_json = protocol_for(question, self.protocol) == "json"
        most = min(rubric.max_pixels or self.max_pixels, self.max_pixels)
        if self.source_max_pixels and "source" in question.roles:
            most = self.source_max_pixels
        least = min(max(rubric.min_pixels or 1, self.min_pixels), most)
        shown = tuple(Shown((sha,), None, least, most) for sha in question.images)
        if question.collage is not None:  # it gets the budget of all its images
            shown = (Shown(question.images, question.collage, least, most * max(1, len(question.images))),)
        budget, end = (self.thinking.budget_tokens, self.thinking.end) if self.thinking else (0, "")
        return [
            Request(
                system=system().text if rubric.verbatim is None else "",
                shown=shown,
                text=text,
                max_tokens=budget + ((self.max_tokens or rubric.max_tokens) if criterion is None else 1),
                temperature=rubric.temperature if as_json else 0,
                seed=self._seed(question),
                name=rubric.id,
                schema=rubric.answer_schema(dict(question.slots)) if criterion is None else None,
                labels=() if criterion is None else criterion.tokens,
                captions=rubric.captions(question.roles, dict(question.slots)) if question.roles else (),
                chat_template_kwargs=self.chat_template_kwargs,
                thought_end=end,
            )
            for text, criterion in texts(question, self.protocol, self.rubrics)
        ]

    def _seed(self, question: Question) -> int:
        """The sampling seed: the judge's seed, or with `json` and a temperature above 0 a separate one per repeat."""
        rubric = self.rubrics[question.rubric]
        if rubric.temperature == 0 or protocol_for(question, self.protocol) == "logit":
            return self.seed
        return int(digest([self.seed, question.slots, question.images, question.repeat])[:8], 16)


class Unreachable(Exception):
    """The judge could not be reached in several attempts, or has ended; pending requests have no reply."""


class Transport(typing.Protocol):
    """A connection to a judge (served, embedded or in this process), as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as replies arrive, in no fixed order, with at most `at_once` concurrent requests.

        Raises Unreachable after all received replies have been yielded; LocalBenchError for errors that a restart
        does not fix.
        """
        ...

    def restart(self) -> None:
        """Restart a judge that has ended. Raises ServerError if it is not managed here or does not start."""
        ...

    def counters(self) -> dict[str, float]:
        """The engine's `prompt_tokens` and `cached_tokens` since its start; empty if it does not count them."""
        ...


def answers(
    transport: Transport, spec: JudgeSpec, questions: Iterable[tuple[K, Question]], at_once: int | None = None
) -> Iterator[tuple[K, Verdict]]:
    """Yield (key, verdict) once every request of a question has a reply. Consecutive different questions with the same
    requests, such as the points of a task in one prompt, share the replies. Raises the errors of
    `Transport.complete`."""
    pending: dict[int, tuple[dict[Question, K], list[Reply | None]]] = {}
    without_request: list[tuple[K, Verdict]] = []

    def grouped() -> Iterator[tuple[dict[Question, K], list[Request]]]:
        group: dict[Question, K] = {}
        of_group: list[Request] = []
        for key, question in questions:
            try:
                parts = spec.requests(question)
            except (Exception, SystemExit) as e:  # noqa: BLE001  # raised again by `failed` if it is not of this question
                without_request.append((key, Verdict(None, failed(e).refusal, "")))
                continue
            shared = spec.rubrics.shares_requests(question)
            if group and (parts != of_group or question in group or not shared):
                yield group, of_group
                group = {}
            if shared:
                group[question], of_group = key, parts
            else:
                yield {question: key}, parts
        if group:
            yield group, of_group

    def requests() -> Iterator[tuple[tuple[int, int], Request]]:
        for number, (group, parts) in enumerate(grouped()):
            pending[number] = group, [None] * len(parts)
            for i, request in enumerate(parts):
                yield (number, i), request

    for (number, i), reply in transport.complete(requests(), at_once):
        group, replies = pending[number]
        replies[i] = reply
        received = [r for r in replies if r is not None]
        if len(received) == len(replies):
            del pending[number]
            for question, key in group.items():
                end = spec.thinking.end if spec.thinking else ""
                yield key, read(question, spec.protocol, received, spec.rubrics, end)
    yield from without_request


class Judge(ABC):
    """A judge in this process that answers requests one at a time. As a context manager: `open`, `reply`…, `close`."""

    version: ClassVar[str]
    """Part of the numerics signature: with another version, all questions are judged again."""

    def __init__(self, weights: Path, load: Callable[[Shown], Prepared], device: str, dtype: str) -> None:
        """`weights` is the folder of the card's model, `device` a torch device string, `dtype` as in the card."""
        self.weights, self.device, self.dtype = weights, device, dtype
        self._load = load

    def open(self) -> None:  # noqa: B027 - a judge without weights has nothing to load
        """Load the model. Raises WeightsError or ServerError on failure."""

    def close(self) -> None:  # noqa: B027
        """Release the model."""

    @abstractmethod
    def reply(self, request: Request, images: Sequence[Image.Image]) -> Reply:
        """The answer to one request. `images` are RGB and already resized, in the order of `request.shown`.

        With `request.schema` the reply's `text` is a JSON object of that schema; with `request.labels` its `logprobs`
        has the log-probability of every label. With `request.thought_end` the text is the thought, this end and then
        the answer. The reply must depend only on the arguments.
        """

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        for key, request in requests:
            try:
                pngs = [self._load(shown).png for shown in request.shown]
                reply = self.reply(request, [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs])
                _check_reply(reply, f"{type(self).__name__}.reply")
            except (Exception, SystemExit) as e:  # noqa: BLE001  # raised again if it is not of this request
                reply = failed(e)
            yield key, reply

    def restart(self) -> None:
        raise ServerError(f"the judge {type(self).__name__} ended and cannot be restarted: run the same command again")

    def counters(self) -> dict[str, float]:
        return {}


def _check_reply(reply: object, where: str) -> None:
    """TypeError, naming the field, if a plug-in's reply is not what `Judge.reply` promises."""
    if not isinstance(reply, Reply):
        raise TypeError(f"{where} returned {type(reply).__name__} instead of Reply")
    for name, value in vars(reply).items():
        expected = Mapping if name == "logprobs" else str
        if not isinstance(value, expected | None):
            raise TypeError(f"{where}: {name} is {type(value).__name__} instead of {expected.__name__}")


@contextmanager
def plugged(name: str, *arguments: Any) -> Iterator[Judge]:
    """The plug-in of that name, opened. ConfigError, naming it, if it cannot be."""
    kind = plugin(name)
    with made_by(f"judge.transport: {name!r} ({kind.__module__}.{kind.__name__}) cannot be opened"):
        judge = kind(*arguments)
        judge.open()
    with closing(judge):
        yield judge


def plugin(name: str) -> type[Judge]:
    """The plug-in class of that name. Raises ConfigError if it does not exist or cannot be loaded."""
    points = [point for point in entry_points(PLUGINS) if point.name not in BUILT_IN]
    point = next((point for point in points if point.name == name), None)
    if point is None:
        available = ", ".join((*BUILT_IN, *sorted({point.name for point in points})))
        raise ConfigError(f"judge.transport: unknown judge {name!r}: available are {available}")
    kind: Any = load_object(point.value, f"judge.transport: {name!r}")
    if not (isinstance(kind, type) and issubclass(kind, Judge)):
        raise ConfigError(f"judge.transport: {point.value} is not a subclass of local_bench.Judge: correct it")
    absent = sorted(kind.__abstractmethods__) or ([] if hasattr(kind, "version") else ["version"])
    if absent:
        raise ConfigError(f"judge.transport: {point.value} defines no {absent[0]}, which every judge has: add it")
    return kind


def plugin_numerics(name: str) -> dict[str, Any]:
    """The numerics signature of a plug-in: its version and those of torch and transformers."""
    versions = {package: importlib.metadata.version(package) for package in ("torch", "transformers")}
    return {"judge": name, "version": plugin(name).version} | versions
