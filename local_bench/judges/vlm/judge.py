"""The judge as the ledger knows it: who it is, and what one question to it is."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from local_bench.core.identity import digest
from local_bench.core.types import Question
from local_bench.judges.vlm.images import PREPARATION
from local_bench.judges.vlm.protocols import VERSIONS, Protocol, Request, Shown, protocol_for, texts
from local_bench.judges.vlm.rubrics import system
from local_bench.judges.vlm.variants import DEFAULT_SET, RubricSet


@dataclass(frozen=True)
class JudgeSpec:
    """All that decides a verdict besides the question and the machine."""

    card: str
    weights_sha256: str
    dtype: str
    max_pixels: int
    patch: int
    seed: int
    protocol: Protocol = "json"
    min_pixels: int = 1
    """Smaller images are enlarged to this, as the model's own processor would."""
    max_tokens: int | None = None
    """At most so many tokens an answer; the rubric's own number if None."""
    extra_args: tuple[str, ...] = ()
    """What our engine is told besides: it may change answers, so it is part of who the judge is."""
    rubrics: RubricSet = DEFAULT_SET
    """The wording of its questions."""
    source_max_pixels: int | None = None
    """The pixel budget of each image of a question that compares with a source; as other images if None."""

    @cached_property
    def judge_id(self) -> str:
        """The machine-independent identity: model, weights, protocol, image preparation, the words around a rubric."""
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
            | self._wording
        )

    @property
    def _wording(self) -> dict[str, Any]:
        """What of the wording and the images' sizes is not as it was before there was a choice."""
        named: dict[str, Any] = {} if self.rubrics.variant == "miniature" else {"rubrics": self.rubrics.variant}
        named |= {"options": self.rubrics.options} if self.rubrics.options else {}
        return named | ({"source_max_pixels": self.source_max_pixels} if self.source_max_pixels else {})

    def question_id(self, question: Question, numerics: dict[str, Any]) -> str:
        """The identity of asking `question` of this judge on a machine with that numerics signature."""
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
        """What `question` takes: one request under `json`, one a criterion under `logit`, alike but at the end."""
        asked, question = self.rubrics[question.rubric], self.rubrics.fitted(question)
        as_json = protocol_for(question, self.protocol) == "json"
        shown = self._shown(question)
        return [
            Request(
                system=system().text,
                shown=shown,
                text=text,
                max_tokens=(self.max_tokens or asked.max_tokens) if criterion is None else 1,
                temperature=asked.temperature if as_json else 0,
                seed=self._seed(question),
                name=asked.id,
                schema=asked.answer_schema(dict(question.slots)) if criterion is None else None,
                labels=() if criterion is None else criterion.tokens,
                captions=asked.captions(question.roles) if question.roles else (),
            )
            for text, criterion in texts(question, self.protocol, self.rubrics)
        ]

    def _seed(self, question: Question) -> int:
        """The judge's, and under `json` for rubrics that are sampled one of its own for every repeat."""
        asked = self.rubrics[question.rubric]
        if asked.temperature == 0 or protocol_for(question, self.protocol) == "logit":
            return self.seed
        return int(digest([self.seed, question.slots, question.images, question.repeat])[:8], 16)

    def _shown(self, question: Question) -> tuple[Shown, ...]:
        asked = self.rubrics[question.rubric]
        most = min(asked.max_pixels or self.max_pixels, self.max_pixels)
        if self.source_max_pixels and "source" in question.roles:
            most = self.source_max_pixels
        least = min(max(asked.min_pixels or 1, self.min_pixels), most)
        if question.collage is None:
            return tuple(Shown((sha,), None, least, most) for sha in question.images)
        most *= max(1, len(question.images))  # a sheet has room for all that is on it
        return (Shown(question.images, question.collage, least, most),)
