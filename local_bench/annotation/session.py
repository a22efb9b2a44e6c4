"""One annotation session: the protocol, its items, the people and their stored answers; and the queue, which selects an
annotator's next item: order, assignment, hidden repeats and adjudication.

The queue is kept in memory and rebuilt from the stored answers. Every annotator has an own random order of all items,
so that models and attempts are interleaved; items that are added do not change the order of the others. An item is open
to anyone until it has the protocol's number of answers; items on someone's screen count as answered for a while.
"""

import hashlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, NoReturn
from unicodedata import category

from pydantic import Field

from local_bench.annotation.database import AnnotationDatabase, Annotator, Role
from local_bench.annotation.protocol import Answer, AnswerField, Item, Kind, Protocol, Side, StoredAnswer, TaskView
from local_bench.core.errors import ConfigError, RunImageError, UserError
from local_bench.core.types import digest
from local_bench.core.yamlfile import Strict, load_yaml

CLAIM_S = 900.0
"""Seconds for which an item that was sent to an annotator is kept for them."""
REPEAT_GAP = 20
"""Number of other items between an item and its repeat; fewer at the end of the queue."""
COUNT_EVERY_S = 20.0
"""Seconds between exact counts of the items left for an annotator; in between own answers are subtracted."""
Entry = tuple[Item, Kind]
_State = Literal["open", "later", "finished"]
_ANSWER: Kind = "answer"


@dataclass(frozen=True)
class Progress:
    """An annotator's own numbers."""

    done: int
    """Answers given, repeats and adjudications included."""
    left: int
    """Items that the annotator could still answer now; less once others answer them."""


@dataclass
class _Person:
    role: str
    order: list[Entry]
    left_sides: dict[str, Side]
    """With pairs: item id -> side on the left."""
    start: int = 0
    """All entries before this index are finished for this annotator."""
    answered: set[tuple[str, Kind]] = field(default_factory=set)
    counted: tuple[float, int, int] = (float("-inf"), 0, 0)
    """Time of the last exact count, its result, and `len(answered)` then."""


