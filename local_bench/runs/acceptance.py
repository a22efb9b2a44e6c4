"""Acceptance: whether a deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import ne, or_

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import NO_IMAGE, Case, DecisionColumns
from local_bench.settle.acceptance import ALL_RULES, by_rules, by_threshold
from local_bench.suites.registry import suite


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value. Suites with pass/fail judges define their own thresholds."""
    own = suite(config.suite.name).thresholds
    return config.acceptance.thresholds if own is None else own


def decision_of(config: RunConfig, scores: Sequence[Score], thresholds: Mapping[str, float] | None = None) -> Decision:
    """The decision on an image with these scores, including its hard rules if `acceptance.rules` is set. `thresholds`
    are those of `thresholds_of(config)`, for callers that decide many images."""
    decision = by_threshold(scores, thresholds_of(config) if thresholds is None else thresholds)
    if not config.acceptance.rules:
        return decision
    return by_rules(decision, next((score for score in scores if score.name == RULES), None))


def decide(run: RunDir) -> None:
    """The settle phase: replace the decisions that do not follow from the stored scores, in one transaction."""
    changed = list(changed_decisions(run))
    if changed or not run.store.has_one_decision_each():
        run.store.change_decisions(run.store.decisions_on_no_candidate(), changed)


def changed_decisions(run: RunDir) -> Iterator[DecisionColumns]:
    """The decisions that follow from the scores, the rule and the prices of the tasks, and are not stored so; by work
    id. The rule is applied once to every case."""
    config, thresholds = run.config, thresholds_of(run.config)
    prices = {task_id: price for task_id, _, price in run.store.task_prices()}
    by_case: dict[Case, int | str] = {}
    for limits, part in run.store.cases(deciding(config)):
        for case in set(part.case) - by_case.keys():
            if isinstance(case, str) and case.startswith(NO_IMAGE):
                by_case[case] = case.removeprefix(NO_IMAGE)
                continue
            scores = run.store.judge_scores_of(run.store.work_ids(limits)[part.case.index(case)])
            decision = decision_of(config, scores, thresholds)
            by_case[case] = decision.unscored or int(bool(decision.accepted))
        decisions = [by_case[case] for case in part.case]
        try:
            price = [prices[task_id] for task_id in part.task_id]
        except KeyError as e:
            raise run.store.lacks_task(e.args[0]) from None
        changed = list(map(or_, map(ne, decisions, part.decision), map(ne, price, part.price_micro_usd)))
        if any(changed):
            work_ids = compress(run.store.work_ids(limits), changed)
            yield DecisionColumns(list(work_ids), list(compress(decisions, changed)), list(compress(price, changed)))


def deciding(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value, for all scores that a decision depends on."""
    thresholds = thresholds_of(config)
    return {**thresholds, RULES: ALL_RULES} if config.acceptance.rules else thresholds
