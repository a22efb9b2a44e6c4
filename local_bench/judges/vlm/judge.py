"""The identity of a judge and of its questions, and the requests for one question."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from local_bench.core.identity import digest
from local_bench.core.types import Question
from local_bench.judges.vlm.chat_api import PREPARATION
from local_bench.judges.vlm.protocols import VERSIONS, Protocol, Request, Shown, protocol_for, texts
from local_bench.judges.vlm.rubrics import DEFAULT_SET, RubricSet, system
from local_bench.models.cards import Thinking

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
        """Settings of rubrics, images, chat template, thinking, server and plug-in that older digests do not have."""
        named: dict[str, Any] = {} if self.rubrics.variant == "miniature" else {"rubrics": self.rubrics.variant}
        named |= {"options": self.rubrics.options} if self.rubrics.options else {}
        named |= {"chat_template_kwargs": dict(self.chat_template_kwargs)} if self.chat_template_kwargs else {}
        if self.mm_processor_kwargs is not None:
            named["mm_processor_kwargs"] = dict(self.mm_processor_kwargs)
        named |= {"thinking": self.thinking.model_dump()} if self.thinking else {}
        named |= {"served": dict(self.served)} if self.served else {}
        named |= {"plugin": self.plugin} if self.plugin else {}
        return named | ({"source_max_pixels": self.source_max_pixels} if self.source_max_pixels else {})

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
        shown = self._shown(question)
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

    def _shown(self, question: Question) -> tuple[Shown, ...]:
        rubric = self.rubrics[question.rubric]
        most = min(rubric.max_pixels or self.max_pixels, self.max_pixels)
        if self.source_max_pixels and "source" in question.roles:
            most = self.source_max_pixels
        least = min(max(rubric.min_pixels or 1, self.min_pixels), most)
        if question.collage is None:
            return tuple(Shown((sha,), None, least, most) for sha in question.images)
        most *= max(1, len(question.images))  # a collage gets the budget of all its images
        return (Shown(question.images, question.collage, least, most),)
