import json
from dataclasses import replace

import pytest
from PIL import Image

from local_bench.core.errors import TaskFileError
from local_bench.core.images import pixel_digest
from local_bench.core.types import Task, Verdict
from local_bench.judges.vlm.rubrics import DEFAULT_SET
from local_bench.suites.registry import suite
from local_bench.suites.servimage import questions as servimage

TASK = Task("t-1", "Digital", 1_000_000, "Title", "GenerationRequest", ("one", "two"), ("p0", "p1", "p2"))


def yes(**answer):
    return Verdict(answer, None, "")


def verdicts(brf, technical=(4, 2), aesthetic=5, text=None):
    """`brf[deliverable-1][k]` is 0, 1 or None for unscored."""
    found = {}
    for i, points in enumerate(brf, 1):
        for k, met in enumerate(points):
            found[i, "brf", k, 0] = Verdict(None, "not JSON", "?") if met is None else yes(met=met)
        found[i, "veq_technical", 0, 0] = yes(clarity=technical[0], realism=technical[1])
        found[i, "veq_aesthetic", 0, 0] = yes(aesthetic=aesthetic)
        found[i, "veq_text", 0, 0] = yes(has_text=False) if text is None else yes(has_text=True, text=text)
        found[i, "cns_set", 0, 0] = yes(score=4, flags=[])
    return found


def scored(found, i=1, task=TASK, images=None):
    """The scores of image i by name."""
    return {score.name: score for score in servimage.scores(task, found, images)[i]}


def test_a_point_is_met_when_any_image_of_the_order_meets_it():
    first, second = (scored(verdicts([[1, 0, 0], [0, 1, 0]]), i)["brf"] for i in (1, 2))
    assert first == second
    assert first.value == pytest.approx(5 * 2 / 3)
    assert scored(verdicts([[None, 1, 1], [1, 0, 0]]))["brf"].value == 5, "an unanswered point does not matter here"
    brf = scored(verdicts([[None, 1, 1], [0, 0, 0]]))["brf"]
    assert (brf.value, brf.unscored) == (None, "1 of 3 evaluation points could not be judged")


def test_a_set_is_judged_by_the_images_that_were_made():
    """Of three images the second was not made: BRF by OR and CNS by the mean over the other two."""
    task = replace(TASK, deliverables=("one", "two", "three"))
    found = verdicts([[1, 0, 0], [], [0, 1, 0]])
    found = {key: verdict for key, verdict in found.items() if key[0] != 2}
    found[3, "cns_set", 0, 0] = yes(score=1, flags=[])
    assert scored(found, task=task)["brf"].value is None  # not asked, of an image that was made
    scores = [scored(found, i, task, {1: "a", 3: "c"}) for i in (1, 3)]
    assert [(by_name["brf"].value, by_name["cns"].value) for by_name in scores] == [(pytest.approx(10 / 3), 2.5)] * 2
    alone = scored(found, 1, task, {1: "a"})
    assert alone["brf"].value == pytest.approx(5 / 3)
    assert not alone["cns"].applies


def test_text_quality_is_left_out_of_the_mean_where_there_is_no_text():
    without, with_text = (scored(verdicts([[1, 1, 1]] * 2, text=text)) for text in (None, 1))
    assert (without["veq"].value, without["veq_text"].applies) == ((3 + 5) / 2, False)
    assert (with_text["veq"].value, with_text["veq_text"].value) == ((3 + 5 + 1) / 3, 1)


def test_a_missing_or_invalid_verdict_is_not_zero():
    found = verdicts([[1, 1, 1]] * 2)
    found[1, "veq_aesthetic", 0, 0] = Verdict(None, "the judge's answer is not JSON", "5!")
    del found[2, "veq_technical", 0, 0]
    one, two = (scored(found, i) for i in (1, 2))
    assert (one["veq"].value, two["veq"].value) == (None, None)
    assert "not JSON" in one["veq"].unscored
    assert "not reached" in two["veq"].unscored


def test_questions_are_grouped_by_image_and_show_it_first():
    questions = list(servimage.questions(TASK, {1: "a", 2: "b"}))
    assert [question.images[0] for _, question in questions] == ["a"] * 6 + ["b"] * 6 + ["a"] * 2
    assert len({key for key, _ in questions}) == len(questions) == 14


def test_an_edit_is_compared_with_its_source_and_points_have_the_references():
    task = replace(TASK, deliverables=("one",), source_sha256="s", reference_sha256=("r", "q"))
    questions = dict(servimage.questions(task, {1: "a"}))
    point = DEFAULT_SET.fitted(questions[1, "brf", 0, 0])
    assert point.images == ("a", "s", "r", "q")
    assert point.roles == ("delivered", "source", "reference", "reference")
    assert questions[1, "cns_edit", 0, 0].images == ("a", "s")
    assert questions[1, "cns_edit", 0, 0].roles == ("result", "source")
    assert not any(key[1] == "cns_set" for key in questions)


