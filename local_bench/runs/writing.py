"""Before a run: the judge writes down what its suite needs and its files have not (points, checklists, prompts)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.core.environment import isolate
from local_bench.core.errors import ConfigError
from local_bench.core.images import pixel_digest
from local_bench.core.nouns import Question, Verdict
from local_bench.core.storage import write_atomic
from local_bench.judges.vlm.transport import Unreachable, answers
from local_bench.judges.vlm.written import lines
from local_bench.runs.config import RunConfig
from local_bench.runs.pace import Pace
from local_bench.runs.place import Place
from local_bench.runs.progress import Progress
from local_bench.runs.transports import judge_spec, opened
from local_bench.suites.registry import suite
from local_bench.suites.written import FIELDS, read_written


@dataclass
class Written:
    """What came of it."""

    n: int = 0
    n_there: int = 0
    """Written already, in the same file."""
    refused: dict[str, str] = field(default_factory=dict)
    """Task -> why there is nothing for it."""


def write_down(config: RunConfig, out: Path, progress: Progress) -> Written:
    """Asks the config's judge about every task that lacks something, and adds a line for each answer to `out`.

    What stands in `out` already is kept and not asked again. A judge that cannot say leaves its task out, with the
    reason. ConfigError for a suite whose files have all that it needs; ServerError where the judge is not to be had.
    """
    entry = suite(config.suite.name)
    wants = getattr(entry.load(), "writes", None)
    if wants is None:
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
    for task in tasks:
        question = None if task.unscored or task.task_id in there else wants(task)
        if question is not None:
            questions[task.task_id] = question
    found = Written(n_there=len(there))
    rows = [line.model_dump(exclude_defaults=True) for line in there.values()]
    pace, save = Pace(), partial(_save, out, {task.task_id: i for i, task in enumerate(tasks)}, rows)
    try:
        for task_id, verdict in _answers(config, questions, pictures, out, progress):
            fields = _read(questions[task_id], verdict)
            if isinstance(fields, str):
                found.refused[task_id] = fields
                continue
            rows.append({"task_id": task_id} | fields | {"judge": config.judge.label})
            found.n += 1
            if pace.due:
                with pace.saving():
                    save()
    finally:  # what was written is kept, whatever happens to the judge
        save()
    return found


def _save(out: Path, order: dict[str, int], rows: list[dict[str, Any]]) -> None:
    """Writes the lines in the tasks' order; those of other tasks follow."""
    rows.sort(key=lambda row: order.get(row["task_id"], len(order)))
    write_atomic(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


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
    with opened(config.judge, spec, places, asked, pictures.__getitem__, log, progress) as transport:
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


def _read(question: Question, verdict: Verdict) -> dict[str, list[str]] | str:
    """The line's fields, or why there are none."""
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
