"""Chat-completion requests of the OpenAI API with vLLM's extensions: bodies with prepared images, and replies."""

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from PIL import Image

from local_bench.core.images import count_card, fit_pixels, png_bytes, stitched
from local_bench.judges.vlm.protocols import Reply, Request, Shown

PREPARATION: dict[str, Any] = {"filter": "bicubic", "format": "png", "sheet": 1}
"""Part of a judge's identity; `sheet` is the version of `core.images.stitched`."""


@dataclass(frozen=True)
class Prepared:
    """An image as sent to the judge: a PNG file and its sha256, the key for vLLM's caches."""

    png: bytes
    sha256: str

    @property
    def data_uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def prepare(shown: Shown, load: Callable[[str], Image.Image], multiple: int) -> Prepared:
    """Encode `shown` as a PNG whose sides are multiples of `multiple`; `load` returns an image by its pixel digest."""
    if shown.collage is None:
        (sha256,) = shown.images
        image = load(sha256)
    elif shown.collage.count is not None:
        image = count_card(shown.collage.count)
    else:
        image = stitched([load(sha256) for sha256 in shown.images], shown.collage)
    png = png_bytes(fit_pixels(image, shown.max_pixels, multiple, shown.min_pixels))
    return Prepared(png, hashlib.sha256(png).hexdigest())


T = TypeVar("T")
IMAGE = b"P"
"""Prefix of a message to an embedded judge with an image for later messages: then come 64 characters of its
sha256 and a PNG file. Other messages are JSON."""
SENT_IMAGES, PREPARED_IMAGES = 256, 64
"""Sizes of caches; the requests for all criteria of one candidate follow each other closely."""
REFUSED = "the judge refused the question"
NOT_ITS_FORMAT = "the judge did not reply in its own format"


def body(
    request: Request, images: Sequence[Prepared], model: str, *, content_ids: bool = True, inline: bool = True
) -> dict[str, Any]:
    """The body for `/v1/chat/completions`: system prompt (if any), images (each after its caption, if any), then the
    rubric.

    `content_ids` adds each image's digest as its `uuid`, so that vLLM neither hashes nor processes it twice. Without
    `inline` the body contains only these ids, and the images are sent separately.
    """
    parts = interleaved(
        request,
        [
            {"type": "image_url"}
            | ({"image_url": {"url": image.data_uri}} if inline else {})
            | ({"uuid": image.sha256} if content_ids else {})
            for image in images
        ],
    )
    sent: dict[str, Any] = {
        "model": model,
        "messages": [
            *([{"role": "system", "content": request.system}] if request.system else []),
            {"role": "user", "content": parts},
        ],
        "temperature": request.temperature,
        "seed": request.seed,
        "max_tokens": request.max_tokens,
    }
    if request.chat_template_kwargs:
        sent["chat_template_kwargs"] = dict(request.chat_template_kwargs)
    if request.labels:
        # The grammar also allows the tokens that a longer label begins with.
        beginnings = {label[:n] for label in request.labels for n in range(1, len(label) + 1)}
        sent |= {"logprobs": True, "top_logprobs": len(beginnings)}
    if request.thought_end:
        sent |= {"response_format": after_thought(request), "skip_special_tokens": False}  # the end may be one
    elif request.labels:
        sent["structured_outputs"] = {"choice": list(request.labels)}
    else:
        named = {"name": request.name, "schema": request.schema, "strict": True}
        sent["response_format"] = {"type": "json_schema", "json_schema": named}
    return sent


def after_thought(request: Request) -> dict[str, Any]:
    """The structural tag (xgrammar's, which vLLM reads) of free text up to `thought_end`, then the answer."""
    thought = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": request.thought_end}
    labels = [{"type": "const_string", "value": label} for label in request.labels]
    answer: dict[str, Any] = {"type": "json_schema", "json_schema": request.schema, "max_whitespace_cnt": 1}
    answer = {"type": "or", "elements": labels} if labels else answer
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": [thought, answer]}}


def interleaved(request: Request, images: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of the user message in order: each image after its caption, then the text."""
    captions = request.captions or ("",) * len(images)
    parts: list[dict[str, Any]] = []
    for caption, image in zip(captions, images, strict=True):
        parts += [{"type": "text", "text": caption}, image] if caption else [image]
    return [*parts, {"type": "text", "text": request.text}]


def reply(received: Any) -> Reply:
    """Parse a response body of `/v1/chat/completions`. A malformed body gives a reply with `refusal` set."""
    try:
        choice = received["choices"][0]
        text = choice["message"]["content"]
        finish_reason = choice.get("finish_reason")
        logprobs = choice.get("logprobs")
        label = None
        if logprobs:
            tokens = logprobs["content"]
            last = tokens[last_of(text or "", [token.get("token") or "" for token in tokens])]
            label = {top["token"]: top["logprob"] for top in last["top_logprobs"]}
    except (KeyError, IndexError, TypeError, AttributeError):
        return Reply(str(received)[:2000], refusal=NOT_ITS_FORMAT)
    if not (isinstance(text, str | None) and isinstance(finish_reason, str | None)):
        return Reply(str(received)[:2000], refusal=NOT_ITS_FORMAT)
    return Reply(text, finish_reason, label)


def last_of(text: str, tokens: Sequence[str]) -> int:
    """The index of the token with which `text` ends, or 0: a label may follow a thought and precede an end token."""
    return next((i for i in reversed(range(len(tokens))) if tokens[i] and text.endswith(tokens[i])), 0)


class Composer:
    """`load` returns an image by its pixel digest; `multiple` is the patch size of the judge in pixels."""

    def __init__(self, load: Callable[[str], Image.Image], multiple: int) -> None:
        self._prepared = lru_cache(maxsize=PREPARED_IMAGES)(lambda shown: prepare(shown, load, multiple))

    def prepared(self, shown: Shown) -> Prepared:
        """The image as it is sent to the judge."""
        return self._prepared(shown)

    def body(self, request: Request, model: str, content_ids: bool = True) -> dict[str, Any]:
        """The request body; see `chat_api.body`."""
        return body(request, self.images(request), model, content_ids=content_ids)

    def images(self, request: Request) -> list[Prepared]:
        """The request's images, in order."""
        return [self.prepared(shown) for shown in request.shown]


class Recent(Generic[T]):
    """An LRU cache with `SENT_IMAGES` entries: both ends of the pipe to an embedded judge process images in the
    same order, so that the sender knows which of them the receiver has."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, T] = OrderedDict()

    def use(self, name: str, make: Callable[[], T]) -> T:
        """The entry of that name, created by `make` if it is missing; evicts the least recently used entry."""
        if name not in self._entries:
            self._entries[name] = make()
        self._entries.move_to_end(name)
        if len(self._entries) > SENT_IMAGES:
            self._entries.popitem(last=False)
        return self._entries[name]
