"""`score ice-bench`: every task's formula against another computation, means before weights, what is refused."""

import json
import random

import pytest

from local_bench.suites.ice_bench.scoring import TASKS, needed
from tests.cli.score import slow

EXACT = 1e-9


def write(folder, items):
    path = folder / "eval_result.txt"
    path.write_text("".join(f"id{i}#;#{task}#;#{json.dumps(m)}\n" for i, (task, m) in enumerate(items)))
    return path


def measured(rng, task):
    scale = {"aes_v2.5": 10, "musiq_koniq": 100}
    return {metric: rng.random() * scale.get(metric, 1) for metric in needed(task)}


TEXT = {"aes_v2.5": 5, "musiq_koniq": 60, "clip_cap": 0.3}
EDIT = TEXT | {"vllmqa": 1, "clip_src": 0.9, "l1_raw": 0.1}


def test_a_task_worked_by_hand(score, tmp_path):
    """In a file with a byte order mark."""
    more = {"aes_v2.5": 6, "musiq_koniq": 40, "clip_cap": 0.2, "vllmqa": 0, "clip_src": 0.7, "l1_raw": 0.3, "ssim": 0.9}
    path = write(tmp_path, [("Color Editing", EDIT), ("Color Editing", more)])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"id0", "\N{BULLET}".encode()))
    _, result, stderr = score("ice-bench", path)
    expected = 0.3 * 0.55 + 0.3 * 0.5 + 0.3 * (0.5 + 0.5) / 2 + 0.1 * (0.8 + 1 - 0.2) / 2
    assert result["tasks"] == {"Color Editing": pytest.approx(expected, abs=EXACT)}
    assert result["overall"] == pytest.approx(expected, abs=EXACT)
    assert result["dimensions"]["Color Editing"]["sc"] == pytest.approx(0.8)
    assert len(result["missing_tasks"]) == 30
    assert "30 of 31 tasks are not in the file" in stderr


@pytest.mark.parametrize("seed", range(8))
def test_random_files(score, tmp_path, seed):
    rng = random.Random(seed)
    tasks = rng.sample(sorted(TASKS), 31 if seed < 3 else rng.randint(1, 30))
    items = [(task, measured(rng, task)) for task in tasks for _ in range(rng.randint(1, 6))]
    rng.shuffle(items)
    status, result, _ = score("ice-bench", write(tmp_path, items))
    expected, overall = slow.ice_bench(items)
    assert status == 0
    assert result["tasks"] == {task: pytest.approx(float(x), abs=EXACT) for task, x in expected.items()}
    assert result["overall"] == pytest.approx(float(overall), abs=EXACT)
    assert result["overall_low"] == pytest.approx(result["overall"], abs=EXACT) == result["overall_high"]


def test_scores_have_intervals_over_items(score, tmp_path):
    rng = random.Random(0)
    items = [(task, measured(rng, task)) for task in ("Text2Image", "Inpainting") for _ in range(5)]
    _, result, _ = score("ice-bench", write(tmp_path, items))
    for task, value in result["tasks"].items():
        assert result["tasks_ci95_low"][task] < value < result["tasks_ci95_high"][task]
    low, high = result["overall_ci95_low"], result["overall_ci95_high"]
    assert low < result["overall"] < high
    assert (low + high) / 2 == pytest.approx(result["overall"])
    assert f"{low:.4f} to {high:.4f}" in score("ice-bench", tmp_path / "eval_result.txt", as_json=False)[1]
    _, result, _ = score("ice-bench", write(tmp_path, items[:6]))
    assert (result["tasks_ci95_low"]["Inpainting"], result["overall_ci95_low"]) == (None, None), "a task with one item"
    _, result, _ = score("ice-bench", write(tmp_path, [("Inpainting", items[0][1])]))
    assert result["overall"] is result["overall_ci95_low"] is None, "a task without a score"


