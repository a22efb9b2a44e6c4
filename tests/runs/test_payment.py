import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from local_bench.analysis.predictors.images import labelled_images
from local_bench.cli.main import main
from local_bench.core.types import Verdict
from local_bench.judges.payment.artefact import NOT_JUDGED, Card, load
from local_bench.judges.payment.data import Example, PaymentConfig
from local_bench.models.gpus import gpu
from local_bench.models.weights import resolve
from local_bench.runs.payment import MEASURED, POINTS, examples_of, model_log_odds, point_inputs, train_payment_model
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from scripts.payment_plan import TrainingPlan, Workload, training_plan
from tests.analysis.simulated import config, draw, judged
from tests.judges.payment import tiny
from tests.orders import order, write_orders
from tests.suites.benchmarks import layouts


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two judged runs of the same tasks with images of other models."""
    folder = tmp_path_factory.mktemp("payment")
    tasks = layouts.servimage(folder)
    for name, models, seed in (("first", "abcdef", 1), ("second", "g", 2)):
        made = {f"{name}-{m}": draw("servimage", tasks, folder / name / m, seed + i) for i, m in enumerate(models)}
        judged(folder / "runs" / name, config("servimage", tasks, made), seed)
    return folder / "runs" / "first", folder / "runs" / "second"


def decided(run: RunDir) -> dict[str, bool]:
    """Every other image is accepted."""
    return {row.work_id: i % 2 == 0 for i, row in enumerate(run.store.candidates()) if row.image}


def test_examples_have_the_task_its_images_and_the_judges_scores(runs: tuple[Path, Path]) -> None:
    with RunDir.open(runs[0]) as run:
        outcomes = decided(run)
        found = examples_of(run, outcomes)
        scores = run.store.scores_by_candidate("judge")
        tasks = {(task.title, task.brief): task for task in run.store.tasks()}
    assert {one.work_id for one in found} == set(outcomes)
    for one in found:
        assert one.accepted == outcomes[one.work_id]
        brf = scores[one.work_id]["brf"]
        assert math.isnan(one.concepts[0]) if brf.value is None else one.concepts[0] == brf.value
        cns = scores[one.work_id]["cns_edit"]
        assert math.isnan(one.concepts[5]) or cns.applies
        assert len(one.measured) == len(MEASURED)
        task = tasks[one.title, one.brief]
        assert one.points == task.evaluation_points
        assert one.deliverable in task.deliverables
        assert (one.source, one.references) == (task.source_sha256, task.reference_sha256)
        assert one.image not in one.siblings or len(task.deliverables) > 1
    assert any(one.siblings for one in found)
    by_task: dict[str, set[str]] = {}
    for one in found:
        by_task.setdefault(one.task_id, set()).add(one.split)
    assert all(len(splits) == 1 for splits in by_task.values())


def test_point_inputs_summarise_the_answers_to_each_point() -> None:
    def answer(met: int, probability: float) -> Verdict:
        return Verdict({"met": met}, None, "", {"met": {"0": 1 - probability, "1": probability}})

    answers = {(1, "brf", 0, 0): answer(1, 0.5), (1, "brf", 1, 0): answer(0, 0.25), (2, "brf", 1, 0): answer(1, 0.75)}
    summary = {"points_own": 0.375, "points_met": 0.625, "points_lowest": 0.5, "points_all": 0.375}
    assert dict(zip(POINTS, point_inputs(2, 1, [1, 2], answers), strict=True)) == summary
    assert all(map(math.isnan, point_inputs(2, 1, [1], {})))
    assert all(map(math.isnan, point_inputs(3, 1, [1, 2], answers)))  # one point has no answer


def test_both_stages_train_on_a_run_and_predict_another(runs: tuple[Path, Path], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    stage = tiny.Stage(epochs=1, effective_batch=4, learning_rate=1e-3)
    with RunDir.open(runs[0]) as run, RunDir.open(runs[1]) as other:
        seed = next(seed for seed in range(50) if _usable(examples_of(run, decided(run), seed)))
        settings = tiny.config(seed=seed, stage1=stage, stage2=stage, measured=True, max_tokens=4096, image_pixels=4096)
        card = train_payment_model([run], [decided(run)], settings, tmp_path / "model", lambda _: None)
        assert (tmp_path / "model" / Card.FILE).is_file()
        assert card.measured_names == list(MEASURED)
        found = model_log_odds("servimage", [other], tmp_path)
        odds = model_log_odds("servimage", [run, other], tmp_path)
        images = {row.work_id for row in other.store.candidates() if row.image}
    assert set(found) == images
    assert all(map(math.isfinite, found.values()))
    assert len(set(found.values())) > 1
    assert found.items() <= odds.items()
    assert len(odds) > len(found)
    unjudged = replace(tiny.example(0, "test"), measured=(math.nan,) * len(MEASURED))
    (one,) = load(tmp_path / "model", device="cpu").predict([unjudged], tiny.load)
    assert (one.log_odds, one.unscored) == (None, NOT_JUDGED)


def test_the_commands_train_evaluate_apply_and_settle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = tmp_path / "tasks.jsonl"
    write_orders(orders, (order(f"o{i:03}", ["a logo"], title=f"Order {i}", brief=f"Logo {i}.") for i in range(150)))
    runs = tmp_path / "first", tmp_path / "second"
    for path, seed in zip(runs, (1, 2), strict=True):
        made = {"some-api": draw("servimage", orders, tmp_path / f"images-{seed}", seed, left_out=0.0)}
        judged(path, config("servimage", orders, made), seed)
    stage = tiny.Stage(epochs=1, effective_batch=32, learning_rate=1e-3)
    with RunDir.open(runs[0]) as run:
        outcomes = decided(run)
        names = ("model", "task_id", "deliverable")
        rows = [row for row in run.store.candidates() if row.image]
        labels = [{n: getattr(row, n) for n in names} | {"overall": outcomes[row.work_id]} for row in rows]
    settings = tiny.config(stage1=stage, stage2=stage, max_tokens=4096, image_pixels=4096)
    (tmp_path / "tiny.yaml").write_text(json.dumps(settings.model_dump(mode="json")))
    write_orders(tmp_path / "annotations.jsonl", labels)

    def printed(*arguments: object) -> Any:
        assert main([*map(str, arguments), "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    out, annotations = tmp_path / "payer", ("--annotations", tmp_path / "annotations.jsonl")
    with RunDir.open(runs[0]) as run:
        seed = next(seed for seed in range(200) if _has_splits(run, seed, tmp_path / "annotations.jsonl"))
    model = ("--kind", "servimage", "--model", tmp_path / "tiny.yaml", "--row", "frozen", "--seed", seed)
    trained = printed("predictor", "train", runs[0], *annotations, "--out", out, *model)
    assert trained["kind"] == "servimage"
    assert (out / "model" / Card.FILE).is_file()
    found = printed("predictor", "evaluate", out, runs[0], *annotations)
    assert found["rows"][-1]["name"] == "predictor (servimage)"
    assert found["rows"][-1]["accuracy"]["value"] is not None
    predicted = printed("predictor", "apply", runs[1], "--predictor", out)["predictions"]
    assert all(line["probability"] is not None for line in predicted)
    settled = printed("settle", runs[1], "--predictor", out)["predictor"]
    accepted = sum(bool(line["accepted"]) for line in predicted)
    assert sum(of["n_accepted"] for of in settled["models"].values()) == accepted
    few = tmp_path / "few.jsonl"  # refused before training, which may take hours
    write_orders(few, labels[:40])
    refused = ["predictor", "train", str(runs[0]), "--annotations", str(few), "--out", str(tmp_path / "none")]
    assert main([*refused, *map(str, model)]) == 2
    assert not (tmp_path / "none").exists()
    card = out / "model" / "card.json"
    card.write_text(card.read_text().replace("tiny-qwen3-vl", "tiny-qwen2-vl"))
    assert main(["predictor", "apply", str(runs[1]), "--predictor", str(out)]) == 2


def _has_splits(run: RunDir, seed: int, annotations: Path) -> bool:
    """Whether both outcomes are in each split, among images with all scores."""
    images = labelled_images([run], [annotations], list(thresholds_of(run.config)), seed)
    for split, n_tasks in (("train", 2), ("validation", 10), ("test", 2)):
        features, labels = images.of(split)
        used = features.known & ~np.isnan(labels)
        if any(len(set(features.tasks[used & (labels == label)])) < n_tasks for label in (0, 1)):
            return False
    return _usable(examples_of(run, decided(run), seed))


def _usable(examples: list[Example]) -> bool:
    return all(len({one.accepted for one in examples if one.split == split}) == 2 for split in ("train", "validation"))


def test_a_training_is_planned_from_the_backbones_config() -> None:
    def planned(settings: PaymentConfig, workload: Workload) -> TrainingPlan:
        described = AutoConfig.from_pretrained(resolve(settings.judge), local_files_only=True)
        with torch.device("meta"):
            base = AutoModelForImageTextToText.from_config(described)
            return training_plan(base, settings, workload, gpu("a6000"), 1)

    plan = planned(tiny.config(), Workload(100, 64, 1, train=1000))
    assert set(plan.trainable) == {"vision", "projector", "language"}
    assert plan.memory_gb["total"] == pytest.approx(sum(v for k, v in plan.memory_gb.items() if k != "total"))
    longer = planned(tiny.config(), Workload(200, 128, 1, train=1000))
    assert longer.hours["total"] > plan.hours["total"] > 0
    frozen = planned(tiny.config().row("frozen"), Workload(100, 64, 1, train=1000))
    assert frozen.trainable == {}
    assert frozen.hours["stage 1"] == 0
