"""HYPE-EDIT-1: reference-based marketing edits, pass or fail, ten attempts each (sec. 4).

An attempt passes if every required change is made and everything else is preserved; with `judge.hype_usable` (our
addition, off by default) only if it also has no defect for which a client would return it. The judge of the benchmark's
repository derives both lists itself. This implementation gives the judge the task's checklist, written by a person or
extracted by a judge with the rubric `hype_checklist`; without one, the instruction and "everything else".
"""

from collections.abc import Iterator, Mapping
from math import prod, sqrt

from local_bench.core.types import UNSUPPORTED, Deliverable, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.base import QuestionKey as Key

PASS = "pass"  # noqa: S105
RATING = "rating"
PARTS = ("changes_made", "rest_preserved", "usable")
PASSED = "passed"
"""The field of the authors' prompt, which has one verdict for both parts."""
SCORES = (PASS, RATING, *PARTS)
THRESHOLDS = {PASS: 1.0}
LENT = {PASS: "hype_pass", RATING: "hype_rating"}
PASS_FAIL = (PASS,)
"""Scores that are one judge's pass/fail decision: a panel decides them by majority, independent of `panel_word`."""
ATTEMPTS = 10
_ALL_ELSE = "Everything that the instruction does not ask to change."


def deliverables(task: Task) -> list[Deliverable]:
    """The one requested image; the generator receives the instruction verbatim."""
    return [Deliverable(task.task_id, 1, task.brief, task.input_images)]


def fitted(task: Task, takes: Takes) -> list[Deliverable] | str:
    """The deliverables, or one sentence why the model does not support the task."""
    n = len(task.input_images)
    edits = takes.pictures and not takes.condition and "source" in takes.roles
    if n > takes.pictures or not edits:
        sees = f"{takes.pictures}" if edits else "no picture to edit"
        return f"{UNSUPPORTED}the edit is of {n} picture{'s' * (n > 1)}, and the model takes {sees}"
    return deliverables(task)


def enrichment_question(task: Task) -> Question | None:
    """The question that requests the instruction as a checklist."""
    return None if "changes" in task.own else Question("hype_checklist", 0, (), (("instruction", task.brief),))


def questions(task: Task, images: Mapping[int, str], order_swap: bool = False) -> Iterator[tuple[Key, Question]]:
    """The one question about an attempt: its input images, then the result."""
    inputs = task.input_images
    slots = (
        ("instruction", task.brief),
        ("changes", _listed(task.own.get("changes") or [task.brief])),
        ("preservations", _listed(task.own.get("preservations") or [_ALL_ELSE])),
    )
    for deliverable, pixels in sorted(images.items()):
        roles = (*("source",) * len(inputs), "result")
        yield (deliverable, "hype_edit", 0, 0), Question("hype_edit", 0, (*inputs, pixels), slots, roles)


def scores(task: Task, verdicts: Mapping[Key, Verdict]) -> dict[int, list[Score]]:
    """`pass`, 1 or 0; its parts, of which `usable` applies only if the rubric has that criterion; `rating`, the product
    of the parts' probabilities if the judge gives them, used to select the best of several attempts."""
    verdict = verdicts.get((1, "hype_edit", 0, 0))
    if verdict is None or verdict.answer is None:
        reason = "the judge was not reached" if verdict is None else verdict.unscored
        return {1: [Score(name, None, reason) for name in SCORES]}
    answer = verdict.answer
    values = {name: value for name in PARTS if (value := verdict.value(name)) is not None}
    passed = Score(PASS, float(answer[PASSED] if PASSED in answer else all(answer[name] for name in values)))
    parts = [
        Score(name, values[name], spread=None if (v := verdict.variance(name)) is None else sqrt(v))
        if name in values
        else Score(name, None, applies=False)
        for name in PARTS
    ]
    return {1: [passed, Score(RATING, prod(values.values()) if values else passed.value), *parts]}


def _listed(sentences: list[str]) -> str:
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1))
