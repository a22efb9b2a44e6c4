"""A panel of judges: pass/fail scores are a vote on the judges' decisions, for every `panel_word`."""

from types import SimpleNamespace

import pytest

from local_bench.core.types import Task, Verdict
from local_bench.runs import scoring
from local_bench.suites.hype_edit_1.questions import PARTS

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
    run = SimpleNamespace(config=config, store=SimpleNamespace(verdicts_of=lambda work_ids: []))
    part = scoring.Part({"t": TASK}, {("t", "m", 1): {1: ("w", "sha")}})
    scores = {score.name: score for _, score in scoring.computed_scores(run, part, list(verdicts))}
    assert scores["pass"].value == expected
    assert (scores["pass"].unscored is not None) == (expected is None)
