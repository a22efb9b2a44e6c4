"""Opens, exports and imports the annotations of runs."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from local_bench.annotation.database import (
    FILE,
    PROTOCOL_META,
    SERVED_PROTOCOL,
    SESSION_META,
    AnnotationDatabase,
    Role,
    same_questions,
)
from local_bench.annotation.protocol import (
    OVERALL,
    PREFERRED,
    Answer,
    AnswerField,
    Item,
    ItemImage,
    Kind,
    Protocol,
    StoredAnswer,
    load_protocol,
    protocol_files,
)
from local_bench.annotation.ratings import AnnotationLine, decision, image_lines, rows_by_image, scores_of, stored_lines
from local_bench.annotation.session import Queue, Session, no_image
from local_bench.annotation.summary import numbers
from local_bench.annotation.work import ImageKey, annotation_work, png_of
from local_bench.core import strictjson
from local_bench.core.errors import UserError, count, short
from local_bench.core.files import write_new
from local_bench.core.table import guarded
from local_bench.core.types import digest
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Candidate
from local_bench.settle.pairwise import Comparison, RankedModel, rank
from local_bench.suites.registry import suite

CSV_COLUMNS = (
    *("protocol", "annotator", "kind", "model", "task_id", "deliverable", "attempt", "pixels_sha256", "other_model"),
    *("field", "value", "cannot_tell", "reasons", "note", "elapsed_ms", "saved_utc"),
)


def open_session(
    runs: Sequence[RunDir],
    protocol: Protocol,
    questions: Path | tuple[()] | None = None,
    gold: Path | None = None,
    repeats: float | None = None,
) -> Session:
    """Open or continue the annotation of `runs` by `protocol`; the database is in the first run. What is None is as it
    was before: the sample (without one, all images), the known answers and the fraction of repeats.

    UserError if there is nothing to annotate, if the protocol has changed since its annotation began, or if a run of
    the session is missing.
    """
    path = runs[0].path / FILE
    before, stored = _stored_setting(path, protocol)
    first, *others = (run.path for run in runs)
    other = next((path for path in others if (path / FILE).is_file()), None)
    if other is not None and not (first / FILE).is_file():
        raise UserError(f"{other} has annotations and {first} has none: give {other} first, where answers are stored")
    if len(runs) < before.get("runs", 1):
        raise UserError(
            f"{first}: its annotation by protocol {protocol.id} is of the images of {before['runs']} runs: give all of "
            "them, this one first"
        )
    sample = [stored[i] for i in before.get("items", ())] if questions is None else questions
    work = annotation_work(runs, protocol, sample, gold)
    if gold is None:
        gold_of = {item_id: item.gold for item_id, item in stored.items()}
        work = replace(work, items=[replace(item, gold=gold_of.get(item.item_id)) for item in work.items])
    repeats = before.get("repeats", protocol.repeats) if repeats is None else repeats
    seed, item_ids = runs[0].config.seed, [item.item_id for item in work.items]
    items = {item.item_id: item for item in work.items}
    if questions == ():  # all images: what was sampled is no sample any more
        items = {item_id: replace(item, sampled=()) for item_id, item in stored.items()} | items
    elif work.planned:
        items |= {item_id: _of_round(item, items.get(item_id), work.planned) for item_id, item in stored.items()}
    setting = {"seed": seed, "repeats": repeats, "runs": len(runs), "items": item_ids}
    with ExitStack() as on_failure:
        database = on_failure.enter_context(AnnotationDatabase(path, create=True))
        _begin(database, protocol, list(items.values()), setting)
        queue = Queue(protocol, [items[item_id] for item_id in item_ids], seed, repeats)
        session = Session(protocol, queue, database, work.tasks, partial(png_of, runs), work.n_missing)
        on_failure.pop_all()
    return session


def _of_round(item: Item, new: Item | None, planned: Mapping[tuple[str, str, ItemImage], float]) -> Item:
    """An item of an earlier sample (or `new`, the same in the next) with the probabilities of the next round's file, in
    which what is annotated is certain: with its own it would also stand for what is sampled now."""
    images = {image.deliverable: image for image in item.images}
    of_file = ((m, i, planned.get((item.task_id, m, images[i]), None if new else p)) for m, i, p in item.sampled)
    sampled = [(model, i, p) for model, i, p in of_file if p is not None]
    return replace(new or item, sampled=tuple(dict.fromkeys([*sampled, *(new.sampled if new else ())])))


def _begin(database: AnnotationDatabase, protocol: Protocol, items: Sequence[Item], setting: Mapping[str, Any]) -> None:
    """Store protocol, items and settings of a session. UserError if annotators answered by another form of it."""
    text = protocol.model_dump_json()
    before = database.meta(PROTOCOL_META + protocol.id)
    changed = before is not None and not same_questions(before, text)
    if changed and any(item.protocol == protocol.id for _, item, _ in database.answers_with_items()):
        raise UserError(
            f"the protocol {protocol.id} has changed since annotators answered by it in {database.path}: give the "
            "changed protocol another id, or continue by the earlier one with `annotate RUN` without --protocol"
        )
    database.set_meta(PROTOCOL_META + protocol.id, text)
    database.add_items(items)
    database.set_meta(SESSION_META + protocol.id, json.dumps(setting))


def _stored_setting(path: Path, protocol: Protocol) -> tuple[dict[str, Any], dict[str, Item]]:
    """The settings of the protocol's session, and all its items by id, those of earlier samples included; empty if it
    has not begun."""
    if not path.is_file():
        return {}, {}
    with AnnotationDatabase(path) as database:
        text = database.meta(SESSION_META + protocol.id)
        items = {item_id: item for item_id, item in database.items().items() if item.protocol == protocol.id}
    return strictjson.stored(text) if text else {}, items


def protocol_to_serve(run: RunDir, name: str | None, new: bool) -> Protocol:
    """The protocol `name` (a name or a file), else the one that was served or answered last, else the suite's.

    UserError if annotators have answered by others only, unless it is begun with `new`.
    """
    if new and name is None:
        raise UserError("--new begins annotation by another protocol: name it with --protocol")
    path, of_suite = run.path / FILE, suite(run.config.suite.name).annotation_protocol
    if not path.is_file():
        return load_protocol(name or of_suite)
    with AnnotationDatabase(path) as database:
        stored = database.protocols()
        answered = Counter(item.protocol for _, item, _ in reversed(database.answers_with_items()))
        begun = database.meta(SERVED_PROTOCOL) or next(iter(answered), None)
    if name is None and begun in stored:
        current = load_protocol(begun) if begun in protocol_files() else stored[begun]
        return current if current.questions == stored[begun].questions else stored[begun]
    chosen = stored[name] if name in stored and name not in protocol_files() else load_protocol(name or of_suite)
    if answered and not new and chosen.id not in (*answered, begun):
        counts = " and ".join(f"{count(n, 'answers')} by protocol {protocol}" for protocol, n in answered.items())
        raise UserError(
            f"{run.path} has {counts}: leave --protocol out to continue, or add --new to begin {chosen.id} as well"
        )
    return chosen


def stored_sessions(database: AnnotationDatabase) -> list[Session]:
    """The sessions of a database, by protocol, without tasks and images: for their state."""
    protocols, items = database.protocols(), database.items()
    sessions = []
    for name, protocol in protocols.items():
        text = database.meta(SESSION_META + name)
        setting: dict[str, Any] = strictjson.stored(text) if text else {"seed": 0, "repeats": 0.0, "items": list(items)}
        of_protocol = [items[item_id] for item_id in setting["items"] if items[item_id].protocol == name]
        queue = Queue(protocol, of_protocol, setting["seed"], setting["repeats"])
        sessions.append(Session(protocol, queue, database, {}, no_image))
    return sessions


# ---- export


def write_jsonl(run: RunDir, out: Path, only: str | None = None) -> int:
    """Write the annotations of `run`'s images as a file for `--people`; return their number."""
    lines = annotation_lines(run, only)
    write_new(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(), "annotations")
    return len(lines)


