"""People's labels: a JSON Lines file in, one label a line, and what the people together say of each image."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationError, create_model

from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.yamlfile import Strict, explain
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir
from local_bench.suites.registry import suite

PEOPLE = "people"
OVERALL = "overall"
TOP = 5
"""The scores run from 0 to this."""


@dataclass(frozen=True)
class Rating:
    """What one side says of one image in one dimension; at least one of the two where anything was said."""

    decision: bool | None
    number: float | None
    """On the score's own scale."""


Opinion = dict[str, dict[str, Rating]]
"""Dimension (a score's name, or `overall`) -> work id -> rating; only where it applies or was rated."""


@dataclass(frozen=True)
class Annotations:
    """Everybody who labelled, each alone and together."""

    word: Opinion
    raters: dict[str, Opinion] = field(default_factory=dict)
    asked: dict[str, float | None] = field(default_factory=dict)
    """Work id -> the chance with which it came to be asked about, where that is told; also of what nobody rated."""
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Dimension -> work ids on which as many raters accept as reject; only where there are any."""

    def notes(self, run: RunDir) -> list[str]:
        """A sentence for each dimension with ties, naming the first of the images."""
        names = {row.work_id: f"{row.model}/{row.task_id}/{row.deliverable}" for row in run.store.candidates()}
        return [
            f"{len(ids)} images are tied in {name} (as many raters accept as reject) and have no decision: "
            f"{', '.join(names[i] for i in ids[:5])}{', …' if len(ids) > 5 else ''}; "
            "add a label of one more rater to decide them"
            for name, ids in sorted(self.tied.items())
        ]


class LabelLine(Strict):
    """Who rated which image. The scores stand beside these keys, under their own names."""

    model: str
    task_id: str
    deliverable: int = Field(ge=1)
    attempt: int = Field(1, ge=1)
    rater: str = Field(PEOPLE, min_length=1, max_length=100)
    probability: float | None = Field(None, gt=0, le=1)
    """With which chance it was drawn to be labelled (`settle --plan-labels`)."""


def people_labels(path: Path, run: RunDir, applies: Mapping[str, set[str]]) -> Annotations:
    """The labels in `path`, about images of `run`; `applies`: work id -> the deciding scores that apply to it.

    A line is an object of `model`, `task_id`, `deliverable`, `attempt` (1 if left out), `rater` (`people` if left
    out), `probability` (with which it was drawn to be labelled; may be left out), and any of the suite's score names
    or `overall`: true or false (would it be accepted), a number on the score's scale, or null (not rated). A number
    decides by the config's threshold. Of several raters the word is the majority of their decisions (none for a tie)
    and the mean of their numbers. Where nobody gave `overall`, it follows from the scores that apply as acceptance
    does. UserError names the file, the line and the reason.
    """
    thresholds = thresholds_of(run.config)
    known = {row.key: row.work_id for row in run.store.candidates()}
    raters: dict[str, Opinion] = {}
    first: dict[tuple[str, str], int] = {}
    asked: dict[str, float | None] = {}
    for number, line, given in _lines(path, run):
        where = f"{path}, line {number}"
        work_id = known.get((line.model, line.task_id, line.deliverable, line.attempt))
        if work_id is None:
            raise UserError(f"{where}: {_unknown(line, list(known))}: mend or drop the line")
        if (line.rater, work_id) in first:
            raise UserError(
                f"{where}: {line.rater!r} rates this image on line {first[line.rater, work_id]} too: keep one"
            )
        first[line.rater, work_id] = number
        if asked.setdefault(work_id, line.probability) != line.probability:
            raise UserError(f"{where}: its probability is another one on an earlier line: an image has one")
        opinion = raters.setdefault(line.rater, defaultdict(dict))
        for name, value in given.items():
            if isinstance(value, bool) and name not in thresholds and name != OVERALL:
                raise UserError(f"{where}: {name} has no threshold to decide by: give a number or null")
            if value is not None:
                opinion[name][work_id] = _rating(value, thresholds.get(name))
    if not first:
        raise UserError(f"{path} holds no labels: give a file with one JSON object a line")
    word = _together(list(raters.values()))
    if not word:
        raise UserError(f"{path} rates nothing: beside the image's keys, give scores that are not null")
    tied = _tied(list(raters.values()))
    for opinion in raters.values():
        _add_overall(opinion, applies, ())
    _add_overall(word, applies, tied.get(OVERALL, ()))
    return Annotations(word, raters, asked, tied)


def _unknown(line: LabelLine, known: list[tuple[str, str, int, int]]) -> str:
    models = dict.fromkeys(key[0] for key in known)
    if line.model not in models:
        return f"the run has no model {line.model!r} (it has {', '.join(models)})"
    if line.task_id not in {key[1] for key in known}:
        return f"the run has no order {line.task_id!r}"
    return f"the run asks for no image {line.deliverable} of {line.task_id!r}, attempt {line.attempt}, by {line.model}"


def _rating(value: bool | float, threshold: float | None) -> Rating:
    if isinstance(value, bool):
        return Rating(value, None)
    return Rating(None if threshold is None else value >= threshold, value)


def _together(opinions: list[Opinion]) -> Opinion:
    word: Opinion = defaultdict(dict)
    for name in {name for opinion in opinions for name in opinion}:
        heard: dict[str, list[Rating]] = defaultdict(list)
        for opinion in opinions:
            for work_id, rating in opinion.get(name, {}).items():
                heard[work_id].append(rating)
        for work_id, ratings in heard.items():
            votes = Counter(r.decision for r in ratings if r.decision is not None)
            numbers = [r.number for r in ratings if r.number is not None]
            decision = None if votes[True] == votes[False] else votes[True] > votes[False]
            word[name][work_id] = Rating(decision, fmean(numbers) if numbers else None)
    return word


def _tied(opinions: list[Opinion]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in {name for opinion in opinions for name in opinion}:
        balance: dict[str, list[bool]] = defaultdict(list)
        for opinion in opinions:
            for work_id, rating in opinion.get(name, {}).items():
                if rating.decision is not None:
                    balance[work_id].append(rating.decision)
        if tied := tuple(sorted(w for w, votes in balance.items() if 2 * sum(votes) == len(votes))):
            found[name] = tied
    return found


def _add_overall(opinion: Opinion, applies: Mapping[str, set[str]], tied: Collection[str]) -> None:
    """Where it was not given: rejected if any score that applies is, accepted if all are; the mean of all numbers. A
    tie of given ones (`tied`: work ids) stays without a decision."""
    for work_id in {work_id for of in list(opinion.values()) for work_id in of}:
        own = opinion.setdefault(OVERALL, {}).get(work_id, Rating(None, None))
        nothing = Rating(None, None)
        parts = [opinion.get(name, {}).get(work_id, nothing) for name in applies.get(work_id, ())]
        decisions, numbers = [part.decision for part in parts], [part.number for part in parts]
        decision, number = own.decision, own.number
        if decision is None and parts and work_id not in tied:
            decision = False if False in decisions else None if None in decisions else True
        if number is None and parts and None not in numbers:
            number = fmean(n for n in numbers if n is not None)
        if decision is not None or number is not None:
            opinion[OVERALL][work_id] = Rating(decision, number)


def _value(given: Any) -> bool | float | None:
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, int | float) and math.isfinite(given) and 0 <= given <= TOP:
        return float(given)
    raise ValueError(f"write true, false, a number from 0 to {TOP}, or null")


def _lines(path: Path, run: RunDir) -> Iterator[tuple[int, LabelLine, dict[str, bool | float | None]]]:
    names = [*dict.fromkeys((*thresholds_of(run.config), OVERALL, *suite(run.config.suite.name).scores_of_judge))]
    scores: dict[str, Any] = {name: (Annotated[bool | float | None, PlainValidator(_value)], None) for name in names}
    model: type[LabelLine] = create_model("Label", __base__=LabelLine, **scores)
    labels = strictjson.objects(
        path, UserError, "a label", missing="check the path", unreadable="give a file of labels"
    )
    for number, where, data in labels:
        line = _line(data, model, where)
        yield number, line, line.model_dump(include=set(names), exclude_unset=True)


def _line(data: dict[str, Any], model: type[LabelLine], where: str) -> LabelLine:
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise UserError(explain(e, model, where, {})) from None
