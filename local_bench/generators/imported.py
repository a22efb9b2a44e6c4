"""Imports images generated elsewhere (closed APIs, other tools, human designers) as candidates, without torch."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from local_bench.core import strictjson
from local_bench.core.errors import ConfigError, TaskFileError
from local_bench.core.files import IMAGE_SUFFIXES, plain_name, read_text, safe_join, visible_files
from local_bench.core.money import nearest_micro_usd
from local_bench.core.yamlfile import Strict, check

Key = tuple[str, int, int]
"""(task, deliverable from 1, attempt from 1)"""


@dataclass(frozen=True)
class Found:
    """One image file and its cost; None if unknown."""

    path: Path
    cost_micro_usd: int | None = None


def _amount(value: Decimal | int) -> Decimal | int:
    if not Decimal(value).is_finite() or value < 0:
        raise ValueError("a cost is a number of US dollars, 0 or more")
    nearest_micro_usd(value)
    return value


class ManifestLine(Strict):
    """One line of a manifest; the file's path is relative to the manifest's folder."""

    task_id: str
    deliverable: int = Field(1, ge=1)
    attempt: int = Field(1, ge=1)
    file: str
    cost_usd: Annotated[Decimal | int, AfterValidator(_amount)] | None = None


def find_images(
    source: Path, wanted: Iterable[Key], left_out: Iterable[Key] = ()
) -> tuple[dict[Key, Found], list[Path]]:
    """Find the images of the requested candidates at `source` (a folder or a manifest); missing ones are left out.
    Second, the folder's files that are not used. `left_out`: candidates of other tasks that the source may have, such
    as those of other shards.

    Raises ConfigError if `source` does not exist, two files match one candidate or one file two, or a task's images are
    numbered from 0; TaskFileError for a faulty line of a manifest.
    """
    if os.path.isdir(source):
        return _in_folder(source, list(wanted), left_out)
    if os.path.isfile(source):
        return _in_manifest(source, set(wanted), {task for task, _, _ in left_out}), []
    raise ConfigError(f"imported.images: {source} is neither a folder nor a manifest: put the images there")


def _in_folder(folder: Path, wanted: list[Key], left_out: Iterable[Key]) -> tuple[dict[Key, Found], list[Path]]:
    files: dict[str, list[Path]] = {}
    every = visible_files(folder)
    for path in every:
        if path.suffix.lower() in IMAGE_SUFFIXES:
            files.setdefault(plain_name(path.relative_to(folder).with_suffix("").as_posix()), []).append(path)
    by_key, owners = {}, dict[Path, Key]()
    matching = {key: [path for name in _names(key) for path in files.get(name, [])] for key in (*wanted, *left_out)}
    for key, path in ((key, path) for key, matches in matching.items() for path in matches):
        if (other := owners.setdefault(path, key)) != key:
            both = " or ".join(f"image {k[1]}, attempt {k[2]} of {k[0]!r}" for k in (other, key))
            raise ConfigError(f"imported.images: {path} could be {both}: name it TASK/N.png, or give a manifest")
    for key in wanted:
        matches = matching[key]
        if len(matches) > 1:
            both = " and ".join(str(path.relative_to(folder)) for path in matches[:2])
            raise ConfigError(f"imported.images: in {folder}, {both} match the same image: keep one")
        if matches:
            by_key[key] = Found(matches[0])
    used = {file.path for file in by_key.values()}
    for task in dict.fromkeys(plain_name(task) for task, _, _ in wanted):
        zero = [path for name in (f"{task}/0", f"{task}_0") for path in files.get(name, []) if path not in used]
        if zero:
            raise ConfigError(f"imported.images: {zero[0]}: images of a task are numbered from 1: rename them")
    return by_key, [path for path in every if path not in used]


def _names(key: Key) -> list[str]:
    task, number, attempt = plain_name(key[0]), *key[1:]
    numbers = dict.fromkeys((str(number), f"{number:03d}", f"{number:04d}"))
    names = [f"{task}{between}{n}_{attempt}" for n in numbers for between in "/_"]
    if attempt == 1:
        names += [f"{task}{between}{n}" for n in numbers for between in "/_"]
        names += [task] if number == 1 else []
    return names


def _in_manifest(manifest: Path, wanted: set[Key], left_out: Collection[str]) -> dict[Key, Found]:
    files: dict[Key, Found] = {}
    first: dict[Key, int] = {}
    text = read_text(manifest, TaskFileError, missing="put the manifest there", unreadable="give a JSON Lines manifest")
    for number, text_line in enumerate(text.splitlines(), 1):
        if not text_line.strip():
            continue
        where = f"{manifest}, line {number}"
        try:
            data = strictjson.loads(text_line, parse_float=Decimal)
        except ValueError as e:
            raise TaskFileError(f"{where}: this is not a JSON object ({e}): correct the line") from None
        line = check(data, ManifestLine, where, error=TaskFileError)
        key = (line.task_id, line.deliverable, line.attempt)
        if key in first:
            raise TaskFileError(f"{where}: line {first[key]} is for the same image: keep one")
        first[key] = number
        if line.task_id in left_out:
            continue
        if key not in wanted:
            raise TaskFileError(
                f"{where}: the run has no image {line.deliverable} of {line.task_id!r}, attempt {line.attempt}: "
                "correct or remove the line"
            )
        path = safe_join(manifest.parent, line.file)
        if not os.path.isfile(path):
            raise TaskFileError(f"{where}: {line.file} does not exist: add it or remove the line")
        files[key] = Found(path, None if line.cost_usd is None else nearest_micro_usd(line.cost_usd))
    return files
