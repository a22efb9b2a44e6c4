"""What a judge wrote about an order, read into nouns: its deliverables with their hard rules, its points, its prompts.

The grammar holds a written answer to its schema; what a schema cannot say is looked at here. Nothing of it is a score.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from local_bench.core.hardrules import HardRules
from local_bench.core.types import Verdict


@dataclass(frozen=True)
class Deliverables:
    """The images that a client receives for an order (ServImage, appendix E.1)."""

    subtasks: tuple[str, ...]
    """snake_case, one an image."""
    rules: tuple[HardRules, ...]
    evidence: tuple[tuple[str, ...], ...]
    """Words of the order for the count and the rules, in its own language."""


def deliverables(verdict: Verdict) -> Deliverables | str:
    """What the rubric `deliverables` brought, or in one sentence why it cannot be used: never a guess."""
    if verdict.answer is None:
        return verdict.unscored or "the judge gave no answer"
    entries = verdict.answer["deliverables"]
    said = verdict.answer["output_quantity"]
    if said != len(entries):
        return f"the judge counts {said} deliverables and names {len(entries)}"
    names = [entry["subtask"] for entry in entries]
    if len(set(names)) < len(names):
        return f"the judge names {next(n for n in names if names.count(n) > 1)!r} twice"
    try:
        rules = tuple(HardRules.model_validate(entry["rules"]) for entry in entries)
    except ValidationError as e:
        return f"the judge's rules do not hold together ({e.errors()[0]['msg']})"
    return Deliverables(tuple(names), rules, tuple(tuple(entry["evidence"]) for entry in entries))


def lines(verdict: Verdict, field: str) -> tuple[str, ...] | str:
    """The list of sentences in `field` (`points`, `changes`, `preservations`, `prompts`), blanks trimmed and what
    stands there twice once, or in one sentence why there is none."""
    if verdict.answer is None:
        return verdict.unscored or "the judge gave no answer"
    found = tuple(dict.fromkeys(" ".join(text.split()) for text in verdict.answer[field]))
    return tuple(text for text in found if text) or f"the judge left {field} empty"


def numbered(sentences: Sequence[str]) -> str:
    """The sentences as a numbered list, for the slots of `hype_edit`; "none" where there are none."""
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1)) or "none"
