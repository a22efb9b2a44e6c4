"""Human annotations: reads a file with one annotation per line, or those stored by `local-bench annotate`, and combines
the annotators' ratings.

A stored annotation belongs to the pixels of an image: every image of the run with the same task, deliverable and pixels
has it, whichever model, attempt or run it is from; images with other pixels do not. An answer to a task's points
belongs to the pixels of all images of the set.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any
from unicodedata import category

from pydantic import AfterValidator, Field, PlainValidator, StringConstraints, create_model

from local_bench.annotation.database import FILE, SESSION_META, AnnotationDatabase
from local_bench.annotation.protocol import OVERALL, POINT, Item, ItemImage, Protocol, StoredAnswer
from local_bench.core import strictjson
from local_bench.core.errors import UserError, count
from local_bench.core.types import LEAST_PROBABILITY, Task
from local_bench.core.yamlfile import Strict, check
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store import Candidate
from local_bench.suites.registry import suite

PEOPLE = "people"
TOP = 5
"""Maximum of the scores, which start at 0."""
UNEQUAL = (
    "the annotated images were sampled with unequal probabilities: figures over annotated images are of these and not "
    "of all images, and images with high prices and scores near the thresholds have more influence"
)


@dataclass(frozen=True)
class Rating:
    """One rater's rating of one image in one dimension; at least one of the two fields is set."""

    decision: bool | None
    number: float | None
    """On the score's scale."""


Opinion = dict[str, dict[str, Rating]]
"""Dimension (a score's name, or `overall`) -> work id -> rating; only dimensions that apply or were rated."""


@dataclass(frozen=True)
class Annotations:
    """Annotations by rater, and their consensus."""

    consensus: Opinion
    raters: dict[str, Opinion] = field(default_factory=dict)
    probabilities: dict[str, float | None] = field(default_factory=dict)
    """Work id -> sampling probability, None if not given; includes images without a rating."""
    waiting: dict[str, float] = field(default_factory=dict)
    """Work id -> sampling probability of the images of a sample that annotators have not been shown yet."""
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Dimension -> work ids with as many accepting as rejecting raters; only dimensions with ties."""

    def decisions(self) -> dict[str, bool]:
        """Work id -> the consensus decision, where there is one."""
        overall = self.consensus.get(OVERALL, {})
        return {work_id: rating.decision for work_id, rating in overall.items() if rating.decision is not None}

    @property
    def sampling_notes(self) -> list[str]:
        """For figures that do not use the sampling probabilities: a sentence where these differ."""
        return [UNEQUAL] if len(set(self.probabilities.values())) > 1 else []

    def ties(self, run: RunDir) -> list[str]:
        """One sentence per dimension with ties, with the first images."""
        names = {row.work_id: f"{row.model}/{row.task_id}/{row.deliverable}" for row in run.store.candidates()}
        return [
            f"{count(len(ids), 'images are')} tied in {name} (as many raters accept, or reach the threshold, as do "
            f"not) and {'have' if len(ids) > 1 else 'has'} no decision: {', '.join(names[i] for i in ids[:5])}"
            f"{', …' if len(ids) > 5 else ''}; "
            "add an annotation of another rater to decide them"
            for name, ids in sorted(self.tied.items())
        ]


def _plain(name: str) -> str:
    if any(category(character) == "Cc" for character in name):
        raise ValueError("write the name without control characters")
    return name


_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100), AfterValidator(_plain)]


class AnnotationLine(Strict):
    """The image and rater of an annotation. Scores are further keys, under their names."""

    model: str
    task_id: str
    deliverable: int = Field(ge=1)
    attempt: int = Field(1, ge=1)
    rater: _Name = PEOPLE
    adjudication: bool = False
    """Whether the rater decided between others who disagreed; that decision is final, and not counted as a rater's."""
    probability: float | None = Field(None, ge=LEAST_PROBABILITY, le=1)
    """Probability with which the image was sampled for annotation (`settle --plan-labels`)."""

    @property
    def image(self) -> tuple[str, str, int, int]:
        """The key of the candidate."""
        return self.model, self.task_id, self.deliverable, self.attempt


