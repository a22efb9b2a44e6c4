"""The two answer protocols: what one question is as requests to the model, and what the replies mean.

`json`: one request, answered by a schema-bound object. `logit`: one request a criterion, answered by one token, of
whose probabilities over the allowed labels the score is the expectation. Both give the same fields under the same
names; what the judge writes in words (rubrics with `writes`) is always asked as `json` and is never a score.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from local_bench.core import strictjson
from local_bench.core.identity import canonical_json
from local_bench.core.types import Collage, Question, Verdict
from local_bench.judges.vlm.rubrics import Criterion, Label, Rubric, closing_json, closing_logit, rubric
from local_bench.judges.vlm.variants import DEFAULT_SET, RubricSet

Protocol = Literal["json", "logit"]
VERSIONS: dict[Protocol, str] = {"json": "json-2", "logit": "logit-1"}
"""Part of who a judge is: images first, then the rubric, its closing last; `json` with compact whitespace."""
_PROBABILITY_DIGITS = 6
_REASON = 40
"""Characters of a server's word for how an answer ended."""
_NEVER = -9999.0
"""The log-probability that vLLM gives to what cannot be."""


@dataclass(frozen=True)
class Shown:
    """One picture as the judge is to see it: an image, or several on a sheet, within a number of pixels."""

    images: tuple[str, ...]
    """Pixel digests."""
    collage: Collage | None = None
    min_pixels: int = 1
    max_pixels: int = 1024 * 1024


@dataclass(frozen=True)
class Request:
    """One message to the model, whatever carries it: the system's words, the pictures, then the text.

    With `captions` each picture has a text of its own right before it.
    """

    system: str
    shown: tuple[Shown, ...]
    text: str
    max_tokens: int
    temperature: float
    seed: int
    name: str
    schema: dict[str, Any] | None = None
    """The answer is an object of this JSON schema, or"""
    labels: tuple[str, ...] = ()
    """one of these, each a single token, told with the log-probability of each."""
    captions: tuple[str, ...] = ()
    """One a picture, or none at all."""


@dataclass(frozen=True)
class Reply:
    """What came back for one request."""

    text: str | None
    finish_reason: str | None = None
    logprobs: Mapping[str, float] | None = None
    """Log-probability of the labels as the first token."""
    refusal: str | None = None
    """Why there is no answer at all, in our words; `text` then holds theirs."""


def protocol_for(question: Question, protocol: Protocol) -> Protocol:
    """The judge's protocol, or `json` where something is to be written."""
    return "json" if rubric(question.rubric).writes is not None else protocol


def texts(
    question: Question, protocol: Protocol, rubrics: RubricSet = DEFAULT_SET
) -> list[tuple[str, Criterion | None]]:
    """The text of each request that `question` takes, with the criterion that it is for under `logit`."""
    asked, question = rubrics[question.rubric], rubrics.fitted(question)
    body = asked.render(dict(question.slots), question.roles)
    if protocol_for(question, protocol) == "json":
        return [(f"{body}\n{closing_json(asked)}", None)]
    return [(f"{body}\n{closing_logit(asked, criterion)}", criterion) for criterion in asked.criteria]


def read(question: Question, protocol: Protocol, replies: Sequence[Reply], rubrics: RubricSet = DEFAULT_SET) -> Verdict:
    """What the replies to a question's requests, in order, mean: an answer that fits the rubric, or unscored with the
    reason and the raw words. Never a guess."""
    raw = _kept(replies[0].text or "" if len(replies) == 1 else canonical_json([reply.text for reply in replies]))
    refusal = next((reply.refusal for reply in replies if reply.refusal), None)
    if refusal:
        return Verdict(None, refusal, raw)
    if any(reply.text is None for reply in replies):
        return Verdict(None, "the judge gave no answer", raw)
    if protocol_for(question, protocol) == "json":
        return _read_json(question, rubrics[question.rubric], replies[0], raw)
    return _read_labels(rubrics[question.rubric], replies, raw)


def _read_json(question: Question, asked: Rubric, reply: Reply, raw: str) -> Verdict:
    if reply.finish_reason not in (None, "stop"):
        return Verdict(None, f"the judge's answer was cut off ({_kept(reply.finish_reason[:_REASON])})", raw)
    try:
        # The grammar lets control characters stand in what the judge writes; JSON proper would have them escaped.
        answer = strictjson.loads(raw, strict=False)
        canonical_json(answer).encode()  # "\\ud800", half a character, is JSON and yet nothing that can be kept
    except (ValueError, RecursionError):
        return Verdict(None, "the judge's answer is not JSON", raw)
    counted, fault = asked.read(answer, dict(question.slots))
    return Verdict(counted, fault, raw)


def _read_labels(asked: Rubric, replies: Sequence[Reply], raw: str) -> Verdict:
    labels: dict[str, dict[str, float]] = {}
    best: dict[str, Label] = {}
    for criterion, reply in zip(asked.criteria, replies, strict=True):
        if reply.finish_reason not in (None, "stop", "length") or reply.text not in criterion.tokens:
            return Verdict(None, f"the judge's answer to {criterion.name} is none of its labels", raw)
        found = _probabilities(reply.logprobs or {}, criterion.tokens)
        if found is None:
            return Verdict(None, f"the judge gave no probabilities for the labels of {criterion.name}", raw)
        labels[criterion.name] = found
        top = max(criterion.tokens, key=lambda token, p=found: (p[token], -int(token)))  # type: ignore[misc]
        best[criterion.name] = criterion.labels[criterion.tokens.index(top)]
    answer = asked.from_labels(best)
    counting = {c.name for c in asked.criteria if c.flag or c.field in answer}
    return Verdict(answer, None, raw, {name: p for name, p in labels.items() if name in counting})


def _probabilities(logprobs: Mapping[str, float], tokens: Sequence[str]) -> dict[str, float] | None:
    """The labels' share of the probability, from their log-probabilities; None unless each is there and one counts."""
    given = [logprobs.get(token) for token in tokens]
    if any(isinstance(p, bool) or not isinstance(p, float | int) or not p <= 0 for p in given):  # also no NaN
        return None
    found = {token: max(logprobs[token], _NEVER) for token in tokens}
    top = max(found.values())
    if top == _NEVER:
        return None
    weights = {token: math.exp(p - top) for token, p in found.items()}
    total = sum(weights.values())
    return {token: round(weight / total, _PROBABILITY_DIGITS) for token, weight in weights.items()}


def _kept(text: str) -> str:
    """The text as UTF-8 can hold it: halves of characters are written out."""
    return text.encode("utf-8", "backslashreplace").decode()
