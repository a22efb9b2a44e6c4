"""Pictures in a benchmark's own layout, as manifests for `imported` models.

A manifest lies at the top of the folder that was given, for a picture's path may not lead out of its manifest's folder.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local_bench.core.errors import UserError
from local_bench.core.paths import is_safe_id, safe_join
from local_bench.core.storage import write_new
from local_bench.generators.imported import SUFFIXES
from local_bench.suites.json_io import line_of, read_object

_NUMBER = re.compile(r"0*([1-9][0-9]{0,3})")
Place = tuple[str, str, int, int, Path]
"""(method, task, deliverable from 1, attempt from 1, file)"""


@dataclass(frozen=True)
class Manifest:
    """One method's pictures."""

    method: str
    path: Path
    n_pictures: int
    attempts: int
    """The highest that there is."""


def write_manifests(name: str, folder: Path) -> list[Manifest]:
    """Finds the pictures below `folder` in the layout `name` and writes `METHOD.manifest.jsonl` for each method.

    UserError where there is no such folder, none of its pictures are in that layout, two claim one place, or a manifest
    is there that says something else.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the one that the benchmark's outputs lie in")
    places = list(_ice(folder) if name == "ice-bench" else _in_folders(name, folder))
    if not places:
        raise UserError(f"{folder} holds no pictures in the layout of {name}: give the folder with its outputs")
    seen: dict[tuple[str, str, int, int], Path] = {}
    for method, task, deliverable, attempt, file in places:
        other = seen.setdefault((method, task, deliverable, attempt), file)
        if other != file:
            raise UserError(
                f"{folder}: {other.name} and {file.name} of {task!r} by {method!r} are one picture: keep one"
            )
    manifests = []
    for method in dict.fromkeys(place[0] for place in places):
        if not is_safe_id(method):
            raise UserError(f"{folder}: {method!r} cannot name a model: use letters, digits, '.', '_' and '-'")
        own = sorted(place for place in places if place[0] == method)
        lines = [
            {
                "task_id": task,
                "deliverable": deliverable,
                "attempt": attempt,
                "file": file.relative_to(folder).as_posix(),
            }
            for _, task, deliverable, attempt, file in own
        ]
        path = folder / f"{method}.manifest.jsonl"
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        write_new(path, data, "pictures")  # people add what a picture cost
        manifests.append(Manifest(method, path, len(own), max(place[3] for place in own)))
    return manifests


def _in_folders(name: str, folder: Path) -> Iterator[Place]:
    """The layouts in which folders say which picture it is."""
    top = folder / ("images" if name == "servimage" else "outputs")
    top = top if top.is_dir() else folder
    datasets = _folders(top) if name == "hype-edit-1" else [top]
    for method in (method for dataset in datasets for method in _folders(dataset)):
        if method.name.endswith("_stitched"):
            continue
        for task in _folders(method):
            for file in sorted(task.iterdir()):
                number = _NUMBER.fullmatch(file.stem)
                if number is None or file.suffix.lower() not in SUFFIXES:
                    continue
                if not is_safe_id(task.name):
                    raise UserError(f"{task}: its name cannot name a task: use letters, digits, '.', '_' and '-'")
                n = int(number[1])
                yield (method.name, task.name, *((1, n) if name == "hype-edit-1" else (n, 1)), file)


def _ice(folder: Path) -> Iterator[Place]:
    """results/METHOD/gen_info.json: {item: path}, the path relative to where the benchmark's code was started."""
    for info in sorted(folder.rglob("gen_info.json")):
        data, text = read_object(info, "gen_info.json", UserError)
        for item, relative in data.items():
            where = f"{info}, line {line_of(text, [item])}"
            if not isinstance(relative, str) or not is_safe_id(item):
                raise UserError(f"{where}: an item's id and the path of its picture belong here: mend the line")
            ups = [up for up in (info.parent, *info.parents[1:4]) if up.is_relative_to(folder)]
            try:
                ways = [safe_join(up, relative) for up in ups]
            except UserError as e:
                raise UserError(f"{where}: {e}") from None
            file = next((way for way in ways if way.is_file()), None)
            if file is None:
                raise UserError(f"{where}: {relative} is not there: put it there or drop the line")
            yield info.parent.name, item, 1, 1, folder / file.relative_to(folder.resolve())


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir()]
