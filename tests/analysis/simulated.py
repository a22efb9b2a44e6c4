"""Runs whose images were made elsewhere and whose judge and metrics are dice: all of a run but the models."""

import json
import random

from local_bench.core.types import Score, Verdict, canonical_json
from local_bench.judges.vlm.rubrics import rubric
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import decide, score, sets
from local_bench.runs.store.contents import file_digests, record, start_recording
from local_bench.suites.ice_bench.scoring import range_of
from local_bench.suites.registry import suite
from tests.stages import run_stages
from tests.suites.benchmarks.layouts import write_image

JUDGE = "d" * 64
LAYOUTS = {"hype-edit-1": "hype", "ice-bench": "ice", "idea-bench": "idea", "servimage": "servimage"}


def config(name, path, made, attempts=1, usd=None):
    """`usd`: what an image cost, by model."""
    models = [
        {
            "card": "imported",
            "name": label,
            "imported": {"images": str(folder), "cost_usd_per_image": (usd or {}).get(label)},
            "attempts": attempts,
        }
        for label, folder in made.items()
    ]
    suite_config = {"name": name, "path": str(path)}
    return RunConfig(name="t", suite=suite_config, models=models, metrics=[], engine={"device": "cpu"})


def draw(name, path, folder, seed, attempts=1, left_out=0.15):
    """Images for a suite's tasks, some left out, as a folder for `imported`."""
    dice = random.Random(seed)
    folder.mkdir(parents=True)
    for n, task in enumerate(suite(name).tasks(str(path), lambda image: "0" * 64)):
        for deliverable in range(1, len(task.deliverables) + 1):
            for attempt in range(1, attempts + 1):
                if n == 0 or dice.random() >= left_out:
                    number = dice.randrange(20)
                    write_image(
                        folder / f"{task.task_id}_{deliverable}_{attempt}.png", number, (48 + 16 * deliverable, 48)
                    )
    return folder


def answer(dice, name):
    definition = rubric(name)
    if dice.random() < 0.08:
        return Verdict(None, "the judge's answer is not JSON", "?!")
    labels = {c.name: dice.choice([*c.labels, max(c.labels)]) for c in definition.criteria}
    return Verdict(definition.from_labels(labels), None, json.dumps({"said": 'yes, "so"\n'}))


def judged(run_dir, settings, seed):
    """A run with random results: every question answered or unscored, every metric of every task."""
    run_stages(settings, run_dir, ("generate",))
    dice = random.Random(seed)
    benchmark = suite(settings.suite.name)
    with RunDir.begin(run_dir, settings) as run:
        start_recording(run.store)
        tasks = {task.task_id: task for task in run.store.tasks()}
        rows, metrics = [], []
        for (task_id, _, _), images in sets(run.store.images()).items():
            delivered = {i: sha for i, (_, sha) in images.items() if sha}
            for key, question in benchmark.questions(tasks[task_id], delivered):
                verdict = answer(dice, question.rubric)
                columns = verdict.answer and canonical_json(verdict.answer), None, verdict.unscored, verdict.raw
                rows.append((images[key[0]][0], *key[1:], "q", rubric(question.rubric).sha256, JUDGE, *columns))
            metrics += [
                (images[1][0], _metric(dice, name))
                for name in tasks[task_id].metrics
                if 1 in delivered and name != "vllmqa"
            ]
        with run.store.transaction():
            run.store.write_many(f"INSERT INTO verdicts VALUES ({', '.join('?' * 11)})", rows)
            run.store.set_meta("judges", json.dumps({JUDGE: "dice"}))
        run.store.enter_scores("metric", metrics)
        score(run, [JUDGE])
        decide(run)
        record(run.store, file_digests(run.path))


def _metric(dice, name):
    if dice.random() < 0.03:
        return Score(name, None, "no face was found")
    low, high = sorted(range_of(name))
    return Score(name, dice.uniform(low, high))
