"""Individual files from the Hub or other URLs: download, verification, conversion of pickles, and a cache.

A file is cached under the sha256 of the downloaded original and hard-linked into the folder of each model that uses
it, so models share files and an interrupted fetch resumes with the files that are missing.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from local_bench.core.errors import StorageError
from local_bench.core.files import cache_dir, new_scratch, safe_join, scratch, storage_errors, write_atomic
from local_bench.models.convert import VERSION, convert, converted_name
from local_bench.models.digests import file_sha256
from local_bench.models.hub import Purpose, Repository
from local_bench.models.manifest import FetchedFile, Origin

MAX_BYTES = 20_000_000_000
_TIMEOUT_S = 60
_DIGEST_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.\w+$")
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Pulled:
    """One cached file, ready to be loaded."""

    name: str
    """The file's name in a model's folder."""
    path: Path
    origin: Origin


def pull_hub(repository: Repository, folder: Path, name: str) -> Pulled:
    """A file of a repository that was downloaded to `folder` and verified."""
    path = folder / name
    sha256 = file_sha256(path)
    where = f"{repository.repo}@{repository.revision}/{name}"
    origin = Origin(url=where, bytes=path.stat().st_size, sha256=sha256, checked_by="the Hub")
    return _cached(path, name, origin, repository.repo)


def pull_url(purpose: Purpose, url: str, name: str, sha256: str | None = None, checked_by: str = "the card") -> Pulled:
    """A file from a URL, downloaded unless cached. Its digest must equal or start with `sha256`, if given; otherwise
    `origin.checked_by` is None.

    The purpose's error if the download fails or the digest differs; StorageError if the disk is full.
    """
    origin_file = cache_dir() / "pulled" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"
    with suppress(FileNotFoundError, ValidationError):
        fetched = Origin.model_validate_json(origin_file.read_bytes())
        path = _cache_path(fetched, name)
        if fetched.url == url and fetched.sha256.startswith(sha256 or "") and _is_intact(path):
            return Pulled(converted_name(name), path, fetched)
    origin_file.parent.mkdir(parents=True, exist_ok=True)
    with (
        storage_errors(origin_file),
        scratch(origin_file.parent) as folder,
    ):
        path = folder / "file"
        actual = download(purpose, url, path)
        check_digest(purpose, url, actual, sha256)
        by = checked_by if sha256 else None
        origin = Origin(url=url, bytes=path.stat().st_size, sha256=actual, checked_by=by)
        pulled = _cached(path, name, origin, url.removesuffix(name).rstrip("/"))
    write_atomic(origin_file, origin.model_dump_json(indent=2).encode())
    return pulled


def check_digest(purpose: Purpose, url: str, actual: str, expected: str | None) -> None:
    """The purpose's error if the sha256 `actual` does not start with `expected`."""
    if expected is not None and not actual.startswith(expected):
        raise purpose.error(
            f"{url} is not the file that {purpose.name} expects (its sha256 starts with {actual[:12]}, not "
            f"{expected[:12]}) and was not stored: {purpose.again} later or correct {purpose.source}"
        )


def digest_in(name: str) -> str | None:
    """The sha256 prefix in a file name that follows the torch.hub convention; None if there is none."""
    match = _DIGEST_IN_NAME.search(name)
    return match[1] if match else None


def fill(folder: Path, pulled: Iterable[Pulled], write: Callable[[Path], None] = lambda _: None) -> None:
    """Replace `folder` with one that contains these files, atomically. `write` can add more files before the rename."""
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = new_scratch(folder.parent)
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
    """Manifest entries of the files in a folder."""
    return {
        path.relative_to(folder).as_posix(): FetchedFile(bytes=path.stat().st_size, sha256=file_sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def link(source: Path, target: Path) -> None:
    """Create a hard link, or a copy if the file system does not support links."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _cached(path: Path, name: str, origin: Origin, where: str) -> Pulled:
    """Add a file to the cache, converting it if it is pickled."""
    target = _cache_path(origin, name)
    if not _is_intact(target):
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if converted_name(name) == name:
                scratch = target.with_name(f".{target.name}.{os.getpid()}")
                scratch.unlink(missing_ok=True)
                link(path, scratch)
                os.replace(scratch, target)
            else:
                convert(path, target, f"{where}: {name}")
        write_atomic(_digest_file(target), file_sha256(target).encode())
    return Pulled(converted_name(name), target, origin)


def _cache_path(origin: Origin, name: str) -> Path:
    return cache_dir() / "pulled" / f"{origin.sha256}-v{VERSION}" / Path(converted_name(name)).name


def _digest_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _is_intact(path: Path) -> bool:
    """Whether a cached file exists and matches its stored digest."""
    stored = _digest_file(path)
    return path.is_file() and stored.is_file() and stored.read_text("utf-8") == file_sha256(path)


def download(purpose: Purpose, url: str, target: Path, max_bytes: int = MAX_BYTES) -> str:
    """Download `url` (at most `max_bytes`) to `target` and return its sha256. The purpose's error if that fails,
    StorageError if the free space is less than twice the size."""
    import httpx2

    digest, received = hashlib.sha256(), 0

    def only_https(request: httpx2.Request) -> None:
        if not _is_safe(str(request.url)):
            raise purpose.error(f"{url} redirects to {request.url}, which is not https: correct {purpose.source}")

    hooks = {"request": [only_https]}
    try:
        with (
            httpx2.Client(follow_redirects=True, timeout=_TIMEOUT_S, event_hooks=hooks) as client,
            client.stream("GET", url) as response,
        ):
            if response.status_code != httpx2.codes.OK:
                raise purpose.error(
                    f"{url} returned HTTP {response.status_code}: check {purpose.source}, and {purpose.again}"
                )
            _check_size(purpose, url, int(response.headers.get("content-length") or 0), target, max_bytes)
            with target.open("wb") as file:
                encoded = "content-encoding" in response.headers
                for chunk in response.iter_bytes() if encoded else response.iter_raw():
                    received += len(chunk)
                    if received > max_bytes:
                        _check_size(purpose, url, received, target, max_bytes)
                    digest.update(chunk)
                    file.write(chunk)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as e:
        raise purpose.error(
            f"{url} cannot be downloaded ({type(e).__name__}): check the network, and {purpose.again}"
        ) from e
    return digest.hexdigest()


def _check_size(purpose: Purpose, url: str, size: int, target: Path, max_bytes: int) -> None:
    if size > max_bytes:
        raise purpose.error(
            f"{url} has at least {size / 1e9:.1f} GB, more than {max_bytes / 1e9:g} GB: correct {purpose.source}"
        )
    free = shutil.disk_usage(target.parent).free
    if 2 * size > free:
        raise StorageError(
            f"{purpose.name} needs {2 * size / 1e9:.1f} GB for {url} and its converted copy, and "
            f"{target.parent.parent} has {free / 1e9:.1f} GB free: free some space or {purpose.larger_disk}"
        )


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
