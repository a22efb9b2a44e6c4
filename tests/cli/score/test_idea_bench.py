"""`score idea-bench`: the hierarchy by hand, random sheets against another computation, what is refused."""

import csv
import json
import random

import pytest

from local_bench.suites.idea_bench.published import published
from local_bench.suites.idea_bench.results import CATEGORY_OF, HEADER, Row
from tests.cli.score import slow

EXACT = 1e-9
SIX = range(1, 7)
NAMES = ("T2I", "I2I", "Is2I", "T2Is", "I(s)2Is")


def write(folder, rows):
    """rows: (task, case, question) -> three of 0, 1, None."""
    path = folder / "results.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(HEADER)
        for (task, case, k), scores in rows.items():
            columns = [x for s in scores for x in ('{"score": 1}\n', "" if s is None else s, 'because "it, is" so')]
            out.writerow([f"task {task}", task, case, k, "Is it, so?\nOr not?", f"x/000{k}.jpg", *columns])
    return path


def case(task, number, *repeats):
    """repeats: six letters each, 0, 1 or ? for no score."""
    score_of = {"0": 0, "1": 1, "?": None}
    return {(task, number, q): tuple(score_of[repeat[q - 1]] for repeat in repeats) for q in range(1, 7)}


def test_the_hierarchy_by_hand(score, tmp_path):
    rows = case("0024", "0001", "111111", "101111", "110111")  # 6, 1, 3 of 6
    rows |= case("0024", "0002", "000000", "111011", "111100")  # 0, 3, 4
    rows |= case("0026", "0001", "111111", "111111", "111111")
    status, result, stderr = score("idea-bench", write(tmp_path, rows))
    assert status == 0
    first = 100 * ((6 + 1 + 3) / 18 + (0 + 3 + 4) / 18) / 2
    assert result["tasks"] == {"0024": pytest.approx(first, abs=EXACT), "0026": 100}
    assert result["categories"]["T2I"] == pytest.approx((first + 100) / 2, abs=EXACT)
    assert [result["categories"][name] for name in NAMES[1:]] == [0, 0, 0, 0]
    assert result["overall"] == pytest.approx((first + 100) / 10, abs=EXACT)
    assert result["without_tasks"] == list(NAMES[1:])
    assert "the file has 18 rows and the official scorer expects 306" in stderr
    text = score("idea-bench", tmp_path / "results.csv", as_json=False)[1]
    assert [line.split()[-3:] for line in text.splitlines() if line.startswith("002")] == [[*"200"], [*"100"]]


def test_answers_without_a_score_are_bounded_and_a_task_of_no_category_leaves_no_overall(score, tmp_path):
    rows = case("0063", "0001", "1?1111", "111111", "11?0??")
    rows.pop(("0063", "0001", 6))
    _, result, stderr = score("idea-bench", write(tmp_path, rows))
    low = 100 * (1 + 5 + 2) / 18
    high = 100 * (6 + 6 + 3) / 18
    assert (result["n_unscored"], result["n_missing"]) == (3, 3)
    assert result["tasks"]["0063"] == pytest.approx(low, abs=EXACT)
    assert result["tasks_high"]["0063"] == pytest.approx(high, abs=EXACT)
    assert result["overall_high"] == pytest.approx(high / 5, abs=EXACT)
    assert "3 answers have no score" in stderr
    assert "3 answers have no row" in stderr
    rows = case("0024", "0001", *["111111"] * 3) | case("0099", "0001", *["000000"] * 3)
    _, result, stderr = score("idea-bench", write(tmp_path, rows))
    assert result["categories"] == {"T2I": 100} | dict.fromkeys(NAMES[1:])
    assert result["overall"] is result["overall_high"] is None
    assert (result["tasks"]["0099"], result["without_category"]) == (0, ["0099"])
    assert "the category of these tasks is unknown" in stderr
    assert "0099" in stderr
    assert "count 0" not in stderr


def test_the_averages_have_intervals_over_cases(score, tmp_path):
    rows = {}
    for task in ("0024", "0026"):
        for number, repeat in enumerate(("111111", "111100", "000000")):
            rows |= case(task, f"{number:04d}", *[repeat] * 3)
    _, result, _ = score("idea-bench", write(tmp_path, rows))
    low, high = result["categories_ci95_low"]["T2I"], result["categories_ci95_high"]["T2I"]
    assert 0 < low < result["categories"]["T2I"] < high < 100
    assert (result["overall_ci95_low"], result["overall_ci95_high"]) == pytest.approx((low / 5, high / 5))
    assert result["categories_ci95_low"]["I2I"] is None
    assert f"{low:.2f} to {high:.2f}" in score("idea-bench", tmp_path / "results.csv", as_json=False)[1]
    _, result, _ = score("idea-bench", write(tmp_path, rows | case("0063", "0001", *["111111"] * 3)))
    assert (result["overall_ci95_low"], result["overall_ci95_high"]) == (None, None), "a task with one case"


def test_categories_come_from_the_datas_meta_json(score, tmp_path):
    """A broken case is named and left out; its task's category comes from the other cases."""
    rows = case("0099", "0001", *["111111"] * 3) | case("0100", "0001", *["110000"] * 3)
    cases = {"a_0001": ("0099", False), "a_0002": None, "b_0001": ("0100", True)}
    for name, case_of in cases.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        meta = {"task_name": "t", "case_id": "0001", "multi_image_reference": False, "multi_image_output": False}
        meta |= {} if case_of is None else {"uid": case_of[0], "image_reference": case_of[1]}
        (tmp_path / "data" / name / "meta.json").write_text("{broken" if case_of is None else json.dumps(meta))
    status, result, stderr = score("idea-bench", write(tmp_path, rows), "--tasks", tmp_path / "data")
    assert (status, result["without_category"]) == (0, [])
    assert result["categories"]["T2I"] == 100
    assert result["categories"]["I2I"] == pytest.approx(100 / 3, abs=EXACT)
    assert result["overall"] == pytest.approx((100 + 100 / 3) / 5, abs=EXACT)
    assert "unknown" not in stderr
    assert "case a_0002 is omitted" in stderr


