"""The scores of a run, for people: means by model with everything that is not in them counted beside."""

from collections import defaultdict
from dataclasses import dataclass

from local_bench.report.text import NOT_APPLICABLE
from local_bench.report.view import model_order, thresholds
from local_bench.runs.rundir import RunDir
from local_bench.settle.intervals import bootstrap_mean

MAX_REASONS = 30


@dataclass(frozen=True)
class ScoreRow:
    """One score of one model, over all its images."""

    model: str
    mean: str
    interval: str
    """Of the mean; empty where there is none."""
    spread: str
    """How uncertain the score of one image is, on average; empty where nobody says."""
    n: int
    n_unscored: int
    n_not_applicable: int
    n_missing: int
    """Images without a row for this score."""


@dataclass(frozen=True)
class Reason:
    where: str
    text: str
    n: int


def score_names(run: RunDir) -> list[str]:
    """The names of all scores: those that decide acceptance, the judge's others, the metrics (asked for or found)."""
    rows = run.ledger.rows("SELECT DISTINCT kind, name FROM scores ORDER BY kind, name")
    judged = [row["name"] for row in rows if row["kind"] == "judge"]
    measured = [row["name"] for row in rows if row["kind"] != "judge"]
    return list(dict.fromkeys([*thresholds(run), *judged, *run.config.metrics, *measured]))


def score_table(run: RunDir) -> dict[str, list[ScoreRow]]:
    """For every score, one row a model. Means leave out what has no value, and say how many that is."""
    images = {r["model"]: r["n"] for r in run.ledger.rows("SELECT model, count(*) AS n FROM candidates GROUP BY model")}
    found = {
        (row["name"], row["model"]): row
        for row in run.ledger.rows(
            """SELECT s.name, s.kind, c.model, avg(s.value) AS mean, avg(s.spread) AS spread, count(s.value) AS n,
               sum(NOT s.applies) AS n_na, sum(s.applies AND s.value IS NULL) AS n_unscored
               FROM scores s JOIN candidates c USING (work_id) GROUP BY s.name, c.model"""
        )
    }
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in run.ledger.rows(
        """SELECT s.name, c.model, c.task_id, s.value FROM scores s JOIN candidates c USING (work_id)
           WHERE s.value IS NOT NULL ORDER BY work_id"""
    ):
        values[score["name"], score["model"]][score["task_id"]].append(score["value"])
    table: dict[str, list[ScoreRow]] = {}
    for name in score_names(run):
        table[name] = []
        for model in model_order(run):
            row = found.get((name, model))
            n, n_na, n_unscored = (row["n"], row["n_na"], row["n_unscored"]) if row else (0, 0, 0)
            nothing = "unscored" if n_unscored else NOT_APPLICABLE if n_na else "missing"
            mean = figure(row["mean"], row["kind"]) if row and n else nothing
            missing = images.get(model, 0) - n - n_na - n_unscored
            ends = bootstrap_mean([*values[name, model].values()])
            between = " to ".join(figure(end, row["kind"]) for end in ends) if ends and row else ""
            spread = f"each ± {row['spread']:.2f}" if row and row["spread"] is not None else ""
            table[name].append(ScoreRow(model, mean, between, spread, n, n_unscored, n_na, missing))
    return table


def figure(value: float, kind: str) -> str:
    """A judge's score to hundredths of its few points; a metric's to four places below 1, where models lie close."""
    places = 2 if kind == "judge" or abs(value) >= 10 else 3 if abs(value) >= 1 else 4
    return f"{value:.{places}f}"


def better(run: RunDir) -> dict[str, str]:
    """Which way is better, for each metric whose identity the ledger has."""
    ways = {True: "higher is better", False: "lower is better"}
    known = {name: run.ledger.json_meta(f"metric:{name}") for name in score_names(run)}
    return {name: ways[bool(about["higher_is_better"])] for name, about in known.items() if about}


def score_text(
    value: float | None, unscored: str | None, applies: bool, kind: str, spread: float | None = None
) -> tuple[str, str | None]:
    """What a score's cell says, and the reason beside it: never 0 for what has no value."""
    if not applies:
        return NOT_APPLICABLE, None
    if value is None:
        return "unscored", unscored or "no reason given"
    return figure(value, kind) + ("" if spread is None else f" ± {spread:.2f}"), None


def decision_reasons(run: RunDir) -> list[Reason]:
    """Why deliverables are unscored, the most frequent reason first."""
    return _reasons(
        run,
        """SELECT c.model AS place, d.unscored AS text, count(*) AS n FROM decisions d JOIN candidates c USING (work_id)
           WHERE d.accepted IS NULL AND c.attempt = 1 GROUP BY 1, 2 ORDER BY n DESC, 1, 2 LIMIT ?""",
    )


def score_reasons(run: RunDir) -> list[Reason]:
    """Why scores are unscored, the most frequent reason first."""
    return _reasons(
        run,
        """SELECT s.name || ', ' || c.model AS place, coalesce(s.unscored, 'no reason given') AS text, count(*) AS n
           FROM scores s JOIN candidates c USING (work_id) WHERE s.value IS NULL AND s.applies
           GROUP BY 1, 2 ORDER BY n DESC, 1, 2 LIMIT ?""",
    )


def _reasons(run: RunDir, query: str) -> list[Reason]:
    return [Reason(row["place"], row["text"], row["n"]) for row in run.ledger.rows(query, MAX_REASONS)]
