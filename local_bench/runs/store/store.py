"""The store: all queries and writes of a run's SQLite file."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from local_bench.core.errors import LedgerError
from local_bench.core.identity import canonical_json
from local_bench.core.types import Decision, Score, Task
from local_bench.runs.store.database import Database
from local_bench.runs.store.rows import (
    BusyTime,
    CandidateRow,
    Counts,
    DecisionRow,
    Kind,
    MeterRow,
    OutcomeRow,
    Reason,
    RepeatRow,
    ScoreRow,
    ScoreSummary,
    SessionRow,
    VerdictRow,
)

T = TypeVar("T")
_TASK = TypeAdapter(Task)


def _columns(kind: type) -> str:
    return ", ".join(field.name.removesuffix("_json") for field in fields(kind))


_CANDIDATE = _columns(CandidateRow)
_OF_CANDIDATE = ", ".join(f"c.{name}" for name in _CANDIDATE.split(", "))
_FIRST_TASKS = "task_id IN (SELECT task_id FROM tasks ORDER BY position, task_id LIMIT ?)"
_FIRST_CANDIDATES = f"work_id IN (SELECT work_id FROM candidates WHERE {_FIRST_TASKS})"


class Store(Database):
    """Typed access to the run's tables. Rows are returned in the order stated in each docstring."""

    # tasks and candidates

    def add_plan(self, tasks: Sequence[Task], candidates: Iterable[CandidateRow]) -> None:
        """Store the plan of a run that has none, in one transaction."""
        marks = ", ".join("?" * len(fields(CandidateRow)))
        with self.transaction():
            self.write_many(
                "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (t.task_id, i, t.category, t.price_micro_usd, canonical_json(t.content), t.unscored)
                    for i, t in enumerate(tasks)
                ),
            )
            self.write_many(
                f"INSERT INTO candidates ({_CANDIDATE}) VALUES ({marks})",
                (tuple(getattr(c, f.name) for f in fields(c)) for c in candidates),
            )
            self.set_meta("planned", "1")

    @property
    def planned(self) -> bool:
        """Whether the plan has been stored."""
        return bool(self.meta("planned"))

    def tasks(self, limit: int | None = None) -> list[Task]:
        """The tasks of the plan, in its order. LedgerError if one cannot be read."""
        rows = self.rows("SELECT task_id, content FROM tasks ORDER BY position, task_id LIMIT ?", _limit(limit))
        return [_task(row) for row in rows]

    def task_contents(self) -> dict[str, str]:
        """Task id -> canonical JSON, in the plan's order."""
        return {r["task_id"]: r["content"] for r in self.rows("SELECT * FROM tasks ORDER BY position, task_id")}

    def task_totals(self) -> tuple[int, int]:
        """(number of tasks, their value in micro-USD)"""
        row = self.rows("SELECT count(*), coalesce(sum(price_micro_usd), 0) FROM tasks")[0]
        return int(row[0]), int(row[1])

    def candidates(self, model: str | None = None) -> list[CandidateRow]:
        """Candidates of a model or of all, in the plan's order."""
        rows = self.rows(f"SELECT {_CANDIDATE} FROM candidates WHERE model = ?1 OR ?1 IS NULL ORDER BY position", model)
        return [CandidateRow(*row) for row in rows]

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

    def counts(self) -> Counts:
        row = self.rows(
            """SELECT count(*), coalesce(sum(state = 'done'), 0), coalesce(sum(state = 'unscored'), 0),
               (SELECT count(*) FROM verdicts), (SELECT count(*) FROM verdicts WHERE unscored IS NOT NULL)
               FROM candidates"""
        )[0]
        return Counts(*row)

    def n_unscored(self, reason: str) -> int:
        """Candidates without an image for this reason."""
        return int(self.rows("SELECT count(*) FROM candidates WHERE unscored = ?", reason)[0][0])

    def image_digests(self) -> list[str]:
        """Pixel digests of all finished images, sorted."""
        rows = self.rows("SELECT DISTINCT pixels_sha256 AS sha FROM candidates WHERE state = 'done' ORDER BY 1")
        return [row["sha"] for row in rows]

    def imported_models(self) -> list[str]:
        """Models with imported images."""
        rows = self.rows("SELECT DISTINCT model FROM candidates WHERE json_type(work, '$.model.imported') IS NOT NULL")
        return [row["model"] for row in rows]

    def imported_costs(self) -> dict[str, int | None]:
        """Model -> cost of its imported images in micro-USD; None if any cost is unknown."""
        rows = self.rows(
            """SELECT model, sum(cost_micro_usd) AS cost, count(*) - count(cost_micro_usd) AS unknown FROM candidates
               WHERE state = 'done' AND json_extract(work, '$.pixels') IS NOT NULL GROUP BY model"""
        )
        return {row["model"]: None if row["unknown"] else row["cost"] for row in rows}

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

    # verdicts

    def verdicts(self, judge: str | None = None, first_tasks: int | None = None) -> list[VerdictRow]:
        """Verdicts of one judge or of all, by candidate, judge, rubric, point and repeat."""
        rows = self.rows(
            f"""SELECT {_columns(VerdictRow)} FROM verdicts WHERE (judge = ?1 OR ?1 IS NULL)
                {_of_first(first_tasks)} ORDER BY work_id, judge, rubric, point, repeat""",
            *((judge,) if first_tasks is None else (judge, first_tasks)),
        )
        return [VerdictRow(*row) for row in rows]

    def enter_verdicts(self, rows: Iterable[VerdictRow]) -> None:
        """Store verdicts in one transaction; a later verdict on a question replaces an earlier one."""
        self._enter("verdicts", VerdictRow, rows)

    def rubrics(self) -> list[str]:
        """Names of the rubrics with verdicts, sorted."""
        return [row["rubric"] for row in self.rows("SELECT DISTINCT rubric FROM verdicts ORDER BY rubric")]

    def repeats(self, judge: str | None = None) -> list[RepeatRow]:
        """Repeated answers of one judge or of all, by judge, candidate, rubric, point, repeat and round."""
        rows = self.rows(
            f"""SELECT {_columns(RepeatRow)} FROM retests WHERE judge = ?1 OR ?1 IS NULL
                ORDER BY judge, work_id, rubric, point, repeat, round""",
            judge,
        )
        return [RepeatRow(*row) for row in rows]

    def enter_repeats(self, rows: Iterable[RepeatRow]) -> None:
        """As `enter_verdicts`."""
        self._enter("retests", RepeatRow, rows)

    def enter_judges(self, names: Mapping[str, str]) -> None:
        """Store the run's judges (judge id -> name) and delete the answers of all others, in one transaction."""
        marks = ", ".join("?" * len(names))
        with self.transaction():
            self.set_meta("judges", json.dumps(names))
            for table in ("verdicts", "retests"):
                self.write(f"DELETE FROM {table} WHERE judge NOT IN ({marks})", *names)

    # scores and decisions

    def scores(self, kind: Kind | None = None, first_tasks: int | None = None) -> list[ScoreRow]:
        """Scores of one kind or of all, by candidate and name."""
        rows = self.rows(
            f"""SELECT work_id, kind, name, value, unscored, applies, spread FROM scores
                WHERE (kind = ?1 OR ?1 IS NULL) {_of_first(first_tasks)} ORDER BY work_id, name""",
            *((kind,) if first_tasks is None else (kind, first_tasks)),
        )
        return [self._typed(_score, row) for row in rows]

    def scores_by_candidate(self, kind: Kind | None = None) -> dict[str, dict[str, Score]]:
        """Work id -> name -> score, for candidates with scores."""
        found: dict[str, dict[str, Score]] = {}
        for row in self.scores(kind):
            found.setdefault(row.work_id, {})[row.score.name] = row.score
        return found

    def score_names(self) -> list[tuple[Kind, str]]:
        """(kind, name) of all scores, sorted."""
        return [(r["kind"], r["name"]) for r in self.rows("SELECT DISTINCT kind, name FROM scores ORDER BY kind, name")]

    def has_spreads(self) -> bool:
        """Whether any score has a standard deviation."""
        return bool(self.rows("SELECT 1 FROM scores WHERE spread IS NOT NULL LIMIT 1"))

    def score_summaries(self) -> list[ScoreSummary]:
        """One summary per score and model, by name and model."""
        rows = self.rows(
            """SELECT s.kind, s.name, c.model, avg(s.value), avg(s.spread), count(s.value), sum(NOT s.applies),
               sum(s.applies AND s.value IS NULL)
               FROM scores s JOIN candidates c USING (work_id) GROUP BY s.name, c.model ORDER BY s.name, c.model"""
        )
        return [ScoreSummary(*row) for row in rows]

    def unscored_scores(self, limit: int) -> list[Reason]:
        """Why scores have no value, by `name, model`; the most frequent reasons first."""
        rows = self.rows(
            """SELECT s.name || ', ' || c.model, coalesce(s.unscored, 'no reason given'), count(*)
               FROM scores s JOIN candidates c USING (work_id) WHERE s.value IS NULL AND s.applies
               GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?""",
            limit,
        )
        return [Reason(*row) for row in rows]

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

    def decisions(self) -> list[DecisionRow]:
        """All decisions, by candidate."""
        rows = self.rows("SELECT work_id, accepted, unscored, price_micro_usd FROM decisions ORDER BY work_id")
        return [
            DecisionRow(r["work_id"], self._typed(_decision, r["accepted"], r["unscored"]), r["price_micro_usd"])
            for r in rows
        ]

    def replace_decisions(self, decisions: Iterable[DecisionRow]) -> None:
        """Replaces all decisions in one transaction."""
        with self.transaction():
            self.write("DELETE FROM decisions")
            self.write_many(
                "INSERT INTO decisions (work_id, accepted, unscored, price_micro_usd) VALUES (?, ?, ?, ?)",
                (
                    (d.work_id, None if d.decision.accepted is None else int(d.decision.accepted), d.decision.unscored,
                     d.price_micro_usd)
                    for d in decisions
                ),
            )  # fmt: skip

    def undecided(self, limit: int) -> list[Reason]:
        """Why first attempts have no decision, by model; the most frequent reasons first."""
        rows = self.rows(
            """SELECT c.model, d.unscored, count(*) FROM decisions d JOIN candidates c USING (work_id)
               WHERE d.accepted IS NULL AND c.attempt = 1 GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT ?""",
            limit,
        )
        return [Reason(*row) for row in rows]

    # time

    def begin_session(self, started_utc: str, device: str) -> int:
        """Store a new session and return its number."""
        with self.transaction():
            self.write("INSERT INTO sessions (started_utc, device) VALUES (?, ?)", started_utc, device)
            return int(self.rows("SELECT max(session) FROM sessions")[0][0])

    def enter_time(self, row: MeterRow, held_ns: int) -> None:
        """Store a meter row and the session's total time."""
        with self.transaction():
            self.write("INSERT INTO meter VALUES (?, ?, ?, ?, ?, ?, ?)", *vars(row).values())
            self.write("UPDATE sessions SET held_ns = ? WHERE session = ?", held_ns, row.session)

    def end_session(self, session: int, how: str) -> None:
        self.write("UPDATE sessions SET ended = ? WHERE session = ?", how, session)

    def sessions(self) -> list[SessionRow]:
        """All sessions, in the order of their start."""
        return [SessionRow(*r) for r in self.rows(f"SELECT {_columns(SessionRow)} FROM sessions ORDER BY session")]

    def meter(self) -> list[MeterRow]:
        """All meter rows, by session and time."""
        return [MeterRow(*row) for row in self.rows(f"SELECT {_columns(MeterRow)} FROM meter ORDER BY session, t0_ns")]

    def busy_time(self, model: str, phases: Sequence[str]) -> list[BusyTime]:
        """Device time of these phases of a model, by device name."""
        marks = ", ".join("?" * len(phases))
        rows = self.rows(
            f"""SELECT s.device, sum(m.t1_ns - m.t0_ns), sum(m.n_items * (m.phase = 'decode'))
                FROM meter m JOIN sessions s USING (session) WHERE m.model = ? AND m.phase IN ({marks})
                GROUP BY s.device ORDER BY s.device""",
            model,
            *phases,
        )
        return [BusyTime(*row) for row in rows]

    # meta

    def notes(self, kind: str) -> dict[str, Any]:
        """The JSON values stored under `kind:name` in `meta`, by name."""
        rows = self.rows("SELECT key FROM meta WHERE key LIKE ? ORDER BY key", f"{kind}:%")
        return {row["key"].partition(":")[2]: self.json_meta(row["key"]) for row in rows}

    def _enter(self, table: str, kind: type[VerdictRow] | type[RepeatRow], rows: Iterable[Any]) -> None:
        marks = ", ".join("?" * len(fields(kind)))
        with self.transaction():
            self.write_many(
                f"INSERT OR REPLACE INTO {table} ({_columns(kind)}) VALUES ({marks})",
                (tuple(vars(row).values()) for row in rows),
            )

    def _typed(self, build: Callable[..., T], *parts: Any) -> T:
        try:
            return build(*parts)
        except (AssertionError, TypeError, ValueError):
            raise LedgerError(
                f"{self.path} contains a row that no release of local-bench writes: it was changed by hand; repeat the "
                "run"
            ) from None


def _limit(n: int | None) -> int:
    return -1 if n is None else n  # SQLite's value for no limit


def _of_first(n: int | None) -> str:
    return "" if n is None else f"AND {_FIRST_CANDIDATES.replace('?', '?2')}"


def _task(row: sqlite3.Row) -> Task:
    try:
        return _TASK.validate_json(row["content"])
    except ValidationError as e:
        raise LedgerError(
            f"the ledger's task {row['task_id']!r} is invalid ({e.errors()[0]['msg']}): "
            "the run directory was changed by hand or written by another release; repeat the run"
        ) from None


def _outcome(row: sqlite3.Row, n: int) -> OutcomeRow:
    category, price, deliverables, decided, accepted, unscored = row[n:]
    decision = _decision(accepted, unscored) if decided else None
    return OutcomeRow(CandidateRow(*row[:n]), category, price, deliverables, decision)


def _score(row: sqlite3.Row) -> ScoreRow:
    score = Score(row["name"], row["value"], row["unscored"], bool(row["applies"]), row["spread"])
    return ScoreRow(row["work_id"], row["kind"], score)


def _decision(accepted: int | None, unscored: str | None) -> Decision:
    return Decision(None if accepted is None else bool(accepted), unscored)
