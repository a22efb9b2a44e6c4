"""The two answer protocols: converting a question to requests and the replies to a verdict.

`json`: one request, answered by a JSON object of a fixed schema. `logit`: one request per criterion, answered by one
token; the score is the expectation over the probabilities of the allowed labels. Both return the same fields. Rubrics
with generated text (`writes`) always use `json`, and their answers are never scores. Rubrics that are answered in words
(VQAScore) always use `logit`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from local_bench.core import strictjson
from local_bench.core.errors import failure
from local_bench.core.identity import canonical_json
from local_bench.core.types import Collage, Question, Verdict
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

Protocol = Literal["json", "logit"]
VERSIONS: dict[Protocol, str] = {"json": "json-2", "logit": "logit-1"}
"""Part of a judge's identity: images first, then the rubric, then its closing; `json` with compact white space."""
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


def failed(error: Exception) -> Reply:
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
