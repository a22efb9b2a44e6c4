"""Computes metrics of a folder of images, with optional sources, masks, references and captions, without a run."""

import io
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from local_bench.core import strictjson
from local_bench.core.errors import LocalBenchError, UserError, short
from local_bench.core.files import (
    IMAGE_SUFFIXES,
    append,
    plain_name,
    read_bytes,
    read_text,
    storage_errors,
    text_name,
    unused,
    visible_files,
)
from local_bench.core.types import Score, ScoresComputed
from local_bench.core.yamlfile import Strict, check
from local_bench.judges.metrics.base import NO_MEMORY, NO_WEIGHTS, ImageFile, Subject
from local_bench.judges.metrics.evaluator import Wanted, cut_captions, cut_sentence
from local_bench.judges.metrics.registry import make_metric
from local_bench.runs.config import EngineConfig
from local_bench.runs.measure import identity_of, is_available, measure_share
from local_bench.runs.progress import Progress
from local_bench.runs.work import MetricWorkOrder, show

_AGAIN = "remove it or give another --out"


@dataclass(frozen=True)
class PairedFiles:
    """Folders with files that belong to the images: the same relative path and name, with any image suffix."""

    sources: Path | None = None
    masks: Path | None = None
    references: Path | None = None
    """`NAME`, `NAME_1`, `NAME_2` …, in this order, less those whose name an image of the folder has itself."""
    captions: Path | None = None
    """A JSON object of image -> caption, or JSON Lines with `image` and `caption`. An image is given by its path in
    the folder, or by its name if no other image has that name."""


@dataclass
class Measurement:
    """Scores by image and metric name, and the identity of each metric."""

    metrics: dict[str, dict[str, Any]]
    images: dict[str, dict[str, Score]] = field(default_factory=dict)
    cut: dict[str, dict[str, int]] = field(default_factory=dict)
    """`cut_captions` of the metrics."""


def measure_images(
    folder: Path,
    names: Sequence[str],
    paired: PairedFiles,
    engine: EngineConfig,
    progress: Progress,
    out: Path | None = None,
    require: bool = False,
) -> Measurement:
    """Compute metrics of every image below `folder`; unreadable images are unscored. Scores already in `out` are
    reused, except where memory ran out.

    UserError if there are no images or a paired file cannot be read; WeightsError if `require` is set and a metric's
    weights are missing, which otherwise leaves the metric unscored.
    """
    subjects = {subject.key: subject for subject in _subjects(folder, paired, (paired.captions, out), progress)}
    available = {name: is_available(name, require, progress) for name in names}
    usable = tuple(name for name in names if available[name])
    result = Measurement({name: identity_of(name, engine.device) if available[name] else {} for name in names})
    if paired.captions:
        metrics = {name: make_metric(name) for name in usable}
        result.cut = cut_captions(metrics, ((subject, usable) for subject in subjects.values()))
        for name, cut in result.cut.items():
            progress.note(cut_sentence(name, cut))
    kept = _ScoresFile(out, subjects, {name: result.metrics[name] for name in usable}) if out else None
    result.images = {
        key: {name: Score(name, None, NO_WEIGHTS) for name in names if not available[name]} for key in subjects
    }
    for key, score in kept.read() if kept else ():
        if score.unscored != NO_MEMORY:
            result.images[key][score.name] = score
    wanted: list[Wanted] = [
        (subject, missing)
        for key, subject in subjects.items()
        if (missing := tuple(name for name in usable if name not in result.images[key]))
    ]
    order = MetricWorkOrder(usable, engine, engine.device)
    for event in measure_share(order, wanted) if wanted else ():
        show(event, progress)
        if isinstance(event, ScoresComputed):
            if kept:
                kept.add(event.rows)
            for key, score in event.rows:
                result.images[key][score.name] = score
    return result


