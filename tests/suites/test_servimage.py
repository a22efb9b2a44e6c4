import pytest

from local_bench.core.nouns import Task, Verdict
from local_bench.suites import servimage

TASK = Task("t-1", "Digital", 1_000_000, "Title", "Brief", ("one", "two"), ("p0", "p1", "p2"))


def yes(**answer):
    return Verdict(answer, None, "")


def verdicts(brf, technical=(4, 2), aesthetic=5, text=None):
    """`brf[deliverable-1][k]` is 0, 1 or None for unscored."""
    found = {}
    for i, points in enumerate(brf, 1):
        for k, met in enumerate(points):
            found[i, "brf", k] = Verdict(None, "not JSON", "?") if met is None else yes(met=met)
        found[i, "veq_technical", 0] = yes(clarity=technical[0], realism=technical[1])
        found[i, "veq_aesthetic", 0] = yes(aesthetic=aesthetic)
        found[i, "veq_text", 0] = yes(has_text=False) if text is None else yes(has_text=True, text=text)
    return found


def named(scores):
    return {s.name: s for s in scores}


def test_a_point_is_met_when_any_image_of_the_order_meets_it():
    scores = servimage.scores(TASK, verdicts([[1, 0, 0], [0, 1, 0]]))
    assert named(scores[1])["brf"].value == pytest.approx(5 * 2 / 3)
    assert named(scores[1])["brf"] == named(scores[2])["brf"]


def test_an_unanswered_point_matters_only_where_no_other_image_meets_it():
    assert named(servimage.scores(TASK, verdicts([[None, 1, 1], [1, 0, 0]]))[1])["brf"].value == 5
    brf = named(servimage.scores(TASK, verdicts([[None, 1, 1], [0, 0, 0]]))[1])["brf"]
    assert brf.value is None
    assert brf.unscored == "1 of 3 evaluation points could not be judged"


def test_text_quality_is_left_out_of_the_mean_where_there_is_no_text():
    without = named(servimage.scores(TASK, verdicts([[1, 1, 1]] * 2))[1])
    assert without["veq"].value == (3 + 5) / 2
    assert not without["veq_text"].applies
    with_text = named(servimage.scores(TASK, verdicts([[1, 1, 1]] * 2, text=1))[1])
    assert with_text["veq"].value == (3 + 5 + 1) / 3
    assert with_text["veq_text"].value == 1


def test_a_missing_or_unreadable_verdict_is_never_a_zero():
    found = verdicts([[1, 1, 1]] * 2)
    found[1, "veq_aesthetic", 0] = Verdict(None, "the judge's answer is not JSON", "5!")
    del found[2, "veq_technical", 0]
    one, two = (named(servimage.scores(TASK, found)[i]) for i in (1, 2))
    assert (one["veq"].value, two["veq"].value) == (None, None)
    assert "not JSON" in one["veq"].unscored
    assert "not reached" in two["veq"].unscored


def test_all_questions_about_one_image_stand_together():
    asked = [question.images[0] for _, question in servimage.questions(TASK, {1: "a", 2: "b"})]
    assert asked == ["a"] * 6 + ["b"] * 6
    assert len({key for key, _ in servimage.questions(TASK, {1: "a", 2: "b"})}) == 12
