"""IDEA-Bench's tables by people: annotated over HTTP with the protocol `points`, against arithmetic on the answers."""

import html
import json
import re
import shutil

import pytest

from local_bench.analysis.agreement import agreement
from local_bench.annotation.ratings import load_annotations
from local_bench.core.types import Score
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import enter_plan, make_plan
from local_bench.runs.rundir import RunDir
from local_bench.suites.registry import suite
from tests.analysis.simulated import config, draw, judged
from tests.annotation.conftest import answer_all, live_server
from tests.annotation.test_server import Client
from tests.report.papers.test_idea_and_ice import case_score
from tests.suites.benchmarks import layouts

RATERS = ("ann", "bob", "cleo")
UID = {"plain_0001": "0024", "relight_0001": "0063", "pair_0001": "0014"}
CATEGORY = {"plain_0001": "T2I", "relight_0001": "I2I", "pair_0001": "T2Is"}
OF_TABLE = {"plain_0001": 3, "relight_0001": 4, "pair_0001": 6}
MISSED = {"plain_0001": {6}, "relight_0001": {3}, "pair_0001": {1, 5}}
"""Questions that most annotators answer with no."""
FOR_PEOPLE = [f"For people, {k}?" for k in range(6)]


def majority(task):
    return [k not in MISSED[task] for k in range(1, 7)]


