"""Acceptance: the suite's own rule where it has one, otherwise the config's."""

from local_bench.core.types import Decision, Score
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.config import RunConfig
from local_bench.settle.acceptance import by_threshold, missed


def config(name):
    return RunConfig(name="t", suite={"name": name}, models=[{"card": "tiny-flux"}], acceptance={"brf": 4.0})


def test_a_suite_may_define_its_own_rule():
    assert thresholds_of(config("servimage")) == {"brf": 4.0, "veq": 3.0, "cns": 3.0}
    assert thresholds_of(config("hype-edit-1")) == {"pass": 1.0}
    assert thresholds_of(config("ice-bench")) == {"vllmqa": 0.5}
    assert len(thresholds_of(config("idea-bench"))) == 6


def test_without_an_applicable_score_the_decision_is_open():
    rule = thresholds_of(config("ice-bench"))
    undecided = by_threshold([Score("vllmqa", None, applies=False)], rule)
    assert undecided == Decision(None, "nothing that decides applies to it (vllmqa)")
    assert by_threshold([], rule).unscored == "vllmqa was not scored"


def test_the_missed_thresholds_are_those_of_a_rejection():
    rule = thresholds_of(config("servimage"))
    scores = [Score("brf", 2.5), Score("veq", 3.0), Score("cns", None, "no answer"), Score("clip", 0.1)]
    assert (missed(scores, rule), by_threshold(scores, rule).accepted) == ({"brf": (2.5, 4.0)}, False)
    assert (missed(scores[1:], rule), by_threshold(scores[1:], rule).accepted) == ({}, None)
