"""`models fetch`: download a card's repositories at their pinned commits and its individual files, verify them, and
write a manifest.

Individual files, from the Hub or other URLs, are verified, converted if they are pickled, and cached under the sha256
of the downloaded original; they are hard-linked into the folder of each model that uses them, so models share files and
an interrupted fetch resumes with the files that are missing.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from local_bench.core.environment import load_object
from local_bench.core.errors import StorageError, WeightsError, count
from local_bench.core.files import cache_dir, link, safe_join, scratch, storage_errors, write_atomic
from local_bench.models.cards import MAIN, ModelCard
from local_bench.models.convert import VERSION, convert, converted_name
from local_bench.models.hub import Purpose, Repository, check_space, for_model, repository_info
from local_bench.models.manifest import (
    FetchedFile,
    FetchedRepo,
    Manifest,
    Origin,
    file_digests,
    file_sha256,
    folder_of,
    is_commit,
    origin_of,
    read_manifest,
    revision_of,
    write_manifest,
    write_pins,
)
from local_bench.models.vet import listing_of, vet
from local_bench.models.weights import built, resolve, resolve_parts, weights_digest

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
    with storage_errors(origin_file), scratch(origin_file.parent) as folder:
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
        with scratch(folder.parent) as work:
            (new := work / "files").mkdir()
            for file in pulled:
                target = safe_join(new, file.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                link(file.path, target)
            write(new)
            if not folder.is_dir() or fetched_files(folder) != fetched_files(new):  # else another process has them
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(new, folder)


def fetched_files(folder: Path) -> dict[str, FetchedFile]:
    """Manifest entries of the files in a folder."""
    return {
        path.relative_to(folder).as_posix(): FetchedFile(bytes=path.stat().st_size, sha256=file_sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _cached(path: Path, name: str, origin: Origin, where: str) -> Pulled:
    """Add a file to the cache, converting it if it is pickled."""
    target = _cache_path(origin, name)
    if not _is_intact(target):
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if converted_name(name) == name:
                linked = target.with_name(f".{target.name}.{os.getpid()}")
                linked.unlink(missing_ok=True)
                link(path, linked)
                os.replace(linked, target)
            else:
                convert(path, target, f"{where}: {name}")
        write_atomic(_digest_file(target), file_sha256(target).encode())
    return Pulled(converted_name(name), target, origin)


def _cache_path(origin: Origin, name: str) -> Path:
    return cache_dir() / "pulled" / f"{origin.sha256}-v{VERSION}" / Path(converted_name(name)).name


def _digest_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _is_intact(path: Path) -> bool:
    stored = _digest_file(path)
    return path.is_file() and stored.is_file() and stored.read_text("utf-8") == file_sha256(path)


def download(purpose: Purpose, url: str, target: Path, max_bytes: int = MAX_BYTES) -> str:
    """Download `url` (at most `max_bytes`) to `target` and return its sha256. The purpose's error if that fails,
    StorageError if the free space is less than twice the size."""
    import httpx2

    digest, received = hashlib.sha256(), 0

    def only_https(request: httpx2.Request) -> None:
        parts = urlsplit(str(request.url))
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
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


Say = Callable[[str], None]
_Fetched = tuple[Path, FetchedRepo]
"""A downloaded folder and its manifest entry."""


def fetch(card: ModelCard, revisions: Mapping[str, str] | None = None, say: Say = lambda _: None) -> Manifest | None:
    """Download all files of a card and return the manifest; build the model and return None if its source is `build`.

    `revisions` pins commits on this machine, by part (`MAIN` for the model itself). If all files are present and
    intact, the Hub is not queried. WeightsError if a repository has no pinned commit or is refused by `vet` or by the
    Hub; StorageError if the disk is full.
    """
    commits = _commits(card, revisions or {})
    sources, purpose = card.sources, for_model(card.name)
    other_parts = [part for part, source in sources.items() if source.base_url or source.gather]
    if not commits and not other_parts:
        resolve(card)
        resolve_parts(card)
        return None
    existing = _existing(card, commits)
    if existing is not None:
        say(f"{card.name}: all {len(existing.files)} files are already on this machine")
        return existing
    repositories = {
        part: repository_info(purpose, sources[part].repo or "", commit, sources[part].files)
        for part, commit in commits.items()
    }
    for repository in repositories.values():
        if not repository.only:  # pickled files that the card lists are converted
            vet(repository.listing)
    absent_bytes = {part: repository.bytes_of(repository.not_cached()) for part, repository in repositories.items()}
    for part, repository in repositories.items():
        say(
            f"{card.name}: {repository.repo} at {repository.revision[:12]}, licence {card.licence}, "
            f"{count(len(repository.wanted), 'files')}, {repository.bytes_of(repository.wanted) / 1e9:.2f} GB, "
            f"{absent_bytes[part] / 1e9:.2f} GB to download"
        )
    check_space(purpose, sum(absent_bytes.values()))
    snapshots = {part: repository.download() for part, repository in repositories.items()}
    write_pins(card, commits)
    fetched: dict[str, _Fetched] = {}
    for part, folder in snapshots.items():
        repository = repositories[part]
        if repository.only:  # files listed in the card are linked into a separate folder
            pulled = [pull_hub(repository, folder, name) for name in repository.only]
            fetched[part] = _from_files(card, part, pulled)
        else:
            digests = file_digests(folder, repository.wanted)
            files = {n: FetchedFile(bytes=(folder / n).stat().st_size, sha256=sha) for n, sha in digests.items()}
            fetched[part] = folder, FetchedRepo(repo=repository.repo, revision=repository.revision, files=files)
    fetched |= {part: _from_other_source(card, part, say) for part in other_parts}
    return _write_manifest(card, fetched, any(repository.gated for repository in repositories.values()))


def _from_other_source(card: ModelCard, part: str, say: Say) -> _Fetched:
    source = card.sources[part]
    if source.gather:
        folder = folder_of(card, part)
        origins: list[Origin] = load_object(source.gather, card.name)(folder, card, say)
        return _vetted(card, part, folder, origins)
    assert source.base_url
    base = source.base_url.rstrip("/")
    say(f"{card.name}: {count(len(source.files), 'files')} from {base}, licence {card.licence}")
    purpose = for_model(card.name)
    pulled = [pull_url(purpose, f"{base}/{name}", name, source.sha256.get(name)) for name in source.files]
    return _from_files(card, part, pulled)


def _from_files(card: ModelCard, part: str, pulled: list[Pulled]) -> _Fetched:
    """A folder of individual files. WeightsError if a file differs from the digest in the card."""
    source = card.sources[part]
    for name, file in zip(source.files, pulled, strict=True):
        check_digest(for_model(card.name), file.origin.url, file.origin.sha256, source.sha256.get(name))
    folder = folder_of(card, part)
    fill(folder, pulled)
    return _vetted(card, part, folder, [file.origin for file in pulled])


def _vetted(card: ModelCard, part: str, folder: Path, origins: list[Origin]) -> _Fetched:
    vet(listing_of(folder))
    origin = origin_of(card, part)
    assert origin is not None
    repo, revision = origin
    entry = FetchedRepo(repo=repo, revision=revision or "", files=fetched_files(folder), origins=origins)
    return folder, entry


def _commits(card: ModelCard, revisions: Mapping[str, str]) -> dict[str, str]:
    """The commit of each repository of the card. WeightsError if one is missing."""
    parts = [part for part, source in card.sources.items() if source.repo]
    unknown = next((part for part in revisions if part not in parts), None)
    if unknown is not None:
        available = ", ".join(repr(part) for part in parts if part) or "none"
        raise WeightsError(
            f"{card.name} has no part {unknown!r} from the Hub (its parts from the Hub: {available}): leave it out"
            if unknown
            else f"{card.name} is built on this machine and has no commit to pin: leave --revision out"
        )
    commits = {}
    for part in parts:
        revision = revisions.get(part) or revision_of(card, part)
        if not is_commit(revision):
            name = f"{part}=COMMIT" if part else "COMMIT"
            pinned = f"only {revision!r}" if revision else "no commit"
            raise WeightsError(
                f"{card.sources[part].repo} has {pinned} pinned, and the files of a branch can change: give the "
                f"full commit (40 hex digits) with `local-bench models fetch {card.name} --revision {name}` or as the "
                "card's revision"
            )
        assert revision
        commits[part] = revision
    return commits


def _existing(card: ModelCard, commits: Mapping[str, str]) -> Manifest | None:
    try:
        manifest = read_manifest(card)
        if manifest is None or any(revision_of(card, part) != commit for part, commit in commits.items()):
            return None
        resolve(card)
        resolve_parts(card)
    except WeightsError:
        return None
    return manifest


def _write_manifest(card: ModelCard, fetched: Mapping[str, _Fetched], gated: bool) -> Manifest | None:
    """Write the manifest; None for a card whose main model is built."""
    parts = {part: fetched[part][0] if part in fetched else built(card, part) for part in card.parts}
    if MAIN not in fetched:
        return None
    folder, main = fetched[MAIN]
    manifest = Manifest(
        card=card.name,
        repo=main.repo,
        revision=main.revision,
        licence=card.licence,
        gated=gated,
        files=main.files,
        origins=main.origins,
        parts={part: entry for part, (_, entry) in fetched.items() if part != MAIN},
        weights_sha256=weights_digest(folder, parts),
        fetched_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    write_manifest(card, manifest)
    return manifest
