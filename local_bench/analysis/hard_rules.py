"""Effect of hard rules: images and tasks that the scores alone would accept."""

from collections import defaultdict
from dataclasses import dataclass

from local_bench.core.types import Score
from local_bench.judges.rules import RULES
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.settle.acceptance import by_rules, by_threshold


@dataclass(frozen=True)
class HardRuleStats:
    """Statistics of one model's first attempts."""

    n: int
    """Images of deliverables with hard rules."""
    n_missed: int
    """Those that violate a rule."""
    n_unscored: int
    """Those with a rule that cannot be checked."""
    n_decided: int
    """Images accepted by the scores and rejected by a rule."""
    n_tasks_decided: int
    """Tasks whose images are all accepted by the scores, with one rejected by a rule."""


def hard_rule_stats(run: RunDir) -> dict[str, HardRuleStats]:
    """Statistics by model, independent of `acceptance.rules`; empty for a run without hard rules."""
    if ("judge", RULES) not in run.store.score_names():
        return {}
    scores: dict[str, dict[str, Score]] = defaultdict(dict, run.store.scores_by_candidate("judge"))
    rows = [row for row in run.store.candidates() if row.attempt == 1]
    rule_scores = {
        row.work_id: of_image[RULES]
        for row in rows
        if RULES in (of_image := scores[row.work_id]) and of_image[RULES].applies
    }
    if not rule_scores:
        return {}
    thresholds = thresholds_of(run.config)
    images: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    before, after = {}, {}
    for row in rows:
        work_id = row.work_id
        images[row.model][row.task_id].append(work_id)
        decision = by_threshold(list(scores[work_id].values()), thresholds)
        before[work_id] = decision.accepted
        after[work_id] = by_rules(decision, rule_scores.get(work_id)).accepted
    by_model = {}
    for model, tasks in images.items():
        of_model = [
            rule_scores[work_id] for work_ids in tasks.values() for work_id in work_ids if work_id in rule_scores
        ]
        by_model[model] = HardRuleStats(
            n=len(of_model),
            n_missed=sum(score.value is not None and score.value < 1 for score in of_model),
            n_unscored=sum(score.value is None for score in of_model),
            n_decided=sum(before[w] is True and after[w] is False for work_ids in tasks.values() for w in work_ids),
            n_tasks_decided=sum(
                all(before[w] is True for w in work_ids) and any(after[w] is False for w in work_ids)
                for work_ids in tasks.values()
            ),
        )
    return by_model
