"""Judge plug-ins: the base class, and discovery by entry points.

An entry point `name = "package.module:Class"` in the group `local_bench.judges` refers to a subclass of `Judge`; a
config selects it with `judge: {card: …, transport: name}`. The card describes the model and its weights.
"""

import importlib.metadata
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from PIL import Image

from local_bench.core.environment import entry_points
from local_bench.core.errors import ConfigError, ServerError
from local_bench.judges.vlm.chat_api import Prepared
from local_bench.judges.vlm.protocols import Reply, Request, Shown, failed

K = TypeVar("K")
PLUGINS = "local_bench.judges"
BUILT_IN = ("auto", "served", "embedded", "local")


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        for key, request in requests:
            try:
                pngs = [self._load(shown).png for shown in request.shown]
                reply = self.reply(request, [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs])
            except Exception as e:  # noqa: BLE001  # raised again if it is not of this request
                reply = failed(e)
            yield key, reply

    def restart(self) -> None:
        raise ServerError(f"the judge {type(self).__name__} ended and cannot be restarted: run the same command again")

    def counters(self) -> dict[str, float]:
        return {}


def plugin_names() -> list[str]:
    """Names of the installed judge plug-ins."""
    return sorted({point.name for point in _points()})


def plugin(name: str) -> type[Judge]:
    """The plug-in class of that name. Raises ConfigError if it does not exist or cannot be loaded."""
    point = next((point for point in _points() if point.name == name), None)
    if point is None:
        available = ", ".join((*BUILT_IN, *plugin_names()))
        raise ConfigError(f"judge.transport: unknown judge {name!r}: available are {available}")
    try:
        kind: Any = point.load()
    except (ImportError, AttributeError) as e:
        raise ConfigError(
            f"judge.transport: {name!r} cannot be loaded from {point.value} ({e}): correct or remove that package"
        ) from e
    if not (isinstance(kind, type) and issubclass(kind, Judge)):
        raise ConfigError(f"judge.transport: {point.value} is not a subclass of local_bench.Judge: correct it")
    return kind


def plugin_numerics(name: str) -> dict[str, Any]:
    """The numerics signature of a plug-in: its version and those of torch and transformers."""
    versions = {package: importlib.metadata.version(package) for package in ("torch", "transformers")}
    return {"judge": name, "version": plugin(name).version} | versions


def _points() -> Iterator[EntryPoint]:
    return (point for point in entry_points(PLUGINS) if point.name not in BUILT_IN)