def test_open_values_are_bounded_by_the_metric_s_range_and_a_task_without_any_is_unscored(score, tmp_path):
    lacks = {name: value for name, value in EDIT.items() if name != "l1_raw"} | {"vllmqa": None}
    _, result, stderr = score("ice-bench", write(tmp_path, [("Inpainting", EDIT), ("Inpainting", lacks)]))
    full = 0.3 * 0.5 + 0.3 * 0.6 + 0.3 * (0.6 + 1) / 2 + 0.1 * (0.9 + 1 - 0.1) / 2
    assert result["tasks"]["Inpainting"] == pytest.approx(full, abs=EXACT)
    assert result["tasks_low"]["Inpainting"] == pytest.approx(full - 0.3 * 0.25 - 0.1 * 0.45 / 2, abs=EXACT)
    assert result["tasks_high"]["Inpainting"] == pytest.approx(full + 0.1 * 0.05 / 2, abs=EXACT)
    assert result["n_unscored"] == {"Inpainting": 2}
    assert "2 metric values are missing" in stderr
    lacks |= {"l1_raw": 0.1}
    stderr = score("ice-bench", write(tmp_path, [("Inpainting", EDIT), ("Inpainting", lacks)]))[2]
    assert "1 metric value is missing" in stderr
    items = [("Text2Image", TEXT), ("Color Editing", TEXT | {"clip_src": 0.9, "l1_raw": 0.1})]
    _, result, stderr = score("ice-bench", write(tmp_path, items))
    assert (result["tasks"]["Color Editing"], result["unscored_tasks"]) == (None, ["Color Editing"])
    assert result["overall"] == pytest.approx((0.5 + 0.6 + 0.6) / 3, abs=EXACT)
    assert "Color Editing is unscored and not in the mean: no item has vllmqa" in stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("id1;Text2Image;{}", "line 2: an item must be ItemID#;#Task#;#JSON"),
        ("id1#;#Text2image#;#{}", "line 2: unknown task 'Text2image': did you mean 'Text2Image'?"),
        ("id1#;#Text2Image#;#{", "line 2: the metrics are not valid JSON"),
        ('id1#;#Text2Image#;#{"clip_cap": NaN}', "line 2: the metrics are not valid JSON (NaN is not a JSON number)"),
        ('id1#;#Text2Image#;#{"clip_cap": "1"}', "line 2: clip_cap must be a finite number"),
        ('id1#;#Text2Image#;#{"clip_cap": 1e999}', "line 2: clip_cap must be a finite number"),
        ('id1#;#Text2Image#;#{"aes_v2.5": 500}', "line 2: aes_v2.5 must be between 0 and 10, not 500"),
        ('id1#;#Image Deblur#;#{"ssim": 1.7e308}', "line 2: ssim must be between -1 and 1"),
        (f'id1#;#Text2Image#;#{{"clip_cap": {"9" * 400}}}', "not valid JSON (an integer has 400 digits"),
        ("id0#;#Text2Image#;#{}", "line 2: duplicate item 'id0', first on line 1"),
    ],
)
def test_unreadable_files_are_refused(score, tmp_path, line, message):
    path = tmp_path / "eval_result.txt"
    path.write_text(f"id0#;#Text2Image#;#{{}}\n{line}\n")
    status, _, stderr = score("ice-bench", path)
    assert (status, message in stderr, stderr.count("\n")) == (2, True, 1)


def test_the_table_of_weights_is_the_official_one(shared):
    facts = json.loads((shared / "reference/ice_bench.json").read_text())
    assert set(TASKS) == set(facts["task_weights"])
    raw = {"aesthetic": "aes_v2.5", "imaging": "musiq_koniq"}
    for task, recipe in TASKS.items():
        assert dict(recipe.weights) == pytest.approx(facts["task_weights"][task], abs=1e-6), task
        listed = {raw.get(name, name) for name in facts["task_metrics"][task]}
        assert set(needed(task)) == listed - {"clip_ref"}, task


@pytest.mark.parametrize("seed", range(12))
def test_every_score_is_between_its_bounds(score, tmp_path, seed):
    rng = random.Random(seed)
    items = []
    for task in rng.sample(sorted(TASKS), rng.randint(2, 31)):
        never = {metric for metric in needed(task) if rng.random() < 0.05}
        for _ in range(rng.randint(1, 4)):
            values = measured(rng, task)
            for metric in values:
                if metric in never or rng.random() < 0.2:
                    values[metric] = None
                elif metric in ("clip_cap", "clip_src", "face_ref"):
                    values[metric] = rng.uniform(-1, 1)
            items.append((task, values))
    _, result, _ = score("ice-bench", write(tmp_path, items))
    for task, value in result["tasks"].items():
        low, high = result["tasks_low"][task], result["tasks_high"][task]
        assert (value is None) == (low is None) == (high is None) == (task in result["unscored_tasks"])
        assert value is None or low - EXACT <= value <= high + EXACT
    if result["overall"] is not None:
        assert result["overall_low"] - EXACT <= result["overall"] <= result["overall_high"] + EXACT
