"""Verification of a run directory: every image, row and file against what it must be.

Each check yields findings. What can be derived is computed again (work ids, seeds, identities, question ids, scores,
decisions); everything else is compared with the digests that were recorded at the end of the last command.
"""

import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ConfigError, LocalBenchError, UserError
from local_bench.core.files import read_bytes, scratch
from local_bench.core.images import MAX_IMAGE_BYTES, load_verified
from local_bench.core.types import canonical_json, digest, full_identity
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.models.cards import card, cards
from local_bench.runs.config import JudgeConfig, RunConfig
from local_bench.runs.image_store import IMAGES, INPUTS, stored_digests
from local_bench.runs.meter import PHASES
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import changed_decisions, computed_scores, parts, questions_of
from local_bench.runs.stages import ran
from local_bench.runs.store import Candidate, VerdictRow
from local_bench.runs.store.contents import KINDS, contents, file_digests, recorded
from local_bench.runs.store.rows import AnswerKey

_PNG = b"\x89PNG\r\n\x1a\n"
_CHUNKS = (b"IHDR", b"IDAT", b"IEND")
_MOST = 20
"""Findings per check; more of them add nothing and may be millions."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it must be."""

    check: str
    subject: str
    """The file, candidate, verdict, score, task or session."""
    fault: str
    """A sentence without a subject."""


