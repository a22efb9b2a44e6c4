"""Agreement of judges with people, with each other and with themselves, against figures worked out by hand."""

import json

import pytest

from local_bench.analysis.agreement import PANEL, agreement, judge_labels, order_swaps
from local_bench.annotation.ratings import Rating, load_annotations
from local_bench.core.errors import UserError
from local_bench.core.types import digest
from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from tests.report.conftest import Writer, order

ONE, TWO = digest({"judge": 1}), digest({"judge": 2})
MODELS = ("a", "b", "c")


def judged(to, work_id, judge, met, veq):
    """BRF is 5, 2.5 or 0 by `met` (None: unscored), VEQ is `veq`."""
    for point, value in enumerate(met):
        answer, reason = (None, "no answer") if value is None else ({"met": value}, None)
        to.verdict(work_id, "brf", point, answer, reason=reason, judge=judge)
    to.verdict(work_id, "veq_technical", 0, {"clarity": veq, "realism": veq}, judge=judge)
    to.verdict(work_id, "veq_aesthetic", 0, {"aesthetic": veq}, judge=judge)
    to.verdict(work_id, "veq_text", 0, {"has_text": False}, judge=judge)


# The answers of the two judges: (model, order) -> ((met of ONE, veq of ONE), (met of TWO, veq of TWO)).
ANSWERS = {
    ("a", "t1"): (((1, 1), 5), ((1, 1), 4)),
    ("a", "t2"): (((1, 1), 4), ((1, 0), 4)),
    ("b", "t1"): (((1, 0), 2), ((1, 0), 3)),
    ("b", "t2"): (((1, 1), 3), ((1, 1), 3)),
    ("c", "t1"): (((0, 0), 1), ((0, 0), 4)),
    ("c", "t2"): (((None, 0), 2), ((1, 1), 4)),
}


@pytest.fixture
def path(tmp_path):
    """Three models, two orders of one image, two judges, one answer that is missing."""
    path = tmp_path / "run"
    models = [ModelConfig(card=model) for model in MODELS]
    judges = {"judge": JudgeConfig(card="one"), "panel": [JudgeConfig(card="two")]}
    config = RunConfig(name="run", models=models, **judges)
    with RunDir.begin(path, config) as run, run.store.transaction():
        to = Writer(run)
        to.judges({ONE: "one", TWO: "two"})
        for i, name in enumerate(("t1", "t2")):
            task = order(name, "Portrait", 1_000_000, 1)
            to.task(task, i)
            for model in MODELS:
                work_id = to.candidate(task, 1, model)
                for judge, given in zip((ONE, TWO), ANSWERS[model, name], strict=True):
                    judged(to, work_id, judge, *given)
    return path


def found(path, people=None, **more):
    with RunDir.open(path) as run:
        return agreement(run, people, **more)


def pair(of, judge, against, dimension):
    [row] = [p for p in of.pairs if (p.judge, p.against, p.dimension) == (judge, against, dimension)]
    return row


def labels(tmp_path, *lines):
    file = tmp_path / "people.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return file


def label(model, task, **scores):
    return {"model": model, "task_id": task, "deliverable": 1, **scores}


def test_models_with_equal_means_have_one_rank_whatever_the_last_digits_of_their_sums(tmp_path):
    texts = {"a": ((2, 1), (2, 1)), "b": ((1, 1), (1, 2)), "c": ((3, 3), (3, 3)), "d": ((4, 4), (4, 4))}
    config = RunConfig(
        name="run",
        models=[ModelConfig(card=model) for model in texts],
        judge=JudgeConfig(card="one"),
        panel=[JudgeConfig(card="two")],
    )
    with RunDir.begin(tmp_path / "run", config) as run, run.store.transaction():
        to = Writer(run)
        to.judges({ONE: "one", TWO: "two"})
        for i in range(2):
            to.task(task := order(f"t{i}", "Portrait", 1_000_000, 1), i)
            for n, (model, of_model) in enumerate(texts.items()):
                work_id, (realism, text) = to.candidate(task, 1, model), of_model[i]
                judged(to, work_id, TWO, (1, 1), n + 1)
                judged(to, work_id, ONE, (1, 1), 1)
                to.write(
                    "UPDATE verdicts SET answer = ? WHERE work_id = ? AND judge = ? AND rubric = 'veq_technical'",
                    *(json.dumps({"clarity": 1, "realism": realism}), work_id, ONE),
                )
                to.write(
                    "UPDATE verdicts SET answer = ? WHERE work_id = ? AND judge = ? AND rubric = 'veq_text'",
                    *(json.dumps({"has_text": True, "text": text}), work_id, ONE),
                )
    rho = pair(found(tmp_path / "run"), "one", "two", "veq").rho
    assert rho.value == pytest.approx(4.5 / (4.5 * 5) ** 0.5)  # of the ranks 1.5, 1.5, 3, 4 and 1, 2, 3, 4
    assert rho.by_chance == pytest.approx(2 / 24)


