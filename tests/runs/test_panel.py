"""A panel of judges: pass/fail scores are a vote on the judges' decisions, for every `panel_word`."""

from types import SimpleNamespace

import pytest

from local_bench.core.types import Score, Task, Verdict
from local_bench.runs import scoring
from local_bench.runs.store import Store
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


def test_scores_that_are_no_longer_computed_are_removed(tmp_path):
    store = Store(tmp_path / "ledger.sqlite", create=True)
    store.write("INSERT INTO tasks VALUES ('t', 0, 'c', 1, '{}', NULL)")
    store.write(
        """INSERT INTO candidates (work_id, position, task_id, deliverable, model, attempt, prompt, work, seed,
           height, width, state) VALUES ('w', 0, 't', 1, 'flux', 1, 'p', '{}', 0, 8, 8, 'done')"""
    )
    store.enter_scores("metric", [("w", Score("entropy", 1.0))])
    first = [("w", Score("brf", 1.0)), ("w", Score("brf_expected", 0.9))]
    store.enter_scores("judge", first, replace_all=True)
    store.enter_scores("judge", [("w", Score("brf", 0.0))], replace_all=True)
    rows = store.rows("SELECT name, value FROM scores ORDER BY name")
    store.close()
    assert [tuple(row) for row in rows] == [("brf", 0.0), ("entropy", 1.0)]
