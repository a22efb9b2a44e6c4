"""Reads rows in order of their work ids: as columns, which takes a fraction of the time of rows, or next to others."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise, product
from typing import Any

from local_bench.runs.store.attempts import OF_ATTEMPTS, UNDECIDED, Attempts
from local_bench.runs.store.database import Database

AFTER_ALL = chr(0x10FFFF)
"""A text after all work ids."""
_DIGITS = "0123456789abcdef"
_DIGITS_BY_CANDIDATES = {2_000: 0, 2_000_000: 2}
"""Numbers of candidates below which they are read in parts by so many digits of the work id, for more of them by three:
SQLite limits the length of the text of a part, and a short one fits the processor's cache."""
Limits = tuple[str, str]
"""The first work id of a part and the one after its last."""
_PART = "c.work_id >= ? AND c.work_id < ?"
_OF_CANDIDATE = "c.work_id, c.model, c.task_id, t.category, c.deliverable, c.attempt"
Columns = dict[str, Sequence[Any]]
"""Columns of rows by name."""


class ColumnReader(Database):
    """Access to rows in order of work ids."""

    def parts(self) -> list[Limits]:
        """The limits of parts of all candidates, ascending."""
        n = self.rows("SELECT count(*) FROM candidates")[0][0]
        digits = next((digits for below, digits in _DIGITS_BY_CANDIDATES.items() if n < below), 3)
        firsts = list(map("".join, product(_DIGITS, repeat=digits)))
        return list(pairwise(["", *firsts[1:], AFTER_ALL]))

    def _columns(self, columns: str, query: str, *values: Any) -> Iterator[list[list[Any]]]:
        """The columns of a query about candidates `c`, in parts by work id. `columns` are their names, separated by
        commas; they have texts, integers or null. The query ends in a condition."""
        arrays = ", ".join(f"json_group_array({name})" for name in columns.split(","))
        return ([json.loads(text) for text in row] for row in self._aggregates(arrays, query, *values))

    def _aggregates(self, aggregates: str, query: str, *values: Any) -> Iterator[sqlite3.Row]:
        """Aggregates of the rows of a query as for `_columns`, in order of work ids, of each part by work id."""
        statement = f"SELECT {aggregates} FROM ({query} AND {_PART} ORDER BY c.work_id)"
        with self._faults():
            yield from self._at_once([partial(_one_row, query=statement, values=(*values, *p)) for p in self.parts()])

    @cached_property
    def _candidates(self) -> str:
        """The table `candidates AS c` for joins in order of work ids that use columns of its index alone: by itself
        SQLite reads the rows, which takes several times longer."""
        index = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'candidates_results'"
        return "candidates AS c INDEXED BY candidates_results" if self.rows(index) else "candidates AS c"

    def attempts(self) -> Attempts:
        """All candidates as columns. LedgerDamaged if one is of a task that does not exist."""
        return self.once("attempts", self._attempts, OF_ATTEMPTS)

    def _attempts(self) -> Attempts:
        found = self.no_attempts()
        for model, task_ids, *columns in self._columns(
            "model, task_id, deliverable, attempt, made, decision",
            f"""SELECT c.model, c.task_id, c.deliverable, c.attempt, c.state = 'done' AS made,
                  ifnull(d.accepted <> 0, {UNDECIDED}) AS decision
                FROM {self._candidates} LEFT JOIN decisions AS d USING (work_id) WHERE TRUE""",
        ):
            found.add(model, self.task_numbers(found, task_ids), *columns)
        return found

    def no_attempts(self) -> Attempts:
        """The tasks without candidates, which the caller adds."""
        chunks = self._chunks("SELECT task_id, category, price_micro_usd FROM tasks")
        return Attempts(sorted(chain.from_iterable(chunks)))

    def task_numbers(self, of: Attempts, task_ids: Iterable[str]) -> list[int]:
        """The numbers of the tasks of some candidates. LedgerDamaged if one does not exist, which is not found on
        opening a large file."""
        try:
            return of.task_numbers(task_ids)
        except KeyError as e:
            lost = str(e.args[0])[:60]
            raise self._damaged(
                f"is damaged or forged (it has a candidate of the task {lost!r}, which it lacks)"
            ) from None

    def candidate_columns(self, limits: Limits) -> Columns:
        """The candidates of a part with their task's category and price and the decisions on them, by work id."""
        return self._named(
            f"""SELECT {_OF_CANDIDATE}, prompt, seed, height, width, state, c.unscored, identity, pixels_sha256,
                  accepted, d.unscored AS decision_unscored,
                  t.price_micro_usd AS task_price_micro_usd, work, batch_size, truncated, cost_micro_usd, c.position
                FROM candidates AS c CROSS JOIN tasks AS t USING (task_id) LEFT JOIN decisions AS d USING (work_id)
                WHERE {_PART} ORDER BY c.work_id""",
            *limits,
        )

    def verdict_columns(self, limits: Limits) -> Columns:
        """The verdicts of the run's judges on the candidates of a part, by candidate, judge, rubric, point and
        repeat."""
        judges, names = self._of_judges(None)
        return self._named(
            f"""SELECT {_OF_CANDIDATE}, rubric, point, repeat, answer, labels, v.unscored, raw, question_id,
                  rubric_sha256, judge
                FROM candidates AS c CROSS JOIN tasks AS t USING (task_id) CROSS JOIN verdicts AS v USING (work_id)
                WHERE {_PART} AND {judges} ORDER BY c.work_id, judge, rubric, point, repeat""",
            *limits,
            *names,
        )

    def score_columns(self, limits: Limits) -> Columns:
        """The scores of the candidates of a part, by candidate and name."""
        return self._named(
            f"""SELECT {_OF_CANDIDATE}, name, kind, value, s.unscored, applies, spread
                FROM candidates AS c CROSS JOIN tasks AS t USING (task_id) CROSS JOIN scores AS s USING (work_id)
                WHERE {_PART} ORDER BY c.work_id, name""",
            *limits,
        )

    def value_columns(self, limits: Limits) -> Columns:
        """The scores with a value of the candidates of a part, by candidate and name."""
        return self._named(
            f"""SELECT c.model, c.task_id, c.position, name, value
                FROM candidates AS c CROSS JOIN scores AS s USING (work_id)
                WHERE {_PART} AND value IS NOT NULL ORDER BY c.work_id, name""",
            *limits,
        )

    def _named(self, query: str, *values: Any) -> Columns:
        with self._faults():
            cursor = self._db.cursor()
            cursor.row_factory = None
            rows = cursor.execute(query, values).fetchall()
        names = [column[0] for column in cursor.description]
        return dict(zip(names, zip(*rows, strict=True) if rows else ((),) * len(names), strict=True))

    def _by_work_id(self, query: str, *values: Any) -> "Lookup":
        """Looks up the values of a query for rows of a work id and its value, ascending."""
        return Lookup(self._chunks(query, *values))


def _one_row(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> sqlite3.Row:
    row: sqlite3.Row = db.execute(query, values).fetchone()
    return row


class Lookup:
    """Finds values by work id for lists of work ids that ascend from call to call. Reading two tables in this order is
    several times faster than a join, which looks up every row."""

    def __init__(self, chunks: Iterator[list[tuple[str, Any]]]) -> None:
        """`chunks`: rows of a work id and its value, ascending."""
        self._chunks = chunks
        self._known: dict[str, Any] = {}
        self._last = ""

    def values(self, work_ids: Sequence[str]) -> Sequence[Any]:
        """The value of each work id, None where there is none."""
        if not work_ids:
            return []
        last = work_ids[-1]
        while self._last < last:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._last = AFTER_ALL
                break
            keys, values = zip(*chunk, strict=True)
            self._last = keys[-1]
            if keys == tuple(work_ids):  # both tables have the same work ids, which is usual
                self._known = {last: values[-1]}
                return values
            self._known.update(zip(keys, values, strict=True))
        found = list(map(self._known.get, work_ids))
        self._known = {key: value for key, value in self._known.items() if key >= last}
        return found
