"""A run's images, verified against the digests in the store when they are read.

Commands check different subsets: `generate` and `run` decode every finished image first, `verify`, `digest` and
`report` decode all images, `measure`, `judge` and `export` those that they read; `settle` only detects missing and
empty files and decodes the images that its report shows.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from local_bench.core.errors import IMAGE_FAULTS, ImageError, RunImageError
from local_bench.core.images import image_name, image_path, load_verified
from local_bench.runs.store import Store

IMAGES, INPUTS = "images", "inputs"


@dataclass(frozen=True, order=True)
class ImageFault:
    """One image that does not match the store."""

    file: str
    """Relative to the run directory."""
    fault: str
    """missing, damaged or altered."""

    @property
    def sentence(self) -> str:
        return f"the picture {self.file} is {self.fault}"


@dataclass
class ImageStore:
    """The images of the run directory `path`; records the faults of those that were read."""

    path: Path
    faults: dict[str, ImageFault] = field(default_factory=dict)
    """By file."""
    _verified: set[Path] = field(default_factory=set)
    """Files whose pixels were verified in this session."""

    def file(self, pixels_sha256: str, folder: str = IMAGES) -> Path:
        return image_path(self.path / folder, pixels_sha256)

    def exists(self, pixels_sha256: str) -> bool:
        """Whether there is a file of this input or generated image."""
        return self.file(pixels_sha256, self._folder(pixels_sha256)).is_file()

    def load(self, pixels_sha256: str, folder: str = IMAGES) -> Image.Image:
        """Load a generated image. RunImageError if it is missing, damaged or altered."""
        file = self.file(pixels_sha256, folder)
        try:
            image = load_verified(file, pixels_sha256)
        except RunImageError as e:
            self._note(file, e.fault)
            raise
        self._verified.add(file)
        return image

    def load_input(self, pixels_sha256: str) -> Image.Image:
        """Load an input image of a task. Raises as `load`."""
        return self.load(pixels_sha256, INPUTS)

    def load_any(self, pixels_sha256: str) -> Image.Image:
        """Load an input image of a task, else a generated image. Raises as `load`."""
        return self.load(pixels_sha256, self._folder(pixels_sha256))

    def check(self, store: Store, *, decode: bool, io_workers: int = 2) -> list[ImageFault]:
        """Check all images in the store and return all faults, including those found before. With `decode` their
        pixels are verified, else only missing and empty files are detected."""
        digests = stored_digests(store)
        if decode:
            images = [(folder, sha) for folder, shas in digests.items() for sha in shas]
            with ThreadPoolExecutor(io_workers) as pool:
                list(pool.map(lambda image: self._check(*image), images))
            return self.all_faults
        for folder, shas in digests.items():  # listing the folders is much faster than a query per file
            filled = {
                f"{name}/{entry.name}"
                for name in [entry.name for entry in _scan(self.path / folder) if entry.is_dir()]
                for entry in _scan(self.path / folder / name)
                if entry.stat(follow_symlinks=False).st_size
            }
            for sha in shas:
                if image_name(sha) not in filled:
                    self._check(folder, sha, decode=False)
        return self.all_faults

    def faulty(self, pixels_sha256: Iterable[str], io_workers: int, *, either: bool = False) -> dict[str, ImageFault]:
        """Faults of these images, by digest."""
        shas = list(dict.fromkeys(pixels_sha256))
        with ThreadPoolExecutor(io_workers) as pool:
            files = list(pool.map(lambda sha: self._check(self._folder(sha) if either else IMAGES, sha), shas))
        return {sha: self.faults[file] for sha, file in zip(shas, files, strict=True) if file in self.faults}

    @property
    def all_faults(self) -> list[ImageFault]:
        return sorted(self.faults.values())

    def recheck(self) -> None:
        """Check the faulty images again."""
        for fault in self.all_faults:
            del self.faults[fault.file]
            file = Path(fault.file)
            self._check(file.parts[0], file.stem)

    def _folder(self, sha256: str) -> str:
        return INPUTS if self.file(sha256, INPUTS).is_file() else IMAGES

    def _check(self, folder: str, sha256: str, decode: bool = True) -> str:
        """Record a fault of a file, which is returned relative to the run directory."""
        file = self.file(sha256, folder)
        if decode and file not in self._verified:
            with suppress(ImageError):  # `load` records the fault
                self.load(sha256, folder)
        elif not file.is_file():
            self._note(file, "missing")
        elif not file.stat().st_size:
            self._note(file, "damaged")
        return file.relative_to(self.path).as_posix()

    def _note(self, file: Path, fault: str) -> None:
        relative = file.relative_to(self.path).as_posix()
        self.faults[relative] = ImageFault(relative, fault)


def _scan(folder: Path | str) -> list["os.DirEntry[str]"]:
    """The entries of a folder; none if it does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return list(entries)
    return []


def stored_digests(store: Store) -> dict[str, list[str]]:
    """The digests of all images in the store, by folder."""
    return {IMAGES: store.image_digests(), INPUTS: store.input_digests()}


def faults_sentence(faults: list[ImageFault]) -> str:
    """A sentence with the number of faulty images, the first of them, and how to restore them."""
    counts = [f"{n:,} {fault}" for fault in IMAGE_FAULTS if (n := sum(f.fault == fault for f in faults))]
    return (
        f"{len(faults):,} of the run's images do not match the store ({', '.join(counts)}; the first is "
        f"{faults[0].file}): `local-bench generate` with the run's config generates them again, or imports them "
        "again from their source"
    )