def _subjects(folder: Path, paired: PairedFiles, other: Sequence[Path | None], progress: Progress) -> Iterator[Subject]:
    """The images below `folder`, but for those in its paired folders, with what belongs to them; files and captions
    that are not used, but for `other`, are noted."""
    folders = [path for path in (folder, paired.sources, paired.masks, paired.references) if path is not None]
    for path in folders:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give one with images in it")
    root, *others_of = (path.resolve() for path in folders)
    inner = [folder / path.relative_to(root) for path in others_of if root in path.parents]
    every = [path for path in visible_files(folder) if not any(map(path.is_relative_to, inner))]
    images = [path for path in every if path.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise UserError(f"{folder} has no {', '.join(sorted(IMAGE_SUFFIXES))} files: give a folder with images in it")
    captions = _captions(paired.captions) if paired.captions else {}
    names = [plain_name(image.relative_to(folder).as_posix()) for image in images]
    bare_names = Counter(name.rpartition("/")[2] for name in names)
    sources, masks = _Companions(paired.sources), _Companions(paired.masks, is_mask=True)
    references = _Companions(paired.references, {name.rpartition(".")[0] for name in names})
    others = {path.resolve() for path in other if path is not None}
    left = [p for p in every if p.suffix.lower() not in IMAGE_SUFFIXES and p.resolve() not in others]
    if left:
        progress.note(unused(folder, left))
    for image, plain in zip(images, names, strict=True):
        name, bare = image.relative_to(folder), plain.rpartition("/")[2]
        in_file = bare if plain not in captions and bare_names[bare] == 1 else plain
        yield Subject(
            key=text_name(name.as_posix()),
            image=ImageFile(image),
            source=sources.find(name),
            mask=masks.find(name),
            references=tuple(references.numbered(name)),
            caption=captions.pop(in_file, None),
        )
    for companions in (sources, masks, references):
        companions.note_unused(progress)
    if captions:
        first = ", ".join(map(short, list(captions)[:5]))
        progress.note(f"{paired.captions} has captions without an image in {folder} ({len(captions):,}): {first}")


class _Companions:
    """The files of a folder that belong to images, by name in any of Unicode's forms."""

    def __init__(self, folder: Path | None, images: Collection[str] = (), is_mask: bool = False) -> None:
        self._folder, self._images, self._is_mask = folder, images, is_mask
        files = visible_files(folder) if folder is not None else []
        self._files = {plain_name(path.relative_to(folder or path).as_posix()): path for path in files}
        self._used: set[Path] = set()

    def find(self, name: Path, more: str = "") -> ImageFile | None:
        """The image with the same name: the one with the same suffix, else with another."""
        suffixes = dict.fromkeys((name.suffix, *IMAGE_SUFFIXES, *(suffix.upper() for suffix in IMAGE_SUFFIXES)))
        stem = plain_name(name.with_name(f"{name.stem}{more}").as_posix())
        names = (f"{stem}{suffix}" for suffix in suffixes)
        path = next((self._files[candidate] for candidate in names if candidate in self._files), None)
        if path is None or (more and stem in self._images):
            return None
        self._used.add(path)
        return ImageFile(path, is_mask=self._is_mask)

    def numbered(self, name: Path) -> Iterator[ImageFile]:
        """`NAME`, if there is one, `NAME_1`, `NAME_2` … up to one that is an image's own."""
        first = self.find(name)
        if first:
            yield first
        number = 1
        while following := self.find(name, f"_{number}"):
            yield following
            number += 1

    def note_unused(self, progress: Progress) -> None:
        left = [path for path in self._files.values() if path not in self._used]
        if self._folder is not None and left:
            progress.note(unused(self._folder, left))


def _captions(path: Path) -> dict[str, str]:
    """Captions by image. UserError if the file has neither form, or two captions of an image."""
    text = read_text(path, UserError, missing="give a file with captions", unreadable="give one that can be read")
    try:
        whole = strictjson.loads(text)
    except ValueError:
        whole = None  # not one JSON object: read as JSON Lines
    if isinstance(whole, dict) and "caption" not in whole:
        rows: list[tuple[str, Any, Any]] = [(str(path), image, caption) for image, caption in whole.items()]
    else:
        lines = strictjson.objects(
            path, UserError, "a caption", missing="give a file with captions", unreadable="give one that can be read"
        )
        rows = [(where, line.get("image"), line.get("caption")) for _, where, line in lines]
    captions: dict[str, str] = {}
    for where, image, caption in rows:
        if not isinstance(image, str) or not isinstance(caption, str):
            raise UserError(f'{where}: a caption is {{"image": "…", "caption": "…"}} with two strings: correct it')
        if plain_name(image) in captions:
            raise UserError(f"{where}: {short(image)} already has a caption: keep one")
        captions[plain_name(image)] = caption
    return {image: caption for image, caption in captions.items() if caption.strip()}


MAX_OUT_BYTES = 2_000_000_000


class _StoredScore(Strict):
    value: float | None
    unscored: str | None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.value is None) == (self.unscored is None):
            raise ValueError("a score has a value or the reason why it has none")
        return self


