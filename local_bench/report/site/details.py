"""The data of a site that is loaded on demand: tasks, candidates in columns, and the verdicts behind them;
and its images: WebP at two sizes, created once by a pool of processes, and the full images."""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from local_bench.analysis.agreement import judge_labels
from local_bench.annotation.database import FILE
from local_bench.annotation.protocol import OVERALL
from local_bench.annotation.ratings import Annotations, load_annotations
from local_bench.core.errors import ImageError, UserError
from local_bench.core.files import atomic_file, is_safe_id
from local_bench.core.images import load_verified
from local_bench.core.money import usd_number
from local_bench.core.types import GroundTruth, Task
from local_bench.judges.vlm.rubrics import wordings
from local_bench.report.text import percent
from local_bench.report.view import decimals, missed_text, model_order, score_names
from local_bench.runs.image_store import IMAGES, INPUTS
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import deciding
from local_bench.runs.store import OutcomeRow, VerdictRow

if TYPE_CHECKING:
    from PIL import Image


TASKS_PER_FILE = 20
CANDIDATES_PER_FILE = 5000
MAX_RAW = 4000
DIGITS = 4
_LABELS = TypeAdapter(dict[str, dict[str, float]])


@dataclass
class RunDetails:
    """Everything of one run that is loaded on demand."""

    run: RunDir
    truths: Mapping[str, GroundTruth]
    """Work id -> ground truth of the image, if known."""
    out: Path | None = None
    """The site's folder, with its images."""
    people: Annotations | None = field(init=False)
    names: list[str] = field(init=False)
    """Of the scores."""
    models: list[str] = field(init=False)
    tasks: list[Task] = field(init=False)
    notes: list[str] = field(default_factory=list)
    """What could not be included, one sentence each."""

    def __post_init__(self) -> None:
        self.names, self.models = score_names(self.run), model_order(self.run)
        self.tasks = self.run.store.tasks()
        try:
            self.people = load_annotations(self.run.path, self.run) if (self.run.path / FILE).is_file() else None
        except UserError as e:
            self.people = None
            self.notes.append(f"The annotations are not shown: {e}.")

    @property
    def decided_by_people(self) -> dict[str, bool]:
        """Work id -> the annotators' consensus decision, if there is one."""
        return self.people.decisions() if self.people else {}

    def task_list(self) -> dict[str, list[Any]]:
        """The tasks in columns."""
        return {
            "id": [task.task_id for task in self.tasks],
            "category": [task.category for task in self.tasks],
            "title": [task.title for task in self.tasks],
            "text": [" ".join((task.brief, *task.deliverables, *task.evaluation_points)) for task in self.tasks],
            "price_usd": [usd_number(task.price_micro_usd) for task in self.tasks],
            "n": [len(task.deliverables) for task in self.tasks],
        }

    def candidates(self, outcomes: Sequence[OutcomeRow]) -> Iterator[dict[str, Any]]:
        """The candidates in columns, CANDIDATES_PER_FILE at a time: `model`, `task` are indices; `decision` and `truth`
        and `people` 1, 0 or null; `state` 1 made, 0 planned, -1 unscored; scores are rounded."""
        task_index = {task.task_id: i for i, task in enumerate(self.tasks)}
        model_index = {name: i for i, name in enumerate(self.models)}
        scores: dict[str, dict[str, float | None]] = defaultdict(dict)
        for row in self.run.store.scores():
            value = row.score.value
            scores[row.work_id][row.score.name] = None if value is None else round(value, DIGITS)
        people = self.people.consensus.get(OVERALL, {}) if self.people else {}
        for at in range(0, len(outcomes), CANDIDATES_PER_FILE):
            part = outcomes[at : at + CANDIDATES_PER_FILE]
            ids = [row.candidate.work_id for row in part]
            yield {
                "start": at,
                "id": [work_id[:16] for work_id in ids],
                "model": [model_index[row.candidate.model] for row in part],
                "task": [task_index[row.candidate.task_id] for row in part],
                "deliverable": [row.candidate.deliverable for row in part],
                "attempt": [row.candidate.attempt for row in part],
                "state": [{"done": 1, "planned": 0, "unscored": -1}[row.candidate.state] for row in part],
                "image": [row.candidate.image for row in part],
                "decision": [_bit(row.accepted) for row in part],
                "truth": [_bit(truth.right if (truth := self.truths.get(w)) else None) for w in ids],
                "people": [_bit(people[work_id].decision if work_id in people else None) for work_id in ids],
                "scores": {name: [scores.get(work_id, {}).get(name) for work_id in ids] for name in self.names},
            }

    def task_files(self, outcomes: Sequence[OutcomeRow]) -> Iterator[dict[str, Any]]:
        """Task id -> its texts, images and candidates with all verdicts, TASKS_PER_FILE tasks at a time."""
        by_task: dict[str, list[OutcomeRow]] = defaultdict(list)
        for row in outcomes:
            by_task[row.candidate.task_id].append(row)
        judges = judge_labels(self.run)
        reasons: dict[str, dict[str, str]] = defaultdict(dict)  # or the spread, by image and score
        missed: dict[str, list[str]] = defaultdict(list)
        rule, places = deciding(self.run.config), decimals(self.run)
        for scored in self.run.store.scores():
            if scored.score.value is None:
                reasons[scored.work_id][scored.score.name] = scored.score.unscored or "not applicable"
            elif scored.score.spread is not None:
                reasons[scored.work_id][scored.score.name] = f"± {scored.score.spread:.2f}"
            if text := missed_text([scored.score], rule, places):
                missed[scored.work_id].append(text)

        def candidate(task: Task, row: OutcomeRow, verdicts: list[dict[str, Any]]) -> dict[str, Any]:
            work_id, work = row.candidate.work_id, row.candidate.work
            return {
                "id": work_id[:16],
                "prompt": row.candidate.prompt,
                "seed": str(row.candidate.seed),
                "unscored": row.candidate.unscored,
                "reason": row.decision.unscored if row.decision else None,
                "missed": missed.get(work_id, []) if row.accepted is False else [],
                "score_reasons": reasons.get(work_id, {}),
                "verdicts": verdicts,
                "people": self._ratings(work_id),
                "inputs": received(task, work.get("pictures")),
                "match": None if (truth := self.truths.get(work_id)) is None or truth.right else percent(truth.match),
            }

        for at in range(0, len(self.tasks), TASKS_PER_FILE):
            part = self.tasks[at : at + TASKS_PER_FILE]
            ids = [row.candidate.work_id for task in part for row in by_task[task.task_id]]
            verdicts: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for verdict in self.run.store.verdicts(work_ids=ids):
                verdicts[verdict.work_id].append(_verdict(verdict, judges))
            yield {
                task.task_id: _task(task)
                | {
                    "candidates": [
                        candidate(task, row, verdicts.get(row.candidate.work_id, [])) for row in by_task[task.task_id]
                    ],
                    "previews": self._previews(task, by_task[task.task_id]),
                }
                for task in part
            }

    def _previews(self, task: Task, rows: Sequence[OutcomeRow]) -> list[str]:
        inputs = (task.source_sha256, task.mask_sha256, *task.reference_sha256)
        shas = dict.fromkeys((*inputs, *(row.candidate.image for row in rows)))
        return [sha for sha in shas if sha and self.out and path_in(self.out, PREVIEWS, sha).is_file()]

    def _ratings(self, work_id: str) -> list[list[Any]]:
        """[annotator, question, decision or number] of each annotation of the image."""
        if self.people is None:
            return []
        return [
            [rater, name, rating.decision if rating.number is None else rating.number]
            for rater, opinion in sorted(self.people.raters.items())
            for name, by_image in sorted(opinion.items())
            if (rating := by_image.get(work_id)) is not None
        ]

    def rubrics(self) -> dict[str, dict[str, str]]:
        """Rubric -> digest -> text, of the rubrics with verdicts that this release knows."""
        return {name: {wording.sha256: wording.text for wording in wordings(name)} for name in self.run.store.rubrics()}