def annotation_lines(run: RunDir, only: str | None = None) -> list[dict[str, Any]]:
    """The annotations of `run`'s images as in a file for `--people` (`stored_lines`). UserError if there are none."""
    lines = stored_lines(run.path / FILE, run, only)
    if not lines:
        raise UserError(f"{run.path / FILE} has no annotations of images of {run.path}: there is nothing to write")
    return lines


def write_csv(runs: Sequence[RunDir], out: Path, only: str | None = None) -> int:
    """Write everything that annotators entered about the images of runs that were annotated together, one row per
    value, without formulas of spreadsheets; return the number of rows."""
    of_image, rows = _rows_of(runs), list[dict[str, Any]]()
    with AnnotationDatabase(runs[0].path / FILE) as database:
        answers = database.answers_with_items(only)
    for answer, item, protocol in answers:
        common = vars(answer) | vars(answer.given) | {"protocol": item.protocol, "task_id": item.task_id}
        common |= {"cannot_tell": answer.given.cannot_tell or "", "reasons": " ".join(answer.given.reasons)}
        for first, second in _pairs_of(item, of_image) if item.other else ():
            value = _preferred(answer, protocol)
            named = "" if value is None else {1.0: second, 0.0: first}.get(value, "tie")
            rows.append(common | {"model": first, "other_model": second, "field": PREFERRED, "value": named})
        for image in () if item.other else item.images:
            image_values = answer.given.values.get(str(image.deliverable), answer.given.values.get("", {}))
            for row in of_image.get((item.task_id, image), ()):
                about = common | {"model": row.model, "attempt": row.attempt, **image._asdict()}
                values = {name: json.dumps(value) for name, value in image_values.items()} or {"": ""}
                rows += [about | {"field": name, "value": value} for name, value in values.items()]
    frame = pd.DataFrame(rows, columns=CSV_COLUMNS, dtype=object).map(guarded)
    write_new(out, frame.to_csv(index=False, lineterminator="\r\n").encode(), "annotations")
    return len(frame)


