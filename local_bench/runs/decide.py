"""The settle phase: a decision for every candidate by the config's stated rule, in one transaction."""

from collections import defaultdict

from local_bench.core.types import Decision, Score
from local_bench.runs.acceptance import decision_of
from local_bench.runs.rundir import RunDir


def decide(run: RunDir) -> None:
    """Replaces all decisions by those that follow from the scores there are now."""
    scores: dict[str, list[Score]] = defaultdict(list)
    for row in run.ledger.rows("SELECT * FROM scores WHERE kind = 'judge'"):
        scores[row["work_id"]].append(Score(row["name"], row["value"], row["unscored"], bool(row["applies"])))
    candidates = run.ledger.rows(
        """SELECT work_id, state, c.unscored, price_micro_usd FROM candidates c JOIN tasks USING (task_id)
           ORDER BY work_id"""
    )
    with run.ledger.transaction():
        run.ledger.write("DELETE FROM decisions")
        for row in candidates:
            match row["state"]:
                case "done":
                    decision = decision_of(run.config, scores[row["work_id"]])
                case "unscored":
                    decision = Decision(None, row["unscored"])
                case _:
                    decision = Decision(None, "its image has not been made")
            accepted = None if decision.accepted is None else int(decision.accepted)
            run.ledger.write(
                "INSERT INTO decisions VALUES (?, ?, ?, ?)",
                row["work_id"],
                accepted,
                decision.unscored,
                row["price_micro_usd"],
            )
