"""The database of annotations, `annotations.sqlite` in the run directory: annotators, items and answers.

It is separate from the run's own database, because annotators work while the run is closed or grows. Every answer is
one committed row (WAL, synchronous=FULL); withdrawn answers stay until their annotator is removed.
"""

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from local_bench.annotation.protocol import Answer, Item, Kind, Protocol, StoredAnswer, load_protocol
from local_bench.core import strictjson
from local_bench.core.errors import LedgerDamaged, LedgerError, StorageError, UserError
from local_bench.core.files import refused, transaction

FILE = "annotations.sqlite"
VERSION = "1"
Role = Literal["annotator", "adjudicator", "lead"]
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    """CREATE TABLE annotators (name TEXT PRIMARY KEY, role TEXT NOT NULL, token_sha256 TEXT UNIQUE,
       language TEXT NOT NULL, created_utc TEXT NOT NULL) STRICT""",
    "CREATE TABLE items (item_id TEXT PRIMARY KEY, protocol TEXT NOT NULL, content TEXT NOT NULL) STRICT",
    """CREATE TABLE answers (number INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE,
       annotator TEXT NOT NULL REFERENCES annotators, item_id TEXT NOT NULL REFERENCES items, kind TEXT NOT NULL,
       content TEXT NOT NULL, elapsed_ms INTEGER, saved_utc TEXT NOT NULL, withdrawn_utc TEXT) STRICT""",
    "CREATE UNIQUE INDEX one_answer ON answers (annotator, item_id, kind) WHERE withdrawn_utc IS NULL",
    "CREATE INDEX latest ON answers (annotator, number) WHERE withdrawn_utc IS NULL",
)
_ABSORB = (
    "INSERT OR IGNORE INTO annotators SELECT * FROM other.annotators",
    "INSERT OR IGNORE INTO items SELECT * FROM other.items",
    """INSERT OR IGNORE INTO answers
       (request_id, annotator, item_id, kind, content, elapsed_ms, saved_utc, withdrawn_utc)
       SELECT request_id, annotator, item_id, kind, content, elapsed_ms, saved_utc, withdrawn_utc
       FROM other.answers ORDER BY saved_utc, number""",
)


class AlreadyAnswered(Exception):
    """The annotator has an answer to this item under another request."""


@dataclass(frozen=True)
class Annotator:
    """A person under a pseudonym."""

    name: str
    role: Role
    language: str
    """"" until the annotator chooses one: that of the browser."""
    has_link: bool


