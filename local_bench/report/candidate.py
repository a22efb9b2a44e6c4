"""One image in the gallery: the image, the decision, the scores, and every verdict on which they are based."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from local_bench.core.types import Task
from local_bench.report.images import InlineImage, inline_image
from local_bench.report.scores import missed_text, score_text
from local_bench.report.text import short
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import CandidateRow, OutcomeRow, ScoreRow, VerdictRow

MAX_RAW = 2000
BRF = "brf"
"""The rubric with one question per evaluation point."""
CNS_SET = "cns_set"
"""The rubric that is repeated with the set in reverse order."""
_LABELS = TypeAdapter(dict[str, dict[str, float]])


@dataclass(frozen=True)
class VerdictView:
    rubric: str
    point: str | None
    """The evaluation point, if the rubric has several."""
    again: str | None
    """The index of the repeat, unless it is the first."""
    answer: str | None
    labels: list[str]
    """Label probabilities of each criterion, if the judge gives them."""
    unscored: str | None
    raw: str
    left_out: int
    """Number of characters of `raw` that are omitted."""
    rubric_digest: str
    judge: str
    judge_name: str | None
    """The judge's name, if there are several."""


@dataclass(frozen=True)
class CandidateView:
    model: str
    attempt: int
    image: InlineImage | None
    no_image: str
    """Reason why there is no image."""
    prompt: str
    saw: str | None
    """The order's input images that the model received; None if the order has none, or if it is not known."""
    truth: str | None
    """Ground truth of the image, if it is known."""
    decision: str
    mark: str
    """yes, no or open."""
    reason: str | None
    scores: list[tuple[str, str, str | None]]
    """(name, value, reason for a missing value)"""
    verdicts: list[VerdictView]


def candidate_view(
    run: RunDir,
    task: Task,
    row: OutcomeRow,
    places: Mapping[str, int],
    thresholds: Mapping[str, float],
    scores: Sequence[ScoreRow],
    verdicts: Sequence[VerdictRow],
    judges: Mapping[str, str],
    truth: str | None = None,
) -> CandidateView:
    """The candidate of `row` with a cell for every score in `places` (name -> decimals); `thresholds` are those of all
    scores that decide; `judges`: judge id -> name; `truth`: what is known
    of its image."""
    candidate = row.candidate
    decision, mark, reason = _decision(row)
    if row.accepted is False:
        reason = missed_text((one.score for one in scores), thresholds, places) or None
    by_name = {score.score.name: score for score in scores}
    cells: list[tuple[str, str, str | None]] = []
    for name, decimals in places.items():
        found = by_name.get(name)
        if found is None:
            cells.append((name, "missing", None))
        else:
            cells.append((name, *score_text(found.score, decimals)))
    shown = inline_image(run.image_store.load, candidate.image) if candidate.image else None
    return CandidateView(
        model=candidate.model,
        attempt=candidate.attempt,
        image=shown,
        no_image=_no_image(candidate),
        prompt=candidate.prompt,
        saw=_saw(task, candidate.work.get("pictures")),
        truth=truth,
        decision=decision,
        mark=mark,
        reason=reason,
        scores=cells,
        verdicts=[_verdict(verdict, task, judges) for verdict in verdicts],
    )


def _decision(row: OutcomeRow) -> tuple[str, str, str | None]:
    if row.decision is None:
        return "no decision", "open", None
    if row.accepted is None:
        return "unscored", "open", row.decision.unscored
    return ("accepted", "yes", None) if row.accepted else ("not accepted", "no", None)


def given(task: Task) -> list[tuple[str, str]]:
    """The input images of the order: (description, pixel digest)."""
    source = [] if task.source_sha256 is None else [("Source image", task.source_sha256)]
    return source + [(f"Reference image {i}", sha256) for i, sha256 in enumerate(task.reference_sha256, 1)]


def _saw(task: Task, received: object) -> str | None:
    """Which input images the model received, from the pixel digests in its work; None if it has none."""
    inputs = given(task)
    if not isinstance(received, list) or not inputs:
        return None
    names = [name[0].lower() + name[1:] for name, sha256 in inputs if sha256 in received]
    if len(names) == len(inputs):
        return "input: all images of the task" if len(inputs) > 1 else f"input: {names[0]}"
    return f"input: {' and '.join(names)} only" if names else "input: no image of the task"


def _no_image(candidate: CandidateRow) -> str:
    match candidate.state:
        case "planned":
            return "not generated yet"
        case "unscored":
            return f"not generated: {candidate.unscored or 'no reason given'}"
        case _:
            return "the image file is missing, damaged or altered: see `local-bench verify`"


def _verdict(row: VerdictRow, task: Task, judges: Mapping[str, str]) -> VerdictView:
    number, points = row.point, task.evaluation_points
    point: str | None
    if row.rubric == BRF and 0 <= number < len(points):
        point = points[number]
    else:
        point = f"point {number + 1}" if number else None
    return VerdictView(
        rubric=row.rubric,
        point=point,
        again=_again(row),
        answer=row.answer_json,
        labels=label_lines(row.labels_json),
        unscored=row.unscored,
        raw=row.raw[:MAX_RAW],
        left_out=max(0, len(row.raw) - MAX_RAW),
        rubric_digest=short(row.rubric_sha256),
        judge=short(row.judge),
        judge_name=judges.get(row.judge) if len(judges) > 1 else None,
    )


def _again(row: VerdictRow) -> str | None:
    if not row.repeat:
        return None
    return "set in the other order" if row.rubric == CNS_SET else f"repeat {row.repeat + 1}"


def label_lines(labels: str | None) -> list[str]:
    """`met 0: 12 %, 1: 88 %`, one line per criterion; the text in the ledger if it has another form."""
    if labels is None:
        return []
    try:
        criteria = _LABELS.validate_json(labels)
    except ValidationError:
        return [labels[:MAX_RAW]]
    return [
        f"{name} " + ", ".join(f"{label}:\u00a0{100 * p:.0f} %" for label, p in of.items())
        for name, of in criteria.items()
    ]