def _rows_of(runs: Sequence[RunDir]) -> dict[tuple[str, ItemImage], list[Candidate]]:
    """As `rows_by_image`, of all runs; a model that several of them have is named with its run."""
    n_runs = Counter(model for run in runs for model in run.store.models())
    rows = defaultdict[tuple[str, ItemImage], list[Candidate]](list)
    for run in runs:
        for key, of_run in rows_by_image(run).items():
            rows[key] += [r if n_runs[r.model] == 1 else replace(r, model=f"{run.path}/{r.model}") for r in of_run]
    return rows


def _pairs_of(item: Item, of_image: Mapping[tuple[str, ItemImage], Sequence[Candidate]]) -> Iterator[tuple[str, str]]:
    """The models of the two sides; several if two models made equal images."""

    def models(side: Sequence[ItemImage]) -> list[str]:
        rows = (of_image.get((item.task_id, image), ()) for image in side)
        return sorted(set.intersection(*({row.model for row in candidates if row.attempt == 1} for candidates in rows)))

    return product(models(item.images), models(item.other))


def _preferred(answer: StoredAnswer, protocol: Protocol) -> float | None:
    """0 for the first side, 1 for the second, 0.5 for a tie; None if it is unknown."""
    values = answer.given.values.get("")
    return None if values is None else numbers(protocol, answer.given, values)[PREFERRED]


# ---- import


