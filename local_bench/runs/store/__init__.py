"""The run's SQLite file `ledger.sqlite`, read and written as typed rows. This package contains all SQL of runs."""

from local_bench.runs.store.attempts import UNDECIDED, Attempts
from local_bench.runs.store.database import BACKUP, LEDGER, Committed, backups, free_name
from local_bench.runs.store.decisions import NO_IMAGE
from local_bench.runs.store.rows import (
    BusyTime,
    CandidateRow,
    Case,
    Counts,
    DecidedRow,
    DecisionColumns,
    DecisionRow,
    MeterRow,
    OutcomeRow,
    Reason,
    RepeatRow,
    ScoreRow,
    ScoreSummary,
    SessionRow,
    VerdictRow,
)
from local_bench.runs.store.store import NOT_APPLICABLE, UNSCORED, Scored, Store

__all__ = [
    "BACKUP",
    "LEDGER",
    "NOT_APPLICABLE",
    "NO_IMAGE",
    "UNDECIDED",
    "UNSCORED",
    "Attempts",
    "BusyTime",
    "CandidateRow",
    "Case",
    "Committed",
    "Counts",
    "DecidedRow",
    "DecisionColumns",
    "DecisionRow",
    "MeterRow",
    "OutcomeRow",
    "Reason",
    "RepeatRow",
    "ScoreRow",
    "ScoreSummary",
    "Scored",
    "SessionRow",
    "Store",
    "VerdictRow",
    "backups",
    "free_name",
]
