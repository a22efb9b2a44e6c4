"""The store: all queries and writes of a run's SQLite file."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from local_bench.core.types import Score
from local_bench.runs.store.decisions import DecisionStore
from local_bench.runs.store.plan import AT_ONCE, FIRST_CANDIDATES, columns
from local_bench.runs.store.rows import (
    BusyTime,
    Kind,
    MeterRow,
    Reason,
    RepeatRow,
    RubricVersion,
    ScoreRow,
    ScoreSummary,
    SessionRow,
    VerdictRow,
)

UNSCORED, NOT_APPLICABLE = "unscored", "not applicable"
Scored = float | str | None
"""The value of a score, UNSCORED, NOT_APPLICABLE, or None if it is absent."""
_SCORE = "work_id, kind, name, value, unscored, applies, spread"
"""The columns of `_score`."""


class Store(DecisionStore):
    """Typed access to the run's tables. Rows are returned in the order stated in each docstring."""

    # verdicts

    def verdicts(
        self, judge: str | None = None, first_tasks: int | None = None, counted: bool = True
    ) -> list[VerdictRow]:
        """Verdicts of one judge, of all judges of the run, or with `counted=False` of former ones too, by candidate,
        judge, rubric, point and repeat."""
        return list(self.each_verdict(judge, first_tasks, counted))

    def each_verdict(
        self, judge: str | None = None, first_tasks: int | None = None, counted: bool = True
    ) -> Iterator[VerdictRow]:
        """As `verdicts`, read as needed."""
        where, judges = self._of_judges(judge, counted)
        chunks = self._chunks(
            f"""SELECT {columns(VerdictRow)} FROM verdicts WHERE {where} {_of_first(first_tasks)}
                ORDER BY work_id, judge, rubric, point, repeat""",
            *judges,
            *(() if first_tasks is None else (first_tasks,)),
        )
        return (VerdictRow(*row) for rows in chunks for row in rows)

    def verdicts_of(self, work_ids: Sequence[str]) -> list[VerdictRow]:
        """Verdicts of all judges of the run on these candidates, in the order of `verdicts`."""
        where, judges = self._of_judges(None)
        found: list[VerdictRow] = []
        for at in range(0, len(work_ids), AT_ONCE):
            part = work_ids[at : at + AT_ONCE]
            rows = self.rows(
                f"""SELECT {columns(VerdictRow)} FROM verdicts
                    WHERE {where} AND work_id IN ({", ".join("?" * len(part))})
                    ORDER BY work_id, judge, rubric, point, repeat""",
                *judges,
                *part,
            )
            found += [VerdictRow(*row) for row in rows]
        return found

    def enter_verdicts(self, rows: Iterable[VerdictRow]) -> None:
        """Store verdicts in one transaction; a later verdict on a question replaces an earlier one."""
        self._enter("verdicts", VerdictRow, rows)

    def rubrics(self) -> list[str]:
        """Names of the rubrics with verdicts, sorted."""
        where, judges = self._of_judges(None)
        rows = self.rows(f"SELECT DISTINCT rubric FROM verdicts WHERE {where} ORDER BY rubric", *judges)
        return [row["rubric"] for row in rows]

    def rubric_versions(self) -> list[RubricVersion]:
        """Names and digests of the rubrics of the run's verdicts, sorted."""
        where, judges = self._of_judges(None)
        rows = self.rows(f"SELECT DISTINCT rubric, rubric_sha256 FROM verdicts WHERE {where} ORDER BY 1, 2", *judges)
        return [RubricVersion(*row) for row in rows]

    def repeats(self, judge: str | None = None, counted: bool = True) -> list[RepeatRow]:
        """Repeated answers of one judge, of all judges of the run, or with `counted=False` of former ones too, by
        judge, candidate, rubric, point, repeat and round."""
        where, judges = self._of_judges(judge, counted)
        rows = self.rows(
            f"""SELECT {columns(RepeatRow)} FROM retests WHERE {where}
                ORDER BY judge, work_id, rubric, point, repeat, round""",
            *judges,
        )
        return [RepeatRow(*row) for row in rows]

    def enter_repeats(self, rows: Iterable[RepeatRow]) -> None:
        """As `enter_verdicts`."""
        self._enter("retests", RepeatRow, rows)

    def enter_judges(self, names: Mapping[str, str]) -> None:
        """Store the run's judges (judge id -> name). Answers of other judges are kept and do not count."""
        with self.transaction():
            self.set_meta("judges", json.dumps(names))

    # scores

    def scores(self, kind: Kind | None = None, first_tasks: int | None = None) -> list[ScoreRow]:
        """Scores of one kind or of all, by candidate and name."""
        return list(self.each_score(kind, first_tasks))

    def each_score(self, kind: Kind | None = None, first_tasks: int | None = None) -> Iterator[ScoreRow]:
        """As `scores`, read as needed."""
        chunks = self._chunks(
            f"""SELECT {_SCORE} FROM scores
                WHERE (kind = ?1 OR ?1 IS NULL) {_of_first(first_tasks)} ORDER BY work_id, name""",
            *((kind,) if first_tasks is None else (kind, first_tasks)),
        )
        return (self._typed(_score, *row) for rows in chunks for row in rows)

    def judge_scores(self, work_ids: Sequence[str]) -> dict[tuple[str, str], Score]:
        """(work id, name) -> judge score, for these candidates."""
        found: dict[tuple[str, str], Score] = {}
        for at in range(0, len(work_ids), AT_ONCE):
            part = work_ids[at : at + AT_ONCE]
            rows = self.rows(
                f"SELECT {_SCORE} FROM scores WHERE kind = 'judge' AND work_id IN ({', '.join('?' * len(part))})", *part
            )
            found |= {(row["work_id"], row["name"]): self._typed(_score, *row).score for row in rows}
        return found

    def scores_by_candidate(self, kind: Kind | None = None) -> dict[str, dict[str, Score]]:
        """Work id -> name -> score, for candidates with scores."""
        found: dict[str, dict[str, Score]] = {}
        for row in self.scores(kind):
            found.setdefault(row.work_id, {})[row.score.name] = row.score
        return found

    def score_names(self) -> list[tuple[Kind, str]]:
        """(kind, name) of all scores, sorted."""
        query = "SELECT DISTINCT kind, name FROM scores ORDER BY kind, name"
        return self.once("score names", lambda: [(row["kind"], row["name"]) for row in self.rows(query)])

    def score_values(self, model: str) -> Iterator[tuple[str, str, float]]:
        """(name, task, value) of every score of a model that has a value, read as needed."""
        rows = self._stream_with(
            """SELECT s.name, c.task_id, s.value FROM scores s JOIN candidates c USING (work_id)
               WHERE c.model = ? AND s.value IS NOT NULL ORDER BY s.name, c.position""",
            model,
        )
        yield from (tuple(row) for row in rows)

    def each_scored(
        self, names: Sequence[str], kind: Kind | None = None, first: bool = True
    ) -> Iterator[tuple[Scored, ...]]:
        """The scores of these names, of one kind or of both, of each candidate, or only of first attempts, by work id,
        read as needed."""
        scores = [
            self._by_work_id(
                f"""SELECT work_id, iif(applies, ifnull(value, '{UNSCORED}'), '{NOT_APPLICABLE}') FROM scores
                    WHERE name = ?1 AND (kind = ?2 OR ?2 IS NULL) ORDER BY work_id""",
                name,
                kind,
            )
            for name in names
        ]
        for rows in self._chunks(f"SELECT work_id FROM candidates{' WHERE attempt = 1' * first} ORDER BY work_id"):
            work_ids = [work_id for (work_id,) in rows]
            yield from zip(*(one.values(work_ids) for one in scores), strict=True)

    def has_spreads(self) -> bool:
        """Whether any score has a standard deviation."""
        return bool(self.rows("SELECT 1 FROM scores WHERE spread IS NOT NULL LIMIT 1"))

    def score_summaries(self) -> list[ScoreSummary]:
        """One summary per score and model, by name and model."""
        query = """SELECT s.kind, s.name, c.model, avg(s.value), avg(s.spread), count(s.value), sum(NOT s.applies),
               sum(s.applies AND s.value IS NULL)
               FROM scores s JOIN candidates c USING (work_id) GROUP BY s.name, c.model ORDER BY s.name, c.model"""
        return self.once("score summaries", lambda: [ScoreSummary(*row) for row in self.rows(query)])

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

    def judge_scores_of(self, work_id: str) -> list[Score]:
        """A candidate's judge scores, by name."""
        rows = self.rows(f"SELECT {_SCORE} FROM scores WHERE work_id = ? AND kind = 'judge' ORDER BY name", work_id)
        return [self._typed(_score, *row).score for row in rows]

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

    def add_session(self, session: SessionRow, rows: Sequence[MeterRow]) -> int:
        """Store a finished session of another store with its meter rows, under a new number, which is returned."""
        with self.transaction():
            marks = ", ".join("?" * 4)
            self.write(
                f"INSERT INTO sessions (started_utc, device, held_ns, ended) VALUES ({marks})",
                *(session.started_utc, session.device, session.held_ns, session.ended),
            )
            number = int(self.rows("SELECT max(session) FROM sessions")[0][0])
            self.write_many(
                "INSERT INTO meter VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((number, r.t0_ns, r.t1_ns, r.phase, r.model, r.n_items, r.energy_mj) for r in rows),
            )
        return number

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
                f"INSERT OR REPLACE INTO {table} ({columns(kind)}) VALUES ({marks})",
                (tuple(vars(row).values()) for row in rows),
            )


def _of_first(n: int | None) -> str:
    return "" if n is None else f"AND {FIRST_CANDIDATES}"


def _score(
    work_id: str, kind: Kind, name: str, value: float | None, unscored: str | None, applies: int, spread: float | None
) -> ScoreRow:
    return ScoreRow(work_id, kind, Score(name, value, unscored, bool(applies), spread))