def test_two_judges(path):
    of = found(path)
    assert (of.judges, of.raters) == (["one", "two"], [])
    brf = pair(of, "one", "two", "brf")
    # decisions of `one`: 1 1 0 1 0 -, of `two`: 1 0 0 1 0 1
    assert (brf.rate.value, brf.rate.n, brf.rate.n_unscored) == (0.8, 5, 1)
    assert brf.kappa.value == pytest.approx((0.8 - (3 * 2 + 2 * 3) / 25) / (1 - (3 * 2 + 2 * 3) / 25))
    assert brf.kappa.low <= brf.kappa.value <= brf.kappa.high
    # means over the images that both scored: a 5 and 3.75, b 3.75 and 3.75, c 0 and 0
    assert (brf.rho.value, brf.rho.n) == (None, 3)  # three models have no rank correlation
    veq = pair(of, "one", "two", "veq")
    # a 4.5 and 4, b 2.5 and 3, c 1.5 and 4: b is ahead of c for one only
    assert veq.rho.undefined == "fewer than 4 models have both values"
    assert veq.rate.value == pytest.approx(3 / 6)
    assert pair(of, "one", "two", "cns").rate.n == 0
    assert veq.top_k.value is None
    assert pair(found(path, top_k=4), "one", "two", "veq").top_k.undefined == "fewer than 5 models have both values"
    # overall `one`: 1 1 0 1 0 0 (its veq rejects what has no brf), `two`: 1 0 0 1 0 1
    overall = pair(of, "one", "two", "overall")
    assert (overall.rate.value, overall.rate.n_unscored) == (pytest.approx(4 / 6), 0)


def test_alpha_is_over_the_scores_of_all_judges_and_none_where_they_are_the_same(path):
    [alpha] = [a for a in found(path).alphas if a.dimension == "brf"]
    assert (alpha.among, alpha.n_raters, alpha.level) == ("judges", 2, "interval")
    assert (alpha.alpha.n, alpha.alpha.n_unscored) == (5, 1)
    # one pair of five is apart, by 2.5: observed 6.25 / 5; values 5 x5, 2.5 x3, 0 x2 give what was to be expected
    observed = 2.5**2 / 5
    expected = 2 * (5 * 3 * 2.5**2 + 5 * 2 * 5**2 + 3 * 2 * 2.5**2) / (10 * 9)
    assert alpha.alpha.value == pytest.approx(1 - observed / expected)
    with RunDir.open(path) as run:
        run.store.write(
            """UPDATE verdicts SET labels = '{"met": {"0": 0.4999994, "1": 0.5000006}}' WHERE rubric = 'brf'"""
        )
        run.store.write("UPDATE verdicts SET answer = '{\"met\": 1}', unscored = NULL WHERE rubric = 'brf'")
    [alpha] = [a for a in found(path).alphas if a.dimension == "brf"]
    assert alpha.alpha.value is None  # to the hundredth they are the same


def test_only_images_with_human_decisions_count(path, tmp_path):
    people = labels(
        tmp_path,
        label("a", "t1", brf=True, veq=True),
        label("a", "t2", brf=False, veq=None),
        label("b", "t1", brf=False, veq=True),
        label("c", "t2", brf=True, veq=False),
    )
    of = found(path, people)
    one = pair(of, "one", "people", "brf")
    assert (one.rate.value, one.rate.n, one.rate.n_unscored) == (pytest.approx(2 / 3), 3, 1)
    two = pair(of, "two", "people", "brf")
    assert (two.rate.value, two.rate.n) == (1.0, 4)
    veq = pair(of, "one", "people", "veq")
    assert (veq.rate.value, veq.rate.n, veq.rate.n_unscored) == (pytest.approx(2 / 3), 3, 0)
    # overall follows from both: a/t1 yes, a/t2 no (brf), b/t1 no, c/t2 no (veq)
    overall = pair(of, "two", "people", "overall")
    assert (overall.rate.value, overall.rate.n) == (pytest.approx(3 / 4), 4)
    # models by the part that people accept (a 1 of 2, b 0, c 1) and the judge's means (3.75, 2.5, 5)
    assert (two.rho.value, two.rho.n) == (None, 3)
    assert [p.dimension for p in of.pairs if p.against == "people" and p.judge == "one"] == ["brf", "veq", "overall"]