@dataclass(frozen=True)
class Imported:
    """What an import did, in answers; an answer is about an image, or about all images of a set."""

    n_stored: int
    n_before: int
    """Answers of the file that the annotators had given already."""
    n_different: int
    """Those that differ from the annotator's stored answer, which is kept."""
    n_unrated: int
    """Lines without a value for every question of the protocol."""
    n_later: int = 0
    """Lines about later attempts, of a protocol that shows the first alone."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Score that the protocol does not ask for -> lines that have it."""

    def __str__(self) -> str:
        n = self.n_stored + self.n_before + self.n_different
        sentence = f"{self.n_stored} new of {count(n, 'answers')}; {self.n_before} were there already"
        for n_lines, words, what in (
            (self.n_different, "differ", "from the annotator's stored answer, which is kept"),
            (self.n_unrated, "lines lack a rating and were", "left out"),
            (self.n_later, "lines are about later attempts, which the protocol does not show, and were", "left out"),
        ):
            sentence += f"; {count(n_lines, words)} {what}" if n_lines else ""
        return sentence


_Rated = tuple[str, Kind, str, str, int, int, bool]
"""Rater, kind, model, task, attempt, deliverable (0 for a set) and whether it has a probability: what is answered."""


def import_answers(run: RunDir, protocol: Protocol, path: Path) -> Imported:
    """Store the annotations of a JSON Lines file (as for `--people`) as answers by `protocol`: adjudications, `overall:
    null` ("cannot tell") and sampling probabilities too. Stored answers and the roles of annotators stay as they are.
    UserError for a line that does not fit or that could not be kept; then nothing is stored."""
    if protocol.points or protocol.shows == "pair":
        raise UserError(f"protocol {protocol.id} has no answers about single images: import with another protocol")
    return _Import(run, protocol, path).store()


