"""One annotation session: the protocol, its items, the people and their stored answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from unicodedata import category

from pydantic import Field

from local_bench.annotation.database import AnnotationDatabase, Annotator, Role
from local_bench.annotation.items import Answer, Item, Kind, StoredAnswer, TaskView
from local_bench.annotation.protocol import AnswerField, Protocol
from local_bench.annotation.queue import Queue
from local_bench.core.errors import ConfigError, RunImageError, UserError
from local_bench.core.yamlfile import Strict, load_yaml

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
    ) -> bool:
        """Check and store an answer; nothing is done, and False returned, if the request was stored before. Raises
        InvalidAnswer, and AlreadyAnswered if another request has answered the item."""
        item = self.queue.by_id.get(item_id)
        if item is None or not self.queue.may_answer(annotator.name, item_id, kind):
            raise InvalidAnswer("the item is not in your queue")
        self._check(item, content)
        stored = self.database.save(request_id, annotator.name, item_id, kind, content, ms)
        if stored:
            self.queue.record(annotator.name, item_id, kind, content)
        return stored

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


class _Person(Strict):
    name: str
    role: Role = "annotator"


class _People(Strict):
    annotators: list[_Person] = Field(min_length=1)


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
