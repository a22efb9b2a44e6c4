"""The mask of a task is part of the work of models that take one, and of no other."""

import json

from local_bench.runs.config import load_config
from local_bench.runs.plan import make_plan
from tests.suites.benchmarks import layouts


def test_the_mask_is_part_of_the_work_of_a_model_that_takes_one_alone(tmp_path):
    config = {
        "name": "masks",
        "suite": {"name": "ice-bench", "path": str(layouts.ice(tmp_path / "data"))},
        "models": [{"card": "tiny-flux-fill"}, {"card": "tiny-omnigen"}],
        "judge": {"card": "tiny-qwen3-vl"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    plan = make_plan(load_config(tmp_path / "run.yaml"), files=False)
    masked = next(task for task in plan.tasks if task.task_id == "i3")
    work = {(p.candidate.model, p.candidate.work["task"]): p.candidate.work for p in plan.planned}
    assert work["tiny-flux-fill", "i3"]["mask"] == masked.mask_sha256
    assert work["tiny-flux-fill", "i3"]["pictures"] == (masked.source_sha256,)
    assert work["tiny-omnigen", "i3"]["pictures"] == (masked.source_sha256, masked.mask_sha256)
    assert not any("mask" in found for (model, _), found in work.items() if model == "tiny-omnigen")
