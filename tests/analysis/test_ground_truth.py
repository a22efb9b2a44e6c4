"""A printshop run compared with its ground truth: correct images, incorrect images, and two judges."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from examples.miniature.printshop.sampling import render
from local_bench.analysis.ground_truth import check_ground_truth
from local_bench.analysis.settlement import accounting
from local_bench.cli.main import main
from local_bench.cli.tables import earnings
from local_bench.core.types import digest
from local_bench.report.judging import passport
from local_bench.runs.config import JudgeConfig, RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import decide, score, sets
from local_bench.settle.ground_truth import ALL
from local_bench.suites.printshop import shop
from local_bench.suites.registry import suite
from tests.report.written import report
from tests.stages import run_stages

JUDGE = digest({"judge": 1})
N_TASKS = 16


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two models: one delivers its own order, one the next order."""
    folder = tmp_path_factory.mktemp("shop")
    tasks = suite("printshop").tasks(None, lambda image: "0" * 64)[:N_TASKS]
    rng = np.random.default_rng(5)
    for i, task in enumerate(tasks):
        for k, scene in enumerate(shop.truth(task), 1):
            other = shop.truth(tasks[(i + 1) % len(tasks)])[0]
            for name, drawn in (("right", scene), ("wrong", other)):
                path = folder / name / task.task_id / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(render(drawn, rng)).save(path)
    return folder


@pytest.fixture(scope="module")
def perfect(made, tmp_path_factory):
    """A run whose judge answers the ground truth."""
    path = tmp_path_factory.mktemp("perfect") / "run"
    models = ("right", "wrong")
    config = RunConfig(
        name="t",
        suite={"name": "printshop", "limit": N_TASKS},
        models=[{"card": "imported", "name": name, "imported": {"images": str(made / name)}} for name in models],
        judge=JudgeConfig(card="tiny-qwen2-vl"),
        metrics=[],
        acceptance={"brf": 4.5},
        engine={"device": "cpu"},
    )
    run_stages(config, path, ("generate",))
    judged(path, kind=False)
    return path


def judged(path, kind):
    """Every question of the run gets its true answer, or, if `kind`, the kindest one."""
    with RunDir.open(path) as run:
        truths = check_ground_truth(run).truths
        with run.store.transaction():
            run.store.set_meta("judges", json.dumps({JUDGE: "one"}))
            run.store.write("DELETE FROM verdicts")
            for images in sets(run.store.images()).values():
                for work_id, _ in images.values():
                    _write_verdicts(run, work_id, truths[work_id].answers, kind)
        score(run, [JUDGE])
        decide(run)


def _write_verdicts(run, work_id, truths, kind):
    answers = {("veq_technical", 0): {"clarity": 5, "realism": 5}, ("veq_aesthetic", 0): {"aesthetic": 5}}
    answers["veq_text", 0] = {"has_text": False}
    for key, true in truths.items():
        kindest = {"met": 1} if key[0] == "brf" else {"score": 5, "flags": []}
        evidence = {"evidence": "the sky is darker"} if key[0] == "cns_edit" else {}  # as the default wording has it
        answers[key] = evidence | (kindest if kind else true)
    for (rubric, point), answer in answers.items():
        row = (work_id, rubric, point, 0, digest([work_id, rubric, point]), "0" * 64, JUDGE, json.dumps(answer))
        run.store.write("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, '')", *row)


def test_a_perfect_judge_settles_the_true_revenue(perfect):
    with RunDir.open(perfect) as done:
        found = check_ground_truth(done)
        tasks = done.store.tasks()
        value, n = sum(task.price_micro_usd for task in tasks), sum(len(task.deliverables) for task in tasks)
        money = {row.model: row for row in found.money}
        assert money["right"].true_micro_usd == money["right"].judged_micro_usd == value
        assert money["right"].n_right == money["right"].n == n > N_TASKS
        assert money["wrong"].true_micro_usd < value / 10
        assert all(row.judged_micro_usd == row.faultless_micro_usd for row in found.money)
        assert all(row.same.value == 1 for row in found.answers)
        assert {row.rubric for row in found.answers} == {"brf", "cns_edit", "cns_set"}
        lines = earnings(accounting(done.store, done.config.settlement), found)
        earned = "$299.00 (95 %: $215.94 to $299.00)"
        assert lines[0] == f"right earned {earned} of $299.00; by ground truth {earned}"
        assert "wrong earned" in lines[1]


def test_a_lenient_judge_pays_too_much(perfect, tmp_path):
    path = shutil.copytree(perfect, tmp_path / "run")
    judged(path, kind=True)
    with RunDir.open(path) as done:
        found = check_ground_truth(done)
        value = sum(task.price_micro_usd for task in done.store.tasks())
        n_right = sum(len(task.deliverables) for task in done.store.tasks())
        wrong = next(row for row in found.money if row.model == "wrong")
        assert wrong.judged_micro_usd == value
        assert wrong.too_much_micro_usd == wrong.off_micro_usd == wrong.judged_micro_usd - wrong.true_micro_usd
        assert wrong.faultless_micro_usd < value / 10
        assert wrong.too_little_micro_usd == 0
        brf = {row.model: row for row in found.answers if row.rubric == "brf"}
        assert brf[ALL].n_no_for_yes == 0
        assert brf["wrong"].n_yes_for_no > 30
        assert brf["right"].n_yes_for_no > 0  # a point of one image of a set counts as met by all of them
        figure = passport(done)
        table = {row[1]: dict(zip(figure.data.keys, row, strict=True)) for row in figure.data.rows}
        assert list(table) == list(dict.fromkeys(row.rubric for row in found.answers))
        assert table["brf"]["agreement"] == brf[ALL].same.value < 1
        assert (
            0 < table["brf"]["bias_low"] < table["brf"]["bias"] == brf[ALL].mean_difference < table["brf"]["bias_high"]
        )
        assert [panel.title for panel in figure.panels] == ["agreement", "bias (points)"]
        written = report(done.path)
    assert sum(right or 0 for right in written.data["0-candidates-0"]["truth"]) >= n_right
    assert "truth" in written.sections


def test_other_suites_have_no_ground_truth(tmp_path):
    config = RunConfig(name="t", suite={"name": "studio"}, models=[{"card": "tiny-flux"}], engine={"device": "cpu"})
    with RunDir.begin(tmp_path / "run", config) as begun:
        assert check_ground_truth(begun) is None


def test_an_empty_image_file_is_left_out(perfect, tmp_path, capsys):
    path = shutil.copytree(perfect, tmp_path / "run")
    with RunDir.open(path) as finished:
        sha = finished.store.rows("SELECT pixels_sha256 AS sha FROM candidates ORDER BY position")[0]["sha"]
        n = len(check_ground_truth(finished).truths)
        finished.image(sha).write_bytes(b"")
        n_left = len(check_ground_truth(finished).truths)
    assert n_left == n - 1
    assert main(["report", str(path)]) == 1
    assert "1 of the run's images do not match the store (1 damaged" in capsys.readouterr().err
    assert "1 of the run&#39;s images" in (path / "report" / "index.html").read_text()
