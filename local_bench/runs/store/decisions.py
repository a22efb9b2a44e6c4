"""The decisions on candidates. SQLite computes them from the stored scores by case: candidates whose scores compare
with the thresholds in the same way have equal decisions, so that the caller applies the rule once per case."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

from local_bench.core.types import Decision
from local_bench.runs.store.plan import PlanStore, decision
from local_bench.runs.store.rows import Case, CaseRow, DecidedRow, DecisionRow, Reason

_HALVES = ("c.work_id < '8'", "c.work_id >= '8'")
"""Conditions that divide the candidates, whose work ids are hex digits, for queries that run at the same time."""
_PER_NUMBER = 20
"""Digits of a case in one 64-bit integer."""
_NEW = "(excluded.accepted, excluded.unscored, excluded.price_micro_usd)"
_INSERT = "INSERT INTO decisions (work_id, accepted, unscored, price_micro_usd)"


class DecisionStore(PlanStore):
    """Access to decisions. Rows are returned in the order stated in each docstring."""

    def decisions(self) -> list[DecisionRow]:
        """All decisions, by candidate."""
        return [
            DecisionRow(work_id, self._typed(decision, accepted, unscored), price)
            for work_id, accepted, unscored, price in self.each_decided()
        ]

    def each_decided(self) -> Iterator[DecidedRow]:
        """As `decisions`, as plain rows, read as needed."""
        return chain.from_iterable(
            self._chunks("SELECT work_id, accepted, unscored, price_micro_usd FROM decisions ORDER BY work_id")
        )

    def undecided(self, limit: int) -> list[Reason]:
        """Why first attempts have no decision, by model; the most frequent reasons first."""
        rows = self.rows(
            """SELECT c.model, d.unscored, count(*) FROM decisions d JOIN candidates c USING (work_id)
               WHERE d.accepted IS NULL AND c.attempt = 1 GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?""",
            limit,
        )
        return [Reason(*row) for row in rows]

    def replace_decisions(self, decisions: Iterable[DecisionRow]) -> None:
        """Replaces all decisions in one transaction."""
        with self.transaction():
            self.write("DELETE FROM decisions")
            self.write_many(
                f"{_INSERT} VALUES (?, ?, ?, ?)",
                (
                    (d.work_id, *_stored(d.decision), d.price_micro_usd)
                    for d in sorted(decisions, key=attrgetter("work_id"))
                ),
            )

    def cases(self, thresholds: Mapping[str, float]) -> list[CaseRow]:
        """The cases of all candidates with an image, each with one of its candidates; a case can have several rows.

        Candidates have the same case if each score in `thresholds` is absent, not applicable, unscored for the same
        reason, below its threshold, or not below it for all of them."""
        case, values = _case(thresholds)
        query = f"""WITH {_PRICES}
            SELECT {case}, min(c.work_id), min(ifnull(d.accepted, d.unscored)), max(ifnull(d.accepted, d.unscored)),
              min(ifnull(d.price_micro_usd = price.micro_usd, FALSE))
            FROM {self._candidates} CROSS JOIN price USING (task_id) LEFT JOIN decisions AS d USING (work_id)
            WHERE c.state = 'done' AND {{half}} GROUP BY 1"""
        with self._faults():
            parts = self._at_once([partial(_rows, query=query.format(half=half), values=values) for half in _HALVES])
        return [CaseRow(*row) for row in chain.from_iterable(parts)]

    def rest_is_decided(self) -> bool:
        """Whether the decision on every candidate without an image says so, and there are not more decisions than
        candidates."""
        (row,) = self.rows(
            f"""SELECT (SELECT count(*) FROM decisions) <= (SELECT count(*) FROM candidates) AND NOT EXISTS (
                  SELECT 1 FROM candidates AS c JOIN tasks AS t USING (task_id) LEFT JOIN decisions AS d USING (work_id)
                  WHERE c.state <> 'done' AND (d.accepted, d.unscored, d.price_micro_usd)
                    IS NOT (NULL, {_NO_IMAGE}, t.price_micro_usd))"""
        )
        return bool(row[0])

    def decide(self, thresholds: Mapping[str, float], decisions: Mapping[Case, Decision]) -> None:
        """Replaces all decisions by those that follow from `decisions`, which has every case, in one transaction. Rows
        that are stored as they are already are not written again."""
        with self.transaction():
            query, values = self._decided(thresholds, decisions)
            self.write("DELETE FROM decisions WHERE work_id NOT IN (SELECT work_id FROM candidates)")
            self._enter_decided(query, values)

    def _enter_decided(self, query: str, values: Sequence[Any]) -> None:
        self.write(
            f"""{_INSERT} {query} WHERE TRUE ORDER BY work_id
                ON CONFLICT (work_id) DO UPDATE SET (accepted, unscored, price_micro_usd) = {_NEW}
                WHERE (accepted, unscored, price_micro_usd) IS NOT {_NEW}""",
            *values,
        )

    def other_decisions(
        self, thresholds: Mapping[str, float], decisions: Mapping[Case, Decision]
    ) -> Iterator[tuple[str, bool]]:
        """(work id, whether there is such a candidate) of every stored or missing decision that `decide` would change,
        by work id, read as needed."""
        query, values = self._decided(thresholds, decisions)
        yield from chain.from_iterable(
            self._chunks(
                f"""SELECT work_id, TRUE FROM ({query}) AS new LEFT JOIN decisions AS d USING (work_id)
                    WHERE (d.accepted, d.unscored, d.price_micro_usd)
                      IS NOT (new.accepted, new.unscored, new.price_micro_usd)
                    UNION ALL SELECT work_id, FALSE FROM decisions
                    WHERE work_id NOT IN (SELECT work_id FROM candidates) ORDER BY work_id""",
                *values,
            )
        )

    def _decided(self, thresholds: Mapping[str, float], decisions: Mapping[Case, Decision]) -> tuple[str, list[Any]]:
        """A query for the decision on every candidate, without its WHERE, and its values. The decisions on cases are
        entered in a temporary table, since there can be many."""
        self.write('CREATE TEMP TABLE IF NOT EXISTS found ("case" PRIMARY KEY, accepted, unscored) WITHOUT ROWID')
        self.write("DELETE FROM temp.found")
        self.write_many(
            "INSERT INTO temp.found VALUES (?, ?, ?)", ((case, *_stored(one)) for case, one in decisions.items())
        )
        case, values = _case(thresholds)
        query = f"""WITH {_PRICES}
            SELECT c.work_id, found.accepted, iif(c.state = 'done', found.unscored, {_NO_IMAGE}) AS unscored,
              price.micro_usd AS price_micro_usd
            FROM {self._candidates} CROSS JOIN price USING (task_id)
            LEFT JOIN temp.found AS found ON found."case" = iif(c.state = 'done', {case}, NULL)"""
        return query, values


_PRICES = "price AS MATERIALIZED (SELECT task_id, price_micro_usd AS micro_usd FROM tasks)"
"""The prices without the tasks' contents: a table that fits the cache and is looked up in any order."""
_NO_IMAGE = "CASE c.state WHEN 'unscored' THEN c.unscored ELSE 'its image has not been made' END"
"""Why a candidate has no image, and therefore no decision."""