class Queue:
    """The items of one protocol and their assignment. Thread-safe.

    `repeats` is the fraction of an annotator's items that are repeated; `clock` returns seconds.
    """

    def __init__(
        self,
        protocol: Protocol,
        items: Sequence[Item],
        seed: int,
        repeats: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.protocol, self.items = protocol, items
        self.by_id = {item.item_id: item for item in items}
        self._seed, self._repeats, self._clock = seed, repeats, clock
        self._people: dict[str, _Person] = {}
        self._given: dict[str, dict[str, Answer]] = defaultdict(dict)
        """Item id -> annotator -> answer; without repeats and adjudications."""
        self._adjudicated: set[str] = set()
        self._disputed: dict[str, None] = {}
        self._claims: dict[str, dict[str, float]] = defaultdict(dict)
        self._lock = threading.RLock()

    def add(self, name: str, role: str) -> None:
        """Add an annotator who is not in it yet. Adjudicators see only disputed items; leads none."""
        with self._lock:
            if name in self._people:
                return
            items = sorted(self.items, key=lambda item: self._draw(name, "order", item)) if role == "annotator" else []
            repeats: dict[int, list[Entry]] = defaultdict(list)
            for at, item in enumerate(items):
                if self._draw(name, "repeat", item) < self._repeats:
                    repeats[min(at + REPEAT_GAP, len(items) - 1)].append((item, "repeat"))
            order = [entry for at, item in enumerate(items) for entry in ((item, _ANSWER), *repeats[at])]
            left_sides: dict[str, Side] = {}  # random blocks of two, so that each side is on the left equally often
            block: list[Side] = []
            for item, kind in order if self.protocol.shows == "pair" else ():
                if kind == "answer":
                    block = block or (["a", "b"] if self._draw(name, "side", item) < 0.5 else ["b", "a"])
                    left_sides[item.item_id] = block.pop()
            self._people[name] = _Person(role, order, left_sides)

    def _draw(self, name: str, purpose: str, item: Item) -> float:
        """A random number in [0, 1) that depends on the item and not on which others there are."""
        text = f"{self._seed} {self.protocol.id} {purpose} {name} {item.item_id}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64

    def left_side(self, annotator: str, item_id: str, kind: Kind) -> Side | None:
        """The side of a pair on the left; in the repeat the other one than at the answer. None for other items."""
        answer = self._given.get(item_id, {}).get(annotator)
        side = (answer and answer.left) or self._people[annotator].left_sides.get(item_id)
        if side is None or kind != "repeat":
            return side
        return "b" if side == "a" else "a"

    # answers

    def record(self, annotator: str, item_id: str, kind: Kind, answer: Answer | None) -> None:
        """Take account of a stored answer, or of its withdrawal if `answer` is None."""
        with self._lock:
            if item_id not in self.by_id:
                return  # of another protocol, or of an image that does not exist any more
            if answer is not None:
                self._claims[item_id].pop(annotator, None)
            if annotator in self._people:
                answered = self._people[annotator].answered
                (answered.discard if answer is None else answered.add)((item_id, kind))
            if kind == "adjudication":
                (self._adjudicated.discard if answer is None else self._adjudicated.add)(item_id)
            elif kind == "answer":
                self._given[item_id].pop(annotator, None)
                self._given[item_id] |= {} if answer is None else {annotator: answer}
            answers = self._given[item_id].values()
            if (
                self.protocol.adjudicate
                and len(answers) >= self.protocol.raters
                and len(set(map(self._decision, answers))) > 1
                and item_id not in self._adjudicated
            ):
                self._disputed.setdefault(item_id)
            else:
                self._disputed.pop(item_id, None)
            if answer is None:
                for person in self._people.values():
                    person.start = 0

    def _decision(self, answer: Answer) -> tuple[object, ...]:
        """What the annotators must agree on; `cannot tell` is a value of its own."""
        if answer.cannot_tell:
            return ("cannot tell",)
        return tuple(sorted((key, self.protocol.decision(dict(values))) for key, values in answer.values.items()))

    # the next items

    def next(self, annotator: str, n: int = 1) -> list[Entry]:
        """The next items for the annotator, at most `n`; they are kept for this annotator for a while."""
        with self._lock:
            open_entries = ((item, kind) for item, kind, state in self._entries(annotator) if state == "open")
            entries = list(islice(open_entries, n))
            for item, _ in entries:
                self._claims[item.item_id][annotator] = self._clock()
            return entries

    def _entries(self, annotator: str) -> Iterator[tuple[Item, Kind, _State]]:
        """The annotator's items with their states, in order, but not all that are finished: then the disputed ones that
        can be adjudicated now. Without adjudicators any annotator can have these."""
        person = self._people[annotator]
        for at in range(person.start, len(person.order)):
            item, kind = person.order[at]
            state = self._state(annotator, person, item, kind)
            if state == "finished" and at == person.start:
                person.start += 1
            yield item, kind, state
        has_adjudicators = any(p.role == "adjudicator" for p in self._people.values())
        if person.role == "adjudicator" or (person.role == "annotator" and not has_adjudicators):
            for item_id in self._disputed:
                if annotator not in self._given[item_id] and self._fresh(item_id) <= {annotator}:
                    yield self.by_id[item_id], "adjudication", "open"

    def _state(self, annotator: str, person: _Person, item: Item, kind: Kind) -> _State:
        item_id = item.item_id
        if (item_id, kind) in person.answered:
            return "finished"
        if kind == "repeat" and (item_id, "answer") in person.answered:
            return "open"
        answered = self._given[item_id].keys()
        if item.gold is None and len(answered) >= self.protocol.raters:
            return "finished"
        if kind == "repeat":
            return "later"
        reserved = answered | self._fresh(item_id) - {annotator}  # who has answered may see it again as a repeat
        return "open" if item.gold is not None or len(reserved) < self.protocol.raters else "later"

    def _fresh(self, item_id: str) -> set[str]:
        """The annotators for whom the item is kept now."""
        claims = self._claims.get(item_id)
        return {who for who, since in claims.items() if self._clock() - since <= CLAIM_S} if claims else set()

    def may_answer(self, annotator: str, item_id: str, kind: Kind) -> bool:
        """Whether the annotator can answer: a repeat needs an answer before it, an adjudication a dispute."""
        with self._lock:
            person = self._people[annotator]
            if item_id not in self.by_id or person.role == "lead":
                return False
            if kind == "adjudication":
                disputed = item_id in self._disputed and annotator not in self._given[item_id]
                return disputed or (item_id, kind) in person.answered
            return person.role == "annotator" and (kind == "answer" or (item_id, "answer") in person.answered)

    def progress(self, annotator: str) -> Progress:
        with self._lock:
            person = self._people[annotator]
            now, done = self._clock(), len(person.answered)
            since, left, then = person.counted
            if now - since > COUNT_EVERY_S or done < then or left - (done - then) <= 0:
                left = sum(state == "open" for *_, state in self._entries(annotator))
                person.counted, then = (now, left, done), done
            return Progress(done, max(0, left - (done - then)))

    def may_follow(self, annotator: str) -> bool:
        """Whether items may become open to the annotator later: kept for others now, or not decided yet."""
        with self._lock:
            if any(state == "later" for *_, state in self._entries(annotator)):
                return True
            may_adjudicate = self.protocol.adjudicate and self._people[annotator].role != "lead"
            return may_adjudicate and min(self.coverage()) < self.protocol.raters

    # what the lead sees

    def disputed(self) -> list[Item]:
        """Items that wait for adjudication."""
        with self._lock:
            return [self.by_id[item_id] for item_id in self._disputed]

    def coverage(self) -> dict[int, int]:
        """Number of answers -> number of items with as many."""
        with self._lock:
            return dict(sorted(Counter(len(self._given.get(item.item_id, ())) for item in self.items).items()))

    def on_screen(self) -> dict[str, int]:
        """Annotator -> number of items that are kept for them now."""
        with self._lock:
            counts = Counter(who for item_id in list(self._claims) for who in self._fresh(item_id))
            return dict(sorted(counts.items()))

    def opinions(self, item_id: str) -> list[Answer]:
        """The answers to an item, in an order that does not depend on the annotators' names."""
        with self._lock:
            return sorted(self._given[item_id].values(), key=lambda answer: digest(answer.content))


NOTE_CHARACTERS = 2000
ALONE: Mapping[str, Role] = {"me": "annotator", "lead": "lead"}
"""The annotators of someone who works alone on this machine."""


class InvalidAnswer(Exception):
    """The answer does not fit the item; the message is the reason."""


@dataclass
class Session:
    """What the server works on. `load_png` returns an image of the run by pixel digest, without metadata; ImageError
    if it cannot be read."""

    protocol: Protocol
    queue: Queue
    database: AnnotationDatabase
    tasks: Mapping[str, TaskView]
    load_png: Callable[[str], bytes]
    n_missing: int = 0
    """Images that the protocol would show, and that do not exist."""
    images: frozenset[str] = field(init=False)
    """Digests of all images that may be shown."""

    def __post_init__(self) -> None:
        shown = {image.pixels_sha256 for item in self.queue.items for image in (*item.images, *item.other)}
        used = {item.task_id for item in self.queue.items} & set(self.tasks)
        self.images = frozenset(shown | {sha for task_id in used for sha in self.tasks[task_id].images})
        for annotator in self.database.annotators():
            self.queue.add(annotator.name, annotator.role)
        for stored in self.database.answers():
            self.queue.record(stored.annotator, stored.item_id, stored.kind, stored.given)

    def fields(self, item: Item) -> Sequence[AnswerField]:
        task = self.tasks[item.task_id]
        return self.protocol.fields_of(task.points, compared=task.source is not None or len(item.images) > 1)

    def keys(self, item: Item) -> list[str]:
        """What the fields are answered for: every deliverable, or "" for the item as a whole."""
        whole = self.protocol.points or self.protocol.shows == "pair"
        return [""] if whole else [str(image.deliverable) for image in item.images]

    def answer(
        self, annotator: Annotator, request_id: str, item_id: str, kind: Kind, content: Answer, ms: int | None
    ) -> None:
        """Check and store an answer; nothing is done if the request was stored before. Raises InvalidAnswer, and
        AlreadyAnswered if another request has answered the item."""
        item = self.queue.by_id.get(item_id)
        if item is None or not self.queue.may_answer(annotator.name, item_id, kind):
            raise InvalidAnswer("the item is not in your queue")
        self._check(item, content)
        if self.database.save(request_id, annotator.name, item_id, kind, content, ms):
            self.queue.record(annotator.name, item_id, kind, content)

    def _check(self, item: Item, content: Answer) -> None:
        protocol = self.protocol
        if unknown := set(content.reasons) - {reason.id for reason in protocol.reasons}:
            raise InvalidAnswer(f"unknown reason {min(unknown)}")
        if content.cannot_tell is not None:
            if content.cannot_tell not in {reason.id for reason in protocol.cannot_tell}:
                raise InvalidAnswer(f"unknown reason {content.cannot_tell}")
            if content.values:
                raise InvalidAnswer("an answer has values or a reason why it cannot be judged, not both")
            return
        if (content.left is None) == (protocol.shows == "pair"):
            raise InvalidAnswer("an answer to a pair must state which image was on the left; other answers must not")
        if set(content.values) != set(self.keys(item)):
            raise InvalidAnswer("not every image is answered")
        options = {field.name: field.values for field in self.fields(item)}
        for values in content.values.values():
            if set(values) != set(options):
                raise InvalidAnswer("not every question is answered")
            for name, value in values.items():
                if not any(type(value) is type(option) and value == option for option in options[name]):
                    raise InvalidAnswer(f"{name} has no such option")

    def undo(self, annotator: Annotator, number: int) -> tuple[Item, StoredAnswer] | None:
        """Withdraw the annotator's latest answer if it has this number; None otherwise."""
        stored = self.database.withdraw(annotator.name, self.protocol.id, number)
        if stored is None:
            return None
        self.queue.record(annotator.name, stored.item_id, stored.kind, None)
        item = self.queue.by_id.get(stored.item_id)
        return None if item is None else (item, stored)


class _ListedPerson(Strict):
    name: str
    role: Role = "annotator"


class _People(Strict):
    annotators: list[_ListedPerson] = Field(min_length=1)


def load_people(path: Path) -> dict[str, Role]:
    """Annotators' roles by name, from a YAML file. ConfigError for an invalid one."""
    roles: dict[str, Role] = {}
    for person in load_yaml(path, _People).annotators:
        if person.name in roles:
            raise ConfigError(f"{path}: the annotator {person.name!r} is listed twice: keep one")
        roles[person.name] = person.role
    return roles


def add_people(database: AnnotationDatabase, people: Mapping[str, Role], language: str = "") -> dict[str, str]:
    """Add annotators; return name -> token for those who have no link yet. UserError for an invalid name."""
    for name, role in people.items():
        if not name.strip() or len(name) > 40 or any(category(c) == "Cc" for c in name) or name != name.strip():
            raise UserError(f"{name!r} is not a valid annotator name: give a pseudonym of 1 to 40 characters")
        database.add_annotator(name, role, language)
    without_link = [person.name for person in database.annotators() if person.name in people and not person.has_link]
    return {name: database.new_token(name) for name in without_link}


def new_links(database: AnnotationDatabase, people: Mapping[str, Role], local: bool) -> dict[str, str]:
    """Add `people`; return name -> token of those who have no link yet. If nobody else has one and the server is on
    this machine (`local`), the tokens are those of `ALONE`: new ones at every start, because only hashes are stored."""
    has_link = {person.name: person.has_link for person in database.annotators()}
    if people or not local or any(has_link[name] for name in has_link.keys() - ALONE):
        return add_people(database, people)
    add_people(database, {name: role for name, role in ALONE.items() if name not in has_link})
    return {name: database.new_token(name) for name in ALONE}


def no_image(sha: str) -> NoReturn:
    """As `Session.load_png` where images are not shown."""
    raise RunImageError(f"image {sha} is not open", "missing")
