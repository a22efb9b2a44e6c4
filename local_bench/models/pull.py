"""Single files from the Hub or from elsewhere: taken whole, checked, converted where they are pickled, kept once.

A converted file lies in the user's cache under the sha256 of what it was made from, and is linked into the folder of
each model that has it; so two models with one encoder share it, and a fetch that was cut off goes on where it was.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from local_bench.core.errors import StorageError
from local_bench.core.paths import cache_dir, safe_join
from local_bench.core.storage import storage_errors, write_atomic
from local_bench.models.convert import VERSION, convert, converted_name
from local_bench.models.digests import file_sha256
from local_bench.models.hub import Repository
from local_bench.models.manifest import FetchedFile, Origin
from local_bench.models.purpose import Purpose

MAX_BYTES = 20_000_000_000
_TIMEOUT_S = 60
_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.\w+$")
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Pulled:
    """One file, ready to be loaded."""

    name: str
    """What it is called in a model's folder."""
    path: Path
    origin: Origin


def pull_hub(repository: Repository, folder: Path, name: str) -> Pulled:
    """A file of a repository whose files were taken to `folder` and compared with what the Hub declares."""
    path = folder / name
    sha256 = file_sha256(path)
    where = f"{repository.repo}@{repository.revision}/{name}"
    origin = Origin(url=where, bytes=path.stat().st_size, sha256=sha256, checked_by="the Hub")
    return _kept(path, name, origin, repository.repo)


def pull_url(purpose: Purpose, url: str, name: str, sha256: str | None = None, checked_by: str = "the card") -> Pulled:
    """A file from elsewhere, downloaded unless it is here. It is compared with `sha256`, whole or its beginning, where
    that is known; where it is not, its origin says that nobody checked it.

    The purpose's error where it cannot be had or is another file; StorageError where there is no room.
    """
    note = cache_dir() / "pulled" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"
    with suppress(FileNotFoundError, ValidationError):
        known = Origin.model_validate_json(note.read_bytes())
        path = _shelf(known, name)
        if known.url == url and known.sha256.startswith(sha256 or "") and _is_whole(path):
            return Pulled(converted_name(name), path, known)
    note.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(note), tempfile.TemporaryDirectory(dir=note.parent, prefix=".pulling.") as scratch:
        path = Path(scratch) / "file"
        found = download(purpose, url, path)
        refuse_other(purpose, url, found, sha256)
        by = checked_by if sha256 else None
        origin = Origin(url=url, bytes=path.stat().st_size, sha256=found, checked_by=by)
        pulled = _kept(path, name, origin, url.removesuffix(name).rstrip("/"))
    write_atomic(note, origin.model_dump_json(indent=2).encode())
    return pulled


def refuse_other(purpose: Purpose, url: str, found: str, wanted: str | None) -> None:
    """The purpose's error where a file's sha256 `found` is not, or does not begin with, the one `wanted`."""
    if wanted is not None and not found.startswith(wanted):
        raise purpose.error(
            f"{url} is not the file that {purpose.name} wants (its sha256 begins with {found[:12]}, not "
            f"{wanted[:12]}): nothing of it is used, {purpose.again} later or correct {purpose.source}"
        )


def digest_in(name: str) -> str | None:
    """The beginning of a sha256 that torch.hub's way of naming puts into a file's name; None where there is none."""
    found = _IN_NAME.search(name)
    return found[1] if found else None


def fill(folder: Path, pulled: Iterable[Pulled], write: Callable[[Path], None] = lambda _: None) -> None:
    """Makes `folder` of these files, whole or not at all; what was there goes. `write` may add more before it is."""
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            for file in pulled:
                target = safe_join(scratch, file.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                link(file.path, target)
            write(scratch)
            scratch.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def fetched_files(folder: Path) -> dict[str, FetchedFile]:
    """What lies in a folder, for the manifest."""
    return {
        path.relative_to(folder).as_posix(): FetchedFile(bytes=path.stat().st_size, sha256=file_sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def link(source: Path, target: Path) -> None:
    """The same file under another name, or a copy of it where the file system has no links."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _kept(path: Path, name: str, origin: Origin, where: str) -> Pulled:
    """The file on its shelf, converted where it is pickled."""
    shelf = _shelf(origin, name)
    if not _is_whole(shelf):
        with storage_errors(shelf):
            shelf.parent.mkdir(parents=True, exist_ok=True)
            if converted_name(name) == name:
                scratch = shelf.with_name(f".{shelf.name}.{os.getpid()}")
                scratch.unlink(missing_ok=True)
                link(path, scratch)
                os.replace(scratch, shelf)
            else:
                convert(path, shelf, f"{where}: {name}")
        write_atomic(_seal(shelf), file_sha256(shelf).encode())
    return Pulled(converted_name(name), shelf, origin)


def _shelf(origin: Origin, name: str) -> Path:
    return cache_dir() / "pulled" / f"{origin.sha256}-v{VERSION}" / Path(converted_name(name)).name


def _seal(shelf: Path) -> Path:
    return shelf.with_name(f"{shelf.name}.sha256")


def _is_whole(shelf: Path) -> bool:
    """Whether it is what was put there."""
    seal = _seal(shelf)
    return shelf.is_file() and seal.is_file() and seal.read_text() == file_sha256(shelf)


def download(purpose: Purpose, url: str, target: Path, most: int = MAX_BYTES) -> str:
    """Writes what is at `url`, of at most `most` bytes, to `target`; its sha256. The purpose's error where it cannot be
    had, StorageError where there is no room for it twice."""
    import httpx

    digest, received = hashlib.sha256(), 0

    def only_https(request: httpx.Request) -> None:
        if not _is_safe(str(request.url)):
            raise purpose.error(f"{url} leads to {request.url}, which is not https: correct {purpose.source}")

    hooks = {"request": [only_https]}
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S, event_hooks=hooks) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise purpose.error(
                    f"{url} answers HTTP {answer.status_code}: check {purpose.source}, and {purpose.again}"
                )
            _refuse_size(purpose, url, int(answer.headers.get("content-length") or 0), target, most)
            with target.open("wb") as file:
                for chunk in answer.iter_raw() if "content-encoding" not in answer.headers else answer.iter_bytes():
                    received += len(chunk)
                    if received > most:
                        _refuse_size(purpose, url, received, target, most)
                    digest.update(chunk)
                    file.write(chunk)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as e:
        raise purpose.error(f"{url} cannot be had ({type(e).__name__}): check the network, and {purpose.again}") from e
    return digest.hexdigest()


def _refuse_size(purpose: Purpose, url: str, size: int, target: Path, most: int) -> None:
    if size > most:
        raise purpose.error(
            f"{url} has {size / 1e9:.1f} GB or more, more than {most / 1e9:g} GB: correct {purpose.source}"
        )
    free = shutil.disk_usage(target.parent).free
    if 2 * size > free:
        raise StorageError(
            f"{purpose.name} needs {2 * size / 1e9:.1f} GB for {url} and what is made of it, and "
            f"{target.parent.parent} has {free / 1e9:.1f} GB free: make room there or {purpose.larger_disk}"
        )


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
