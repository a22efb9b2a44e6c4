"""The run's SQLite file `ledger.sqlite`, read and written as typed rows. This package contains all SQL of runs."""

from local_bench.runs.store.database import BACKUP, LEDGER, backups, free_name
from local_bench.runs.store.rows import (
    NOT_APPLICABLE,
    UNSCORED,
    BusyTime,
    CandidateRow,
    Committed,
    Counts,
    DecisionRow,
    MeterRow,
    OutcomeRow,
    Reason,
    RepeatRow,
    ScoreRow,
    ScoreSummary,
    SessionRow,
    VerdictRow,
    plain,
    scored,
)
from local_bench.runs.store.store import Store, scores_by_image

__all__ = [
    "BACKUP",
    "LEDGER",
    "NOT_APPLICABLE",
    "UNSCORED",
    "BusyTime",
    "CandidateRow",
    "Committed",
    "Counts",
    "DecisionRow",
    "MeterRow",
    "OutcomeRow",
    "Reason",
    "RepeatRow",
    "ScoreRow",
    "ScoreSummary",
    "SessionRow",
    "Store",
    "VerdictRow",
    "backups",
    "free_name",
    "plain",
    "scored",
    "scores_by_image",
]
