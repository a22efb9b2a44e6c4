"""Tasks and candidates of the plan in the run's database."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from local_bench.core import strictjson
from local_bench.core.errors import LedgerDamaged, LedgerError
from local_bench.core.identity import canonical_json
from local_bench.core.types import Decision, Task
from local_bench.runs.store.contents import ContentStore
from local_bench.runs.store.rows import (
    CandidateRow,
    Counts,
    FirstAttempt,
    GeneratedRow,
    ModelProgress,
    OutcomeRow,
    truncated_tokens,
)

T = TypeVar("T")
_TASK = TypeAdapter(Task)


def columns(kind: type) -> str:
    """The columns of a row type, comma-separated."""
    return ", ".join(field.name.removesuffix("_json") for field in fields(kind))


_CANDIDATE = columns(CandidateRow)
_OF_CANDIDATE = ", ".join(f"c.{name}" for name in _CANDIDATE.split(", "))
_FIRST_TASKS = "task_id IN (SELECT task_id FROM tasks ORDER BY position, task_id LIMIT ?)"
AT_ONCE = 500
"""Ids in one query; SQLite has a limit on variables."""
FIRST_CANDIDATES = f"work_id IN (SELECT work_id FROM candidates WHERE {_FIRST_TASKS})"


class PlanStore(ContentStore):
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
        rows = self.rows("SELECT task_id, content FROM tasks ORDER BY position, task_id LIMIT ?", _limit(limit))
        return [_task(row) for row in rows]

    def tasks_of(self, task_ids: Sequence[str]) -> list[Task]:
        """Tasks of these ids, by id. LedgerError if one cannot be read."""
        found: list[Task] = []
        for at in range(0, len(task_ids), AT_ONCE):
            part = task_ids[at : at + AT_ONCE]
            marks = ", ".join("?" * len(part))
            rows = self.rows(f"SELECT task_id, content FROM tasks WHERE task_id IN ({marks}) ORDER BY task_id", *part)
            found += [_task(row) for row in rows]
        return found

    def each_task(self) -> Iterator[tuple[Task, str, str, int]]:
        """(task, its stored content, category, price in micro-USD) of every task, in the plan's order, read as needed.
        LedgerError if one cannot be read."""
        for row in self._stream(
            "SELECT task_id, content, category, price_micro_usd FROM tasks ORDER BY position, task_id"
        ):
            yield _task(row), row["content"], row["category"], row["price_micro_usd"]

    def task_contents(self) -> dict[str, str]:
        """Task id -> canonical JSON, in the plan's order. LedgerError if one is not a task."""
        rows = self.rows("SELECT task_id, content FROM tasks ORDER BY position, task_id")
        return {_task(row).task_id: row["content"] for row in rows}

    def task_positions(self) -> dict[str, int]:
        """Task id -> index among the tasks of all shards."""
        return {row["task_id"]: row["position"] for row in self.rows("SELECT task_id, position FROM tasks")}

    def task_totals(self) -> tuple[int, int]:
        """(number of tasks, their value in micro-USD)"""
        row = self.rows("SELECT count(*), coalesce(sum(price_micro_usd), 0) FROM tasks")[0]
        return int(row[0]), int(row[1])

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

    def candidate(self, work_id: str) -> CandidateRow:
        (row,) = self.rows(f"SELECT {_CANDIDATE} FROM candidates WHERE work_id = ?", work_id)
        return CandidateRow(*row)

    def models(self) -> list[str]:
        """Names of the models of the plan, sorted."""
        return [row["model"] for row in self.rows("SELECT DISTINCT model FROM candidates ORDER BY model")]

    def n_candidates(self, made: bool = False) -> dict[str, int]:
        """Model -> number of its candidates, or of its finished images."""
        where = "WHERE state = 'done'" if made else ""
        rows = self.rows(f"SELECT model, count(*) AS n FROM candidates {where} GROUP BY model ORDER BY model")
        return {row["model"]: row["n"] for row in rows}

    def planned_by_model(self) -> dict[str, int]:
        """Model -> the number of its images that have not been generated."""
        rows = self.rows("SELECT model, count(*) FROM candidates WHERE state = 'planned' GROUP BY model")
        return dict(map(tuple, rows))

    def most_attempts(self) -> int:
        """The highest number of an attempt."""
        return int(self.rows("SELECT ifnull(max(attempt), 0) FROM candidates")[0][0])

    def counts(self) -> Counts:
        where, judges = self._of_judges(None)
        row = self.rows(
            f"""SELECT count(*), coalesce(sum(state = 'done'), 0), coalesce(sum(state = 'unscored'), 0),
                (SELECT count(*) FROM verdicts WHERE {where}),
                (SELECT count(*) FROM verdicts WHERE unscored IS NOT NULL AND {where}) FROM candidates""",
            *judges,
            *judges,
        )[0]
        return Counts(*row)

    def n_unscored(self, reason: str) -> int:
        """Candidates without an image for this reason."""
        return int(self.rows("SELECT count(*) FROM candidates WHERE unscored = ?", reason)[0][0])

    def generated(self) -> list[GeneratedRow]:
        """Numbers of finished images by model, size, input images and batch size, sorted."""
        return self.once(
            "generated",
            lambda: [
                GeneratedRow(model, height, width, self._typed(_texts, inputs), batch_size, n)
                for model, height, width, inputs, batch_size, n in self.rows(_GENERATED)
            ],
        )

    def truncations(self) -> list[tuple[str, str, dict[str, int]]]:
        """(model, prompt, number of tokens that each encoder truncated) of all distinct prompts, sorted."""
        rows = self.rows(
            """SELECT DISTINCT model, prompt, truncated FROM candidates
               WHERE truncated IS NOT NULL AND truncated <> '{}' ORDER BY model, prompt, truncated"""
        )
        return [(model, prompt, truncated_tokens(text)) for model, prompt, text in rows]

    def progress(self) -> list[ModelProgress]:
        """Numbers of candidates by model, sorted."""
        rows = self.rows(
            f"""SELECT c.model, count(*), sum(c.state = 'planned'), sum(c.attempt = 1),
                  sum(c.attempt = 1 AND d.work_id IS NULL)
                FROM {self._candidates} LEFT JOIN decisions AS d USING (work_id) GROUP BY c.model ORDER BY c.model"""
        )
        return [ModelProgress(*row) for row in rows]

    def image_digests(self) -> list[str]:
        """Pixel digests of all finished images, sorted."""
        found: set[str] = set()
        query = f"SELECT c.pixels_sha256 FROM {self._candidates} WHERE c.state = 'done'"
        for _, (digests,) in self._columns("pixels_sha256", query):
            found.update(digests)
        return sorted(found)

    def input_digests(self) -> list[str]:
        """Pixel digests of the input images of all tasks, sorted."""
        keys = "'$.source_sha256', '$.mask_sha256', '$.reference_sha256'"
        found: set[str] = set()
        for (text,) in self.rows(f"SELECT DISTINCT json_extract(content, {keys}) FROM tasks"):
            source, mask, references = strictjson.stored(text)
            found |= {sha for sha in (source, mask, *(references or ())) if sha}
        return sorted(found)

    def imported_models(self) -> list[str]:
        """Models with imported images."""
        return self._models_with("$.model.imported")

    def imported_costs(self) -> dict[str, int | None]:
        """Model -> cost of its imported images in micro-USD; None if any cost is unknown."""
        imported = self._models_with("$.pixels")
        if not imported:
            return {}
        rows = self.rows(
            f"""SELECT model, sum(cost_micro_usd) AS cost, count(*) - count(cost_micro_usd) AS unknown FROM candidates
                WHERE state = 'done' AND model IN ({", ".join("?" * len(imported))}) GROUP BY model""",
            *imported,
        )
        return {row["model"]: None if row["unknown"] else row["cost"] for row in rows}

    def _models_with(self, key: str) -> list[str]:
        """Models whose work has a value or null under `key`, sorted; all works of a model have the same keys. The index
        `candidates_results` has a candidate of each model among its first entries."""
        rows = self.rows(
            """SELECT model FROM (SELECT DISTINCT model FROM candidates) AS m
               WHERE (SELECT json_type(work, ?) FROM candidates WHERE work_id = (
                   SELECT c.work_id FROM candidates AS c WHERE c.model = m.model LIMIT 1)) IS NOT NULL
               ORDER BY model""",
            key,
        )
        return [row["model"] for row in rows]

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

    def first_attempts(self) -> Iterator[FirstAttempt]:
        """Every candidate's first attempt with its decision, by work id, read as needed."""
        rows = self._stream(
            """SELECT c.model, c.task_id, t.category, t.price_micro_usd, c.deliverable, n.deliverables,
               c.state = 'done', d.work_id IS NOT NULL, d.accepted, d.unscored
               FROM candidates c JOIN tasks t USING (task_id) LEFT JOIN decisions d USING (work_id)
               JOIN (SELECT task_id, model, count(DISTINCT deliverable) AS deliverables FROM candidates
                     GROUP BY task_id, model) n USING (task_id, model)
               WHERE c.attempt = 1 ORDER BY c.work_id"""
        )
        for model, task_id, category, price, deliverable, n, made, decided, accepted, unscored in rows:
            found = self._typed(decision, accepted, unscored) if decided else None
            yield FirstAttempt(model, task_id, category, price, deliverable, n, bool(made), found)

    def attempts(self) -> Iterator[list[list[Any]]]:
        """The columns (model, task, deliverable, attempt, 1 if there is an image, 1 or 0 if accepted or not, None if
        undecided) of every candidate, by work id, in parts."""
        parts = self._columns(
            "model, task_id, deliverable, attempt, made, accepted",
            f"""SELECT c.model, c.task_id, c.deliverable, c.attempt, c.state = 'done' AS made,
                  d.accepted <> 0 AS accepted
                FROM {self._candidates} LEFT JOIN decisions AS d USING (work_id) WHERE TRUE""",
        )
        return (columns for _, columns in parts)

    def task_prices(self) -> list[tuple[str, str, int]]:
        """(task id, category, price in micro-USD) of every task, by task id."""
        rows = self._chunks("SELECT task_id, category, price_micro_usd FROM tasks ORDER BY task_id")
        return [row for chunk in rows for row in chunk]

    def lacks_task(self, task_id: str) -> LedgerDamaged:
        """The error about a candidate of a task that does not exist, which is not found on opening a large file."""
        return self._damaged(f"is damaged or forged (it has a candidate of the task {task_id[:60]!r}, which it lacks)")

    def enter_image(
        self,
        work_id: str,
        *,
        identity: str,
        pixels_sha256: str | None,
        unscored: str | None,
        batch_size: int,
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

    def _typed(self, build: Callable[..., T], *parts: Any) -> T:
        try:
            return build(*parts)
        except (AssertionError, TypeError, ValueError):
            raise LedgerError(
                f"{self.path} contains a row that no release of local-bench writes: it was changed by hand; repeat the "
                "run"
            ) from None


_GENERATED = """SELECT model, height, width,
      iif(instr(work, '"pictures":[]'), '[]', ifnull(json_extract(work, '$.pictures'), '[]')) AS inputs, batch_size,
      count(*)
    FROM candidates WHERE state = 'done' GROUP BY model, height, width, inputs, batch_size ORDER BY 1, 2, 3, 4, 5"""


def _texts(text: str) -> tuple[str, ...]:
    found = strictjson.stored(text)
    assert isinstance(found, list)
    assert all(isinstance(one, str) for one in found)
    return tuple(found)


def _limit(n: int | None) -> int:
    return -1 if n is None else n  # SQLite's value for no limit


def _task(row: sqlite3.Row) -> Task:
    try:
        task = _TASK.validate_json(row["content"])
        fault = None if task.task_id == row["task_id"] else "it has another id"
    except ValidationError as e:
        fault = e.errors()[0]["msg"]
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
