"""The metric phase: every metric of the config on every image that is there."""

from local_bench.core.errors import ImageError
from local_bench.core.images import load_image
from local_bench.core.nouns import Score
from local_bench.judges.metrics.base import Metric, make_metric
from local_bench.runs.ledger import Ledger
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir

COMMIT_EVERY = 16
UNREADABLE = "the image cannot be read"


def measure(run: RunDir, meter: Meter, progress: Progress) -> None:
    """Adds the rows that are missing; what is measured already stays."""
    names = run.config.metrics
    there = {
        (r["work_id"], r["name"]) for r in run.ledger.rows("SELECT work_id, name FROM scores WHERE kind = 'metric'")
    }
    rows = run.ledger.rows("SELECT work_id, pixels_sha256 FROM candidates WHERE state = 'done' ORDER BY work_id")
    missing = [(r["work_id"], r["pixels_sha256"], [n for n in names if (r["work_id"], n) not in there]) for r in rows]
    missing = [item for item in missing if item[2]]
    if not missing:
        return
    metrics = {name: make_metric(name) for name in names}
    meter.charge("load")
    progress.begin("measure", len(missing))
    for i in range(0, len(missing), COMMIT_EVERY):
        part = missing[i : i + COMMIT_EVERY]
        scored = [
            (work_id, score)
            for work_id, sha, wanted in part
            for score in _scores(run, sha, [metrics[n] for n in wanted])
        ]
        write_scores(run.ledger, "metric", scored)
        meter.charge("metric", len(scored))
        progress.advance(len(part))


def _scores(run: RunDir, sha256: str, metrics: list[Metric]) -> list[Score]:
    try:
        image = load_image(run.image(sha256))
    except ImageError:
        return [Score(metric.spec.name, None, UNREADABLE) for metric in metrics]
    return [metric.score([image])[0] for metric in metrics]


def write_scores(ledger: Ledger, kind: str, scores: list[tuple[str, Score]]) -> None:
    """Enters (work_id, score) rows in one transaction; later ones take the place of earlier ones."""
    with ledger.transaction():
        ledger.write_many(
            "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?)",
            ((work_id, s.name, kind, s.value, s.unscored, int(s.applies)) for work_id, s in scores),
        )
