"""Acceptance: whether a deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import chain, compress
from operator import ne, or_
from typing import NamedTuple

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import NO_IMAGE, UNDECIDED, Attempts, Case, DecisionColumns
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
    attempts = run.store.no_attempts()
    with closing(changed_decisions(run, attempts)) as changed:
        first = next(changed, None)
        if first or not run.store.has_one_decision_each():
            removed = run.store.decisions_on_no_candidate()
            run.store.change_decisions(removed, chain([first] if first else [], changed))
    run.store.keep_attempts(attempts)


def changed_decisions(run: RunDir, attempts: Attempts) -> Generator[DecisionColumns]:
    """The decisions that follow from the scores, the rule and the prices of the tasks, and are not stored so; by work
    id. The rule is applied once to every case. `attempts` has no candidates, and gets all with their decisions."""
    config, thresholds = run.config, thresholds_of(run.config)
    prices = [price for _, _, price in attempts.tasks]
    by_case: dict[Case, _Decided] = {}
    for part in run.store.cases(deciding(config)):
        for case in set(part.case) - by_case.keys():
            if isinstance(case, str) and case.startswith(NO_IMAGE):
                by_case[case] = _Decided(None, case.removeprefix(NO_IMAGE), UNDECIDED, made=0)
                continue
            scores = run.store.judge_scores_of(part.work_id[part.case.index(case)])
            decision = decision_of(config, scores, thresholds)
            accepted = None if decision.unscored else int(bool(decision.accepted))
            number = UNDECIDED if accepted is None else accepted
            by_case[case] = _Decided(accepted, decision.unscored, number, made=1)
        decided = [by_case[case] for case in part.case]
        task = run.store.task_numbers(attempts, part.task_id)
        made, numbers = [one.made for one in decided], [one.number for one in decided]
        attempts.add(part.model, task, part.deliverable, part.attempt, made, numbers)
        decisions = [one.unscored if one.accepted is None else one.accepted for one in decided]
        price = [prices[i] for i in task]
        if decisions != part.decision or price != part.price_micro_usd:
            changed = list(map(or_, map(ne, decisions, part.decision), map(ne, price, part.price_micro_usd)))
            rows = list(compress(decided, changed))
            yield DecisionColumns(
                list(compress(part.work_id, changed)),
                [one.accepted for one in rows],
                [one.unscored for one in rows],
                list(compress(price, changed)),
            )


class _Decided(NamedTuple):
    """The decision on every candidate of a case."""

    accepted: int | None
    unscored: str | None
    number: int
    """1, 0 or UNDECIDED."""
    made: int
    """1 if there is an image, else 0."""


def deciding(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value, for all scores that a decision depends on."""
    thresholds = thresholds_of(config)
    return {**thresholds, RULES: ALL_RULES} if config.acceptance.rules else thresholds
