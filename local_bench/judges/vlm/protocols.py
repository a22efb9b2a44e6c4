"""The two answer protocols: converting a question to requests and the replies to a verdict; the requests as bodies of
the OpenAI API's chat completions with vLLM's extensions and prepared images; and texts that the judge generates.

`json`: one request, answered by a JSON object of a fixed schema. `logit`: one request per criterion, answered by one
token; the score is the expectation over the probabilities of the allowed labels. Both return the same fields. Rubrics
with generated text (`writes`) always use `json`, and their answers are never scores. Rubrics that are answered in words
(VQAScore) always use `logit`.
"""

import base64
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

from PIL import Image
from pydantic import ValidationError

from local_bench.core import strictjson
from local_bench.core.errors import FAILED, failure
from local_bench.core.hardrules import HardRules, published_rules
from local_bench.core.images import count_card, fit_pixels, png_bytes, stitched
from local_bench.core.types import Collage, Question, Verdict, canonical_json
from local_bench.judges.vlm.rubrics import (
    DEFAULT_SET,
    Criterion,
    Label,
    Rubric,
    RubricSet,
    closing_json,
    closing_logit,
    rubric,
)

T = TypeVar("T")
Protocol = Literal["json", "logit"]
VERSIONS: dict[Protocol, str] = {"json": "json-2", "logit": "logit-1"}
"""Part of a judge's identity: images first, then the rubric, then its closing; `json` with compact white space."""
PREPARATION: dict[str, Any] = {"filter": "bicubic", "format": "png", "sheet": 1}
"""Part of a judge's identity; `sheet` is the version of `core.images.stitched`."""
IMAGE = b"P"
"""Prefix of a message to an embedded judge with an image for later messages: then come 64 characters of its
sha256 and a PNG file. Other messages are JSON."""
SENT_IMAGES, PREPARED_IMAGES = 256, 64
"""Sizes of caches; the requests for all criteria of one candidate follow each other closely."""
REFUSED = "the judge refused the question"
NOT_ITS_FORMAT = "the judge did not reply in its own format"
NO_REPLY = f"{FAILED}judging ({NOT_ITS_FORMAT})"
"""Refusal where the server replied with something else than a chat completion: a later session may have one."""
_PROBABILITY_DIGITS = 6
_REASON = 40
"""Maximum number of characters of a server's finish reason in a message."""
_NEVER = -9999.0
"""The log-probability that vLLM returns for impossible tokens."""


@dataclass(frozen=True)
class Shown:
    """One image in a request: a stored image, or several in a collage, resized to a range of pixels."""

    images: tuple[str, ...]
    """Pixel digests."""
    collage: Collage | None = None
    min_pixels: int = 1
    max_pixels: int = 1024 * 1024


@dataclass(frozen=True)
class Request:
    """One transport-independent request to the model: system prompt, images (each after its caption, if any), text."""

    system: str
    shown: tuple[Shown, ...]
    text: str
    max_tokens: int
    temperature: float
    seed: int
    name: str
    schema: dict[str, Any] | None = None
    """JSON schema of the answer; None with `labels`."""
    labels: tuple[str, ...] = ()
    """The allowed single-token answers, whose log-probabilities are returned; empty with `schema`."""
    captions: tuple[str, ...] = ()
    """One per image, or empty."""
    chat_template_kwargs: tuple[tuple[str, bool | int | float | str], ...] = ()
    """Variables of the model's chat template."""
    thought_end: str = ""
    """The text between the model's thought, which is free text, and its answer; empty if it does not think."""


@dataclass(frozen=True)
class Reply:
    """The model's reply to one request."""

    text: str | None
    finish_reason: str | None = None
    logprobs: Mapping[str, float] | None = None
    """Log-probability of the labels as the first token of the answer."""
    refusal: str | None = None
    """Why there is no answer; `text` is then the original error message."""


def failed(error: Exception | SystemExit) -> Reply:
    """The reply to a request for which `error` was raised. Raises `error` if it is not of the request alone."""
    return Reply("", refusal=failure("judging", error))


def protocol_for(question: Question, protocol: Protocol) -> Protocol:
    """The judge's protocol; `json` for rubrics with generated text, `logit` for those that are answered in words."""
    of_rubric = rubric(question.rubric)
    if any(criterion.words for criterion in of_rubric.criteria):
        return "logit"
    return "json" if of_rubric.writes is not None else protocol