class _Import:
    """The answers of a file, all of which are checked when it is made."""

    def __init__(self, run: RunDir, protocol: Protocol, path: Path) -> None:
        self._run, self._protocol, self._path = run, protocol, path
        self._work = annotation_work([run], protocol)
        self._before, self._stored = _stored_setting(run.path / FILE, protocol)  # what was sampled stays so
        self._whole = {item.item_id for item in self._work.items} | self._stored.keys()
        self._roles: dict[str, Role] = {}
        answers: list[tuple[StoredAnswer, Item]] = []
        if (run.path / FILE).is_file():
            with AnnotationDatabase(run.path / FILE) as database:
                self._roles = {annotator.name: annotator.role for annotator in database.annotators()}
                answers = [(a, self._stored[a.item_id]) for a in database.answers() if a.item_id in self._stored]
        answers.sort(key=lambda each: bool(each[1].sampled))  # of two about an image, the one with its probability
        self._given = {(a.annotator, a.kind, item.task_id, image): a for a, item in answers for image in item.images}
        self._adjudicators = {(key[2:]): key[0] for key in self._given if key[1] == "adjudication"}
        self._pixels = {row.key: row.image for row in run.store.candidates() if row.image}
        self._n_of_set = Counter(key[:2] + key[3:] for key in self._pixels)
        self._seen: set[tuple[str, Kind, ImageKey]] = set()
        self._probabilities: dict[ImageKey, float | None] = {}
        self._equal: dict[int, bool] = {}
        """Number of each stored answer that the file has -> whether it is the same there."""
        self._rated: dict[_Rated, dict[int, tuple[Mapping[str, Any], AnnotationLine]]] = defaultdict(dict)
        self._raters: dict[ImageKey, set[tuple[str, Kind, bool]]] = defaultdict(set)
        self._n_unrated = self._n_later = 0
        self._left_out = Counter[str]()
        names = [field.name for field in protocol.fields]
        for _, where, line, scores in image_lines(path, run, self._pixels, names):
            self._read(where, line, scores)
        self._new: dict[str, Item] = {}
        self._wanted: dict[tuple[str, Kind, str], Answer] = {}
        for about, of_set in self._rated.items():
            parts: dict[frozenset[Any], dict[int, Any]] = defaultdict(dict)  # rounds ask about parts of a set
            for i, rated in of_set.items():
                parts[frozenset(self._raters[about[2], about[3], i, about[4]] if about[-1] else ())][i] = rated
            for part in parts.values():
                self._want(about, part)

    def _read(self, where: str, line: AnnotationLine, scores: Mapping[str, Any]) -> None:
        model, task_id, deliverable, attempt = line.image
        of_set = self._protocol.shows == "set"
        n_of_set = self._n_of_set[model, task_id, attempt] if of_set else 1
        values = self._values(where, scores, self._work.tasks[task_id].source is not None or n_of_set > 1)
        if self._protocol.attempts == "first" and attempt > 1:
            self._n_later += 1
            return
        if values is None:
            self._n_unrated += 1
            return
        kind: Kind = "adjudication" if line.adjudication else "answer"
        image = ItemImage(deliverable, str(self._pixels[line.image]))
        if line.adjudication and (other := self._adjudicators.setdefault((task_id, image), line.rater)) != line.rater:
            raise UserError(f"{where}: {other!r} adjudicates this image too: remove one of the adjudications")
        if (line.rater, kind, line.image) in self._seen:
            raise UserError(f"{where}: {line.rater!r} rates this image on an earlier line too: remove one")
        self._seen.add((line.rater, kind, line.image))
        if self._probabilities.setdefault(line.image, line.probability) != line.probability:
            raise UserError(f"{where}: its probability differs from an earlier line: give one probability per image")
        if stored := self._given.get((line.rater, kind, task_id, image)):
            if stored.given.values and not values:
                self._n_unrated += 1
                return
            same = stored.given.values.get(str(deliverable), {}) == values
            self._equal[stored.number] = same and self._equal.get(stored.number, True)
            _check_probability(where, self._stored[stored.item_id], line)
            return
        self._raters[line.image].add((line.rater, kind, bool(values)))
        about = (line.rater, kind, model, task_id, attempt, 0 if of_set else deliverable, line.probability is not None)
        self._rated[about][deliverable] = values, line

    def _values(self, where: str, scores: Mapping[str, Any], compared: bool) -> dict[str, Any] | None:
        """The answers to the protocol's questions; none for `overall: null` alone; None if some are missing. UserError
        for a value that the protocol's answers would not have."""
        fields = self._protocol.fields_of((), compared)
        values = {field.name: _option(scores.get(field.name), field, self._protocol, where) for field in fields}
        if OVERALL in scores and all(value is None for value in scores.values()):
            return {}
        if None in values.values():
            return None
        kept = scores_of(values, self._protocol, self._run) | values
        for name, value in scores.items():
            if value is not None and name not in kept:
                self._left_out[name] += 1
            elif value is not None and kept[name] != value:
                raise UserError(
                    f"{where}: {name} is {short(value)}, but the answers to protocol {self._protocol.id} in this line "
                    f"give {short(kept[name])}: correct the line"
                )
        return values

    def _want(self, about: _Rated, of_image: Mapping[int, tuple[Mapping[str, Any], AnnotationLine]]) -> None:
        rater, kind, model, task_id, attempt, _, sampled = about
        protocol, path = self._protocol, self._path
        images = tuple(ItemImage(i, str(self._pixels[model, task_id, i, attempt])) for i in sorted(of_image))
        item = Item(protocol.id, task_id, images)
        if not (item.item_id in self._whole or (sampled and not protocol.whole_set)) or (
            len({bool(values) for values, _ in of_image.values()}) > 1
        ):
            raise UserError(
                f"{path}: {rater} rates only some of the images of {task_id!r} by {model}, and protocol "
                f"{protocol.id} rates them together: complete the file, or import with a protocol for images"
            )
        if item.item_id in self._stored:
            for _, line in of_image.values():
                _check_probability(f"{path}: {rater}, {task_id!r}", self._stored[item.item_id], line)
        else:
            drawn = [(model, i, line.probability) for i, (_, line) in of_image.items() if line.probability is not None]
            all_drawn = dict.fromkeys((*self._new.get(item.item_id, item).sampled, *drawn))
            self._new[item.item_id] = replace(item, sampled=tuple(all_drawn))
        role = self._roles.get(rater, "annotator")
        if role == "lead" or (role == "adjudicator" and kind == "answer"):
            raise UserError(f"{path}: {rater!r} is the run's {role} and gives no such answers: use another name in it")
        answer = Answer({str(i): values for i, (values, _) in of_image.items()})
        if not all(answer.values.values()):
            answer = Answer({}, protocol.cannot_tell[-1].id, note="imported without a reason")
        if self._wanted.setdefault((rater, kind, item.item_id), answer) != answer:
            raise UserError(
                f"{path}: {rater!r} rates equal images of {task_id!r} differently: correct one of the lines"
            )

    def store(self) -> Imported:
        """Store what is new, in one transaction."""
        n_again, new, before = 0, self._new, self._before
        if self._wanted:
            if not before and None in self._probabilities.values():  # no sample: all images are to be annotated
                new = {item.item_id: item for item in self._work.items} | new
            begun: dict[str, Any] = {"seed": self._run.config.seed, "repeats": self._protocol.repeats, "runs": 1}
            begun |= {"items": []} | before
            shown = {*begun["items"], *(item_id for item_id, item in new.items() if item.sampled or not before)}
            answering = {rater for rater, kind, _ in self._wanted if kind == "answer"}
            with AnnotationDatabase(self._run.path / FILE, create=True) as database, database.transaction():
                _begin(database, self._protocol, list(new.values()), begun | {"items": sorted(shown)})
                for rater in {rater for rater, _, _ in self._wanted} - self._roles.keys():
                    database.add_annotator(rater, "annotator" if rater in answering else "adjudicator", "")
                for (rater, kind, item_id), answer in self._wanted.items():
                    request = digest({"import": answer.content, "rater": rater, "item": item_id, "kind": kind})
                    n_again += not database.save(request, rater, item_id, kind, answer, None)  # it was withdrawn
        n_same = sum(self._equal.values())
        n_different = len(self._equal) - n_same
        n_new, n_before = len(self._wanted) - n_again, n_same + n_again
        return Imported(n_new, n_before, n_different, self._n_unrated, self._n_later, self._left_out)


