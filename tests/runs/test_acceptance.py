"""Acceptance: the suite's own rule where it has one, otherwise the config's; of a panel, the vote of its judges."""

from types import SimpleNamespace

import pytest

from local_bench.core.types import Decision, Score, Task, Verdict
from local_bench.runs import scoring
from local_bench.runs.config import RunConfig
from local_bench.runs.scoring import thresholds_of
from local_bench.settle.acceptance import by_threshold, missed
from local_bench.suites.hype_edit_1.suite import PARTS


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


ANSWERS = {
    "one of five": (["FTT", "FTT", "TFT", "TFT", "TTT"], 0.0),
    "four of five": (["TTT", "TTT", "FTT", "TTT", "TTT"], 1.0),
    "three of five": (["TTT", "FFF", "TTT", "FTT", "TTT"], 1.0),
    "two of four, a tie": (["TTT", "FTT", "TTT", "TFT"], 0.0),
    "two of five, one without an answer": (["TTT", "TTT", "FTT", "FTT", None], None),
    "three of five, two without an answer": (["TTT", "TTT", "TTT", None, None], 1.0),
    "three fail, two without an answer": (["FTT", "TFT", "TTF", None, None], 0.0),
}


TASK = Task("t", "change", 0, "T", "Make it red.", ("The picture",), ())


def verdict(answer: str | None) -> Verdict:
    if answer is None:
        return Verdict(None, "no answer", "")
    return Verdict({name: letter == "T" for name, letter in zip(PARTS, answer, strict=True)}, None, "")


@pytest.mark.parametrize("rule", ["mean", "majority"])
@pytest.mark.parametrize("case", ANSWERS)
def test_the_pass_of_hype_edit_is_a_vote_on_the_passes_of_the_judges(case, rule, monkeypatch):
    answers, expected = ANSWERS[case]
    verdicts = {f"judge{i}": {"w": {("hype_edit", 0, 0): verdict(a)}} for i, a in enumerate(answers)}
    monkeypatch.setattr(scoring, "_by_judge", lambda rows: verdicts)
    config = SimpleNamespace(suite=SimpleNamespace(name="hype-edit-1", questions_from=[]), panel_word=rule)
    run = SimpleNamespace(config=config, store=SimpleNamespace(verdicts=lambda work_ids: []))
    part = scoring.Part({"t": TASK}, {("t", "m", 1): {1: ("w", "sha")}})
    scores = {score.name: score for _, score in scoring.computed_scores(run, part, list(verdicts))}
    assert scores["pass"].value == expected
    assert (scores["pass"].unscored is not None) == (expected is None)
