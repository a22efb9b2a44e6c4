"""Annotations that `local-bench annotate` stored, as lines of an annotation file for a run's images.

An annotation belongs to the pixels of an image: every image of the run with the same task, deliverable and pixels has
it, whichever model, attempt or run it is from; images with other pixels do not. An answer to a task's points belongs to
the pixels of all images of the set.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from local_bench.core.errors import UserError
from local_bench.core.types import Task
from local_bench.judges.people.database import FILE, PROTOCOL_META, AnnotationDatabase
from local_bench.judges.people.items import Item, ItemImage, StoredAnswer
from local_bench.judges.people.protocol import OVERALL, POINT, Protocol, load_protocol
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import CandidateRow
from local_bench.suites.registry import suite


def annotation_database(path: Path) -> Path | None:
    """The database of annotations if `path` is one, or a run directory; None for anything else."""
    if path.suffix == ".sqlite":
        return path
    return path / FILE if (path / "run.yaml").is_file() else None


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
    for answer, item, protocol in stored_answers(database, only):
        if answer.kind == "repeat" or item.other:
            continue
        sampled = {(model, deliverable): p for model, deliverable, p in item.sampled}
        for image, scores in _ratings(item, answer, protocol, tasks.get(item.task_id), run):
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
                key = (*row.key, answer.annotator, answer.kind)
                merged[key] = _merged(merged.get(key), line, database)
    return list(merged.values())


def stored_answers(database: Path, only: str | None = None) -> list[tuple[StoredAnswer, Item, Protocol]]:
    """The answers with their items and protocols; of protocol `only`, or all. UserError if it has no such items."""
    with AnnotationDatabase(database) as opened:
        protocols, items, answers = protocols_of(opened), opened.items(), opened.answers()
    if only is not None and only not in protocols:
        raise UserError(f"{database} has no annotations of protocol {only!r}: it has {', '.join(protocols) or 'none'}")
    with_items = ((answer, items[answer.item_id]) for answer in answers)
    return [(answer, item, protocols[item.protocol]) for answer, item in with_items if only in (None, item.protocol)]


def rows_by_image(run: RunDir) -> dict[tuple[str, ItemImage], list[CandidateRow]]:
    """(task, image) -> the candidates that have it."""
    found: dict[tuple[str, ItemImage], list[CandidateRow]] = defaultdict(list)
    for row in run.store.candidates():
        if row.image:
            found[row.task_id, ItemImage(row.deliverable, row.image)].append(row)
    return found


def protocols_of(database: AnnotationDatabase) -> dict[str, Protocol]:
    """The protocols of the database's items, as they were when the items were added."""
    protocols = {}
    for item in database.items().values():
        if item.protocol not in protocols:
            text = database.meta(PROTOCOL_META + item.protocol)
            protocols[item.protocol] = Protocol.model_validate_json(text) if text else load_protocol(item.protocol)
    return protocols


def _ratings(
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
            yield (
                image,
                of_suite.scores_of_points(task, [bool(values[POINT.format(k + 1)]) for k in range(len(values))]),
            )


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


def _merged(before: dict[str, Any] | None, line: dict[str, Any], database: Path) -> dict[str, Any]:
    if before is None:
        return line
    differ = next((k for k in line if before.get(k) is not None and line[k] is not None and before[k] != line[k]), None)
    if differ is not None:
        raise UserError(
            f"{database}: {line['rater']} gave image {line['deliverable']} of {line['task_id']!r} different values of "
            f"{differ} under two protocols: write one of them with `local-bench annotate export {database.parent} "
            "--protocol NAME --out FILE`"
        )
    return before | {name: value for name, value in line.items() if value is not None or name not in before}