class _ScoresLine(Strict):
    image: str
    file: str
    """`_stamp`"""
    scores: dict[str, _StoredScore]


class _ScoresFile:
    """An append-only file: one line with the metrics' identities, then one line per image with its scores."""

    def __init__(self, path: Path, subjects: dict[str, Subject], metrics: dict[str, dict[str, Any]]) -> None:
        self._path, self._subjects, self._head = path, subjects, {"metrics": json.loads(json.dumps(metrics))}

    def read(self) -> Iterator[tuple[str, Score]]:
        """Scores of earlier sessions for what has not changed. UserError if the file has other content."""
        with storage_errors(self._path):
            empty = not self._path.exists() or not self._path.stat().st_size
        if empty:
            self._write([self._head])
            return
        data = read_bytes(self._path, UserError, max_bytes=MAX_OUT_BYTES, missing=_AGAIN)
        whole = data[: data.rfind(b"\n") + 1]
        stored = list(strictjson.lines_of(io.BytesIO(whole), self._path, UserError, "a line of scores"))
        if not stored or stored[0][2] != self._head:
            raise UserError(
                f"{self._path} is another file, or has scores by other metrics, weights or releases, or by networks "
                f"on another CPU: {_AGAIN}"
            )
        lines = []
        for _, where, entry in stored[1:]:
            line = check(entry, _ScoresLine, where, error=UserError)
            unknown = next((name for name in line.scores if name not in self._head["metrics"]), None)
            if unknown is not None:
                raise UserError(f"{where}: {unknown!r} is not one of the metrics of the first line: {_AGAIN}")
            lines.append(line)
        if len(whole) < len(data):  # a session ended while it wrote the last line
            with storage_errors(self._path):
                os.truncate(self._path, len(whole))
        for line in lines:
            subject = self._subjects.get(line.image)
            if subject and line.file == _stamp(subject):
                for name, score in line.scores.items():
                    yield subject.key, Score(name, score.value, score.unscored)

    def add(self, rows: Sequence[tuple[str, Score]]) -> None:
        scores: dict[str, dict[str, Any]] = {}
        for key, score in rows:
            scores.setdefault(key, {})[score.name] = {"value": score.value, "unscored": score.unscored}
        self._write([{"image": key, "file": _stamp(self._subjects[key]), "scores": scores[key]} for key in scores])

    def _write(self, lines: Sequence[Any]) -> None:
        text = "".join(f"{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n" for line in lines)
        with storage_errors(self._path):
            append(self._path, text.encode())


def _stamp(subject: Subject) -> str:
    """A fingerprint of an image and what belongs to it: sizes and modification times, and the caption's hash."""
    kinds = [name for name in ("source", "mask") if getattr(subject, name)] + ["reference"] * len(subject.references)
    stamps = []
    for kind, file in zip(["", *kinds], subject.images, strict=True):
        try:
            stat = file.path.stat()
        except OSError as e:
            raise LocalBenchError(
                f"{file.path} was removed while it was measured: restore it and run the command again"
            ) from e
        stamps.append(f"{kind} {stat.st_size}:{stat.st_mtime_ns}".lstrip())
    if subject.caption:
        stamps.append(f"caption {sha256(subject.caption.encode()).hexdigest()}")
    return ", ".join(stamps)
