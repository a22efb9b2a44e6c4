"""The store of a run: all queries and writes of its SQLite file."""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain, product
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from local_bench.core import strictjson
from local_bench.core.errors import LedgerDamaged, LedgerError
from local_bench.core.errors import kind as kind_of
from local_bench.core.files import put_in_place, storage_errors
from local_bench.core.types import UNSUPPORTED, Decision, Score, Task, canonical_json
from local_bench.runs.store.database import BACKUP, SCHEMA, Database, free_name
from local_bench.runs.store.rows import (
    FORMS,
    NOT_APPLICABLE,
    UNSCORED,
    BusyTime,
    Candidate,
    Committed,
    Counts,
    GeneratedRow,
    ImageResult,
    Kind,
    MeterRow,
    ModelProgress,
    OutcomeRow,
    ScoreRow,
    ScoreSummary,
    SessionRow,
    UnscoredItems,
    VerdictRow,
)

if TYPE_CHECKING:
    import pandas as pd

_TASK, _TEXTS, _TOKENS = TypeAdapter(Task), TypeAdapter(list[str]), TypeAdapter(dict[str, int])
_DTYPES = {"INTEGER": "Int64", "REAL": "Float64", "TEXT": "string"}
_TYPES = {"task_price_micro_usd": "INTEGER"} | dict(re.findall(r"(\w+) (INTEGER|REAL|TEXT)\b", SCHEMA))
"""Column -> its type in SQLite; `value` is that of scores."""
_OUTCOMES = """SELECT c.*, t.category, t.price_micro_usd AS task_price_micro_usd, d.accepted,
    d.unscored AS decision_unscored
  FROM candidates AS c JOIN tasks AS t USING (task_id) LEFT JOIN decisions AS d USING (work_id)"""
_VERDICT_KEY = "work_id, judge, rubric, point, repeat"
KEYS = {
    "tasks": "task_id",
    "candidates": "work_id",
    "verdicts": _VERDICT_KEY,
    "retests": f"{_VERDICT_KEY}, round",
    "scores": "work_id, name",
    "decisions": "work_id",
    "sessions": "session",
    "meter": "session, t0_ns",
}
"""Table -> its key, in whose order its rows are read."""


def columns(kind: type) -> str:
    """The columns of a row type, comma-separated."""
    return ", ".join(field.name.removesuffix("_json") for field in fields(kind))


_CANDIDATE = columns(Candidate)
_VERDICT = {
    "verdicts": columns(VerdictRow).removesuffix("round") + "0",
    "retests": columns(VerdictRow).replace("rubric_sha256", "''"),
}
"""Table -> the columns of `VerdictRow`, with a constant for the one that it lacks."""
_OF_TASK = """task_id, content,
  (SELECT max(deliverable) FROM candidates AS c WHERE c.task_id = tasks.task_id) AS n_deliverables"""


def _one_of(column: str, values: Collection[str] | None) -> tuple[str, list[str]]:
    """A condition that a column has one of these values, any with None, and its values in the query: their number is
    not limited, as that of SQLite's variables is."""
    if values is None:
        return "TRUE", []
    return f"{column} IN (SELECT value FROM json_each(?))", [json.dumps([*values])]


