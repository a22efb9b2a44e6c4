"""The decisions on candidates, and the cases that they follow from: candidates whose scores compare with the thresholds
in the same way have equal decisions, so that the rule is applied once per case."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from local_bench.runs.store.attempts import OF_ATTEMPTS, Attempts
from local_bench.runs.store.plan import PlanStore, decision
from local_bench.runs.store.rows import (
    CaseColumns,
    DecidedRow,
    DecisionColumns,
    DecisionRow,
    Reason,
)

_PER_NUMBER = 20
"""Digits of a case in one 64-bit integer."""
_INSERT = "INSERT INTO decisions (work_id, accepted, unscored, price_micro_usd) VALUES (?, ?, ?, ?)"


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
                _INSERT,
                (
                    (
                        d.work_id,
                        None if d.decision.accepted is None else int(d.decision.accepted),
                        d.decision.unscored,
                        d.price_micro_usd,
                    )
                    for d in sorted(decisions, key=attrgetter("work_id"))
                ),
            )

    def cases(self, thresholds: Mapping[str, float]) -> Iterator[CaseColumns]:
        """The case of every candidate and the decision stored on it, by work id, in parts.

        Candidates with an image have the same case if each score in `thresholds` is absent, not applicable, unscored
        for the same reason, below its threshold, or not below it for all of them; those without one if it is for the
        same reason."""
        case, values = _case(thresholds)
        columns = "work_id, model, task_id, deliverable, attempt, of_case"
        select = f"""SELECT c.work_id, c.model, c.task_id, c.deliverable, c.attempt,
                       iif(c.state = 'done', {case}, {_NO_IMAGE}) AS of_case"""
        if not self.rows("SELECT 1 FROM decisions LIMIT 1"):
            parts = self._columns(columns, f"{select} FROM {self._candidates} WHERE TRUE", *values)
            return (CaseColumns(*[*of, *[[None] * len(of[0])] * 2]) for of in parts)
        parts = self._columns(
            f"{columns}, decision, price",
            f"""{select}, ifnull(d.accepted, d.unscored) AS decision, d.price_micro_usd AS price
                FROM {self._candidates} LEFT JOIN decisions AS d USING (work_id) WHERE TRUE""",
            *values,
        )
        return (CaseColumns(*of) for of in parts)

    def has_one_decision_each(self) -> bool:
        """Whether there are as many decisions as candidates."""
        return bool(self.rows("SELECT (SELECT count(*) FROM decisions) = (SELECT count(*) FROM candidates)")[0][0])

    def decisions_on_no_candidate(self) -> list[str]:
        """The work ids of decisions on candidates that do not exist, sorted."""
        rows = self.rows(
            """SELECT work_id FROM decisions AS d
               WHERE NOT EXISTS (SELECT 1 FROM candidates AS c WHERE c.work_id = d.work_id) ORDER BY work_id"""
        )
        return [row["work_id"] for row in rows]

    def keep_attempts(self, attempts: Attempts) -> None:
        """Let `attempts` return this, which the caller has made from `cases` and from the decisions it has stored."""
        self.once("attempts", lambda: attempts, OF_ATTEMPTS)

    def change_decisions(self, removed: Sequence[str], changed: Iterable[DecisionColumns]) -> None:
        """Remove the decisions with some work ids and add or replace others, in one transaction. The others are on
        candidates of this ledger, and can be computed from its rows (`cases`) as they are written."""
        with self.transaction_beside_readers():
            self._change(removed, changed)

    def _change(self, removed: Sequence[str], changed: Iterable[DecisionColumns]) -> None:
        self.write_many("DELETE FROM decisions WHERE work_id = ?", ((work_id,) for work_id in removed))
        self.write_many(
            f"""{_INSERT} ON CONFLICT (work_id) DO UPDATE SET (accepted, unscored, price_micro_usd) =
                  (excluded.accepted, excluded.unscored, excluded.price_micro_usd)""",
            chain.from_iterable(zip(*part, strict=True) for part in changed),
        )


NO_IMAGE = "!"
"""The first character of a case without an image, before the reason."""
_NO_IMAGE = f"""'{NO_IMAGE}' || CASE c.state WHEN 'unscored' THEN ifnull(c.unscored, 'no reason given')
    ELSE 'its image has not been made' END"""


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
    case = f"""(SELECT ifnull(number || reasons, ifnull(number, 0))
        FROM (SELECT {number} AS number, {reasons} AS reasons FROM scores
              WHERE work_id = c.work_id AND kind = 'judge'))"""
    return case, [*of_number, *thresholds]


_STATE = "CASE WHEN NOT applies THEN 1 WHEN value IS NULL THEN 2 WHEN value < ? THEN 3 ELSE 4 END"
"""The digit of a score in a case; 0 if it is absent."""
