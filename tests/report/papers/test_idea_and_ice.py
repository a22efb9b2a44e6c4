"""IDEA-Bench's and ICE-Bench's tables from runs, against arithmetic on the ledgers' rows."""

import csv
import json
import shutil
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from statistics import fmean

import pytest

from local_bench.analysis.official import export
from local_bench.cli.main import main
from local_bench.report.papers.ice_bench import NUMBERED
from local_bench.runs.rundir import RunDir
from local_bench.suites.ice_bench.scoring import TASKS
from local_bench.suites.idea_bench.results import read_results
from tests.annotation.conftest import answer_all


def case_score(answers):
    """Six answers, two a level: nothing counts above a level that is not all yes (sec. 3.3.1)."""
    total = 0
    for level in (answers[0:2], answers[2:4], answers[4:6]):
        total += sum(level)
        if not all(level):
            break
    return total / 6


@pytest.fixture(scope="module")
def scores(runs):
    """(model, task's uid) -> percent, by SQL; each task of the layout has one case."""
    found = {}
    uid = {"plain_0001": "0024", "relight_0001": "0063", "pair_0001": "0014"}
    for path in runs["idea-bench"]:
        with RunDir.open(path) as run:
            rows = run.store.rows(
                "SELECT model, task_id, point, repeat, answer FROM verdicts JOIN candidates USING (work_id)"
            )
        met = defaultdict(lambda: [[0] * 6 for _ in range(3)])
        for r in rows:
            met[r["model"], uid[r["task_id"]]][r["repeat"]][r["point"]] = json.loads(r["answer"] or '{"met": 0}')["met"]
        found |= {key: 100 * fmean(map(case_score, of)) for key, of in met.items()}
    return found


def test_idea_tables_have_the_tasks_the_categories_with_a_dash_as_0_and_their_subtasks(runs, reproduce, scores):
    result = reproduce("idea-bench", "table-2", *runs["idea-bench"])
    assert [row["method"] for row in result["rows"]] == ["one", "two", "three"]
    for row in result["rows"]:
        own = {c: scores.get((row["method"], u), 0) for c, u in (("T2I", "0024"), ("I2I", "0063"), ("T2Is", "0014"))}
        assert {c: row[c] for c in own} == pytest.approx(own)
        assert row["Is2I"] is row["I(s)2Is"] is None
        assert row["average"] == pytest.approx(sum(own.values()) / 5)
    result = reproduce("idea-bench", "table-3", runs["idea-bench"][0])
    assert result["columns"]["0024"] == "Subtasks Score plain"
    assert [row["0024"] for row in result["rows"]] == pytest.approx(
        [scores.get((m, "0024"), 0) for m in ("one", "two")]
    )
    assert "nothing given has a task of Is2I" in reproduce("idea-bench", "table-5", runs["idea-bench"][0], status=2)
    (row,) = reproduce("idea-bench", "table-1", runs["idea-bench"][0])["rows"]
    assert (row["tasks"], row["cases"], row["length"], row["judge"]) == (3, 3, 2, "dice")  # "Draw plain."
    assert [row[c] for c in ("T2I", "I2I", "Is2I", "T2Is", "I(s)2Is")] == [True, True, False, True, False]


@pytest.mark.parametrize("table", ["table-2", "table-3", "table-8"])
def test_idea_tables_say_how_many_answers_are_missing(runs, reproduce, tmp_path, table):
    run = shutil.copytree(runs["idea-bench"][0], tmp_path / "run")
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        db.execute("DELETE FROM verdicts")
    n = 18 if table == "table-3" else 54
    said = [note for note in reproduce("idea-bench", table, run)["notes"] if "answers have no score" in note]
    assert [note.partition(";")[0] for note in said] == [
        f"{model}: {n} answers have no score and count as no" for model in ("one", "two")
    ]
    assert all("with yes at best T2I 100.00" in note for note in said)


def test_a_category_that_no_model_supports_is_not_absent(runs, reproduce, tmp_path):
    run = shutil.copytree(runs["idea-bench"][0], tmp_path / "run")
    with closing(sqlite3.connect(run / "ledger.sqlite")) as db, db:
        changed = "state = 'unscored', pixels_sha256 = NULL, unscored = 'not supported: x'"
        db.execute(f"UPDATE candidates SET {changed} WHERE task_id = 'pair_0001'")
    said = reproduce("idea-bench", "table-6", run, status=2)
    assert "no model has an image for the tasks of T2Is" in said
    notes = reproduce("idea-bench", "table-2", run)["notes"]
    assert any(note.startswith("one: no answers for tasks of Is2I, T2Is, I(s)2Is") for note in notes), notes