def test_a_set_is_judged_image_by_image_and_in_both_orders_if_requested():
    plain = dict(servimage.questions(TASK, {1: "a", 2: "b"}))
    swapped = dict(servimage.questions(TASK, {1: "a", 2: "b"}, order_swap=True))
    assert plain.items() <= swapped.items()
    assert swapped[1, "cns_set", 0, 0].images == ("a", "b")
    assert dict(swapped[1, "cns_set", 0, 0].slots)["index"] == "1"
    assert swapped[1, "cns_set", 0, 1].images == ("b", "a")
    assert dict(swapped[1, "cns_set", 0, 1].slots)["index"] == "2"
    assert not any(key[1] == "cns_set" for key, _ in servimage.questions(TASK, {2: "b"}))


def test_consistency_is_the_mean_over_the_set_and_of_both_kinds_where_both_apply():
    found = verdicts([[1, 1, 1]] * 2)
    found[2, "cns_set", 0, 0] = yes(score=2, flags=["style_inconsistent"])
    one = scored(found)
    assert (one["cns"].value, one["cns_set"].value) == (3, 4)
    assert not one["cns_edit"].applies
    edit = replace(TASK, source_sha256="s")
    found[1, "cns_edit", 0, 0] = yes(score=5, flags=[])
    one, two = (scored(found, i, edit) for i in (1, 2))
    assert one["cns"].value == 4
    assert "not reached" in two["cns"].unscored
    alone = scored(found, task=replace(TASK, deliverables=("one",)))
    assert not alone["cns"].applies


def test_both_orders_of_a_set_count_alike():
    found = verdicts([[1, 1, 1]] * 2)
    found[1, "cns_set", 0, 1] = yes(score=1, flags=[])
    assert scored(found)["cns_set"].value == 2.5
    found[1, "cns_set", 0, 1] = Verdict(None, "cut off", "")
    assert scored(found)["cns_set"].unscored == "cut off"


def sure(answer, **labels):
    return Verdict(answer, None, "", {name: {"0": 1 - p, "1": p} for name, p in labels.items()})


def test_probabilities_give_scores_with_a_spread():
    found = verdicts([[0, 0, 0]] * 2)
    for i, points in enumerate(((0.9, 0.2, 0.0), (0.5, 0.6, 0.0)), 1):
        for k, p in enumerate(points):
            found[i, "brf", k, 0] = sure({"met": int(p > 0.5)}, met=p)
    brf = scored(found)["brf_expected"]
    assert brf.value == pytest.approx(5 * (0.9 + 0.6 + 0.0) / 3)
    assert brf.spread == pytest.approx(5 * (0.09 + 0.24) ** 0.5 / 3)
    assert scored(found)["brf"].value == pytest.approx(5 * 2 / 3)
    chances = {"aesthetic": {"3": 0.25, "4": 0.5, "5": 0.25}}
    found[1, "veq_aesthetic", 0, 0] = Verdict({"aesthetic": 4}, None, "", chances)
    aesthetic = scored(found)["veq_aesthetic"]
    assert aesthetic.value == pytest.approx(4)
    assert aesthetic.spread == pytest.approx(0.5**0.5)
    assert scored(verdicts([[1, 1, 1]] * 2))["brf"].spread is None


def test_brf_with_probabilities_counts_the_most_likely_answers():
    found = verdicts([[0, 0, 0], [0, 0, 0]])
    for k in range(3):
        found[1, "brf", k, 0] = sure({"met": 0}, met=0.275)
    scores = scored(found)
    assert (scores["brf"].value, scores["brf_expected"].value) == (0, pytest.approx(5 * 0.275))
    # an image that failed does not matter where another most likely meets the point
    found = verdicts([[1, 1, 1], [None, None, None]])
    for k in range(3):
        found[1, "brf", k, 0] = sure({"met": 1}, met=0.999)
    scores = scored(found)
    assert scores["brf"].value == 5
    assert scores["brf_expected"].value == pytest.approx(5 * 0.999)


def test_one_damaged_order_or_image_of_the_published_benchmark_leaves_the_others(tmp_path):
    def published(task_id, **more):
        original = {"task_name_original": "A card", "requirements_original": "Red.", "price_usd": 10}
        rules = {"deliverables": [{"subtask": "a card"}]}
        entry = {"task_id": task_id, "task_category": "C-Digital", "original_task_data": original, "hard_rules": rules}
        return entry | more

    folder = tmp_path / "bench/C-Digital"
    for name in ("digital-001", "digital-002"):
        (folder / f"inputs/task_{name[-3:]}").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "inputs/task_001/1.png")
    (folder / "inputs/task_002/1.png").write_bytes(b"no image")
    orders = [published("digital-001"), published("digital-002"), published("digital-003", hard_rules={})]
    orders += [published("digital-001"), "no order", published("digital-004")]
    (folder / "Digital.json").write_text(json.dumps(orders))
    refused = []
    tasks = suite("servimage").tasks(str(tmp_path / "bench"), pixel_digest, refuse=refused.append)
    assert [task.task_id for task in tasks] == ["digital-001", "digital-004"]
    assert [sentence.partition(":")[0] for sentence in refused] == [
        "task 'digital-003' is omitted",
        "task 'digital-001' is omitted",
        "task 5 is omitted",
        "task 'digital-002' is omitted",
    ]
    assert not any(str(tmp_path) in sentence for sentence in refused)
    with pytest.raises(TaskFileError, match="line"):
        suite("servimage").tasks(str(tmp_path / "bench"), pixel_digest)