def load_annotations(path: Path, run: RunDir, applies: Mapping[str, set[str]] | None = None) -> Annotations:
    """Load the annotations of `run`'s images from `path`, a JSON Lines file or a run directory with annotations;
    `applies`: work id -> names of the deciding scores that apply, by default those of the run's judge.

    A line is an object of `model`, `task_id`, `deliverable`, `attempt` (default 1), `rater` (default `people`),
    `probability` (of being sampled for annotation; optional), `adjudication` (optional), and any of the suite's score
    names: true or false (accepted), a number on the score's scale, or null (not rated); or `overall`, a decision (true
    or 1, false or 0, null). Numbers become decisions by the config's threshold. The consensus of several raters is the
    majority of their decisions (none for a tie) and the mean of their numbers; where they disagree on a decision, or
    one has none, an adjudication decides. If `overall` is not given, it is derived from the scores that apply, as
    acceptance is: for a rater where another one gives it, else for the consensus. UserError names the file, the line
    and the reason.
    """
    thresholds = thresholds_of(run.config)
    if applies is None:
        scores_of_images = run.store.scores_by_candidate("judge")
        applies = {w: {n for n, s in of.items() if s.applies and n in thresholds} for w, of in scores_of_images.items()}
    work_ids = {row.key: row.work_id for row in run.store.candidates()}
    raters: dict[str, Opinion] = {}
    adjudicated: Opinion = defaultdict(dict)
    undecided: dict[str, set[str]] = defaultdict(set)
    first: dict[tuple[str, str], int] = {}
    probabilities: dict[str, float | None] = {}
    for number, where, line, scores in image_lines(path, run, work_ids):
        work_id = work_ids[line.image]
        key = ("an adjudication" if line.adjudication else repr(line.rater), work_id)
        if key in first:
            raise UserError(f"{where}: {key[0]} already rates this image on line {first[key]}: remove one")
        first[key] = number
        if probabilities.setdefault(work_id, line.probability) != line.probability:
            raise UserError(f"{where}: its probability differs from an earlier line: give one probability per image")
        opinion = adjudicated if line.adjudication else raters.setdefault(line.rater, defaultdict(dict))
        for name, value in scores.items():
            if isinstance(value, bool) and name not in thresholds and name != OVERALL:
                raise UserError(f"{where}: {name} has no threshold for a decision: give a number or null")
            if value is not None:
                opinion[name][work_id] = _rating(value, thresholds.get(name))
            elif not line.adjudication:
                undecided[name].add(work_id)
    if not first:
        raise UserError(f"{path} has no annotations of this run's images: give a file with one JSON object per line")
    decided = {work_id for opinion in raters.values() for work_id in opinion.get(OVERALL, ())}
    for opinion in (*raters.values(), adjudicated):  # raters who gave scores alone vote with those who gave a decision
        _add_overall(opinion, applies, before_vote=decided)
    consensus, tied = _consensus(list(raters.values()), adjudicated, undecided)
    if not consensus:
        raise UserError(f"{path} has no ratings: give scores that are not null")
    for opinion in raters.values():
        _add_overall(opinion, applies)
    _add_overall(consensus, applies, tied.get(OVERALL, ()))
    return Annotations(consensus, raters, probabilities, _waiting(path, run), tied)


def _rating(value: bool | float, threshold: float | None) -> Rating:
    if isinstance(value, bool):
        return Rating(value, None)
    return Rating(None if threshold is None else value >= threshold, value)


def _consensus(
    opinions: list[Opinion], adjudicated: Opinion, undecided: Mapping[str, set[str]]
) -> tuple[Opinion, dict[str, tuple[str, ...]]]:
    """The consensus, and the images of each dimension that are tied in it. `undecided`: dimension -> images that a
    rater saw and could not decide, which is to disagree with those who did."""
    consensus: Opinion = defaultdict(dict)
    tied: dict[str, tuple[str, ...]] = {}
    everyone = [*opinions, adjudicated]
    for name in {name for opinion in everyone for name in opinion}:
        without = []
        disputed = undecided.get(name, set()) | undecided.get(OVERALL, set())
        for work_id in dict.fromkeys(work_id for opinion in everyone for work_id in opinion.get(name, ())):
            ratings = [opinion[name][work_id] for opinion in opinions if work_id in opinion.get(name, ())]
            votes = Counter(r.decision for r in ratings if r.decision is not None)
            numbers = [r.number for r in ratings if r.number is not None]
            decision = None if votes[True] == votes[False] else votes[True] > votes[False]
            rating = Rating(decision, fmean(numbers) if numbers else None)
            if len(votes) != 1 or work_id in disputed:
                rating = adjudicated.get(name, {}).get(work_id, rating)
            consensus[name][work_id] = rating
            if votes and rating.decision is None:
                without.append(work_id)
        if without:
            tied[name] = tuple(sorted(without))
    return consensus, tied


