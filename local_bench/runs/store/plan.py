"""Tasks and candidates of the plan in the run's database."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from local_bench.core.errors import LedgerError
from local_bench.core.identity import canonical_json
from local_bench.core.types import Decision, Task
from local_bench.runs.store.rows import (
    CandidateRow,
    OutcomeRow,
)
from local_bench.runs.store.summaries import SummaryStore

T = TypeVar("T")
_TASK = TypeAdapter(Task)


def columns(kind: type) -> str:
    """The columns of a row type, comma-separated."""
    return ", ".join(field.name.removesuffix("_json") for field in fields(kind))


_CANDIDATE = columns(CandidateRow)
_OF_CANDIDATE = ", ".join(f"c.{name}" for name in _CANDIDATE.split(", "))
_OF_TASK = """task_id, content,
  (SELECT max(deliverable) FROM candidates AS c WHERE c.task_id = tasks.task_id) AS n_deliverables"""
_FIRST_TASKS = "task_id IN (SELECT task_id FROM tasks ORDER BY position, task_id LIMIT ?)"
AT_ONCE = 500
"""Ids in one query; SQLite has a limit on variables."""
FIRST_CANDIDATES = f"work_id IN (SELECT work_id FROM candidates WHERE {_FIRST_TASKS})"


class PlanStore(SummaryStore):
    """Access to tasks and candidates. Rows are returned in the order stated in each docstring."""

    def add_plan(self, positions: Sequence[int], tasks: Sequence[Task], candidates: Iterable[CandidateRow]) -> None:
        """Store the plan of a run that has none, in one transaction. `positions` are those of the tasks."""
        marks = ", ".join("?" * len(fields(CandidateRow)))
        with self.transaction():
            self.write_many(
                "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (t.task_id, i, t.category, t.price_micro_usd, canonical_json(t.content), t.unscored)
                    for i, t in zip(positions, tasks, strict=True)
                ),
            )
            self.write_many(
                f"INSERT INTO candidates ({_CANDIDATE}) VALUES ({marks})",
                (tuple(getattr(c, f.name) for f in fields(c)) for c in candidates),
            )
            self.set_meta("planned", "1")

    def extend_plan(self, positions: Sequence[int], tasks: Sequence[Task], candidates: Sequence[CandidateRow]) -> None:
        """Add tasks and candidates to the plan in one transaction. `tasks` and `candidates` are the complete new plan;
        existing rows only get their new position, and unscored candidates that are not in it any more are removed."""
        marks = ", ".join("?" * len(fields(CandidateRow)))
        with self.transaction():
            self.write_many(
                """INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)
                   ON CONFLICT (task_id) DO UPDATE SET position = excluded.position""",
                (
                    (t.task_id, i, t.category, t.price_micro_usd, canonical_json(t.content), t.unscored)
                    for i, t in zip(positions, tasks, strict=True)
                ),
            )
            self._remove_replaced({row.work_id for row in candidates})
            self.write_many(
                f"""INSERT INTO candidates ({_CANDIDATE}) VALUES ({marks})
                    ON CONFLICT (work_id) DO UPDATE SET position = excluded.position""",
                (tuple(getattr(c, f.name) for f in fields(c)) for c in candidates),
            )

    def _remove_replaced(self, work_ids: set[str]) -> None:
        rows = self.rows("SELECT work_id FROM candidates WHERE state = 'unscored'")
        removed = [(row["work_id"],) for row in rows if row["work_id"] not in work_ids]
        for table in ("verdicts", "retests", "scores", "decisions", "candidates"):
            self.write_many(f"DELETE FROM {table} WHERE work_id = ?", removed)

    @property
    def planned(self) -> bool:
        """Whether the plan has been stored."""
        return bool(self.meta("planned"))

    def tasks(self, limit: int | None = None) -> list[Task]:
        """The tasks of the plan, in its order. LedgerError if one cannot be read."""
        rows = self.rows(f"SELECT {_OF_TASK} FROM tasks ORDER BY position, task_id LIMIT ?", _limit(limit))
        return [_task(row) for row in rows]

    def tasks_of(self, task_ids: Sequence[str]) -> list[Task]:
        """Tasks of these ids, by id. LedgerError if one cannot be read."""
        found: list[Task] = []
        for at in range(0, len(task_ids), AT_ONCE):
            part = task_ids[at : at + AT_ONCE]
            marks = ", ".join("?" * len(part))
            rows = self.rows(f"SELECT {_OF_TASK} FROM tasks WHERE task_id IN ({marks}) ORDER BY task_id", *part)
            found += [_task(row) for row in rows]
        return found

    def each_task(self) -> Iterator[tuple[Task, str, str, int]]:
        """(task, its stored content, category, price in micro-USD) of every task, in the plan's order, read as needed.
        LedgerError if one cannot be read."""
        for row in self._stream(f"SELECT {_OF_TASK}, category, price_micro_usd FROM tasks ORDER BY position, task_id"):
            yield _task(row), row["content"], row["category"], row["price_micro_usd"]

    def task_contents(self) -> dict[str, str]:
        """Task id -> canonical JSON, in the plan's order. LedgerError if one is not a task."""
        rows = self.rows(f"SELECT {_OF_TASK} FROM tasks ORDER BY position, task_id")
        return {_task(row).task_id: row["content"] for row in rows}

    def input_digests(self) -> list[str]:
        """Pixel digests of the input images of all tasks, sorted. LedgerError if one is not a task."""
        found: set[str | None] = set()
        for task, *_ in self.each_task():
            found.update((task.source_sha256, task.mask_sha256, *task.reference_sha256))
        return sorted(filter(None, found))

    def task_positions(self) -> dict[str, int]:
        """Task id -> index among the tasks of all shards."""
        return {row["task_id"]: row["position"] for row in self.rows("SELECT task_id, position FROM tasks")}

    def candidates(self, model: str | None = None) -> list[CandidateRow]:
        """Candidates of a model or of all, in the plan's order."""
        return list(self.each_candidate(model))

    def each_candidate(self, model: str | None = None) -> Iterator[CandidateRow]:
        """As `candidates`, read as needed."""
        query = f"SELECT {_CANDIDATE} FROM candidates WHERE model = ?1 OR ?1 IS NULL ORDER BY position"
        return (CandidateRow(*row) for rows in self._chunks(query, model) for row in rows)

    def images(self) -> Iterator[tuple[str, str, int, int, str, str | None]]:
        """(task, model, attempt, deliverable, work id, pixel digest or None without an image) of every candidate, in
        the plan's order, read as needed."""
        return chain.from_iterable(
            self._chunks(
                """SELECT task_id, model, attempt, deliverable, work_id, iif(state = 'done', pixels_sha256, NULL)
                   FROM candidates ORDER BY position"""
            )
        )

    def images_by_task(self) -> Iterator[tuple[str, str, int, int, str, str | None]]:
        """As `images`, by task id and deliverable."""
        return chain.from_iterable(
            self._chunks(
                """SELECT task_id, model, attempt, deliverable, work_id, iif(state = 'done', pixels_sha256, NULL)
                   FROM candidates ORDER BY task_id, deliverable, model, attempt"""
            )
        )

    def candidate(self, work_id: str) -> CandidateRow:
        (row,) = self.rows(f"SELECT {_CANDIDATE} FROM candidates WHERE work_id = ?", work_id)
        return CandidateRow(*row)

    def n_deliverables(self) -> dict[tuple[str, str], int]:
        """(task, model) -> number of the task's deliverables for this model."""
        rows = self._stream("SELECT task_id, model, count(DISTINCT deliverable) FROM candidates GROUP BY 1, 2")
        return {(task_id, model): n for task_id, model, n in rows}

    def outcomes(self, attempt: int | None = None, first_tasks: int | None = None) -> list[OutcomeRow]:
        """Candidates with price and decision, in the plan's order: of one attempt or of all; of the first tasks."""
        rows = self.rows(
            f"""SELECT {_OF_CANDIDATE}, t.category, t.price_micro_usd, n.deliverables, d.work_id IS NOT NULL,
                d.accepted, d.unscored
                FROM candidates c JOIN tasks t USING (task_id) LEFT JOIN decisions d USING (work_id)
                JOIN (SELECT task_id, model, count(DISTINCT deliverable) AS deliverables FROM candidates
                      GROUP BY task_id, model) n USING (task_id, model)
                WHERE (c.attempt = ?1 OR ?1 IS NULL) AND {_FIRST_TASKS.replace("?", "?2")} ORDER BY c.position""",
            attempt,
            _limit(first_tasks),
        )
        n = len(fields(CandidateRow))
        return [self._typed(_outcome, row, n) for row in rows]

    def enter_image(
        self,
        work_id: str,
        *,
        identity: str,
        pixels_sha256: str | None,
        unscored: str | None,
        batch_size: int | None,
        truncated: Mapping[str, int],
    ) -> None:
        """Store that an image was generated, or why it was not. Its unscored metrics are deleted, so that they are
        computed again."""
        self.write("DELETE FROM scores WHERE work_id = ? AND kind = 'metric' AND unscored IS NOT NULL", work_id)
        self.write(
            """UPDATE candidates SET state = ?, identity = ?, pixels_sha256 = ?, unscored = ?, batch_size = ?,
               truncated = ? WHERE work_id = ?""",
            "unscored" if pixels_sha256 is None else "done",
            identity,
            pixels_sha256,
            unscored,
            batch_size,
            json.dumps(truncated, sort_keys=True),
            work_id,
        )


def _limit(n: int | None) -> int:
    return -1 if n is None else n  # SQLite's value for no limit


def _task(row: sqlite3.Row) -> Task:
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


def _outcome(row: sqlite3.Row, n: int) -> OutcomeRow:
    category, price, deliverables, decided, accepted, unscored = row[n:]
    row_decision = decision(accepted, unscored) if decided else None
    return OutcomeRow(CandidateRow(*row[:n]), category, price, deliverables, row_decision)


def decision(accepted: int | None, unscored: str | None) -> Decision:
    return Decision(None if accepted is None else bool(accepted), unscored)