def verify(run: RunDir, note: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Run all checks that need no model. Reading stops after 20 findings per check."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        note(f"checking {name}")
        try:
            for subject, fault in islice(check(run), _MOST):
                findings.append(Finding(name, subject, fault))
        except (LocalBenchError, ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as e:
            other = "it has values of a form that local-bench does not write"
            what = str(e) if isinstance(e, LocalBenchError) else other
            findings.append(Finding(name, "store", f"cannot be checked: {what}"[:300]))
    return findings


Faults = Iterator[tuple[str, str]]


def _database(run: RunDir) -> Faults:
    yield from (("ledger.sqlite", fault) for fault in run.store.db.integrity_faults())


def _record(run: RunDir) -> Faults:
    """Every row and file against the digests of the last command."""
    if recorded(run.store, "meta") is None:
        yield (
            "ledger.sqlite",
            "has no record of its contents: continue its last command, which did not finish, or, if it is a run of an "
            f"earlier release, enter `local-bench settle {shlex.quote(str(run.path))}` once",
        )
        return
    for kind in KINDS:
        before, current = recorded(run.store, kind) or {}, contents(run.store, [kind])
        if kind == "file":
            current |= {("file", name): sha256 for name, sha256 in file_digests(run.path).items()}
        of_task = "" if kind in ("session", "meter", "meta", "task") else "of task "
        for key in sorted({key for key, _ in before.items() ^ current.items()}):
            change = "was added" if key not in before else "is missing" if key not in current else "was changed"
            yield key[1] if kind == "file" else f"{kind} {of_task}{key[1]}", f"{change} since it was recorded"


def _files(run: RunDir) -> Faults:
    """Image files against their digests, PNG structure, and files that belong to nothing."""
    for fault in run.image_store.check(run.store, decode=True, io_workers=run.config.engine.io_workers):
        yield fault.file, f"is {fault.fault}"
    for folder, shas in stored_digests(run.store).items():
        expected = {run.image_store.file(sha, folder) for sha in shas}
        for path in sorted((run.path / folder).rglob("*")):
            if path.is_dir():
                continue
            name = path.relative_to(run.path).as_posix()
            if path not in expected:
                if folder == IMAGES or not _is_input(run, path):
                    yield name, "is not an image of this run"
            elif fault_of := _png_fault(path):
                yield name, fault_of


def _is_input(run: RunDir, path: Path) -> bool:
    """Whether a file is an intact input image; inputs of tasks beyond `suite.limit` are stored too."""
    with suppress(LocalBenchError):
        return run.image_store.file(path.stem, INPUTS) == path and bool(load_verified(path, path.stem))
    return False


def _png_fault(path: Path) -> str | None:
    """Whether a stored image has anything but the chunks that local-bench writes. Pixels are checked elsewhere."""
    try:
        data = read_bytes(path, UserError, max_bytes=MAX_IMAGE_BYTES, missing="restore it")
    except UserError:
        return "cannot be read"
    if not data.startswith(_PNG):
        return "is not a PNG file"
    at = len(_PNG)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, end = data[at + 4 : at + 8], at + 12 + length
        if kind not in _CHUNKS:
            return f"has a chunk {kind.decode('latin-1')!r} that local-bench does not write"
        if end > len(data) or zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            return "has a damaged chunk"
        at = end
        if kind == b"IEND":
            return None if at == len(data) else "has data after its end"
    return "has no end"


def _tasks(run: RunDir) -> Faults:
    for task, content, category, price in run.store.each_task():
        if (category, price) != (task.category, task.price_micro_usd):
            yield f"task {task.task_id}", "has another category or price than its content"
        if canonical_json(task.content) != content:
            yield f"task {task.task_id}", "has content that is not canonical"


_OF_WORK = (
    *("work_id", "seed", "task_id", "deliverable", "attempt", "position"),
    *("work_json", "prompt", "height", "width"),
)
"""The columns of a candidate that follow from its work."""


def _candidates(run: RunDir) -> Faults:
    """Rows against their identities."""
    tasks = run.store.task_positions()
    models = {model.label: model for model in run.config.models}
    numerics = run.store.notes("numerics")
    for position, row in enumerate(run.store.each_candidate()):
        name = _candidate_name(row)
        work = row.work
        expected = Candidate.planned(position, row.model, work.get("prompt", row.prompt), work)
        wrong = next((key for key in _OF_WORK if getattr(row, key) != getattr(expected, key)), None)
        if wrong:
            yield name, f"has a {wrong} that does not follow from its work"
        if row.task_id not in tasks:
            yield name, "belongs to a task that does not exist"
        if row.model not in models:
            yield name, "belongs to a model that is not in run.yaml"
        if row.state == "done":
            signature = numerics.get(row.model, {}) | {"batch_size": row.batch_size}
            identity = row.work_id if "imported" in work["model"] else full_identity(row.work_id, signature)
            if row.identity != identity:
                yield name, "has an identity that does not follow from its work and numerics"
            if "pixels" in work and work["pixels"] != row.pixels_sha256:
                yield name, "has another image than the imported one"
        if (row.state == "done") != (row.pixels_sha256 is not None) or (row.state == "unscored") != bool(row.unscored):
            yield name, f"is {row.state} and has {'an' if row.pixels_sha256 else 'no'} image"


def _image_name(run: RunDir, work_id: str) -> str:
    try:
        return _candidate_name(run.store.candidate(work_id))
    except ValueError:
        return work_id


def _candidate_name(row: Candidate) -> str:
    return f"image {row.deliverable} of {row.task_id} by {row.model}, attempt {row.attempt}"


def _verdicts(run: RunDir) -> Faults:
    """Question ids against the questions of the suite; answers against their rubrics."""
    provenance = run.store.json_meta("provenance") or {}
    entries = [provenance.get("judge"), *provenance.get("panel", [])]
    specs: dict[str, tuple[JudgeSpec, dict[str, Any]]] = {}
    for config, entry in zip(run.config.judges, entries, strict=False):
        if entry:
            spec = spec_of(config, entry)
            specs[spec.judge_id] = spec, entry["numerics"]
            if spec.judge_id != entry["judge_id"]:
                yield f"judge {config.label}", "has another identity than in provenance.json"
    if not specs:
        return
    for part in parts(run.store):
        questions = [*chain.from_iterable(questions_of(run, part.tasks, part.images))]
        ids = {
            judge: {
                (work_id, q.rubric, q.point, q.repeat, 0): spec.question_id(q, numerics) for work_id, q in questions
            }
            for judge, (spec, numerics) in specs.items()
        }
        for row in run.store.verdicts(work_ids=part.work_ids):
            faults: Iterable[str] = ["is by a judge that is not in provenance.json"]
            if row.judge in specs:
                faults = _verdict_faults(row, specs[row.judge][0], ids[row.judge])
            for fault in faults:
                yield f"verdict {row.rubric}/{row.point}/{row.repeat} on {_image_name(run, row.work_id)}", fault


def _verdict_faults(row: VerdictRow, spec: JudgeSpec, ids: Mapping[AnswerKey, str]) -> Iterator[str]:
    if row.key not in ids:
        yield "answers a question that the suite does not have"
    elif row.question_id and row.question_id != ids[row.key]:
        yield "has a question id that does not follow from its question"
    rubric = spec.rubrics[row.rubric]  # an error if there is none: after what is wrong with the row
    if row.rubric_sha256 != rubric.sha256:
        yield "is by another version of its rubric"
    if row.answer_json is not None:
        answer, fault = rubric.read(strictjson.stored(row.answer_json), {}, labels_only=True)
        if answer is None:
            yield f"has an answer that its rubric does not allow: {fault}"
    if row.labels_json is not None and not rubric.has_probabilities(strictjson.stored(row.labels_json)):
        yield "has label probabilities that are not those of its rubric"


def spec_of(config: JudgeConfig, entry: Mapping[str, Any]) -> JudgeSpec:
    """The judge's spec from its config and its entry in the provenance; its weights need not be on this machine.
    ConfigError without its card."""
    if config.card not in cards():
        raise ConfigError(f"there is no card {config.card!r}: give the folder with its models/ as --config-dir")
    spec = config.spec(card(config.card, "judge"), entry["weights_sha256"], entry["dtype"])
    return replace(spec, served=tuple(sorted((entry.get("served") or {}).items())))


def _scores(run: RunDir) -> Faults:
    """Judge scores computed again from the verdicts; metric scores against the metrics' identities."""
    metrics = run.store.notes("metric")
    for work_id, score in run.store.scores("metric"):
        if score.value is not None and score.name not in metrics:
            yield f"{score.name} of {_image_name(run, work_id)}", "is of a metric without an identity"
    labels = run.store.json_meta("judges")
    if not labels:
        return
    for part in parts(run.store):
        expected = {(work_id, score.name): score for work_id, score in computed_scores(run, part, list(labels))}
        stored = {(row.work_id, row.score.name): row.score for row in run.store.scores("judge", part.work_ids)}
        judged = {work_id for work_id, _ in stored}
        for work_id in sorted({work_id for work_id, _ in expected} - judged):
            again = f"enter `local-bench judge {shlex.quote(str(run.path))}`, then `settle`"
            yield _image_name(run, work_id), f"has no scores: if it was added after the others were judged, {again}"
        for key in sorted({*expected, *stored}):
            if key[0] in judged and expected.get(key) != stored.get(key):
                fault = "is missing" if key not in stored else "does not follow from the verdicts"
                yield f"{key[1]} of {_image_name(run, key[0])}", fault


def _decisions(run: RunDir) -> Faults:
    decided = {*run.store.frame("decisions", ["work_id"])["work_id"]}
    if not decided:
        if recorded(run.store, "decisions"):
            yield "decisions", "are missing since they were recorded"
        return
    wrong = "does not follow from the scores, the rule and the task's price"
    again = f"enter `local-bench settle {shlex.quote(str(run.path))}`"
    for work_id in changed_decisions(run)["work_id"]:
        fault = wrong if work_id in decided else f"is missing: if it was added after the others were settled, {again}"
        yield f"decision on {_image_name(run, work_id)}", fault


def _meter(run: RunDir) -> Faults:
    """Meter rows partition the time for which each session held its device."""
    rows = {session: list(of_session) for session, of_session in groupby(run.store.meter(), attrgetter("session"))}
    for session in run.store.sessions():
        of_session, name = rows.pop(session.session, []), f"session {session.session}"
        ends = [row.t1_ns for row in of_session]
        if session.held_ns != (ends[-1] if ends else 0):
            yield name, "has meter rows that do not sum to its held time"
        if of_session and of_session[0].t0_ns != 0:
            yield name, "has meter rows that do not start with the session"
        if any(before.t1_ns != after.t0_ns for before, after in pairwise(of_session)):
            yield name, "has meter rows with gaps or overlaps"
        if any(row.phase not in PHASES for row in of_session):
            yield name, "has a meter row of an unknown phase"
    yield from ((f"session {session}", "has meter rows and does not exist") for session in rows)


def _provenance(run: RunDir) -> Faults:
    """provenance.json and run.yaml against what the store holds."""
    stored = run.store.json_meta("provenance")
    path = run.path / "provenance.json"
    if stored is None and not path.exists():
        return
    try:
        written = strictjson.read(path, UserError, missing="restore it")
    except UserError:
        written = None
    if written != stored:
        yield "provenance.json", "differs from the provenance in the store"
    if stored:  # written at the end of a session: later ones failed or were interrupted
        sessions, n = run.store.sessions(), stored.get("sessions", 0)
        if len(sessions) < n or any(session.ended == "done" for session in sessions[n:]):
            yield "provenance.json", "has another number of sessions than the store"
    models = (stored or {}).get("models", {})
    for label, model in models.items():
        for row in run.store.candidates(label)[:1]:
            if "imported" not in model and row.work["model"].get("weights") != model["weights_sha256"]:
                yield f"model {label}", "has other weights in provenance.json than its candidates"


CHECKS: dict[str, Callable[[RunDir], Faults]] = {
    "database": _database,
    "images": _files,
    "tasks": _tasks,
    "candidates": _candidates,
    "verdicts": _verdicts,
    "scores": _scores,
    "decisions": _decisions,
    "meter": _meter,
    "provenance": _provenance,
    "record": _record,
}
"""Name -> check, in order of execution."""


def repeat_tasks(run: RunDir, config: RunConfig, n_tasks: int, progress: Progress) -> list[Finding]:
    """Generate, measure and judge `n_tasks` tasks of `run` again under `config`, in a temporary folder.

    The tasks are a random sample that depends on the run's seed alone. Raises as `ran`.
    """
    task_ids = sorted(run.store.task_positions(), key=lambda task_id: digest([run.config.seed, task_id]))
    sample = frozenset(task_ids[:n_tasks])
    stages = ("generate", "measure", *(("judge",) if run.store.json_meta("judges") else ()))
    with scratch() as folder, ran(config.whole, Path(folder) / "run", stages, progress, only=sample) as repeated:
        return list(_differences(run, repeated, sample))


def _differences(run: RunDir, repeated: RunDir, sample: frozenset[str]) -> Iterator[Finding]:
    again = {row.work_id: row for row in repeated.store.candidates()}
    names = {}
    for row in run.store.candidates():
        if row.task_id not in sample:
            continue
        name = names[row.work_id] = _candidate_name(row)
        other = again.get(row.work_id)
        if other is None:
            yield Finding("deep", name, "is not in the plan any more")
        elif (other.pixels_sha256, other.unscored) != (row.pixels_sha256, row.unscored) and row.state != "planned":
            yield Finding("deep", name, "has other bytes when it is generated again")
    scores = repeated.store.scores_by_candidate("metric")
    for work_id, score in run.store.scores("metric"):
        if work_id in names and scores.get(work_id, {}).get(score.name) not in (None, score):
            yield Finding("deep", f"{score.name} of {names[work_id]}", "has another value when it is measured again")
    verdicts = {(v.judge, v.key): v for v in repeated.store.verdicts()}
    for verdict in run.store.verdicts():
        if verdict.work_id in names:
            repeat = verdicts.get((verdict.judge, verdict.key))
            if repeat is None or (repeat.answer_json, repeat.unscored) != (verdict.answer_json, verdict.unscored):
                subject = f"verdict {verdict.rubric}/{verdict.point}/{verdict.repeat} on {names[verdict.work_id]}"
                yield Finding("deep", subject, "has another answer when it is judged again")