def _add_overall(
    opinion: Opinion, applies: Mapping[str, set[str]], tied: Collection[str] = (), before_vote: set[str] | None = None
) -> None:
    """Derive missing `overall` ratings: rejected if any applicable score is, accepted if all are; the mean of all
    numbers. Of the images `tied` no decision; with `before_vote`, decisions alone, and of these images alone."""
    nothing = Rating(None, None)
    rated_images = {work_id for ratings in opinion.values() for work_id in ratings}
    for work_id in rated_images if before_vote is None else rated_images & before_vote:
        rated = opinion.setdefault(OVERALL, {}).get(work_id, nothing)
        parts = [opinion.get(name, {}).get(work_id, nothing) for name in applies.get(work_id, ())]
        decisions, numbers = [part.decision for part in parts], [part.number for part in parts]
        decision, number = rated.decision, rated.number
        if decision is None and parts and work_id not in tied:
            decision = False if False in decisions else None if None in decisions else True
        if number is None and parts and None not in numbers and before_vote is None:
            number = fmean(n for n in numbers if n is not None)
        if decision is not None or number is not None:
            opinion[OVERALL][work_id] = Rating(decision, number)


def _value(value: Any) -> bool | float | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= TOP:
        return float(value)
    raise ValueError(f"write true, false, a number from 0 to {TOP}, or null")


def decision(value: Any) -> bool | None:
    """A decision as people write it: true or 1 (accepted), false or 0 (rejected), null (none). ValueError otherwise."""
    if value is None or (isinstance(value, bool | int | float) and value in (0, 1)):
        return None if value is None else bool(value)
    raise ValueError("it is a decision: write true or 1 (accepted), false or 0 (rejected), or null")


def image_lines(
    path: Path, run: RunDir, keys: Collection[tuple[str, str, int, int]], unchecked: Sequence[str] = ()
) -> Iterator[tuple[int, str, AnnotationLine, dict[str, Any]]]:
    """(number, where it is, the line, its scores) of every annotation in `path`; the values of the scores `unchecked`
    are those in the file. UserError for an invalid line, and for an image that is not in `keys`."""
    if path.suffix.lower() == ".csv":
        raise UserError(f"{path}: annotations are read as JSON Lines, not as CSV: give one JSON object per line")
    names = [*dict.fromkeys((*thresholds_of(run.config), OVERALL, *suite(run.config.suite.name).scores_of_judge))]
    read = {name: decision if name == OVERALL else _value for name in names}
    scores: dict[str, Any] = {
        name: (Annotated[bool | float | None, PlainValidator(function)], None) for name, function in read.items()
    }
    scores |= dict.fromkeys(unchecked, (Any, None))
    model: type[AnnotationLine] = create_model("Label", __base__=AnnotationLine, **scores)
    objects: Iterator[tuple[int, str, dict[str, Any]]]
    if (database := _database(path)) is None:
        objects = strictjson.objects(
            path, UserError, "an annotation", missing="check the path", unreadable="give a file of annotations"
        )
    else:
        lines = enumerate(stored_lines(database, run), 1)
        objects = ((number, f"{database}, annotation {number}", line) for number, line in lines)
    for number, where, data in objects:
        line = check(data, model, where, error=UserError)
        if line.image not in keys:
            models = dict.fromkeys(key[0] for key in keys)
            if line.model not in models:
                what = f"model {line.model!r} (it has {', '.join(models)})"
            elif line.task_id not in {key[1] for key in keys}:
                what = f"task {line.task_id!r}"
            else:
                what = f"image {line.deliverable} of {line.task_id!r}, attempt {line.attempt}, by {line.model}"
            raise UserError(f"{where}: the run has no {what}: correct or remove the line")
        yield number, where, line, line.model_dump(include=set(scores), exclude_unset=True)


# ---- annotations that `local-bench annotate` stored


def _database(path: Path) -> Path | None:
    """The database of a path: itself, or that of the run directory. None for a file of annotations."""
    return path if path.suffix == ".sqlite" else path / FILE if (path / "run.yaml").is_file() else None


def _waiting(path: Path, run: RunDir) -> dict[str, float]:
    if (database := _database(path)) is None:
        return {}
    with AnnotationDatabase(database) as opened:
        items, meta, answers = opened.items(), opened.all_meta(), opened.answers()
    shown = {i for key, text in meta.items() if key.startswith(SESSION_META) for i in strictjson.stored(text)["items"]}
    chances = {
        (item.task_id, model, i, dict(item.images)[i]): probability
        for item in (items[i] for i in shown - {answer.item_id for answer in answers})
        for model, i, probability in item.sampled
    }
    keys = {row.work_id: (row.task_id, row.model, row.deliverable, row.image) for row in run.store.candidates()}
    return {work_id: chances[key] for work_id, key in keys.items() if key in chances}