def _case(thresholds: Mapping[str, float]) -> tuple[str, list[Any]]:
    """The SQL expression of the case of a candidate `c`, and its values.

    A case is a number with one digit per score, to base 5, and the reasons of its unscored scores if it has any."""
    if not thresholds:
        return "0", []
    named = list(thresholds.items())
    parts = [named[at : at + _PER_NUMBER] for at in range(0, len(named), _PER_NUMBER)]
    number = " || ' ' || ".join(
        f"sum(CASE name {' '.join(f'WHEN ? THEN {5**i} * {_STATE}' for i in range(len(part)))} ELSE 0 END)"
        for part in parts
    )
    of_number = list(chain.from_iterable(named))
    reasons = f"""group_concat(CASE WHEN applies AND value IS NULL AND name IN ({", ".join("?" * len(named))})
        THEN name || quote(unscored) END)"""
    case = f"""(SELECT ifnull({number} || {reasons}, ifnull({number}, 0))
        FROM scores WHERE work_id = c.work_id AND kind = 'judge')"""
    return case, [*of_number, *thresholds, *of_number]


_STATE = "CASE WHEN NOT applies THEN 1 WHEN value IS NULL THEN 2 WHEN value < ? THEN 3 ELSE 4 END"
"""The digit of a score in a case; 0 if it is absent."""


def _stored(decision: Decision) -> tuple[int | None, str | None]:
    return None if decision.accepted is None else int(decision.accepted), decision.unscored


def _rows(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[sqlite3.Row]:
    return db.execute(query, values).fetchall()
