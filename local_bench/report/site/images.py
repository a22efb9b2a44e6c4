"""The images of a site: WebP at two sizes, created once by a pool of processes, and the full images."""

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.core.errors import ImageError
from local_bench.core.files import atomic_file, is_safe_id
from local_bench.core.images import load_verified
from local_bench.runs.image_store import IMAGES, INPUTS
from local_bench.runs.rundir import RunDir

if TYPE_CHECKING:
    from PIL import Image

SIDE = 256
"""Longest side of a thumbnail in pixels; smaller images are enlarged by an integer factor."""
PREVIEW_SIDE = 768
"""Longest side of a preview, which images of more than twice a thumbnail's side have."""
QUALITY = 80
THUMBS, PREVIEWS, FULL = "thumbs", "previews", "images"


def thumbnail_path(out: Path, sha: str) -> Path:
    return out / THUMBS / sha[:2] / f"{sha}.webp"


def preview_path(out: Path, sha: str) -> Path:
    return out / PREVIEWS / sha[:2] / f"{sha}.webp"


def write_images(run: RunDir, out: Path, workers: int, full: bool = True) -> int:
    """Write thumbnails, previews and, if `full`, links of all images of `run` below `out`; return the number of images
    that are missing or damaged. Existing files are kept: names are digests of the content."""
    shas = [(IMAGES, sha) for sha in run.store.image_digests()]
    shas += [(INPUTS, sha) for sha in sorted(_inputs(run))]
    pending = [
        (str(run.image_store.file(sha, folder)), sha, str(out), full)
        for folder, sha in shas
        if is_safe_id(sha) and not (thumbnail_path(out, sha).is_file() and (not full or full_path(out, sha).is_file()))
    ]
    if not pending:
        return 0
    for sub in {sha[:2] for _, sha, *_ in pending}:
        for folder in (THUMBS, PREVIEWS, *([FULL] if full else [])):
            (out / folder / sub).mkdir(parents=True, exist_ok=True)
    if len(pending) < 64:
        return sum(not _write(image) for image in pending)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return sum(not written for written in pool.map(_write, pending, chunksize=32))


def full_path(out: Path, sha: str) -> Path:
    return out / FULL / sha[:2] / f"{sha}.png"


def _inputs(run: RunDir) -> Iterable[str]:
    for task in run.store.tasks():
        yield from (sha for sha in (task.source_sha256, task.mask_sha256, *task.reference_sha256) if sha)


def _write(job: tuple[str, str, str, bool]) -> bool:
    """Write one thumbnail, its preview and, if wanted, the full image (a hard link, or a copy on another disk); False
    if it cannot be read."""
    from PIL import Image

    file, sha, folder = Path(job[0]), job[1], Path(job[2])
    try:
        image = load_verified(file, sha)
    except ImageError:
        return False
    full = full_path(folder, sha)
    if job[3] and not full.exists():
        try:
            os.link(file, full)
        except OSError:
            with suppress(FileExistsError):
                shutil.copyfile(file, full)
    if max(image.size) > 2 * SIDE:
        preview = image.copy()
        preview.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
        _save(preview, preview_path(folder, sha))
    times = SIDE // max(image.size)
    if times > 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    else:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    _save(image, thumbnail_path(folder, sha))  # last: an image with a thumbnail has everything
    return True


def _save(image: "Image.Image", target: Path) -> None:
    with atomic_file(target, durable=False) as file:
        image.save(file, "WEBP", quality=QUALITY, method=2)