def texts(
    question: Question, protocol: Protocol, rubrics: RubricSet = DEFAULT_SET
) -> list[tuple[str, Criterion | None]]:
    """The text of each request for `question`, with its criterion if the protocol is `logit`."""
    of_rubric, question = rubrics[question.rubric], rubrics.fitted(question)
    body = of_rubric.render(dict(question.slots), question.roles)
    if of_rubric.verbatim is not None:
        return [(body, None if of_rubric.verbatim.reply else of_rubric.criteria[0])]
    if protocol_for(question, protocol) == "json":
        return [(f"{body}\n{closing_json(of_rubric)}", None)]
    return [(f"{body}\n{closing_logit(of_rubric, criterion)}", criterion) for criterion in of_rubric.criteria]


def read(
    question: Question,
    protocol: Protocol,
    replies: Sequence[Reply],
    rubrics: RubricSet = DEFAULT_SET,
    thought_end: str = "",
) -> Verdict:
    """Parse the ordered replies to a question's requests: a valid answer to the rubric, or unscored with the reason.
    The raw text is stored in both cases, with the thought, which is what precedes `thought_end`."""
    raw = _encodable(replies[0].text or "" if len(replies) == 1 else canonical_json([reply.text for reply in replies]))
    refusal = next((reply.refusal for reply in replies if reply.refusal), None)
    if refusal:
        return Verdict(None, refusal, raw)
    if any(reply.text is None for reply in replies):
        return Verdict(None, "the judge gave no answer", raw)
    if thought_end:
        if any(thought_end not in (reply.text or "") for reply in replies):
            return Verdict(None, "the judge's thought was cut off before its end (thinking.budget_tokens)", raw)
        replies = [replace(reply, text=(reply.text or "").partition(thought_end)[2]) for reply in replies]
    of_rubric = rubrics[question.rubric]
    protocol = protocol_for(question, protocol)
    if of_rubric.verbatim is not None and of_rubric.verbatim.reply is None and protocol == "json":
        (criterion,), text = of_rubric.criteria, replies[0].text
        if text not in criterion.tokens:
            return Verdict(None, f"the judge's answer to {criterion.name} is none of its labels", raw)
        return Verdict({criterion.field: criterion.labels[criterion.tokens.index(text)]}, None, raw)
    if protocol == "json":
        return _read_json(rubrics.fitted(question), of_rubric, replies[0], raw)
    return _read_labels(of_rubric, replies, raw)


def _read_json(question: Question, of_rubric: Rubric, reply: Reply, raw: str) -> Verdict:
    if reply.finish_reason not in (None, "stop"):
        return Verdict(None, f"the judge's answer was cut off ({_encodable(reply.finish_reason[:_REASON])})", raw)
    try:
        # The grammar permits unescaped control characters in strings; strict JSON does not.
        answer = strictjson.loads(_encodable(reply.text or ""), strict=False)
        canonical_json(answer).encode()  # "\\ud800", a lone surrogate, is valid JSON but has no UTF-8 encoding
    except (ValueError, RecursionError):
        return Verdict(None, "the judge's answer is not JSON", raw)
    answer, fault = of_rubric.from_reply(answer, dict(question.slots))
    if fault is not None:
        return Verdict(None, fault, raw)
    counted, fault = of_rubric.read(answer, dict(question.slots))
    return Verdict(counted, fault, raw)


def _read_labels(of_rubric: Rubric, replies: Sequence[Reply], raw: str) -> Verdict:
    labels: dict[str, dict[str, float]] = {}
    best: dict[str, Label] = {}
    for criterion, reply in zip(of_rubric.criteria, replies, strict=True):
        if reply.finish_reason not in (None, "stop", "length") or reply.text not in criterion.tokens:
            return Verdict(None, f"the judge's answer to {criterion.name} is none of its labels", raw)
        of_tokens = _probabilities(reply.logprobs or {}, criterion.tokens)
        if of_tokens is None:
            return Verdict(None, f"the judge gave no probabilities for the labels of {criterion.name}", raw)
        by_number = dict(zip(criterion.numbers, of_tokens.values(), strict=True))
        labels[criterion.name] = by_number
        top = max(criterion.numbers, key=lambda number, p=by_number: (p[number], -int(number)))  # type: ignore[misc]
        best[criterion.name] = criterion.labels[criterion.numbers.index(top)]
    answer = of_rubric.from_labels(best)
    counting = {c.name for c in of_rubric.criteria if c.flag or c.field in answer}
    return Verdict(answer, None, raw, {name: p for name, p in labels.items() if name in counting})


