"""The mask of a task is part of the work of models that take one, and of no other."""

import numpy as np
import pytest
from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.generators.base import GenerationRequest, InputImage, pasted_back
from local_bench.generators.registry import Sampler
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import make_plan
from local_bench.runs.rundir import RunDir
from tests.orders import order, write_orders
from tests.stages import run_stages
from tests.suites.benchmarks import layouts


def test_the_mask_is_part_of_the_work_only_of_models_that_take_one(tmp_path):
    suite = {"name": "ice-bench", "path": str(layouts.ice(tmp_path / "data"))}
    models = [{"card": "tiny-flux-fill"}, {"card": "tiny-omnigen"}]
    plan = make_plan(RunConfig(name="masks", suite=suite, models=models, metrics=[]), files=False)
    masked = next(task for task in plan.tasks if task.task_id == "i3")
    work = {(row.model, row.work["task"]): row.work for row in plan.candidates}
    assert work["tiny-flux-fill", "i3"]["mask"] == masked.mask_sha256
    assert work["tiny-flux-fill", "i3"]["pictures"] == [masked.source_sha256]
    assert work["tiny-omnigen", "i3"]["pictures"] == [masked.source_sha256, masked.mask_sha256]
    assert not any("mask" in item for (model, _), item in work.items() if model == "tiny-omnigen")


def test_paste_back_copies_the_source_outside_the_mask_and_changes_the_image(tmp_path):
    source, mask = Image.radial_gradient("L").resize((64, 64)).convert("RGB"), Image.new("L", (64, 64))
    mask.paste(255, (16, 16, 48, 48))
    source.save(tmp_path / "source.png")
    mask.save(tmp_path / "mask.png")
    write_orders(tmp_path / "tasks.jsonl", [order("one", source_image="source.png", mask_image="mask.png")])
    models = [{"card": "tiny-flux-fill"}, {"card": "tiny-flux-fill", "name": "pasted", "paste_back": True}]
    suite = {"name": "servimage", "path": str(tmp_path / "tasks.jsonl")}
    config = RunConfig(name="t", suite=suite, models=models, metrics=[], engine={"device": "cpu"})
    run_stages(config, tmp_path / "run", ("generate",))
    with RunDir.open(tmp_path / "run") as run:
        rows = {row["model"]: row for row in run.store.rows("SELECT * FROM candidates")}
        plain, pasted = (np.asarray(run.image_store.load(rows[name]["pixels_sha256"])) for name in rows)
    assert list(rows) == ["tiny-flux-fill", "pasted"]
    inside = np.asarray(mask) > 0
    assert (pasted[~inside] == np.asarray(source)[~inside]).all()
    assert (pasted[inside] != np.asarray(source)[inside]).mean() > 0.9
    assert (plain[~inside] != pasted[~inside]).any()


def test_a_soft_mask_of_another_size_mixes_source_and_result():
    soft = InputImage("soft", Image.linear_gradient("L").resize((40, 20)).convert("RGB"))
    white = InputImage("white", Image.new("RGB", (90, 30), "white"))
    request = GenerationRequest("a", Sampler(64, 64, 1), (white,), soft)
    mixed = np.asarray(pasted_back(Image.new("RGB", (64, 64)), request))
    assert mixed[0].min() > 240
    assert mixed[-1].max() < 15
    assert (np.diff(mixed[:, 32, 0].astype(int)) <= 0).all()


def test_a_model_without_a_mask_has_no_paste_back():
    with pytest.raises(ConfigError, match="models: tiny-flux has no paste_back"):
        make_plan(RunConfig(name="t", models=[{"card": "tiny-flux", "paste_back": True}], metrics=[]), files=False)