class AnnotationDatabase(AbstractContextManager["AnnotationDatabase"]):
    """Access from several threads; one transaction at a time. Raises StorageError, LedgerError or LedgerDamaged."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open `path`; LedgerError if it does not exist, unless `create`."""
        self.path = path
        if not create and not path.is_file():
            raise LedgerError(f"{path} does not exist: this run has no annotations; use `local-bench annotate` first")
        self._lock = threading.RLock()
        with self._errors():
            uri = _uri(path)
            self._db = sqlite3.connect(uri, isolation_level=None, timeout=30, check_same_thread=False, uri=True)
            if "?" not in uri:
                for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
                    self._db.execute(f"PRAGMA {setting}")
                with self.transaction():
                    if not self._rows("SELECT 1 FROM sqlite_master LIMIT 1"):
                        for statement in _SCHEMA:
                            self._db.execute(statement)
                        self._db.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
            version = self._rows("SELECT value FROM meta WHERE key = 'version'")
        if version != [(VERSION,)]:
            self.close()
            raise LedgerError(f"{path} has a version that this release does not support: use the release that wrote it")

    def close(self) -> None:
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # annotators

    def annotators(self) -> list[Annotator]:
        """All annotators, by name."""
        rows = self._rows("SELECT name, role, language, token_sha256 IS NOT NULL FROM annotators ORDER BY name")
        return [Annotator(name, role, language, bool(has_link)) for name, role, language, has_link in rows]

    def annotator_of(self, token: str) -> Annotator | None:
        """The annotator with this token."""
        rows = self._rows("SELECT name, role, language, TRUE FROM annotators WHERE token_sha256 = ?", _hashed(token))
        return Annotator(*rows[0]) if rows else None

    def add_annotator(self, name: str, role: Role, language: str) -> None:
        """Add an annotator without a link. The role of a known name is replaced."""
        self._write(
            """INSERT INTO annotators VALUES (?, ?, NULL, ?, ?)
               ON CONFLICT (name) DO UPDATE SET role = excluded.role""",
            *(name, role, language, _now()),
        )

    def new_token(self, name: str) -> str:
        """A new secret token for the annotator, of which only the hash is stored; earlier ones become invalid."""
        token = secrets.token_urlsafe(32)
        self._write("UPDATE annotators SET token_sha256 = ? WHERE name = ?", _hashed(token), name)
        return token

    def set_language(self, name: str, language: str) -> None:
        self._write("UPDATE annotators SET language = ? WHERE name = ?", language, name)

    def forget(self, name: str) -> int:
        """Remove an annotator and all their answers from the file; return the number of answers removed."""
        with self.transaction():
            n = self._db.execute("DELETE FROM answers WHERE annotator = ?", (name,)).rowcount
            self._db.execute("DELETE FROM annotators WHERE name = ?", (name,))
        with self._errors():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return n

    # items

    def add_items(self, items: Iterable[Item]) -> None:
        """Add items; the sampling probabilities and known answer of an existing item are replaced."""
        with self.transaction():
            self._db.executemany(
                """INSERT INTO items VALUES (?, ?, ?)
                   ON CONFLICT (item_id) DO UPDATE SET content = excluded.content""",
                ((item.item_id, item.protocol, _json(item.content)) for item in items),
            )

    def items(self) -> dict[str, Item]:
        """Item id -> item, for all protocols."""
        rows = self._rows("SELECT item_id, protocol, content FROM items ORDER BY item_id")
        return {item_id: Item.from_content(protocol, strictjson.stored(content)) for item_id, protocol, content in rows}

    def protocols(self) -> dict[str, Protocol]:
        """The protocols of the items by name, as they were when the items were added."""
        texts = self.all_meta()
        names = [name for (name,) in self._rows("SELECT DISTINCT protocol FROM items ORDER BY protocol")]
        stored = {name: texts.get(PROTOCOL_META + name) for name in names}
        return {n: Protocol.model_validate_json(text) if text else load_protocol(n) for n, text in stored.items()}

    # answers

    def save(
        self, request_id: str, annotator: str, item_id: str, kind: Kind, answer: Answer, elapsed_ms: int | None
    ) -> bool:
        """Store an answer durably; return False if this request was stored before, also if it was withdrawn since.

        Raises AlreadyAnswered if another request has answered the item."""
        with self.transaction():
            if self._rows("SELECT 1 FROM answers WHERE request_id = ?", request_id):
                return False
            try:
                self._db.execute(
                    "INSERT INTO answers (request_id, annotator, item_id, kind, content, elapsed_ms, saved_utc)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (request_id, annotator, item_id, kind, _json(answer.content), elapsed_ms, _now()),
                )
            except sqlite3.IntegrityError as e:
                raise AlreadyAnswered from e
        return True

    def latest(self, annotator: str, protocol: str) -> int | None:
        """The number of the annotator's latest answer by this protocol."""
        rows = self._rows(
            "SELECT number FROM answers a JOIN items i USING (item_id) WHERE a.annotator = ? AND i.protocol = ?"
            " AND a.withdrawn_utc IS NULL ORDER BY number DESC LIMIT 1",
            annotator,
            protocol,
        )
        return int(rows[0][0]) if rows else None

    def withdraw(self, annotator: str, protocol: str, number: int) -> StoredAnswer | None:
        """Withdraw the answer with this number and return it; None if it is not the annotator's latest by this
        protocol."""
        with self.transaction():
            if number != self.latest(annotator, protocol):
                return None
            self._db.execute("UPDATE answers SET withdrawn_utc = ? WHERE number = ?", (_now(), number))
            return self._answers("number = ?", number)[0]

    def answers(self) -> list[StoredAnswer]:
        """All answers that were not withdrawn, in the order of time."""
        return self._answers("withdrawn_utc IS NULL ORDER BY number")

    def answers_with_items(self, only: str | None = None) -> list[tuple[StoredAnswer, Item, Protocol]]:
        """As `answers`, with their items and protocols; of protocol `only`, or all. UserError if it has no items."""
        protocols, items = self.protocols(), self.items()
        if only is not None and only not in protocols:
            names = ", ".join(protocols) or "none"
            raise UserError(f"{self.path} has no annotations of protocol {only!r}: it has {names}")
        answered = ((answer, items[answer.item_id]) for answer in self.answers())
        return [(answer, item, protocols[item.protocol]) for answer, item in answered if only in (None, item.protocol)]

    def _answers(self, where: str, *values: Any) -> list[StoredAnswer]:
        columns = "content, number, annotator, item_id, kind, elapsed_ms, saved_utc"
        rows = self._rows(f"SELECT {columns} FROM answers WHERE {where}", *values)
        return [StoredAnswer(Answer.from_content(strictjson.stored(content)), *row) for content, *row in rows]

    # meta

    def meta(self, key: str) -> str | None:
        return self.all_meta().get(key)

    def set_meta(self, key: str, value: str) -> None:
        self._write("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)

    def all_meta(self) -> dict[str, str]:
        return dict(self._rows("SELECT key, value FROM meta ORDER BY key"))

    def absorb(self, other: Path) -> None:
        """Add the annotators, items and answers of another database; what this one has is kept."""
        with self._lock, self._errors():
            self._db.execute("ATTACH ? AS other", (_uri(other),))
            try:
                with self.transaction():
                    for statement in _ABSORB:
                        self._db.execute(statement)
            finally:
                self._db.execute("DETACH other")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes of the block, or none of them; those of a block inside it belong to it."""
        with self._lock, self._errors(), nullcontext() if self._db.in_transaction else transaction(self._db):
            yield

    def _write(self, statement: str, *values: Any) -> None:
        with self.transaction():
            self._db.execute(statement, values)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._lock, self._errors():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as e:
            if "locked" in str(e):
                raise LedgerError(f"{self.path} is locked by another process: wait for it to end") from e
            raise StorageError(f"cannot use {self.path}: {refused(str(e))}") from e
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as e:
            raise LedgerDamaged(f"{self.path} is damaged ({e}): restore it from a backup, or move it away") from e


def _uri(path: Path) -> str:
    """What SQLite opens; with `?`, for reading alone: a file that cannot be written, or is in a folder where no other
    can be made (`immutable`: without its log, which then is not there)."""
    uri, writable = path.absolute().as_uri(), os.access(path.parent, os.W_OK)
    if writable and (os.access(path, os.W_OK) or not path.exists()):
        return uri
    return f"{uri}?mode=ro" + "&immutable=1" * (not path.with_name(f"{path.name}-wal").exists())


def _hashed(token: str) -> str:
    """The stored form of a token; tokens have 256 random bits, so that a fast hash suffices."""
    return hashlib.sha256(token.encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


PROTOCOL_META, SESSION_META = "protocol:", "session:"
"""Prefixes of the keys of `meta` with the text of a protocol, and with the settings and items of its session."""
SERVED_PROTOCOL, SERVED_BASE = "served:protocol", "served:base"
"""Keys of `meta` with the protocol and the address of the server that ran last."""


def merge_annotations(target: Path, parts: Sequence[Path]) -> None:
    """Write all annotators, items and answers of the folders `parts` to the folder `target`; parts without a database
    are skipped, and without any nothing is written. Annotators of the same name are the same person: of two answers to
    an item the earlier one counts. UserError if a protocol differs between parts."""
    parts = [part / FILE for part in parts if (part / FILE).is_file()]
    if not parts:
        return
    earlier: dict[str, tuple[str, Path]] = {}
    with AnnotationDatabase(target / FILE, create=True) as merged:
        for part in parts:
            with AnnotationDatabase(part) as opened:
                meta = opened.all_meta()
            for key in (key for key in meta if key.startswith(PROTOCOL_META)):
                text, path = earlier.setdefault(key, (meta[key], part))
                if not same_questions(text, meta[key]):
                    raise UserError(
                        f"the annotation protocol {key.removeprefix(PROTOCOL_META)} differs between {path} and {part}: "
                        "rename the protocol of one run, or merge the runs apart"
                    )
            merged.absorb(part)
            for key, text in meta.items():
                if key.startswith(PROTOCOL_META):
                    merged.set_meta(key, text)
                elif key.startswith(SESSION_META):
                    first, second = json.loads(merged.meta(key) or text), json.loads(text)
                    items = sorted({*first["items"], *second["items"]})
                    merged.set_meta(key, json.dumps(first | {"items": items, "runs": 1}))  # they are one run now


def same_questions(before: str, text: str) -> bool:
    """Whether two stored protocols have the same questions, so that answers by both can be used together."""
    first, second = map(Protocol.model_validate_json, (before, text))
    return first.questions == second.questions
