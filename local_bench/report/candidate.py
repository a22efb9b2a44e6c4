"""One image in the gallery: the picture, whether the client pays, the scores, and every verdict behind them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Row

from pydantic import TypeAdapter, ValidationError

from local_bench.core.types import Task
from local_bench.report.images import Picture, picture
from local_bench.report.scores import score_text
from local_bench.report.text import short
from local_bench.runs.rundir import RunDir

MAX_RAW = 2000
BRF = "brf"
"""The rubric that asks about one evaluation point at a time."""
CNS_SET = "cns_set"
"""The rubric whose second asking shows the set the other way round."""
_LABELS = TypeAdapter(dict[str, dict[str, float]])


@dataclass(frozen=True)
class VerdictView:
    rubric: str
    point: str | None
    """What was asked about, where the rubric has several points."""
    again: str | None
    """Which asking of the same it is, where it is not the first."""
    answer: str | None
    labels: list[str]
    """What the labels of each criterion got, where the judge told."""
    unscored: str | None
    raw: str
    left_out: int
    """How many characters of `raw` are not shown."""
    rubric_digest: str
    judge: str
    judge_name: str | None
    """Where there are several."""


@dataclass(frozen=True)
class CandidateView:
    model: str
    attempt: int
    picture: Picture | None
    no_picture: str
    """Why there is no picture, where there is none."""
    prompt: str
    saw: str | None
    """Which of the order's pictures the model was shown; None where the order has none, or nobody can say."""
    truth: str | None
    """What is so of the picture, where that is known."""
    decision: str
    mark: str
    """yes, no or open."""
    reason: str | None
    scores: list[tuple[str, str, str | None]]
    """(name, value, reason why there is none)"""
    verdicts: list[VerdictView]


def candidate_view(
    run: RunDir,
    task: Task,
    row: Row,
    names: Sequence[str],
    scores: Sequence[Row],
    verdicts: Sequence[Row],
    judges: Mapping[str, str],
    truth: str | None = None,
) -> CandidateView:
    """The candidate in `row` (with its decision's columns), with a cell for every score in `names`; `judges`: judge id
    -> label; `truth`: what is known of its picture."""
    decision, mark, reason = _decision(row)
    by_name = {score["name"]: score for score in scores}
    cells: list[tuple[str, str, str | None]] = []
    for name in names:
        score = by_name.get(name)
        if score is None:
            cells.append((name, "missing", None))
        else:
            text = score_text(score["value"], score["unscored"], bool(score["applies"]), score["kind"], score["spread"])
            cells.append((name, *text))
    shown = picture(run.pictures.load, row["pixels_sha256"]) if row["state"] == "done" else None
    return CandidateView(
        model=row["model"],
        attempt=row["attempt"],
        picture=shown,
        no_picture=_no_picture(row),
        prompt=row["prompt"],
        saw=_saw(task, row["pictures"]),
        truth=truth,
        decision=decision,
        mark=mark,
        reason=reason,
        scores=cells,
        verdicts=[_verdict(verdict, task, judges) for verdict in verdicts],
    )


def _decision(row: Row) -> tuple[str, str, str | None]:
    if not row["decided"]:
        return "no decision", "open", None
    if row["accepted"] is None:
        return "unscored", "open", row["decision_unscored"]
    return ("accepted", "yes", None) if row["accepted"] else ("not accepted", "no", None)


def given(task: Task) -> list[tuple[str, str]]:
    """The pictures that came with the order: (what it is, its pixel digest)."""
    source = [] if task.source_sha256 is None else [("The picture to edit", task.source_sha256)]
    return source + [(f"Reference {i}", sha256) for i, sha256 in enumerate(task.reference_sha256, 1)]


def _saw(task: Task, pictures: str | None) -> str | None:
    there = given(task)
    if pictures is None or not there:
        return None
    shown = json.loads(pictures)
    names = [name[0].lower() + name[1:] for name, sha256 in there if sha256 in shown]
    if len(names) == len(there):
        return "saw all of the order's pictures" if len(there) > 1 else f"saw {names[0]}"
    return f"saw {' and '.join(names)} only" if names else "saw none of the order's pictures"


def _no_picture(row: Row) -> str:
    match row["state"]:
        case "planned":
            return "not made yet"
        case "unscored":
            return f"not made: {row['unscored'] or 'no reason given'}"
        case _:
            return "the image's file is missing or damaged, or altered: `local-bench verify` tells more"


def _verdict(row: Row, task: Task, judges: Mapping[str, str]) -> VerdictView:
    number, points = row["point"], task.evaluation_points
    if row["rubric"] == BRF and 0 <= number < len(points):
        point = points[number]
    else:
        point = f"point {number + 1}" if number else None
    return VerdictView(
        rubric=row["rubric"],
        point=point,
        again=_again(row),
        answer=row["answer"],
        labels=label_lines(row["labels"]),
        unscored=row["unscored"],
        raw=row["raw"][:MAX_RAW],
        left_out=max(0, len(row["raw"]) - MAX_RAW),
        rubric_digest=short(row["rubric_sha256"]),
        judge=short(row["judge"]),
        judge_name=judges.get(row["judge"]) if len(judges) > 1 else None,
    )


def _again(row: Row) -> str | None:
    if not row["repeat"]:
        return None
    return "the set in the other order" if row["rubric"] == CNS_SET else f"asking {row['repeat'] + 1}"


def label_lines(labels: str | None) -> list[str]:
    """`met 0: 12%, 1: 88%`, a line a criterion; as it stands in the ledger where it is not that."""
    if labels is None:
        return []
    try:
        criteria = _LABELS.validate_json(labels)
    except ValidationError:
        return [labels[:MAX_RAW]]
    return [
        f"{name} " + ", ".join(f"{label}:\u00a0{p:.0%}" for label, p in of.items()) for name, of in criteria.items()
    ]
