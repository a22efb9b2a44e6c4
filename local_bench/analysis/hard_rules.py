"""What an order's hard rules decide: images and orders that the scores alone would accept."""

from collections import defaultdict
from dataclasses import dataclass

from local_bench.core.types import Score
from local_bench.judges.rules import RULES
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir
from local_bench.settle.acceptance import by_rules, by_threshold


@dataclass(frozen=True)
class HardRuleStats:
    """One model's first attempts."""

    n: int
    """Images of deliverables with hard rules."""
    n_missed: int
    """Of them those that miss a rule."""
    n_unscored: int
    """Of them those of which a rule cannot be told."""
    n_decided: int
    """Images that the scores accept and a rule refuses."""
    n_tasks_decided: int
    """Orders of which the scores accept every image and a rule refuses one."""


def ruled(run: RunDir) -> dict[str, HardRuleStats]:
    """By model, whether `acceptance.rules` is set or not; nothing for a run without hard rules."""
    scores: dict[str, dict[str, Score]] = defaultdict(dict, run.store.scores_by_candidate("judge"))
    rows = [row for row in run.store.candidates() if row.attempt == 1]
    known = {row.work_id: of[RULES] for row in rows if RULES in (of := scores[row.work_id]) and of[RULES].applies}
    if not known:
        return {}
    thresholds = thresholds_of(run.config)
    images: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    before, after = {}, {}
    for row in rows:
        work_id = row.work_id
        images[row.model][row.task_id].append(work_id)
        decision = by_threshold(list(scores[work_id].values()), thresholds)
        before[work_id] = decision.accepted
        after[work_id] = by_rules(decision, known.get(work_id)).accepted
    found = {}
    for model, tasks in images.items():
        mine = [known[work_id] for of in tasks.values() for work_id in of if work_id in known]
        found[model] = HardRuleStats(
            n=len(mine),
            n_missed=sum(score.value is not None and score.value < 1 for score in mine),
            n_unscored=sum(score.value is None for score in mine),
            n_decided=sum(before[w] is True and after[w] is False for of in tasks.values() for w in of),
            n_tasks_decided=sum(
                all(before[w] is True for w in of) and any(after[w] is False for w in of) for of in tasks.values()
            ),
        )
    return found
