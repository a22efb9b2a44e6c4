"""Parses the judge's generated text about a task: deliverables with their hard rules, points and prompts.

Constrained decoding guarantees the schema of the answer; this module checks what a schema cannot express. None of it
is a score.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from local_bench.core.hardrules import HardRules, published_rules
from local_bench.core.types import Verdict


@dataclass(frozen=True)
class Deliverables:
    """The images that the client of a task receives (ServImage, appendix E.1)."""

    subtasks: tuple[str, ...]
    """Names in snake_case, one per image."""
    rules: tuple[HardRules, ...]
    evidence: tuple[tuple[str, ...], ...]
    """Quotations from the task for the count and the rules, in the language of the task; none from the verbatim
    rubric."""


def deliverables(verdict: Verdict) -> Deliverables | str:
    """Parse an answer to the rubric `deliverables`; if it is not usable, return the reason in one sentence."""
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
        rules = tuple(HardRules.model_validate(rule) for rule in stated)
    except ValidationError as e:
        return f"the judge's rules are inconsistent ({e.errors()[0]['msg']})"
    return Deliverables(tuple(names), rules, tuple(tuple(entry.get("evidence", ())) for entry in entries))


def lines(verdict: Verdict, field: str) -> tuple[str, ...] | str:
    """The sentences in `field` (`points`, `changes`, `preservations`, `prompts`) with normalized white space and
    without duplicates; if there are none, the reason in one sentence."""
    if verdict.answer is None:
        return verdict.unscored or "the judge gave no answer"
    sentences = dict.fromkeys(" ".join(text.split()) for text in verdict.answer[field])
    return tuple(text for text in sentences if text) or f"the judge left {field} empty"


def numbered(sentences: Sequence[str]) -> str:
    """The sentences as a numbered list, for the slots of `hype_edit`; "none" if there are no sentences."""
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1)) or "none"
