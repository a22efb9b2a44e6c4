"""Acceptance: whether a deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from local_bench.core.types import Decision, Score
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import NOT_APPLICABLE, UNSCORED, plain, scores_by_image
from local_bench.settle.acceptance import ALL_RULES, by_rules, by_threshold
from local_bench.suites.registry import suite


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value. Suites with pass/fail judges define their own thresholds."""
    thresholds = suite(config.suite.name).thresholds
    return config.acceptance.thresholds if thresholds is None else thresholds


def decision_of(config: RunConfig, scores: Sequence[Score], thresholds: Mapping[str, float] | None = None) -> Decision:
    """The decision on an image with these scores, including its hard rules if `acceptance.rules` is set. `thresholds`
    are those of `thresholds_of(config)`, for callers that decide many images."""
    decision = by_threshold(scores, thresholds_of(config) if thresholds is None else thresholds)
    if not config.acceptance.rules:
        return decision
    return by_rules(decision, next((score for score in scores if score.name == RULES), None))


def decide(run: RunDir) -> None:
    """The settle phase: replace the decisions that do not follow from the stored scores, in one transaction."""
    changed = changed_decisions(run)
    if len(changed):
        run.store.enter_decisions(plain(changed).itertuples(index=False, name=None))


def changed_decisions(run: RunDir) -> pd.DataFrame:
    """The decisions that follow from the scores, the rule and the prices of the tasks, and are not stored so: the
    columns of `decisions`, by work id. The rule is applied once to all images whose scores compare with the thresholds
    in the same way."""
    config, thresholds, rule = run.config, thresholds_of(run.config), deciding(run.config)
    rows = run.store.frame("outcomes", ["work_id", "state", "unscored", "task_price_micro_usd"])
    made = (rows["state"] == "done").to_numpy(bool)
    cases = scores_by_image(run.store, rows["work_id"], list(rule), "judge", reasons=True)
    for name, threshold in rule.items():
        reached = [cell >= threshold if type(cell) is float else cell for cell in cases[name]]
        cases[name] = pd.Series(reached, dtype=object).where(made, None)
    reason = np.where(rows["state"] == "unscored", rows["unscored"].fillna("no reason given"), _NOT_MADE)
    cases[_WITHOUT_IMAGE] = pd.Series(reason, dtype=object).where(~made, None)
    number = cases.groupby(list(cases), dropna=False, sort=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    by_case = [_decision(config, rule, thresholds, case) for case in cases.iloc[first].to_dict("records")]
    decided = pd.DataFrame(
        {
            "work_id": rows["work_id"],
            "accepted": pd.array([by_case[i].accepted for i in number], dtype="Int64"),
            "unscored": pd.array([by_case[i].unscored for i in number], dtype="string"),
            "price_micro_usd": rows["task_price_micro_usd"],
        }
    )
    stored = run.store.frame("decisions").set_index("work_id").reindex(decided["work_id"])
    same = np.ones(len(decided), dtype=bool)
    for name, missing in (("accepted", -1), ("unscored", ""), ("price_micro_usd", -1)):
        same &= decided[name].fillna(missing).to_numpy() == stored[name].fillna(missing).to_numpy()
    return decided[~same]


_NOT_MADE = "its image has not been made"
_WITHOUT_IMAGE = "\0without image"
"""A column beside the names of scores: why there is no image."""


def _decision(
    config: RunConfig, rule: Mapping[str, float], thresholds: Mapping[str, float], case: Mapping[str, Any]
) -> Decision:
    """The decision on an image with these cells (`scores_by_image`), whose values are replaced by whether they reach
    their threshold."""
    if case[_WITHOUT_IMAGE] is not None:
        return Decision(None, case[_WITHOUT_IMAGE])
    scores = []
    for name, threshold in rule.items():
        match case[name]:
            case None:
                continue
            case bool(reached):
                scores.append(Score(name, threshold if reached else threshold - 1))
            case text if text == NOT_APPLICABLE:
                scores.append(Score(name, None, applies=False))
            case text:
                scores.append(Score(name, None, text.removeprefix(f"{UNSCORED}: ")))
    return decision_of(config, scores, thresholds)


def deciding(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value, for all scores that a decision depends on."""
    thresholds = thresholds_of(config)
    return {**thresholds, RULES: ALL_RULES} if config.acceptance.rules else thresholds