class Store:
    """Typed access to the run's tables. Rows are returned in the order stated in each docstring."""

    def __init__(self, path: Path, *, create: bool = False, write: bool = False, view: bool = False) -> None:
        """Open `path`. LedgerDamaged if it is missing, empty, damaged or lacks a table, LedgerError if its version is
        unknown to this release.

        With `create` a missing or empty file is created; use it only for a run that has not begun. A file of an earlier
        version is migrated: in place with `write`, else in memory, so that reading does not change it. With `view` only
        decisions may be written, and the file is not changed.
        """
        self.path = path
        self.db = Database(path, create=create, write=write, view=view)
        self.rows, self.write, self.write_many = self.db.rows, self.db.write, self.db.write_many
        self.transaction, self.once, self.close = self.db.transaction, self.db.once, self.db.close

    def committed(self) -> Committed:
        """Numbers of finished items now."""
        row = self.rows(
            """SELECT (SELECT count(*) FROM candidates WHERE state <> 'planned'), (SELECT count(*) FROM verdicts),
               (SELECT count(*) FROM retests), (SELECT count(*) FROM scores WHERE value IS NOT NULL)"""
        )[0]
        return Committed(*row)

    def backup(self) -> None:
        """Copy the committed state to `ledger.backup.sqlite`, atomically. An earlier backup with more items of any
        kind (for example because a judge was removed since), or by another release, is kept as
        `ledger.backup.N.sqlite`."""
        target = self.path.with_name(BACKUP)
        scratch = target.with_name(f".{BACKUP}.writing")  # `sweep` removes it
        with storage_errors(target):
            scratch.unlink(missing_ok=True)
        self.write("VACUUM INTO CAST(? AS TEXT)", os.fsencode(scratch))  # a path may be no UTF-8
        if target.exists() and _has_more(target, self.committed()):
            with storage_errors(target):
                target.rename(free_name(self.path.parent, "ledger.backup.{}.sqlite"))
        put_in_place(scratch, target)

    # frames

    def frame(self, name: str, names: Sequence[str] = (), where: str = "TRUE", *values: Any) -> "pd.DataFrame":
        """Rows of a table as a data frame with nullable dtypes, in the order of their keys: the columns `names` (all by
        default) of the rows that satisfy the SQL condition `where` with `values`. `outcomes` are the candidates with
        their task's `category` and `task_price_micro_usd`, and with the decision, `accepted` and `decision_unscored`.
        Numbers of scores are read with `scored`."""
        import pandas as pd

        source, key = (f"({_OUTCOMES})", "work_id") if name == "outcomes" else (name, KEYS[name])
        read = self.db.columns(f"SELECT {', '.join(names) or '*'} FROM {source} WHERE {where} ORDER BY {key}", *values)
        return pd.DataFrame(
            {column: pd.array(cells, dtype=_DTYPES[_TYPES.get(column, "TEXT")]) for column, cells in read.items()}
        )

    # meta

    def meta(self, key: str) -> str | None:
        value = self.db.value("SELECT value FROM meta WHERE key = ?", key)
        return None if value is None else str(value)

    def set_meta(self, key: str, value: str) -> None:
        self.write("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)

    def json_meta(self, key: str) -> Any:
        """The JSON object stored under `key`, or None. LedgerDamaged if it has another form than local-bench writes."""
        text = self.meta(key)
        if text is None:
            return None
        value, fault = strictjson.stored(text), ""
        form = FORMS.get(key.partition(":")[0])
        try:
            if not isinstance(value, dict):
                fault = f"is {kind_of(value)}"
            elif form:
                form.validate_python(value, strict=True)
        except ValidationError as e:
            where = ".".join(map(str, e.errors()[0]["loc"]))[:60]
            fault = f"has a value that no release writes{where and f', at {where!r}'}"
        if fault:
            raise self.db.damaged(f"is damaged (its entry {key[:60]!r} {fault})")
        return value

    def counted(self, where: str, *values: Any) -> tuple[Any, ...]:
        """A condition on the verdicts of the run's judges, and its values."""
        counted, judges = self.of_judges()
        return f"{where} AND {counted}", *values, *judges

    def of_judges(self, judge: str | None = None, counted: bool = True) -> tuple[str, list[str]]:
        """A condition on the column `judge` and its values: one judge, or None for all that count in the run; or for
        all others too unless `counted`. Before the judge phase is complete all judges count."""
        names = (judge,) if judge is not None else self.json_meta("judges") if counted else None
        return _one_of("judge", names)

    def _valid(self, form: TypeAdapter[Any], value: Any) -> Any:
        """A value from JSON text. What else a row must satisfy is checked when the file is opened."""
        try:
            return form.validate_python(value, strict=True)
        except ValidationError:
            raise LedgerError(
                f"{self.path} contains a row that no release of local-bench writes: it was changed by hand; repeat the "
                "run"
            ) from None

    # tasks and candidates

    def enter_plan(self, positions: Sequence[int], tasks: Sequence[Task], candidates: Sequence[Candidate]) -> None:
        """Store the plan of a run, or a larger one, in one transaction; `positions` are those of the tasks. Existing
        rows get their new position; those without an image that it lacks go, and what is known of models without any.
        """
        with self.transaction():
            self.write_many(
                """INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)
                   ON CONFLICT (task_id) DO UPDATE SET position = excluded.position""",
                (
                    (t.task_id, i, t.category, t.price_micro_usd, canonical_json(t.content), t.unscored)
                    for i, t in zip(positions, tasks, strict=True)
                ),
            )
            planned = {row.work_id for row in candidates}
            rows = self.rows("SELECT work_id, model FROM candidates WHERE state <> 'done'")
            replaced = {work_id: model for work_id, model in rows if work_id not in planned}
            if replaced:
                for table in ("verdicts", "retests", "scores", "decisions", "candidates"):
                    self.write_many(f"DELETE FROM {table} WHERE work_id = ?", ((work_id,) for work_id in replaced))
                gone = {*replaced.values()} - {*self.models()}
                keys = product(("placement", "numerics", "batches", "operations"), gone)
                self.write_many("DELETE FROM meta WHERE key = ?", ((":".join(key),) for key in keys))
            moved = " ON CONFLICT (work_id) DO UPDATE SET position = excluded.position"
            self._enter("candidates", Candidate, candidates, "INSERT", moved)
            self.set_meta("planned", "1")

    def without_images(self) -> set[str]:
        """The models of which nothing was made or imported in a run that has failed: they can be changed or removed."""
        failed = self.db.value("SELECT EXISTS (SELECT 1 FROM sessions WHERE ended = 'failed')")
        rows = self.rows("SELECT model FROM candidates GROUP BY model HAVING count(identity) = 0") if failed else ()
        return {str(model) for (model,) in rows}

    def forget_plan(self) -> None:
        """Remove the plan of a run without images, so that any config may continue."""
        with self.transaction():
            for table in ("scores", "decisions", "candidates", "tasks", "meter", "sessions"):
                self.write(f"DELETE FROM {table}")
            self.write("DELETE FROM meta WHERE key <> 'version'")

    @property
    def planned(self) -> bool:
        """Whether the plan has been stored."""
        return bool(self.meta("planned"))

    def tasks(self, task_ids: Collection[str] | None = None) -> list[Task]:
        """The tasks of the plan, or those of these ids, in its order. LedgerError if one cannot be read."""
        where, ids = _one_of("task_id", task_ids)
        rows = self.rows(f"SELECT {_OF_TASK} FROM tasks WHERE {where} ORDER BY position, task_id", *ids)
        return [_task(row) for row in rows]

    def each_task(self) -> Iterator[tuple[Task, str, str, int]]:
        """(task, its stored content, category, price in micro-USD) of every task, in the plan's order, read as needed.
        LedgerError if one cannot be read."""
        for row in self.rows(f"SELECT {_OF_TASK}, category, price_micro_usd FROM tasks ORDER BY position, task_id"):
            yield _task(row), row["content"], row["category"], row["price_micro_usd"]

    def task_contents(self) -> dict[str, str]:
        """Task id -> canonical JSON, in the plan's order. LedgerError if one is not a task."""
        return {task.task_id: content for task, content, *_ in self.each_task()}

    def input_digests(self) -> list[str]:
        """Pixel digests of the input images of all tasks, sorted. LedgerError if one is not a task."""
        digests: set[str | None] = set()
        for task, *_ in self.each_task():
            digests.update((task.source_sha256, task.mask_sha256, *task.reference_sha256))
        return sorted(filter(None, digests))

    def task_positions(self) -> dict[str, int]:
        """Task id -> index among the tasks of all shards."""
        return {row["task_id"]: row["position"] for row in self.rows("SELECT task_id, position FROM tasks")}

    def candidates(self, model: str | None = None) -> list[Candidate]:
        """Candidates of a model or of all, in the plan's order."""
        return list(self.each_candidate(model))

    def each_candidate(self, model: str | None = None) -> Iterator[Candidate]:
        """As `candidates`, read as needed."""
        query = f"SELECT {_CANDIDATE} FROM candidates WHERE model = coalesce(?, model) ORDER BY position"
        return (Candidate(*row) for rows in self.db.chunks(query, model) for row in rows)

    def images(self, order: str = "position") -> Iterator[tuple[str, str, int, int, str, str | None]]:
        """(task, model, attempt, deliverable, work id, pixel digest or None without an image) of every candidate, in
        the plan's order or in that of other columns, read as needed."""
        query = "SELECT task_id, model, attempt, deliverable, work_id, iif(state = 'done', pixels_sha256, NULL)"
        return chain.from_iterable(self.db.chunks(f"{query} FROM candidates ORDER BY {order}"))

    def candidate(self, work_id: str) -> Candidate:
        (row,) = self.rows(f"SELECT {_CANDIDATE} FROM candidates WHERE work_id = ?", work_id)
        return Candidate(*row)

    def outcomes(self, attempt: int | None = None) -> list[OutcomeRow]:
        """Candidates with price and decision, in the plan's order: of one attempt or of all."""
        rows = self.rows(
            f"""SELECT {_CANDIDATE}, category, task_price_micro_usd, n, accepted, decision_unscored FROM ({_OUTCOMES})
                JOIN (SELECT task_id, model, count(DISTINCT deliverable) AS n FROM candidates GROUP BY task_id, model)
                USING (task_id, model) WHERE attempt = coalesce(?, attempt) ORDER BY position""",
            attempt,
        )
        outcomes, n = [], len(fields(Candidate))
        for row in rows:
            category, price, deliverables, accepted, unscored = row[n:]
            is_open = accepted is None and unscored is None  # a decision has one of them
            decision = None if is_open else Decision(None if accepted is None else bool(accepted), unscored)
            outcomes.append(OutcomeRow(Candidate(*row[:n]), category, price, deliverables, decision))
        return outcomes

    def enter_image(self, image: ImageResult, identity: str) -> None:
        """Store that an image was generated, or why it was not. Its unscored metrics are deleted, so that they are
        computed again."""
        self.write("DELETE FROM scores WHERE work_id = ? AND kind = 'metric' AND unscored IS NOT NULL", image.work_id)
        self.write(
            """UPDATE candidates SET state = ?, identity = ?, pixels_sha256 = ?, unscored = ?, batch_size = ?,
               truncated = ? WHERE work_id = ?""",
            "unscored" if image.pixels_sha256 is None else "done",
            identity,
            image.pixels_sha256,
            image.unscored,
            image.batch_size,
            json.dumps(image.truncated, sort_keys=True),
            image.work_id,
        )

    # verdicts and scores

    def verdicts(
        self,
        judge: str | None = None,
        counted: bool = True,
        work_ids: Collection[str] | None = None,
        table: Literal["verdicts", "retests"] = "verdicts",
    ) -> Iterator[VerdictRow]:
        """Verdicts or retests of one judge, of all judges of the run, or with `counted=False` of former ones too, on
        all images or these; by candidate, judge, rubric, point, repeat and round, read as needed."""
        (where, judges), (on, ids) = self.of_judges(judge, counted), _one_of("work_id", work_ids)
        query = f"SELECT {_VERDICT[table]} FROM {table} WHERE {where} AND {on} ORDER BY {KEYS[table]}"
        return (VerdictRow(*row) for rows in self.db.chunks(query, *judges, *ids) for row in rows)

    def enter_verdicts(self, rows: Iterable[VerdictRow], table: Literal["verdicts", "retests"] = "verdicts") -> None:
        """Store verdicts or retests in one transaction; a later answer to a question replaces an earlier one."""
        with self.transaction():
            self._enter(table, VerdictRow, rows, lacks="round" if table == "verdicts" else "rubric_sha256")

    def rubrics(self) -> list[str]:
        """Names of the rubrics with verdicts, sorted."""
        return list(dict.fromkeys(name for name, _ in self.rubric_versions()))

    def rubric_versions(self) -> list[tuple[str, str]]:
        """Names and digests of the rubrics of the run's verdicts, sorted."""
        where, judges = self.of_judges()
        rows = self.rows(f"SELECT DISTINCT rubric, rubric_sha256 FROM verdicts WHERE {where} ORDER BY 1, 2", *judges)
        return [(name, sha256) for name, sha256 in rows]

    def scores(self, kind: Kind | None = None, work_ids: Collection[str] | None = None) -> Iterator[ScoreRow]:
        """Scores of one kind or of all, of all candidates or of these, by candidate and name, read as needed."""
        where, ids = _one_of("work_id", work_ids)
        query = f"""SELECT work_id, name, value, unscored, applies, spread FROM scores
                    WHERE kind = coalesce(?, kind) AND {where} ORDER BY work_id, name"""
        return (
            ScoreRow(work_id, Score(name, value, unscored, bool(applies), spread))
            for rows in self.db.chunks(query, kind, *ids)
            for work_id, name, value, unscored, applies, spread in rows
        )

    def scores_by_candidate(self, kind: Kind | None = None) -> dict[str, dict[str, Score]]:
        """Work id -> name -> score, for candidates with scores."""
        by_candidate: dict[str, dict[str, Score]] = {}
        for row in self.scores(kind):
            by_candidate.setdefault(row.work_id, {})[row.score.name] = row.score
        return by_candidate

    def score_names(self) -> list[tuple[Kind, str]]:
        """(kind, name) of all scores, sorted."""
        query = "SELECT DISTINCT kind, name FROM scores ORDER BY kind, name"
        return self.once("score names", lambda: [(row["kind"], row["name"]) for row in self.rows(query)])

    def score_values(self, model: str) -> Iterator[tuple[str, str, float]]:
        """(name, task, value) of every score of a model that has a value, read as needed."""
        rows = self.db.chunks(
            """SELECT s.name, c.task_id, s.value FROM scores s JOIN candidates c USING (work_id)
               WHERE c.model = ? AND s.value IS NOT NULL ORDER BY s.name, c.position""",
            model,
        )
        return chain.from_iterable(rows)

    def score_summaries(self) -> list[ScoreSummary]:
        """One summary per score and model, by name and model."""
        query = """SELECT s.kind, s.name, c.model, exact_avg(s.value), exact_avg(s.spread), count(s.value),
               sum(NOT s.applies), sum(s.applies AND s.value IS NULL)
               FROM scores s JOIN candidates c USING (work_id) GROUP BY s.name, c.model ORDER BY s.name, c.model"""
        return self.once("score summaries", lambda: [ScoreSummary(*row) for row in self.rows(query)])

    def reasons(self, of: Literal["scores", "decisions"], limit: int) -> list[dict[str, Any]]:
        """Why scores, by `name, model`, or first attempts, by model, have no value: `where`, `text` and the number `n`
        of each, the most frequent first."""
        query = {
            "scores": """SELECT s.name || ', ' || c.model AS "where", coalesce(s.unscored, 'no reason given') AS text,
                   count(*) AS n FROM scores s JOIN candidates c USING (work_id) WHERE s.value IS NULL AND s.applies""",
            "decisions": """SELECT c.model AS "where", d.unscored AS text, count(*) AS n
                   FROM decisions d JOIN candidates c USING (work_id) WHERE d.accepted IS NULL AND c.attempt = 1""",
        }[of]
        return [dict(row) for row in self.rows(f"{query} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?", limit)]

    def enter_scores(self, kind: Kind, scores: Iterable[tuple[str, Score]], replace_all: bool = False) -> None:
        """Store (work id, score) pairs in one transaction. They replace earlier scores of the same names, or with
        `replace_all` all scores of the kind."""
        with self.transaction():
            if replace_all:
                self.write("DELETE FROM scores WHERE kind = ?", kind)
            self.write_many(
                """INSERT OR REPLACE INTO scores (work_id, name, kind, value, unscored, applies, spread)
                   VALUES (?, ?, ?, ?, ?, ?, ?)""",
                ((work_id, s.name, kind, s.value, s.unscored, int(s.applies), s.spread) for work_id, s in scores),
            )

    # decisions

    def enter_decisions(self, rows: Iterable[tuple[str, int | None, str | None, int]]) -> None:
        """Add or replace decisions, rows of the table (by work id), in one transaction."""
        with self.transaction():
            self.write_many(
                """INSERT INTO decisions (work_id, accepted, unscored, price_micro_usd) VALUES (?, ?, ?, ?)
                   ON CONFLICT (work_id) DO UPDATE SET (accepted, unscored, price_micro_usd) =
                     (excluded.accepted, excluded.unscored, excluded.price_micro_usd)""",
                rows,
            )

    # time

    def begin_session(self, started_utc: str, device: str) -> int:
        """Store a new session and return its number."""
        with self.transaction():
            self.write("INSERT INTO sessions (started_utc, device) VALUES (?, ?)", started_utc, device)
            return int(self.rows("SELECT max(session) FROM sessions")[0][0])

    def enter_time(self, row: MeterRow, held_ns: int) -> None:
        """Store a meter row and the session's total time."""
        with self.transaction():
            self._enter("meter", MeterRow, [row], "INSERT")
            self.write("UPDATE sessions SET held_ns = ? WHERE session = ?", held_ns, row.session)

    def add_session(self, session: SessionRow, rows: Sequence[MeterRow]) -> None:
        """Store a finished session of another store with its meter rows, under a new number."""
        with self.transaction():
            number = 1 + int(self.rows("SELECT coalesce(max(session), 0) FROM sessions")[0][0])
            self._enter("sessions", SessionRow, [replace(session, session=number)], "INSERT")
            self._enter("meter", MeterRow, (replace(row, session=number) for row in rows), "INSERT")

    def end_session(self, session: int, how: str) -> None:
        self.write("UPDATE sessions SET ended = ? WHERE session = ?", how, session)

    def sessions(self) -> list[SessionRow]:
        """All sessions, in the order of their start."""
        return [SessionRow(*r) for r in self.rows(f"SELECT {columns(SessionRow)} FROM sessions ORDER BY session")]

    def meter(self) -> list[MeterRow]:
        """All meter rows, by session and time."""
        return [MeterRow(*row) for row in self.rows(f"SELECT {columns(MeterRow)} FROM meter ORDER BY session, t0_ns")]

    def busy_time(self, model: str, phases: Sequence[str]) -> list[BusyTime]:
        """Device time of these phases of a model, by device name."""
        where, values = _one_of("m.phase", phases)
        rows = self.rows(
            f"""SELECT s.device, sum(m.t1_ns - m.t0_ns), sum(m.n_items * (m.phase = 'decode'))
                FROM meter m JOIN sessions s USING (session) WHERE m.model = ? AND {where}
                GROUP BY s.device ORDER BY s.device""",
            model,
            *values,
        )
        return [BusyTime(*row) for row in rows]

    def notes(self, kind: str) -> dict[str, Any]:
        """The JSON values stored under `kind:name` in `meta`, by name."""
        rows = self.rows("SELECT key FROM meta WHERE key LIKE ? ORDER BY key", f"{kind}:%")
        return {row["key"].partition(":")[2]: self.json_meta(row["key"]) for row in rows}

    def _enter(
        self,
        table: str,
        kind: type,
        rows: Iterable[Any],
        insert: str = "INSERT OR REPLACE",
        conflict: str = "",
        lacks: str = "",
    ) -> None:
        names = [field.name for field in fields(kind) if field.name != lacks]
        into, marks = ", ".join(name.removesuffix("_json") for name in names), ", ".join("?" * len(names))
        values = map(attrgetter(*names), rows)
        self.write_many(f"{insert} INTO {table} ({into}) VALUES ({marks}){conflict}", values)

    # totals

    def task_totals(self) -> tuple[int, int]:
        """(number of tasks, their value in micro-USD)"""
        row = self.rows("SELECT count(*), coalesce(sum(price_micro_usd), 0) FROM tasks")[0]
        return int(row[0]), int(row[1])

    def task_of_other(self, own: Sequence[tuple[str, str]], categories: Collection[str]) -> str | None:
        """A task that lacks a value of one of these types in `Task.own`, or has none of the categories; None if all
        tasks are as a benchmark's."""
        differs = ["json_type(content, ?) IS NOT ?"] * len(own)
        differs += [f"category NOT IN ({', '.join('?' * len(categories))})"] if categories else []
        values = [value for key, kind in own for value in (f"$.own.{key}", kind)]
        query = f"SELECT task_id FROM tasks WHERE {' OR '.join(differs) or 'FALSE'} ORDER BY position LIMIT 1"
        return next((str(row["task_id"]) for row in self.rows(query, *values, *categories)), None)

    def shared_images(self) -> dict[tuple[str, ...], int]:
        """Models with the same pixels for a deliverable -> the number of such images."""
        rows = self.rows(
            """SELECT models, count(*) FROM (
                 SELECT group_concat(model, char(10)) AS models FROM (
                   SELECT DISTINCT task_id, deliverable, pixels_sha256, model FROM candidates
                   WHERE state = 'done' ORDER BY task_id, deliverable, pixels_sha256, model)
                 GROUP BY task_id, deliverable, pixels_sha256 HAVING count(*) > 1)
               GROUP BY models ORDER BY models"""
        )
        return {tuple(models.split("\n")): n for models, n in rows}

    def with_fewer_inputs(self) -> list[tuple[str, str, str]]:
        """(model, task id, the work of its first candidate) where a generated candidate may have fewer input images
        than its task: a suite may use some of them only."""
        rows = self.rows(
            """SELECT c.model, c.task_id, c.work, min(c.deliverable) FROM candidates AS c JOIN
                 (SELECT task_id, json_array_length(content, '$.reference_sha256')
                    + (json_extract(content, '$.source_sha256') IS NOT NULL)
                    + (json_extract(content, '$.mask_sha256') IS NOT NULL) AS n FROM tasks) USING (task_id)
               WHERE n > 0 AND c.attempt = 1 AND json_type(c.work, '$.pictures') = 'array'
                 AND json_array_length(c.work, '$.pictures') < n GROUP BY 1, 2"""
        )
        return [(model, task_id, work) for model, task_id, work, _ in rows]

    def unsupported(self) -> set[tuple[str, str]]:
        """(model, task id) of the tasks that a model does not support. Earlier releases left out the prefix."""
        query = """SELECT DISTINCT model, task_id FROM candidates WHERE state = 'unscored' AND (instr(unscored, ?) = 1
          OR unscored LIKE '%, and % gives no%' OR unscored LIKE '%, and one of this order''s is %'
          OR unscored LIKE '%the model takes %')"""
        return {(model, task_id) for model, task_id in self.rows(query, UNSUPPORTED.removesuffix(": "))}

    def models(self) -> list[str]:
        """Names of the models of the plan, sorted."""
        query = "SELECT DISTINCT model FROM candidates ORDER BY model"
        return self.once("models", lambda: [row["model"] for row in self.rows(query)])

    def n_candidates(self, made: bool = False) -> dict[str, int]:
        """Model -> number of its candidates, or of its finished images."""
        where = "WHERE state = 'done'" if made else ""
        rows = self.rows(f"SELECT model, count(*) AS n FROM candidates {where} GROUP BY model ORDER BY model")
        return {row["model"]: row["n"] for row in rows}

    def counts(self) -> Counts:
        where, judges = self.of_judges()
        row = self.rows(
            f"""SELECT count(*), coalesce(sum(state = 'done'), 0), coalesce(sum(state = 'unscored'), 0),
                (SELECT count(*) FROM verdicts WHERE {where}),
                (SELECT count(*) FROM verdicts WHERE unscored IS NOT NULL AND {where}) FROM candidates""",
            *judges,
            *judges,
        )[0]
        return Counts(*row)

    def unscored_items(self) -> list[UnscoredItems]:
        """Images, verdicts and metric scores without a value; scores that do not apply are none of either."""
        where, judges = self.of_judges()
        queries: dict[str, tuple[str, tuple[str, ...]]] = {
            "images": ("candidates WHERE state <> 'planned'", ()),
            "verdicts": (f"verdicts WHERE {where}", tuple(judges)),
            "metric scores": ("scores WHERE kind = 'metric' AND applies", ()),
        }
        items = []
        for what, (query, values) in queries.items():
            rows = self.rows(f"SELECT unscored, count(*) AS n FROM {query} GROUP BY 1 ORDER BY 2 DESC, 1", *values)
            reasons = tuple((reason, n) for reason, n in rows if reason is not None)
            if reasons:
                items.append(UnscoredItems(what, sum(n for _, n in rows), reasons))
        return items

    def generated(self) -> list[GeneratedRow]:
        """Numbers of finished images by model, size, input images and batch size, sorted."""
        return self.once(
            "generated",
            lambda: [
                GeneratedRow(model, height, width, tuple(self._valid(_TEXTS, strictjson.stored(inputs))), batch_size, n)
                for model, height, width, inputs, batch_size, n in self.rows(_GENERATED)
            ],
        )

    def truncations(self) -> list[tuple[str, str, dict[str, int]]]:
        """(model, prompt, number of tokens that each encoder truncated) of all distinct prompts, sorted."""
        rows = self.rows(
            """SELECT DISTINCT model, prompt, truncated FROM candidates
               WHERE truncated IS NOT NULL AND truncated <> '{}' ORDER BY model, prompt, truncated"""
        )
        return [(model, prompt, self._valid(_TOKENS, strictjson.stored_object(text))) for model, prompt, text in rows]

    def progress(self) -> list[ModelProgress]:
        """Numbers of candidates by model, sorted."""
        rows = self.rows(
            """SELECT c.model, count(*), sum(c.state = 'planned'), sum(c.attempt = 1),
                  sum(c.attempt = 1 AND d.work_id IS NULL)
                FROM candidates AS c LEFT JOIN decisions AS d USING (work_id) GROUP BY c.model ORDER BY c.model"""
        )
        return [ModelProgress(*row) for row in rows]

    def outcomes_by_model(self) -> dict[str, str]:
        """A digest of each model's images and decisions, the same for models with equal ones of all tasks and
        attempts."""
        digests: dict[str, Any] = defaultdict(hashlib.sha256)
        for model, *image in self.rows(
            """SELECT model, task_id, deliverable, attempt, pixels_sha256, accepted
               FROM candidates LEFT JOIN decisions USING (work_id) ORDER BY model, task_id, deliverable, attempt"""
        ):
            digests[model].update(canonical_json(image).encode())
        return {model: hashed.hexdigest() for model, hashed in digests.items()}

    def image_digests(self) -> list[str]:
        """Pixel digests of all finished images, sorted."""
        return sorted({str(sha) for *_, sha in self.images() if sha is not None})

    def imported_models(self) -> list[str]:
        """Models with imported images, sorted; all works of a model have the same keys. The index `candidates_results`
        has a candidate of each model among its first entries."""
        rows = self.rows(
            """SELECT model FROM (SELECT DISTINCT model FROM candidates) AS m
               WHERE (SELECT json_type(work, '$.model.imported') FROM candidates WHERE work_id = (
                   SELECT c.work_id FROM candidates AS c WHERE c.model = m.model LIMIT 1)) IS NOT NULL
               ORDER BY model"""
        )
        return [row["model"] for row in rows]

    def imported_costs(self) -> dict[str, int | None]:
        """Model -> cost of its imported images in micro-USD; None if any cost is unknown."""
        where, imported = _one_of("model", self.imported_models())
        rows = self.rows(
            f"""SELECT model, sum(cost_micro_usd) AS cost, count(*) - count(cost_micro_usd) AS unknown FROM candidates
                WHERE state = 'done' AND {where} GROUP BY model""",
            *imported,
        )
        return {row["model"]: None if row["unknown"] else row["cost"] for row in rows}


def scores_by_image(
    store: Store, work_ids: "pd.Series[str]", names: Sequence[str], kind: Kind | None = None, *, reasons: bool = False
) -> "pd.DataFrame":
    """The scores of these names, of one kind or of both, as columns of images in the order of `work_ids`: a float,
    UNSCORED, NOT_APPLICABLE, or None if it is absent. With `reasons`, UNSCORED is followed by `: ` and the reason."""
    import numpy as np
    import pandas as pd

    where, values = _one_of("name", names)
    where = f"{where} AND kind = coalesce(?, kind)"
    scores = store.frame("scores", ["work_id", "name", "value", "unscored", "applies"], where, *values, kind)
    index, columns = pd.Index(work_ids), {}
    for name in names:
        rows = scores[(scores["name"] == name).to_numpy(bool)]
        cells = rows["value"].astype(object).to_numpy(copy=True)
        missing = rows["value"].isna().to_numpy(bool)
        cells[missing] = (UNSCORED + ": " + rows["unscored"][missing]) if reasons else UNSCORED
        cells[(rows["applies"] == 0).to_numpy(bool)] = NOT_APPLICABLE
        at = index.get_indexer(rows["work_id"])
        column = np.full(len(index), None, dtype=object)
        column[at[at >= 0]] = cells[at >= 0]
        columns[name] = column
    return pd.DataFrame(columns, index=range(len(index)), dtype=object)


_GENERATED = """SELECT model, height, width,
      iif(instr(work, '"pictures":[]'), '[]', ifnull(json_extract(work, '$.pictures'), '[]')) AS inputs, batch_size,
      count(*)
    FROM candidates WHERE state = 'done' GROUP BY model, height, width, inputs, batch_size ORDER BY 1, 2, 3, 4, 5"""


def _has_more(backup: Path, now: Committed) -> bool:
    """Whether a usable backup has more items of any kind than `now`; a backup by another release always counts as
    more."""
    try:
        earlier = Store(backup)
    except LedgerDamaged:
        return False
    except LedgerError:
        return True
    try:
        return any(before > after for before, after in zip(earlier.committed(), now, strict=True))
    finally:
        earlier.close()


def _task(row: Any) -> Task:
    try:
        task = _TASK.validate_json(row["content"])
    except ValidationError as e:
        fault = e.errors()[0]["msg"]
    else:
        fault = ""
        if task.task_id != row["task_id"]:
            fault = "it has another id"
        elif (row["n_deliverables"] or 0) > len(task.deliverables):
            fault = "it requests fewer images than have been planned for it"
    if fault:
        raise LedgerError(
            f"the ledger's task {row['task_id'][:80]!r} is invalid ({fault}): "
            "the run directory was changed by hand or written by another release; repeat the run"
        )
    return task
