"""Before a run: the judge writes down what its suite needs and its files have not (points, checklists, prompts)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from local_bench.core.environment import isolate
from local_bench.core.errors import ConfigError
from local_bench.core.images import pixel_digest
from local_bench.core.storage import write_atomic
from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.enrichment import deliverables, lines
from local_bench.judges.vlm.transport import Unreachable, answers
from local_bench.runs.config import RunConfig
from local_bench.runs.device import Place
from local_bench.runs.judge_factory import judge_spec, open_judge
from local_bench.runs.progress import Progress
from local_bench.runs.save_interval import SaveInterval
from local_bench.suites.base import Suite
from local_bench.suites.enrichment import FIELDS, read_written
from local_bench.suites.registry import suite


@dataclass
class Written:
    """What came of it."""

    n: int = 0
    n_there: int = 0
    """Written already, in the same file."""
    refused: dict[str, str] = field(default_factory=dict)
    """Task -> why there is nothing for it."""


def write_down(
    config: RunConfig,
    out: Path,
    progress: Progress,
    what: Literal["enrichment_question", "rules_question"] = "enrichment_question",
) -> Written:
    """Asks the config's judge about every task that lacks something, and adds each answer to the task's line in `out`.

    `what` is the suite's method that says what a task lacks. What `out` holds already is kept and not asked again. A
    judge that cannot say leaves its task out, with the reason. ConfigError for a suite whose files have all that it
    needs; ServerError where the judge is not to be had.
    """
    entry = suite(config.suite.name)
    wants = getattr(entry, what)
    if getattr(type(entry), what) is getattr(Suite, what):
        raise ConfigError(f"suite.name: the files of {entry.name!r} have all that is needed: there is nothing to write")
    pictures: dict[str, Image.Image] = {}

    def keep(image: Image.Image) -> str:
        sha256 = pixel_digest(image)
        pictures[sha256] = image
        return sha256

    asked = config.suite
    tasks = entry.tasks(asked.path, keep, asked.part, asked.written, progress.note)[: asked.limit]
    there = read_written(out) if out.exists() else {}
    questions: dict[str, Question] = {}
    lacking: dict[str, int] = {}
    n_there = 0
    for task in tasks:
        question = None if task.unscored else wants(task)
        if question is None:
            continue
        if any(getattr(there.get(task.task_id), name, None) for name in FIELDS[question.rubric]):
            n_there += 1
        else:
            questions[task.task_id] = question
            lacking[task.task_id] = len(task.deliverables)
    found = Written(n_there=n_there)
    rows = {task_id: line.model_dump(exclude_unset=True) for task_id, line in there.items()}
    pace, save = SaveInterval(), partial(_save, out, {task.task_id: i for i, task in enumerate(tasks)}, rows)
    try:
        for task_id, verdict in _answers(config, questions, pictures, out, progress):
            fields = _read(questions[task_id], verdict, lacking[task_id])
            if isinstance(fields, str):
                found.refused[task_id] = fields
                continue
            rows[task_id] = {"task_id": task_id} | rows.get(task_id, {}) | fields | {"judge": config.judge.label}
            found.n += 1
            if pace.due:
                with pace.saving():
                    save()
    finally:  # what was written is kept, whatever happens to the judge
        save()
    return found


def _save(out: Path, order: dict[str, int], rows: dict[str, dict[str, Any]]) -> None:
    """Writes the lines in the tasks' order; those of other tasks follow."""
    sorted_rows = sorted(rows.values(), key=lambda row: order.get(row["task_id"], len(order)))
    write_atomic(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sorted_rows).encode())


def _answers(
    config: RunConfig, questions: dict[str, Question], pictures: dict[str, Image.Image], out: Path, progress: Progress
) -> Iterator[tuple[str, Verdict]]:
    if not questions:
        return
    isolate()
    from local_bench.generators.numerics import choose_devices, device_name, set_determinism

    set_determinism(config.engine.threads)
    devices = choose_devices(config.engine.device, config.engine.workers)
    places = [Place(device_name(device), device.index if device.type == "cuda" else None) for device in devices]
    spec = judge_spec(config.judge, places[0])
    log = out.with_name(f"{out.name}.log")
    asked = list(questions.values())
    with open_judge(config.judge, spec, places, asked, pictures.__getitem__, log, progress) as transport:
        progress.begin(f"{config.judge.label}: write", len(asked))
        left = dict(questions)
        while left:
            try:
                for task_id, verdict in answers(transport, spec, list(left.items())):
                    del left[task_id]
                    yield task_id, verdict
                    progress.advance()
            except Unreachable as e:
                progress.note(f"the judge stopped answering ({e}); {len(left)} questions are left")
                transport.restart()


def _read(question: Question, verdict: Verdict, n_images: int) -> dict[str, list[Any]] | str:
    """The line's fields, or why there are none. `n_images` is how many the order's own file names."""
    if question.rubric == "deliverables":
        ruled = deliverables(verdict)
        if isinstance(ruled, str):
            return ruled
        if len(ruled.rules) != n_images:
            return f"the judge finds {len(ruled.rules)} images in the brief, and the order names {n_images}"
        return {"rules": [of.model_dump(exclude_defaults=True) for of in ruled.rules]}
    fields: dict[str, list[str]] = {}
    for name in FIELDS[question.rubric]:
        if name == "preservations" and verdict.answer is not None and not verdict.answer[name]:
            continue  # there need not be any
        said = lines(verdict, name)
        if isinstance(said, str):
            return said
        fields[name] = list(said)
    wanted = dict(question.slots).get("count")
    if wanted is not None and len(fields["prompts"]) != int(wanted):
        return f"the judge wrote {len(fields['prompts'])} different prompts for {wanted} images"
    return fields