def _bit(value: bool | None) -> int | None:
    return None if value is None else int(value)


def _task(task: Task) -> dict[str, Any]:
    return {
        "category": task.category,
        "title": task.title,
        "brief": task.brief,
        "deliverables": list(task.deliverables),
        "points": list(task.evaluation_points),
        "price_usd": usd_number(task.price_micro_usd),
        "source": task.source_sha256,
        "references": list(task.reference_sha256),
        "mask": task.mask_sha256,
        "unscored": task.unscored,
        "notes": list(task.notes),
    }


def received(task: Task, pictures: object) -> str | None:
    """Which of the task's input images the model received, from the pixel digests in its work; None if the task has
    none, or if it is not known."""
    inputs = {task.source_sha256: "source image"} if task.source_sha256 else {}
    inputs |= {sha: f"reference image {i}" for i, sha in enumerate(task.reference_sha256, 1)}
    if not isinstance(pictures, list) or not inputs:
        return None
    names = [name for sha, name in inputs.items() if sha in pictures]
    if len(names) == len(inputs):
        return "input: all images of the task" if len(inputs) > 1 else f"input: {names[0]}"
    return f"input: {' and '.join(names)} only" if names else "input: no image of the task"


def label_lines(labels: str | None) -> list[str]:
    """`met 0: 12 %, 1: 88 %`, one line per criterion; the text in the ledger if it has another form."""
    if labels is None:
        return []
    try:
        criteria = _LABELS.validate_json(labels)
    except ValidationError:
        return [labels[:MAX_RAW]]
    return [
        f"{name} " + ", ".join(f"{label}:\u00a0{100 * p:.0f} %" for label, p in labels_of.items())
        for name, labels_of in criteria.items()
    ]