def test_idea_table_8_has_judge_people_and_clip_score(runs, reproduce, scores, tmp_path):
    path = runs["idea-bench"][0]
    with RunDir.open(path) as run:
        files = export(run, "idea-bench", tmp_path / "out")
        done = run.store.rows("SELECT work_id FROM candidates WHERE model = 'one' AND state = 'done'")
    without = reproduce("idea-bench", "table-8", path)
    assert {row["clip_score"] for row in without["rows"]} == {None}
    for row in without["rows"]:
        assert row["T2I_g"] == pytest.approx(scores.get((row["method"], "0024"), 0))
        assert row["T2I_h"] is None
    people = reproduce("idea-bench", "table-8", path, "--people", files[0])["rows"][0]
    assert people["Avg. Score_h"] == people["Avg. Score_g"] == pytest.approx(without["rows"][0]["Avg. Score_g"])
    assert reproduce("idea-bench", "table-8", *files)["rows"] == without["rows"]
    assert done


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 8])
def test_ice_tables_3_to_8_are_means_of_raw_metrics(runs, reproduce, number):
    result = reproduce("ice-bench", f"table-{number}", *runs["ice-bench"])
    metrics = {"aesthetic": "aes_v2.5", "imaging": "musiq_koniq", "clip_cap": "clip_cap", "clip_src": "clip_src"}
    metrics |= {"vllm_qa": "vllmqa", "dino_ref": "dino_ref"}
    present = {3: ["Text2Image"], 4: ["Depth-guided Generation"], 5: [], 6: ["Subject Reference Generation"]}
    present |= {7: ["Color Editing"], 8: ["Local Subject Removal"]}
    assert [row["task"] for row in result["rows"]] == 3 * present[number]
    values = {}
    for path in runs["ice-bench"]:
        with RunDir.open(path) as run:
            for r in run.store.rows(
                """SELECT model, category, name, value FROM scores s JOIN candidates c USING (work_id)
                   JOIN tasks USING (task_id) WHERE c.state = 'done'"""
            ):
                values[r["model"], r["category"], r["name"]] = r["value"]
    for row in result["rows"]:
        for key, name in metrics.items():
            if key in row:
                assert row[key] == pytest.approx(values.get((row["model"], row["task"], name)))
        if number == 4:
            stored = values.get((row["model"], row["task"], "l1_depth"))
            assert row["l1_src"] == (None if stored is None else pytest.approx(1 - stored))
        if number in (7, 8):
            assert row["l1_src"] == pytest.approx(values.get((row["model"], row["task"], "l1_raw")))


def test_ice_tables_say_of_how_many_items_they_are(runs, reproduce):
    path = runs["ice-bench"][0]
    with RunDir.open(path) as run:
        made = {
            (row["model"], row["task_id"])
            for row in run.store.rows(
                "SELECT DISTINCT model, task_id FROM scores JOIN candidates USING (work_id) WHERE value IS NOT NULL"
            )
        }
    item = {"Text2Image": "i1", "Color Editing": "i2", "Local Subject Removal": "i3"}
    for number in (3, 7, 8):
        for row in reproduce("ice-bench", f"table-{number}", path)["rows"]:
            assert row["n"] == ((row["model"], item[row["task"]]) in made)


