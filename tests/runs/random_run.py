"""Runs with random rows, made without models."""

import random
from dataclasses import replace

from local_bench.core.types import Decision, Score, Task, digest
from local_bench.judges.rules import RULES
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import decision_of
from local_bench.runs.store import Candidate
from local_bench.runs.store.rows import VerdictRow

MODELS = ("alpha", "beta", "gamma")
TEXTS = ("no answer", 'a "quoted"\n],[ text', "päper")


def random_run(path, seed: int, highest_price: int = 10**8) -> RunDir:
    """Tasks with up to three deliverables, up to two attempts, some without an image, missing and unscored scores."""
    rng = random.Random(seed)
    config = RunConfig(
        name="c",
        suite={"name": "servimage", "path": "tasks.jsonl"},
        models=[{"card": "tiny-flux", "name": name, "num_inference_steps": i + 1} for i, name in enumerate(MODELS)],
        metrics=[],
        acceptance={"rules": bool(seed % 2)},
    )
    tasks, rows = [], []
    for t in range(rng.randint(1, 12)):
        deliverables = tuple(f"image {i}" for i in range(rng.randint(1, 3)))
        price = rng.randint(1, highest_price)
        tasks.append(Task(f"t{rng.random()}", rng.choice("ABC"), price, "t", rng.choice(TEXTS), deliverables, ("p",)))
        for model in MODELS:
            for deliverable in range(1, len(deliverables) + 1) if rng.random() < 0.9 else ():
                for attempt in (1, 2)[: rng.randint(1, 2)]:
                    rows.append(_candidate(rng, tasks[t], model, deliverable, attempt, len(rows)))
    run = RunDir.begin(path, config)
    run.store.enter_plan(range(len(tasks)), tasks, rows)
    run.store.enter_scores("judge", [(row.work_id, s) for row in rows for s in _scores(rng)])
    run.store.enter_scores("metric", [(row.work_id, Score("entropy", rng.random())) for row in rows])
    run.store.enter_verdicts(_verdict(rng, row.work_id, point) for row in rows for point in range(rng.randint(0, 2)))
    return run


def _candidate(rng, task, model, deliverable, attempt, position):
    work = {"task": task.task_id, "deliverable": deliverable, "model": model, "attempt": attempt}
    state = rng.choices(("done", "unscored", "planned"), (8, 1, 1))[0]
    sha256, unscored = digest(position) if state == "done" else None, rng.choice(TEXTS) if state == "unscored" else None
    row = Candidate.planned(position, model, "p", work, state=state, pixels_sha256=sha256, unscored=unscored)
    return replace(row, height=8, width=8)


def _scores(rng):
    for name in ("brf", "veq", "cns", "extra", RULES):
        kind = rng.choices(("value", "unscored", "not applicable", "missing"), (8, 1, 1, 1))[0]
        if kind == "value":
            yield Score(name, rng.choice((1.0, 2.9999999999999996, 3.0, 0.1 + 0.2, 5.0)))
        elif kind == "unscored":
            yield Score(name, None, rng.choice(TEXTS))
        elif kind == "not applicable":
            yield Score(name, None, applies=False)


def _verdict(rng, work_id, point):
    answer = rng.choice((None, '{"b": [[1], [2]], "a": "\\u00e4"}'))
    unscored = rng.choice(TEXTS) if answer is None else None
    labels = answer and '{"x": {"2": 0.25, "1": 1e-7}}'
    return VerdictRow(work_id, "brf", point, 0, "q", "r", "j", answer, labels, unscored, "")


def stored_decisions(run):
    """(work id, decision) of every candidate with one, by work id."""
    return sorted((row.candidate.work_id, row.decision) for row in run.store.outcomes() if row.decision)


def decisions_by_row(run):
    """(work id, decision) of every candidate, from separate queries."""
    scores = run.store.scores_by_candidate("judge")
    for row in sorted(run.store.candidates(), key=lambda row: row.work_id):
        if row.state == "done":
            yield row.work_id, decision_of(run.config, list(scores.get(row.work_id, {}).values()))
        else:
            yield row.work_id, Decision(None, row.unscored or "its image has not been made")