def _probabilities(logprobs: Mapping[str, float], tokens: Sequence[str]) -> dict[str, float] | None:
    """Normalized probabilities of the tokens; None if any is missing or invalid, or all are impossible."""
    stated = [logprobs.get(token) for token in tokens]
    if any(isinstance(p, bool) or not isinstance(p, float | int) or not p <= 0 for p in stated):  # also no NaN
        return None
    bounded = {token: max(logprobs[token], _NEVER) for token in tokens}
    top = max(bounded.values())
    if top == _NEVER:
        return None
    weights = {token: math.exp(p - top) for token, p in bounded.items()}
    total = sum(weights.values())
    return {token: round(weight / total, _PROBABILITY_DIGITS) for token, weight in weights.items()}


def _encodable(text: str) -> str:
    """The text with lone surrogates escaped, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


# ---- bodies of requests, with prepared images


@dataclass(frozen=True)
class Prepared:
    """An image as sent to the judge: a PNG file and its sha256, the key for vLLM's caches."""

    png: bytes
    sha256: str


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


def body(
    request: Request, images: Sequence[Prepared], model: str, *, content_ids: bool = True, inline: bool = True
) -> dict[str, Any]:
    """The body for `/v1/chat/completions`: system prompt (if any), images (each after its caption, if any), then the
    rubric.

    `content_ids` adds each image's digest as its `uuid`, so that vLLM neither hashes nor processes it twice. Without
    `inline` the body contains only these ids, and the images are sent separately.
    """
    pieces: list[dict[str, Any]] = []
    for image in images:
        piece: dict[str, Any] = {"type": "image_url"}
        if inline:
            piece["image_url"] = {"url": "data:image/png;base64," + base64.b64encode(image.png).decode()}
        pieces.append(piece | ({"uuid": image.sha256} if content_ids else {}))
    sent: dict[str, Any] = {
        "model": model,
        "messages": [
            *([{"role": "system", "content": request.system}] if request.system else []),
            {"role": "user", "content": interleaved(request, pieces)},
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
        message = choice["message"]
    except (KeyError, IndexError, TypeError):
        return Reply(str(received)[:2000], refusal=NO_REPLY)
    try:
        text = message["content"]
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


Preparing = Callable[[Shown], Prepared]
"""Returns an image as it is sent to the judge."""


def preparing(load: Callable[[str], Image.Image], multiple: int) -> Preparing:
    """`prepare` with the last images kept; `multiple` is the patch size of the judge in pixels."""
    return lru_cache(PREPARED_IMAGES)(lambda shown: prepare(shown, load, multiple))


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


# ---- generated text about a task: constrained decoding guarantees the schema of the answer, and what a schema cannot
# express is checked here; none of it is a score


def deliverables(verdict: Verdict) -> tuple[HardRules, ...] | str:
    """The hard rules of each image that the client of a task receives (ServImage, appendix E.1), from an answer to the
    rubric `deliverables`; if it is not usable, the reason in one sentence."""
    if verdict.answer is None:
        return verdict.unscored or "the judge gave no answer"
    entries = verdict.answer["deliverables"]
    count = verdict.answer["output_quantity"]
    if count != len(entries):
        return f"the judge counts {count} deliverables and names {len(entries)}"
    names = [entry["subtask"] for entry in entries]
    if len(set(names)) < len(names):
        return f"the judge names {next(n for n in names if names.count(n) > 1)!r} twice"
    try:
        stated = (entry["rules"] if "evidence" in entry else published_rules(entry["rules"]) for entry in entries)
        return tuple(HardRules.model_validate(rule) for rule in stated)
    except ValidationError as e:
        return f"the judge's rules are inconsistent ({e.errors()[0]['msg']})"


def lines(verdict: Verdict, field: str) -> tuple[str, ...] | str:
    """The sentences in `field` (`points`, `changes`, `preservations`, `prompts`) with normalized white space and
    without duplicates; if there are none, the reason in one sentence."""
    if verdict.answer is None:
        return verdict.unscored or "the judge gave no answer"
    sentences = dict.fromkeys(" ".join(text.split()) for text in verdict.answer[field])
    return tuple(text for text in sentences if text) or f"the judge left {field} empty"
