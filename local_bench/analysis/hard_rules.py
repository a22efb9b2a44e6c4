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
    scores, thresholds = run.store.scores_by_candidate("judge"), thresholds_of(run.config)
    images: dict[str, dict[str, list[tuple[Score | None, bool, bool]]]] = defaultdict(lambda: defaultdict(list))
    for row in run.store.candidates():  # -> (rules, accepted by the scores alone, rejected with the rules)
        if row.attempt == 1:
            of_image = scores.get(row.work_id, {})
            rules, decision = of_image.get(RULES), by_threshold(list(of_image.values()), thresholds)
            decided = rules, decision.accepted is True, by_rules(decision, rules).accepted is False
            images[row.model][row.task_id].append(decided)
    by_model = {}
    for model, tasks in images.items():
        of_model = [image for of_task in tasks.values() for image in of_task]
        with_rules = [rules for rules, *_ in of_model if rules is not None and rules.applies]
        by_model[model] = HardRuleStats(
            n=len(with_rules),
            n_missed=sum(score.value is not None and score.value < 1 for score in with_rules),
            n_unscored=sum(score.value is None for score in with_rules),
            n_decided=sum(accepted and rejected for _, accepted, rejected in of_model),
            n_tasks_decided=sum(
                all(accepted for _, accepted, _ in of_task) and any(rejected for *_, rejected in of_task)
                for of_task in tasks.values()
            ),
        )
    return by_model if any(stats.n for stats in by_model.values()) else {}
