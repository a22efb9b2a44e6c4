"""Runs with the scores and annotations of simulated clients, whose decision depends on the scores and on chance."""

import json
import random

from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from tests.report.conftest import GAMMA, Writer, order

CATEGORIES = ("C-Portrait", "C-Product", "C-Digital")
MODELS = ("tiny-flux", "tiny-sd3")


def annotated_run(path, tasks, seed=0, *, models=MODELS, judge=GAMMA, rubric=None, silent=None, acceptance=None):
    """The run and its file of annotations. The names and briefs of tasks are their numbers. `silent`: a model that
    delivers nothing."""
    config = RunConfig(
        name="annotated",
        models=[ModelConfig(card=card) for card in models],
        judge=JudgeConfig(card="tiny-qwen3-vl"),
        metrics=[],
        acceptance=acceptance or {},
    )
    draw = random.Random(seed)
    lines = []
    with RunDir.begin(path, config) as made, made.store.transaction():
        to = Writer(made)
        to.judges({judge: "judge"})
        for i in tasks:
            task = order(f"o{i:04}", CATEGORIES[i % 3], draw.randrange(10, 201) * 1_000_000, 1)
            to.task(task, i - tasks.start)
            for model in models:
                delivered = model != silent
                work_id = to.candidate(task, 1, model, *(("done",) if delivered else ("unscored", "out of memory")))
                if not delivered:
                    continue
                brf, veq = draw.uniform(0, 5), draw.uniform(2, 5)
                to.score(work_id, "brf", brf)
                to.score(work_id, "veq", veq)
                to.score(work_id, "cns", None)
                if rubric is not None:
                    to.verdict(work_id, rubric, 0, {"met": 1})
                paid = brf + 0.5 * (veq - 3.5) + draw.gauss(0, 0.7) > 2.2
                lines.append({"model": model, "task_id": task.task_id, "deliverable": 1, "overall": paid})
        made.store.set_meta("planned", "1")
    file = path.with_suffix(".jsonl")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path, file