def yes(rater, task, k):
    """One of the three differs from the majority, another one in each question."""
    return majority(task)[k - 1] ^ (RATERS.index(rater) == k % 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of two models that made every image; two of its three cases have questions for people."""
    folder = tmp_path_factory.mktemp("idea")
    data = layouts.idea(folder / "data")
    for case in ("plain_0001", "pair_0001"):
        (data / case / "eval.json").write_text(json.dumps(FOR_PEOPLE))
    models = {m: draw("idea-bench", data, folder / m, 7 * i, left_out=0) for i, m in enumerate(("one", "two"))}
    judged(folder / "run", config("idea-bench", data, models), 3)
    return folder / "run"


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def given(path, answer, people=RATERS):
    """Everyone's answers, through the session."""
    roles = dict.fromkeys(people, "annotator")
    answer_all(path, "points", roles, lambda who, item, name, _: answer(who, item.task_id, int(name[6:])))


def people_note(result):
    return next(note for note in result["notes"] if re.search(r" annotators?; ", note))


def test_what_three_people_answer_over_http_are_tables_2_to_8(run, reproduce):
    shown = {}
    with live_server(run, "points", dict.fromkeys(RATERS, "annotator")) as live:
        for rater in RATERS:
            with Client(live, rater) as client:
                while items := client.queue()["items"]:
                    (item,) = items
                    task = live.session.queue.by_id[item["item_id"]].task_id
                    shown[task, item["item_id"]] = item["html"]
                    values = {"": {f"point_{k}": yes(rater, task, k) for k in range(1, 7)}}
                    assert client.answer(item, values=values).status_code == 200
    with RunDir.open(run) as opened:
        tasks = {task.task_id: task for task in opened.store.tasks()}
        for (task_id, item_id), page in shown.items():
            item = live.session.queue.by_id[item_id]
            images = {one.pixels_sha256 for one in item.images} | set(tasks[task_id].reference_sha256)
            assert len(item.images) == len(tasks[task_id].deliverables)
            assert images == set(re.findall(r'src="/image/([0-9a-f]{64})"', page))
            text = html.unescape(page)
            questions = FOR_PEOPLE if task_id != "relight_0001" else tasks[task_id].evaluation_points
            assert all(question in text for question in questions)
            assert ("Is it plain" in text, "the digit 2" in text) == (False, False)
    score = {task: 100 * case_score(majority(task)) for task in UID}
    assert list(score.values()) == pytest.approx([500 / 6, 50, 100 / 6])
    table = reproduce("idea-bench", "table-2", run, "--people", run)
    assert people_note(table).startswith("people: 3 annotators; 36 of 36 questions have a label, 0 are tied and 0 ")
    for row in table["rows"]:
        assert {CATEGORY[task]: row[CATEGORY[task]] for task in UID} == {
            CATEGORY[task]: pytest.approx(score[task]) for task in UID
        }
        assert row["Is2I"] is None
        assert row["average"] == pytest.approx(sum(score.values()) / 5)
    for task, number in OF_TABLE.items():
        table = reproduce("idea-bench", f"table-{number}", run, "--people", run)
        assert [row[UID[task]] for row in table["rows"]] == pytest.approx([score[task]] * 2)
        assert people_note(table).startswith("people: 3 annotators; 12 of 12 questions")
        assert any("1 mini case has no eval.json" in note for note in table["notes"]) == (number == 4)
    judge = reproduce("idea-bench", "table-8", run)
    table = reproduce("idea-bench", "table-8", run, "--people", run)
    for row, by_judge in zip(table["rows"], judge["rows"], strict=True):
        assert [row[f"{CATEGORY[task]}_h"] for task in UID] == pytest.approx(list(score.values()))
        assert row["Avg. Score_h"] == pytest.approx(sum(score.values()) / 5)
        assert row == by_judge | {key: value for key, value in row.items() if key.endswith("_h")}


def test_an_open_question_is_missing_where_it_could_change_the_score(run, reproduce):
    """A tie of question 6 in one case; in the others of question 3, which does not count after a no to question 1."""

    def answer(who, task, k):
        if task == "plain_0001":
            return k != 6 or who == "ann"
        return not (k == 1 or (k == 3 and who == "ann"))

    given(run, answer, RATERS[:2])
    table = reproduce("idea-bench", "table-2", run, "--people", run)
    assert people_note(table) == (
        "people: 2 annotators; 30 of 36 questions have a label, 6 are tied and 0 have none; a score that depends on "
        "these is missing"
    )
    assert "one: the average is between 23.33 and 26.67" in table["notes"]  # (500/6 or 100, 100/6, 100/6) / 5
    for row in table["rows"]:
        assert (row["T2I"], row["average"]) == (None, None)
        assert row["I2I"] == row["T2Is"] == pytest.approx(100 / 6)
    text = reproduce("idea-bench", "table-3", run, "--people", run, form="text")
    assert text.splitlines()[-1].split() == ["two", "–", "–", "–"]  # noqa: RUF001 (a dash, as in the paper)


def test_an_unlabelled_case_is_missing_and_one_without_images_scores_0(run, reproduce, tmp_path):
    lines = [
        {"model": "one", "task_id": "plain_0001", "deliverable": 1} | {f"question_{k}": k <= 3 for k in range(1, 7)},
        {"model": "two", "task_id": "plain_0001", "deliverable": 1} | {f"question_{k}": 1 for k in range(1, 7)},
    ]
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with RunDir.open(run) as opened, opened.store.transaction():
        opened.store.write(
            "UPDATE candidates SET state = 'unscored', pixels_sha256 = NULL, unscored = 'it failed' "
            "WHERE model = 'two' AND task_id = 'pair_0001'"
        )
    table = reproduce("idea-bench", "table-2", run, "--people", file)
    one, two = table["rows"]
    assert not any("fraction" in note for note in table["notes"])
    assert people_note(table).startswith("people: 1 annotator; 12 of 30 questions have a label, 0 are tied and 18 ")
    assert "people: 1 case has no image and score 0" in table["notes"]
    assert [one[c] for c in ("T2I", "I2I", "T2Is", "average")] == [50, None, None, None]
    assert [two[c] for c in ("T2I", "I2I", "T2Is", "average")] == [100, None, 0, None]


def test_fractions_of_repeats_are_counted_in_a_note(run, reproduce, tmp_path):
    """As `import --labels` writes them: each decides its question for all repeats."""
    line = {"model": "one", "task_id": "plain_0001", "deliverable": 1}
    (tmp_path / "labels.jsonl").write_text(json.dumps(line | {f"question_{k}": k / 6 for k in range(1, 7)}))
    table = reproduce("idea-bench", "table-3", run, "--people", tmp_path / "labels.jsonl")
    assert table["rows"][0]["0024"] == 0  # below 0.5: no
    assert any("5 labels are fractions" in note for note in table["notes"])


def test_people_of_several_runs_and_what_is_no_label(runs, reproduce):
    first, second = runs["idea-bench"]
    said = reproduce("idea-bench", "table-2", first, second, "--people", first, status=2)
    assert "2 runs and 1 file of labels are given: give --people once for each run" in said
    said = reproduce("idea-bench", "table-2", first, "--people", "one.csv", status=2)
    assert "--people one.csv is a result file: give it instead of the run" in said
    said = reproduce("idea-bench", "table-8", first, "--people", "one.csv", "--people", first, status=2)
    assert f"one.csv is a result file and {first} is not" in said
    assert "this run has no annotations" in reproduce("idea-bench", "table-2", first, "--people", first, status=1)


def test_labels_replace_the_judge_in_table_2_and_stand_beside_it_in_table_8(runs, reproduce, tmp_path):
    first, second = runs["idea-bench"]
    other = shutil.copytree(second, tmp_path / "second")
    with RunDir.open(other) as opened, opened.store.transaction():
        opened.store.set_meta("judges", json.dumps({"e" * 64: "another"}))
    files = []
    for model in ("one", "three"):
        files.append(tmp_path / f"{model}.jsonl")
        line = {"model": model, "task_id": "plain_0001", "deliverable": 1}
        files[-1].write_text(json.dumps(line | {f"question_{k}": True for k in range(1, 7)}))
    people = ("--people", files[0], "--people", files[1])
    assert "differ in the judges" in reproduce("idea-bench", "table-2", first, other, status=1)
    assert len(reproduce("idea-bench", "table-2", first, other, *people)["rows"]) == 3
    assert "differ in the judges" in reproduce("idea-bench", "table-8", first, other, *people, status=1)


@pytest.mark.parametrize("metric", ["clip_cap", "clip_cap:tiny-clip"])
def test_table_8_has_clip_score_of_a_small_model_too(run, reproduce, metric):
    with RunDir.open(run) as opened:
        settings = opened.config
    with RunDir.begin(run, settings) as opened:
        works = {(row.model, row.task_id, row.deliverable): row.work_id for row in opened.store.candidates()}
        scores = {works["one", "plain_0001", 1]: 0.2, works["one", "pair_0001", 2]: 0.4}
        opened.store.enter_scores("metric", [(work_id, Score(metric, value)) for work_id, value in scores.items()])
    table = reproduce("idea-bench", "table-8", run)
    assert [row["clip_score"] for row in table["rows"]] == [pytest.approx(0.3), None]
    assert ("CLIPScore is the metric clip_cap:tiny-clip" in table["notes"]) == (":" in metric)


def test_an_answer_about_a_set_is_not_about_another_set_with_an_equal_image(run):
    with RunDir.open(run) as opened, opened.store.transaction():
        opened.store.write(
            "UPDATE candidates SET pixels_sha256 = (SELECT pixels_sha256 FROM candidates WHERE model = 'one' "
            "AND task_id = 'pair_0001' AND deliverable = 1) WHERE model = 'two' AND task_id = 'pair_0001' "
            "AND deliverable = 1"
        )
    with RunDir.open(run) as opened:
        images = {
            (row.model, row.task_id, row.deliverable): (row.work_id, row.image) for row in opened.store.candidates()
        }
    own = images["one", "pair_0001", 2][1]

    def answer(who, item, name, key):
        return any(one.pixels_sha256 == own for one in item.images)

    answer_all(run, "points", {"ann": "annotator"}, answer)
    with RunDir.open(run) as opened:
        found = load_annotations(run, opened, {}).consensus["question_1"]
    decisions = [found[images[m, "pair_0001", i][0]].decision for m in ("one", "two") for i in (1, 2)]
    assert decisions == [True, True, False, False]


def test_without_eval_json_the_judges_questions_name_the_images_of_their_collage(tmp_path):
    data = layouts.idea(tmp_path / "data")
    for case, note in (("plain_0001", ["one"]), ("relight_0001", [7])):  # of no use: the case is kept
        (data / case / "eval.json").write_text(json.dumps(note))
    notes = {}
    points = {}
    for task in suite("idea-bench").tasks(str(data), lambda image: f"{image.size}{image.getpixel((0, 0))}"):
        points[task.task_id], notes[task.task_id] = suite("idea-bench").points_for_people(task), task.notes
    assert points["plain_0001"][0] == "Is it plain, 0?"
    about = "[About reference 1 in the upper row, image 1 in the lower row]"
    assert points["relight_0001"][0] == f"{about}\nIs it relight, 0?"
    assert points["pair_0001"][:2] == (
        "[About an image that shows the number of results as a digit]\nIs the number in the image the digit 2?",
        "[About image 1, 2]\nIs it pair, 1?",
    )
    assert notes["pair_0001"] == ()
    assert notes["plain_0001"] == (
        "Annotators answer the questions of auto_eval.jsonl: eval.json has 1 questions instead of 6.",
    )
    assert notes["relight_0001"][0].startswith(
        "Annotators answer the questions of auto_eval.jsonl: eval.json: a question must"
    )


def test_agreement_says_that_people_answered_other_questions(run):
    given(run, yes)
    with RunDir.open(run) as opened:
        (note,) = agreement(opened, run).notes
    assert note.startswith("annotators answer other questions than the judges about 2 tasks")


def test_a_model_that_received_rephrased_prompts_has_a_dagger(tmp_path, reproduce):
    """Only in tables with cases that it could not do by itself: none of text to image (table 3 has no dagger)."""
    data = layouts.idea(tmp_path / "data")
    written = layouts.rephrased(tmp_path / "written.jsonl")
    settings = RunConfig(
        name="t",
        suite={"name": "idea-bench", "path": str(data), "written": str(written)},
        models=[{"card": "tiny-flux", "name": "words"}, {"card": "tiny-omnigen", "name": "edits"}],
        metrics=[],
        engine={"device": "cpu"},
    )
    path = tmp_path / "run"
    with RunDir.begin(path, settings) as opened:
        enter_plan(opened, make_plan(settings, files=False))
    names = {n: [row["method"] for row in reproduce("idea-bench", f"table-{n}", path)["rows"]] for n in (2, 3, 4, 6, 8)}
    both = ["words†", "edits†"]
    assert names == {2: both, 3: ["words", "edits"], 4: ["words†", "edits"], 6: both, 8: both}
    notes = reproduce("idea-bench", "table-2", path)["notes"]
    assert "†: prompts rephrased by an MLLM (`local-bench extract`); cases with such prompts: words 2, edits 1" in notes
    assert not [note for note in reproduce("idea-bench", "table-3", path)["notes"] if "†" in note]
    assert r"words$\dagger$ & " in reproduce("idea-bench", "table-2", path, form="latex")
    assert "\nwords†," in reproduce("idea-bench", "table-2", path, form="csv")
