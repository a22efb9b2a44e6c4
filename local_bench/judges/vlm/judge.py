"""The judge as the ledger knows it: who it is, and what one question to it looks like on the wire."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL import Image

from local_bench.core.identity import digest
from local_bench.core.images import fit_pixels, png_bytes
from local_bench.core.nouns import Question, Verdict
from local_bench.judges.vlm.rubrics import rubric, system

PROTOCOL = "json-1"
"""Images first, then the rubric; temperature 0; a schema-bound JSON object with compact whitespace."""
ShowImage = Callable[[str], str]
"""The data URI of an image, as `JudgeSpec.data_uri` makes it, by its pixel digest."""


@dataclass(frozen=True)
class JudgeSpec:
    """All that decides a verdict besides the question and the machine."""

    card: str
    weights_sha256: str
    dtype: str
    max_pixels: int
    patch: int
    max_tokens: int
    seed: int
    extra_args: tuple[str, ...] = ()
    """What our server is told besides: it may change answers, so it is part of who the judge is."""

    @cached_property
    def judge_id(self) -> str:
        """The machine-independent identity: model, weights, protocol, image preparation, system message."""
        resize = {"filter": "bicubic", "max_pixels": self.max_pixels, "multiple": self.patch, "format": "png"}
        return digest(
            {
                "card": self.card,
                "weights": self.weights_sha256,
                "dtype": self.dtype,
                "protocol": PROTOCOL,
                "images": resize,
                "system": system().model_dump(),
                "max_tokens": self.max_tokens,
                "temperature": 0,
                "seed": self.seed,
                "extra_args": self.extra_args,
            }
        )

    def question_id(self, question: Question, numerics: dict[str, Any]) -> str:
        """The identity of asking `question` of this judge on a machine with that numerics signature."""
        return digest(
            {
                "judge": self.judge_id,
                "rubric": rubric(question.rubric).sha256,
                "images": question.images,
                "slots": question.slots,
                "numerics": numerics,
            }
        )

    def data_uri(self, image: Image.Image) -> str:
        """How the judge is shown an image: resized here to its pixel budget, so vLLM has nothing left to resize."""
        prepared = png_bytes(fit_pixels(image, self.max_pixels, self.patch))
        return "data:image/png;base64," + base64.b64encode(prepared).decode()

    def request(self, question: Question, model: str, show: ShowImage) -> dict[str, Any]:
        """The body for `/v1/chat/completions`: system, images, then the rubric."""
        asked = rubric(question.rubric)
        pictures = [{"type": "image_url", "image_url": {"url": show(sha)}} for sha in question.images]
        text = {"type": "text", "text": asked.render(dict(question.slots))}
        return {
            "model": model,
            "messages": [
                {"role": "system", "content": system().text},
                {"role": "user", "content": [*pictures, text]},
            ],
            "temperature": 0,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": asked.id, "schema": asked.answer_schema, "strict": True},
            },
        }


def read_answer(question: Question, raw: str, finish_reason: str | None) -> Verdict:
    """What the judge's words mean: an answer that fits the rubric, or unscored with the reason. Never a guess."""
    if finish_reason not in (None, "stop"):
        return Verdict(None, f"the judge's answer was cut off ({finish_reason})", raw)
    try:
        answer = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return Verdict(None, "the judge's answer is not JSON", raw)
    fault = rubric(question.rubric).fault(answer)
    return Verdict(None, fault, raw) if fault else Verdict(answer, None, raw)


def _no_constant(name: str) -> None:
    raise ValueError(name)