def _verdict(row: VerdictRow, judges: Mapping[str, str]) -> dict[str, Any]:
    return {
        "rubric": row.rubric,
        "sha": row.rubric_sha256,
        "point": row.point,
        "repeat": row.repeat,
        "judge": judges.get(row.judge, row.judge[:12]),
        "answer": row.answer_json,
        "labels": "\n".join(label_lines(row.labels_json)),
        "unscored": row.unscored,
        "raw": row.raw[:MAX_RAW],
        "cut": max(0, len(row.raw) - MAX_RAW),
    }


SIDE = 256
"""Longest side of a thumbnail in pixels; smaller images are enlarged by an integer factor."""
PREVIEW_SIDE = 768
"""Longest side of a preview, which images of more than twice a thumbnail's side have."""
QUALITY = 80
THUMBS, PREVIEWS, FULL = "thumbs", "previews", "images"


def path_in(out: Path, folder: str, sha: str) -> Path:
    """Of an image in a folder of the site."""
    return out / folder / sha[:2] / f"{sha}{'.png' if folder == FULL else '.webp'}"


def write_images(run: RunDir, out: Path, workers: int, full: bool = True) -> int:
    """Write thumbnails, previews and, if `full`, links of all images of `run` below `out`; return the number of images
    that are missing or damaged. Existing files are kept: names are digests of the content."""
    shas = [(IMAGES, sha) for sha in run.store.image_digests()]
    tasks = run.store.tasks()
    inputs = (sha for t in tasks for sha in (t.source_sha256, t.mask_sha256, *t.reference_sha256) if sha)
    shas += [(INPUTS, sha) for sha in sorted(inputs)]
    needed = (THUMBS, *([FULL] if full else []))
    pending = [
        (str(run.image_store.file(sha, folder)), sha, str(out), full)
        for folder, sha in shas
        if is_safe_id(sha) and not all(path_in(out, of_site, sha).is_file() for of_site in needed)
    ]
    for sub in {sha[:2] for _, sha, *_ in pending}:
        for folder in (*needed, PREVIEWS):
            (out / folder / sub).mkdir(parents=True, exist_ok=True)
    if len(pending) < 64:
        return sum(not _write(image) for image in pending)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return sum(not written for written in pool.map(_write, pending, chunksize=32))


def _write(job: tuple[str, str, str, bool]) -> bool:
    """Write one thumbnail, its preview and, if wanted, the full image (a hard link, or a copy on another disk); False
    if it cannot be read."""
    from PIL import Image

    file, sha, folder = Path(job[0]), job[1], Path(job[2])
    try:
        image = load_verified(file, sha)
    except ImageError:
        return False
    full = path_in(folder, FULL, sha)
    if job[3] and not full.exists():
        try:
            os.link(file, full)
        except OSError:
            with suppress(FileExistsError):
                shutil.copyfile(file, full)
    if max(image.size) > 2 * SIDE:
        preview = image.copy()
        preview.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
        _save(preview, path_in(folder, PREVIEWS, sha))
    times = SIDE // max(image.size)
    if times > 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    else:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    _save(image, path_in(folder, THUMBS, sha))  # last: an image with a thumbnail has everything
    return True


def _save(image: "Image.Image", target: Path) -> None:
    with atomic_file(target, durable=False) as file:
        image.save(file, "WEBP", quality=QUALITY, method=2)
