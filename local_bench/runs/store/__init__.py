"""The run's SQLite file `ledger.sqlite`, read and written as typed rows. This package contains all SQL of runs."""

from local_bench.runs.store.database import LEDGER as LEDGER
from local_bench.runs.store.database import backups as backups
from local_bench.runs.store.database import free_name as free_name
from local_bench.runs.store.rows import NOT_APPLICABLE as NOT_APPLICABLE
from local_bench.runs.store.rows import UNSCORED as UNSCORED
from local_bench.runs.store.rows import BusyTime as BusyTime
from local_bench.runs.store.rows import Candidate as Candidate
from local_bench.runs.store.rows import Committed as Committed
from local_bench.runs.store.rows import MeterRow as MeterRow
from local_bench.runs.store.rows import OutcomeRow as OutcomeRow
from local_bench.runs.store.rows import ScoreRow as ScoreRow
from local_bench.runs.store.rows import SessionRow as SessionRow
from local_bench.runs.store.rows import VerdictRow as VerdictRow
from local_bench.runs.store.rows import plain as plain
from local_bench.runs.store.rows import scored as scored
from local_bench.runs.store.store import Store as Store
from local_bench.runs.store.store import scores_by_image as scores_by_image