def _check_probability(where: str, item: Item, line: AnnotationLine) -> None:
    stored = {(model, deliverable): p for model, deliverable, p in item.sampled}.get((line.model, line.deliverable))
    if line.probability not in (None, stored):
        raise UserError(
            f"{where}: the probability is {line.probability}, but the run's annotation by protocol {item.protocol} has "
            f"{'none' if stored is None else stored}: import the file into a run without that annotation"
        )


def _option(value: Any, field: AnswerField, protocol: Protocol, where: str) -> Any:
    """The option of the field that equals `value`; None for null. UserError if there is none."""
    if value is None:
        return None
    options = field.values
    try:
        value = decision(value) if all(isinstance(option, bool) for option in options) else value
    except ValueError as e:
        raise UserError(f"{where}: {field.name}, {short(value)}: {e}") from None
    matching = [option for option in options if option == value and isinstance(option, bool) == isinstance(value, bool)]
    if not matching:
        listed = ", ".join(json.dumps(option, ensure_ascii=False) for option in options)
        raise UserError(f"{where}: {field.name} is {short(value)}, but protocol {protocol.id} has {listed}: correct it")
    return matching[0]


# ---- preferences


def preferences(run: RunDir, *others: RunDir) -> list[RankedModel]:
    """The models of runs that were annotated together, ranked by annotators' comparisons, which the first run has.
    UserError if there are none."""
    of_image = _rows_of((run, *others))
    comparisons = []
    with AnnotationDatabase(run.path / FILE) as database:
        answers = database.answers_with_items()
    for answer, item, protocol in answers:
        value = _preferred(answer, protocol) if item.other and answer.kind == "answer" else None
        if value is not None:
            comparisons += [Comparison(*models, 1 - value, item.task_id) for models in _pairs_of(item, of_image)]
    if not comparisons:
        paths = ", ".join(str(one.path) for one in (run, *others))
        raise UserError(
            f"{run.path / FILE} has no comparisons of models of {paths}: annotate with --protocol pairwise, and give "
            "all runs that were annotated together"
        )
    return rank(comparisons)
