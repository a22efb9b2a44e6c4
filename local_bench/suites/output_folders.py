"""Images in folders of models and tasks, as the benchmarks' own code writes them."""

import re
from collections.abc import Iterator
from pathlib import Path

from local_bench.core.errors import UserError
from local_bench.core.files import IMAGE_SUFFIXES, is_safe_id
from local_bench.suites.base import ImageFile

_NUMBER = re.compile(r"0*([1-9][0-9]{0,3})")


def images_by_task(folder: Path, top: str, attempts: bool = False) -> Iterator[ImageFile]:
    """The images in [TOP/]METHOD/TASK/NUMBER.*; a number is an attempt or a deliverable. With `attempts` also below a
    folder per dataset."""
    root = folder / top if (folder / top).is_dir() else folder
    for method in (method for dataset in (_folders(root) if attempts else [root]) for method in _folders(dataset)):
        if method.name.endswith("_stitched"):  # IDEA-Bench's collages
            continue
        for task in _folders(method):
            for file in sorted(task.iterdir()):
                number = _NUMBER.fullmatch(file.stem)
                if number is None or file.suffix.lower() not in IMAGE_SUFFIXES:
                    continue
                if not is_safe_id(task.name):
                    raise UserError(f"{task}: its name is not a valid task id: use letters, digits, '.', '_' and '-'")
                n = int(number[1])
                yield (method.name, task.name, *((1, n) if attempts else (n, 1)), file)


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir()]