def test_ice_tables_show_variants_under_their_names_where_no_item_has_the_metric(runs, reproduce, tmp_path):
    own = reproduce("ice-bench", "table-3", runs["ice-bench"][0])
    path = tmp_path / "run"
    shutil.copytree(runs["ice-bench"][0], path)
    with closing(sqlite3.connect(path / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE scores SET name = 'clip_cap:tiny-clip' WHERE name = 'clip_cap'")
    small = reproduce("ice-bench", "table-3", path)
    assert small["rows"] == own["rows"]
    assert small["columns"]["clip_cap"] == "CLIP-cap\N{UPWARDS ARROW} (clip_cap:tiny-clip)"
    assert small["columns"]["aesthetic"] == own["columns"]["aesthetic"]
    assert "not comparable with the paper: clip_cap:tiny-clip" in small["notes"][-1]
    assert not [note for note in own["notes"] if "not comparable" in note]
    assert "(clip_cap:tiny-clip)" in reproduce("ice-bench", "table-3", path, form="csv")
    both = reproduce("ice-bench", "table-3", path, runs["ice-bench"][1])  # where one item has the benchmark's own
    assert both["columns"]["clip_cap"] == own["columns"]["clip_cap"]
    assert [row["clip_cap"] for row in both["rows"] if row["model"] in ("one", "two")] == [None, None]


def test_ice_table_2_has_every_task_and_a_dash_for_those_of_no_item_or_image(runs, reproduce, tmp_path):
    path = runs["ice-bench"][0]
    result = {row["task"]: row for row in reproduce("ice-bench", "table-2", path)["rows"]}
    assert list(result) == list(NUMBERED)
    assert result["Text2Image"]["one"] is True
    assert result["Face Swap"]["one"] is None
    assert result["Face Swap"]["kind"] == "Ref Editing"
    assert result["Local Subject Removal"]["kind"] == "Local Editing"
    assert len(NUMBERED) == 31
    assert set(NUMBERED) == set(TASKS)
    path = shutil.copytree(path, tmp_path / "run")
    with closing(sqlite3.connect(path / "ledger.sqlite", isolation_level=None)) as db:
        db.execute(
            """UPDATE candidates SET state = 'unscored', unscored = 'no image', pixels_sha256 = NULL
               WHERE model = 'one' AND task_id = 'i1'"""
        )
    result = {row["task"]: row for row in reproduce("ice-bench", "table-2", path)["rows"]}
    assert (result["Text2Image"]["one"], result["Text2Image"]["two"]) == (None, True)


def test_ice_result_files_are_of_the_method_whose_folder_they_are_in(runs, reproduce, tmp_path):
    with RunDir.open(runs["ice-bench"][0]) as run:
        files = export(run, "ice-bench", tmp_path / "out")
    result = reproduce("ice-bench", "table-3", *files)["rows"]
    of_run = {row["model"]: row for row in reproduce("ice-bench", "table-3", runs["ice-bench"][0])["rows"]}
    assert result
    assert all(row == of_run[row["model"]] for row in result)


def test_answers_of_a_judge_are_no_formulas_and_the_official_file_is_read_again(runs, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(runs["idea-bench"][0], path)
    with RunDir.open(path) as run:
        before = {file.name: read_results(file) for file in export(run, "idea-bench", tmp_path / "before")}
    with closing(sqlite3.connect(path / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE verdicts SET raw = '=1+2|' || raw")
        db.execute("UPDATE tasks SET content = json_set(content, '$.title', '-1+2')")
    with RunDir.open(path) as run:
        files = export(run, "idea-bench", tmp_path / "out")
    for file in files:
        cells = [cell for row in csv.reader(file.open(newline="")) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "-"))]
        assert any(cell.startswith("'=1+2|") for cell in cells)
        assert read_results(file) == [replace(row, task_name="-1+2") for row in before[file.name]]


def test_idea_questions_answered_by_people_become_its_results(runs, reproduce, tmp_path, capsys):
    """Annotated here by `points`: each annotator's answers as the benchmark's CSV, scored as it scores them."""
    path = tmp_path / "run"
    shutil.copytree(runs["idea-bench"][0], path)
    roles = dict.fromkeys(("x", "y", "consensus"), "annotator")  # the last one collides with the consensus' folder
    answer_all(path, "points", roles, lambda name, item, field, key: name in ("x", "consensus"))
    with RunDir.open(path) as run:
        uids = {task.task_id: task.own["uid"] for task in run.store.tasks()}
        made = {(row.model, uids[row.task_id]) for row in run.store.candidates() if row.image}
    out = tmp_path / "people"
    assert main(["annotate", "export", str(path), "--format", "idea-bench", "--out", str(out)]) == 0
    capsys.readouterr()
    assert [folder.name[:10] for folder in sorted(out.iterdir())] == ["annotator-", "consensus", "x", "y"]
    for file in out.rglob("*.csv"):
        assert main(["score", "idea-bench", str(file), "--json"]) == 0
        tasks = json.loads(capsys.readouterr().out)["tasks"]
        yes = "y" not in file.relative_to(out).parts
        assert tasks == {uid: 100 * (yes and (file.stem, uid) in made) for uid in tasks}
        assert reproduce("idea-bench", "table-8", path, "--people", file)["rows"]
