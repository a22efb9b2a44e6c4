"""The metric phase: every metric of the config on every image that is there."""

from dataclasses import asdict
from sqlite3 import Row
from typing import Any

from local_bench.core.errors import ImageError
from local_bench.core.identity import canonical_json
from local_bench.core.images import load_image
from local_bench.core.nouns import Score
from local_bench.core.weights import resolve, weights_digest
from local_bench.judges.metrics.base import Metric, make_metric, metric_card
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
    rows = run.ledger.rows(
        "SELECT work_id, pixels_sha256, prompt FROM candidates WHERE state = 'done' ORDER BY work_id"
    )
    wanted = [(row, [name for name in names if (row["work_id"], name) not in there]) for row in rows]
    wanted = [(row, missing) for row, missing in wanted if missing]
    if not wanted:
        return
    metrics = {name: make_metric(name) for name in names}
    for name, metric in metrics.items():
        run.ledger.set_meta(f"metric:{name}", canonical_json(_identity(name, metric)))
    meter.charge("load")
    progress.begin("measure", len(wanted))
    for i in range(0, len(wanted), COMMIT_EVERY):
        part = wanted[i : i + COMMIT_EVERY]
        scored = [
            (row["work_id"], score)
            for row, missing in part
            for score in _scores(run, row, [metrics[name] for name in missing])
        ]
        write_scores(run.ledger, "metric", scored)
        meter.charge("metric", len(scored))
        progress.advance(len(part))


def _identity(name: str, metric: Metric) -> dict[str, Any]:
    """What its numbers mean: preprocessing, direction, source, and the weights of its model."""
    described = metric_card(name)
    return asdict(metric.spec) | {"weights_sha256": weights_digest(resolve(described)) if described else None}


def _scores(run: RunDir, row: Row, metrics: list[Metric]) -> list[Score]:
    try:
        image = load_image(run.image(row["pixels_sha256"]))
    except ImageError:
        return [Score(metric.spec.name, None, UNREADABLE) for metric in metrics]
    return [metric.score([image], [row["prompt"]])[0] for metric in metrics]


def write_scores(ledger: Ledger, kind: str, scores: list[tuple[str, Score]]) -> None:
    """Enters (work_id, score) rows in one transaction; later ones take the place of earlier ones."""
    with ledger.transaction():
        ledger.write_many(
            "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((work_id, s.name, kind, s.value, s.unscored, int(s.applies), s.spread) for work_id, s in scores),
        )