def stored_lines(database: Path, run: RunDir, only: str | None = None) -> list[dict[str, Any]]:
    """One line per annotator and image of `run`: `model`, `task_id`, `deliverable`, `attempt`, `rater`, `probability`
    if the image was sampled, `adjudication` if it is one, and the scores; of protocol `only`, or of all that rate
    images. UserError if two protocols give an annotator's image different values."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    of_image = rows_by_image(run)
    sets: dict[tuple[str, str, int], set[ItemImage]] = defaultdict(set)
    for row in (row for rows in of_image.values() for row in rows):
        sets[row.model, row.task_id, row.attempt].add(ItemImage(row.deliverable, str(row.image)))
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    of_protocol: dict[tuple[Any, ...], str] = {}
    with AnnotationDatabase(database) as opened:
        answers = opened.answers_with_items(only)
    for answer, item, protocol in answers:
        if answer.kind == "repeat" or item.other:
            continue
        sampled = {(model, deliverable): p for model, deliverable, p in item.sampled}
        for image, scores in _scores_of_images(item, answer, protocol, tasks.get(item.task_id), run):
            for row in of_image.get((item.task_id, image), ()):
                probability = sampled.get((row.model, row.deliverable))
                if item.sampled and probability is None:
                    continue
                shown, of_set = set(item.images), sets[row.model, row.task_id, row.attempt]
                if protocol.points and shown != of_set and not (item.sampled and shown < of_set):
                    continue  # the answer is about a set with other images
                line = dict(zip(("model", "task_id", "deliverable", "attempt"), row.key, strict=True))
                line |= {"rater": answer.annotator} | ({} if probability is None else {"probability": probability})
                line |= ({"adjudication": True} if answer.kind == "adjudication" else {}) | scores
                about = (*row.key, answer.annotator, answer.kind)
                before, first = merged.setdefault(about, line), of_protocol.setdefault(about, item.protocol)
                given = {name: value for name, value in line.items() if value is not None or name not in before}
                differ = next((k for k, v in given.items() if v is not None and before.get(k) not in (None, v)), None)
                if differ is not None and first != item.protocol:  # of answers by one protocol the latest counts
                    raise UserError(
                        f"{database}: {line['rater']} gave image {line['deliverable']} of {line['task_id']!r} "
                        f"different values of {differ} under two protocols: write one of them with `local-bench "
                        f"annotate export {database.parent} --protocol NAME --out FILE`"
                    )
                before.update(given)
    return list(merged.values())


def rows_by_image(run: RunDir) -> dict[tuple[str, ItemImage], list[Candidate]]:
    """(task, image) -> the candidates that have it."""
    rows: dict[tuple[str, ItemImage], list[Candidate]] = defaultdict(list)
    for row in run.store.candidates():
        if row.image:
            rows[row.task_id, ItemImage(row.deliverable, row.image)].append(row)
    return rows


def _scores_of_images(
    item: Item, answer: StoredAnswer, protocol: Protocol, task: Task | None, run: RunDir
) -> Iterator[tuple[ItemImage, dict[str, Any]]]:
    """The scores of every image of an answer; `overall` null where it cannot be judged."""
    of_suite = suite(run.config.suite.name)
    for image in item.images:
        values = answer.given.values.get(str(image.deliverable), answer.given.values.get(""))
        if values is None:
            yield image, {OVERALL: None}
        elif not protocol.points:
            yield image, scores_of(values, protocol, run)
        elif task is not None and len(values) == len(of_suite.points_for_people(task)):
            met = [bool(values[POINT.format(k + 1)]) for k in range(len(values))]
            yield image, of_suite.scores_of_points(task, met)


def scores_of(values: Mapping[str, Any], protocol: Protocol, run: RunDir) -> dict[str, Any]:
    """The scores of an image that the run's benchmark has, from the protocol's fields: the decision as `overall`, and
    as the benchmark's own score if that is a pass/fail decision. A question that the item did not have is None."""
    of_suite = suite(run.config.suite.name)
    names = [field.name for field in protocol.fields if field.name in of_suite.scores_of_judge]
    scores: dict[str, Any] = {
        name: float(values[name]) if name in values else None for name in names if name != OVERALL
    }
    decision = protocol.decision(dict(values))
    if decision is not None:
        scores |= dict.fromkeys((*of_suite.pass_fail, OVERALL), decision)
    return scores