def test_the_panel_is_compared_as_a_judge(path, tmp_path):
    with RunDir.open(path) as run:
        for row in run.store.rows("SELECT work_id, model FROM candidates"):
            Writer(run).score(row["work_id"], "brf", 3.0 if row["model"] == "a" else 2.9)
    of = found(path, labels(tmp_path, label("a", "t1", brf=True), label("b", "t1", brf=True)))
    panel = pair(of, PANEL, "people", "brf")
    assert panel.rate.value == 0.5


def test_several_raters(path, tmp_path):
    people = labels(
        tmp_path,
        *(label("a", "t1", rater=rater, brf=value) for rater, value in (("x", True), ("y", False), ("z", True))),
        *(label("a", "t2", rater=rater, brf=value) for rater, value in (("x", True), ("y", False))),
        label("b", "t2", rater="x", brf=None, veq=4),
        label("b", "t2", rater="y", brf=False, veq=1),
    )
    of = found(path, people)
    assert of.raters == ["x", "y", "z"]
    rate = pair(of, "one", "people", "brf").rate
    # the word: a/t1 yes (two of three), a/t2 open (a tie), b/t2 no (only y said anything); `one`: yes yes yes
    assert (rate.value, rate.n) == (0.5, 2)
    assert [note.partition(" (")[0] for note in of.notes] == [f"1 image is tied in {name}" for name in ("brf", "veq")]
    assert "a/t2/1" in of.notes[0]
    veq = pair(of, "one", "people", "veq").rate
    assert veq.n == 0  # 4 accepts and 1 rejects: a tie
    [raters] = [a for a in of.alphas if (a.among, a.dimension) == ("people", "brf")]
    assert (raters.n_raters, raters.level) == (3, "nominal")
    # units: 1 0 1 and 1 0 (the third has one rating): coincidences 01 of 1 + 1 = 2 of 5, expected 3 x 2 / 4 x 2
    assert raters.alpha.n == 2
    assert raters.alpha.value == pytest.approx(1 - 4 * (2 + 2) / (2 * 3 * 2))
    # equal pairs: 1 of the three of 1 0 1, none of 1 0; pairs with a missing rating are unscored
    assert (raters.same.value, raters.same.n) == (1 / 4, 4)
    assert raters.same.low is None
    [numbers] = [a for a in of.alphas if (a.among, a.dimension) == ("people", "veq")]
    assert numbers.level == "interval"
    assert [a.dimension for a in of.alphas if a.among == "judges and people"] == ["veq"]


def test_raters_of_scores_vote_with_those_of_decisions(path, tmp_path):
    """Scores alone are a decision too, as in alpha: a/t1 is rejected by two of three, and a/t2 by an adjudicator."""
    scores = {"brf": 1, "veq": 1}
    people = labels(
        tmp_path,
        label("a", "t1", rater="x", overall=True),
        *(
            label("a", "t1", rater=rater, **given)
            for rater, given in (("y", scores), ("z", scores | {"overall": None}))
        ),
        *(label("a", "t2", rater=rater, overall=given) for rater, given in (("x", True), ("y", False))),
        label("a", "t2", rater="z", adjudication=True, **scores),
        label("b", "t1", rater="x", overall=True),
        label("b", "t1", rater="y", brf=1),
        label("c", "t1", rater="x", brf=5, veq=1),
        label("c", "t1", rater="y", brf=1, veq=5),
        label("c", "t1", rater="z", brf=5, veq=5),
    )
    with RunDir.open(path) as run:
        ids = {(row.model, row.task_id): row.work_id for row in run.store.candidates()}
        of = load_annotations(people, run, {work_id: {"brf", "veq"} for work_id in ids.values()})
    said = {key: of.consensus["overall"].get(work_id) for key, work_id in ids.items()}
    assert said["a", "t1"] == said["a", "t2"] == Rating(False, 1.0)
    assert (said["b", "t1"].decision, of.tied) == (None, {"overall": (ids["b", "t1"],)})
    assert said["c", "t1"].decision, "without a decision of `overall`, that of the consensus scores"


def test_numeric_ratings_are_compared_with_thresholds_and_rank_models(path, tmp_path):
    people = labels(
        tmp_path,
        label("a", "t1", brf=5, veq=2.5),
        label("b", "t1", brf=3, veq=4),
        label("c", "t1", brf=2.99, veq=3),
        label("c", "t2", overall=True, veq_aesthetic=4.5),
    )
    of = found(path, people)
    brf = pair(of, "two", "people", "brf")
    assert brf.rate.value == pytest.approx(2 / 3)  # 3 reaches the threshold, 2.99 does not
    assert (brf.rho.value, brf.rho.n) == (None, 3)
    veq = pair(of, "one", "people", "veq")
    assert (veq.rho.value, veq.rho.n) == (None, 3)
    overall = pair(of, "one", "people", "overall")
    # people: a/t1 no (veq), b/t1 yes, c/t1 no, c/t2 yes (as said); `one`: yes no no no
    assert (overall.rate.value, overall.rate.n) == (0.25, 4)
    other = pair(of, "one", "people", "veq_aesthetic")  # a score that decides nothing
    assert (other.rate, other.kappa, other.rho.n) == (None, None, 1)
    both = [a for a in of.alphas if (a.among, a.dimension) == ("judges and people", "brf")]
    assert [(a.n_raters, a.alpha.n) for a in both] == [(3, 3)]


