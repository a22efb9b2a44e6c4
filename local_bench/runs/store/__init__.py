"""The run's SQLite file `ledger.sqlite`, read and written as typed rows. This package contains all SQL of runs."""

from local_bench.runs.store.database import LEDGER, backups, free_name
from local_bench.runs.store.rows import (
    NOT_APPLICABLE,
    UNSCORED,
    BusyTime,
    CandidateRow,
    Committed,
    MeterRow,
    OutcomeRow,
    Reason,
    RepeatRow,
    ScoreRow,
    SessionRow,
    VerdictRow,
    plain,
    scored,
)
from local_bench.runs.store.store import Store, scores_by_image

__all__ = [
    "LEDGER",
    "NOT_APPLICABLE",
    "UNSCORED",
    "BusyTime",
    "CandidateRow",
    "Committed",
    "MeterRow",
    "OutcomeRow",
    "Reason",
    "RepeatRow",
    "ScoreRow",
    "SessionRow",
    "Store",
    "VerdictRow",
    "backups",
    "free_name",
    "plain",
    "scored",
    "scores_by_image",
]