def test_a_runs_rows_carry_their_category():
    rows = [Row(uid, "t", "0001", q, (1, 1, 1), name) for uid, name in (("0099", "T2I"), ("0100", "Is2I")) for q in SIX]
    found = published(rows).data
    assert (found["categories"]["T2I"], found["categories"]["Is2I"], found["overall"]) == (100, 100, 40)


@pytest.mark.parametrize("seed", range(8))
def test_random_files(score, tmp_path, seed):
    rng = random.Random(seed)
    rows = {}
    for task in rng.sample(sorted(CATEGORY_OF), rng.randint(1, len(CATEGORY_OF))):
        rate = rng.choice([0, 1, 0.5, 0.9])
        for number in range(rng.randint(1, 5)):
            for q in range(1, 7):
                if seed % 2 == 0 or rng.random() > 0.05:
                    yes = [int(rng.random() < rate) for _ in range(3)]
                    rows[task, f"{number:04d}", q] = tuple(None if seed % 2 and rng.random() < 0.05 else y for y in yes)
    status, result, _ = score("idea-bench", write(tmp_path, rows))
    assert status == 0
    tasks, categories, overall = slow.idea_bench(rows, CATEGORY_OF, NAMES)
    assert result["tasks"] == {task: pytest.approx(float(x), abs=EXACT) for task, x in tasks.items()}
    assert result["categories"] == {name: pytest.approx(float(x), abs=EXACT) for name, x in categories.items()}
    assert result["overall"] == pytest.approx(float(overall), abs=EXACT)
    assert result["overall_high"] >= result["overall"]


def test_a_complete_file_of_306_rows_has_no_messages_and_empty_rows_are_skipped(score, tmp_path):
    numbers = [4] * 3 + [3] * 13
    rows = {}
    for task, n in zip(sorted(CATEGORY_OF), numbers, strict=True):
        for number in range(n):
            rows |= case(task, f"{number:04d}", *["111111"] * 3)
    assert len(rows) == 306
    status, result, stderr = score("idea-bench", write(tmp_path, rows))
    assert (status, result["overall"], result["n_cases"], stderr) == (0, 100, 51, "")
    path = write(tmp_path, case("0024", "0001", *["111111"] * 3))
    expected = score("idea-bench", path)
    for row in ("," * (len(HEADER) - 1), " ,"):
        path.write_text(f"{path.read_text()}{row}\n")
    assert expected[0] == 0
    assert score("idea-bench", path) == expected


@pytest.mark.parametrize(
    "written",
    [
        lambda text: f"\n \r\n{',' * 14}\n{text}",
        lambda text: "\ufeff\r\n" + text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace("\n", ",,\n"),
        lambda text: text.replace("task_id", " task_id "),
        lambda text: text.replace("0024,0001,6", "24.0,1.0,6.0"),
    ],
)
def test_what_spreadsheets_write_is_read(score, tmp_path, written):
    path, text = tmp_path / "r.csv", f"{','.join(HEADER)}\nn,0024,0001,6,p,i,,1,,,0,,,1,\n"
    path.write_text(text)
    expected = score("idea-bench", path)
    path.write_text(written(text), newline="")
    assert expected[0] == 0
    assert score("idea-bench", path) == expected
    path.write_text(written(text.replace(HEADER[-2], "score")), newline="")
    line = 1 + written(text)[: written(text).index("task_name")].count("\n")
    assert f"r.csv, line {line}: the column 'score_3' is missing" in score("idea-bench", path)[2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("n,0024,0001,7,p,i,,1,,,1,,,1,", "line 3: question_id must be 1 to 6, not '7'"),
        ("n,0024,0001,1,p,i,,2,,,1,,,1,", "line 3: score_1 must be 0, 1 or empty, not '2'"),
        ("n,0024,,1,p,i,,1,,,1,,,1,", "line 3: case_id is empty"),
        ("n,'0024,0001,1,p,i,,1,,,1,,,1,", 'line 3: task_id must have four digits, as in meta.json, not "\'0024"'),
        ("n,0024,24.5,1,p,i,,1,,,1,,,1,", "line 3: case_id must have four digits, as in meta.json, not '24.5'"),
        ("n,0024,0001,1,p,i,,1", "line 3: 8 fields for 15 columns"),
        ("n,24,1,6,p,i,,1,,,1,,,1,", "line 3: duplicate question 6 of case 0001 of task 0024, first on line 2"),
        ('n,0024,0001,1,p,"i,,1,,,1,,,1,', "invalid CSV"),
        ("\nid,task_id\n", "line 2: the column 'task_name' is missing"),
        ("task_name,task_id\n", "line 1: the column 'case_id' is missing"),
    ],
)
def test_unreadable_files_are_refused(score, tmp_path, line, message):
    path = tmp_path / "r.csv"
    path.write_text(line if "task_id" in line else f"{','.join(HEADER)}\nn,0024,0001,6,p,i,,1,,,1,,,1,\n{line}\n")
    status, _, stderr = score("idea-bench", path)
    assert (status, message in stderr, stderr.count("\n")) == (2, True, 1)