def test_overall_is_open_where_an_applicable_score_is_unrated(path, tmp_path):
    of = found(path, labels(tmp_path, label("a", "t1", brf=True, veq=None), label("b", "t1", brf=True, veq=True)))
    rate = pair(of, "one", "people", "overall").rate
    assert rate.n + rate.n_unscored == 1  # no decision for a/t1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2: this is not one JSON object .*: correct the line"),
        ("a;t1;1", r"line 2: this is not one JSON object .*: give JSON Lines, one .* per line"),
        ("[1]", r"line 2: an annotation is a JSON object, not a list"),
        ('{"model": "a", "model": "b"}', r"line 2: .*'model' is duplicated"),
        ('{"model": "a", "task_id": "t2", "deliverable": 1, "brf": NaN}', r"line 2: .*NaN is not a JSON number"),
        (label("a", "t2", bfr=True), r"line 2: there is no key 'bfr'; did you mean 'brf'"),
        ({"model": "a", "task_id": "t2"}, r"line 2: the key 'deliverable' is missing"),
        (label("a", "t2", brf="yes"), r"line 2: brf: write true, false, a number from 0 to 5, or null, not 'yes'"),
        (label("a", "t2", veq=87), r"line 2: veq: write true, .* not 87"),
        (label("a", "t2", brf=-1), r"line 2: brf: .* not -1"),
        (label("a", "t2", veq_text=True), r"line 2: veq_text has no threshold for a decision"),
        (label("d", "t2", brf=True), r"line 2: the run has no model 'd' \(it has a, b, c\)"),
        (label("a", "t9", brf=True), r"line 2: the run has no task 't9'"),
        (label("a", "t2", attempt=2, brf=True), r"line 2: the run has no image 1 of 't2', attempt 2, by a"),
        (label("a", "t1", brf=False), r"line 2: 'people' already rates this image on line 1"),
    ],
)
def test_an_invalid_line_is_reported_with_its_reason(path, tmp_path, line, message):
    people = labels(tmp_path, label("a", "t1", brf=True), line)
    with pytest.raises(UserError, match=message) as caught:
        found(path, people)
    assert str(caught.value).startswith(f"{people}, ")


def test_what_cannot_be_compared_is_an_error(path, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    for people, message in (
        (tmp_path / "empty.jsonl", "has no annotations"),
        (labels(tmp_path, label("a", "t1")), "has no ratings"),
        (tmp_path / "nowhere.jsonl", "does not exist"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(UserError, match=message):
            found(path, people)
    with RunDir.open(path) as run:
        Writer(run).judges({ONE: "one"})
    with pytest.raises(UserError, match="has one judge and no other rater: give human annotations"):
        found(path)
    of = found(path, labels(tmp_path, label("a", "t1", brf=True)))
    assert {(p.judge, p.against) for p in of.pairs} == {("one", "people")}  # and no panel
    with RunDir.open(path) as run:
        run.store.write("DELETE FROM meta WHERE key = 'judges'")
        assert judge_labels(run) == {}
    with pytest.raises(UserError, match="has not been judged: run `local-bench judge"):
        found(path)


def test_order_swaps_of_sets(path):
    with RunDir.open(path) as run:
        to = Writer(run)
        task = order("t3", "Product", 1_000_000, 2)
        to.task(task, 2)
        answers = {("a", 1): (4, 2), ("a", 2): (4, 4), ("b", 1): (3, 4), ("b", 2): (3, None)}
        for (model, i), (first, second) in answers.items():
            work_id = to.candidate(task, i, model)
            to.verdict(work_id, "cns_set", 0, {"score": first, "flags": []}, judge=ONE)
            second_answer = None if second is None else {"score": second, "flags": []}
            to.verdict(work_id, "cns_set", 0, second_answer, "", "cut off" if second is None else None, 1, ONE)
            to.verdict(work_id, "cns_set", 0, {"score": first, "flags": []}, judge=TWO)  # in one order only
        [row] = order_swaps(run)
        assert row.judge == "one"
        assert (row.same.value, row.same.n, row.same.n_unscored) == (pytest.approx(1 / 3), 3, 1)
        assert row.mean_difference == pytest.approx((-2 + 0 + 1) / 3)
        assert row.interval is None  # one task
        run.store.write("DELETE FROM verdicts WHERE repeat = 1")
        assert order_swaps(run) == []
