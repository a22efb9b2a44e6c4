"""Manifests of fetched cards and locally pinned commits, stored in the user's cache; sha256 digests of large files,
cached until the file's stat changes.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from local_bench.core import strictjson
from local_bench.core.errors import StorageError, WeightsError
from local_bench.core.files import cache_dir, open_regular, write_atomic
from local_bench.core.types import digest
from local_bench.core.yamlfile import Strict
from local_bench.models.cards import MAIN, ModelCard
from local_bench.models.convert import VERSION

_SETTLED_NS = 50_000_000
"""Digests of files modified less than this before hashing are not cached: a later change could have the same
timestamp."""


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file in `folder`, by name; missing files are omitted.

    Cache entries are keyed by size, mtime, ctime and inode; ctime cannot be set by the user.
    """
    cache_file = cache_dir() / "weights" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()}.json"
    cached: dict[str, list[str]] = {}
    with suppress(OSError, ValueError):
        stored: Any = strictjson.loads(cache_file.read_text("utf-8"))
        cached = stored if isinstance(stored, dict) else {}
    current = {name: entry for name, entry in cached.items() if (folder / name).is_file()}
    digests = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        entry = current.get(name)
        if entry and entry[0] == _stamp(path.stat()):
            digests[name] = entry[1]
            continue
        current.pop(name, None)
        before = path.stat()
        digests[name] = file_sha256(path)
        after = path.stat()
        settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > _SETTLED_NS
        if settled and _stamp(before) == _stamp(after):
            current[name] = [_stamp(after), digests[name]]
    if current != cached:
        with suppress(StorageError):  # a cache that others share, or a full disk: only the next call takes longer
            write_atomic(cache_file, json.dumps(current).encode())
    return digests


def file_sha256(path: Path) -> str:
    """The sha256 of a file (64 hex digits)."""
    with open_regular(path, WeightsError, missing="fetch the model again") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_sha1(path: Path) -> str:
    """The git blob id of a file, which the Hub declares for small files: sha1 of a size header and the bytes."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"


T = TypeVar("T", bound=Strict)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class FetchedFile(Strict):
    """One file and its verified digest."""

    bytes: int
    sha256: str


class Origin(Strict):
    """The downloaded file that a stored file was copied or converted from."""

    url: str
    """The URL, or OWNER/NAME@COMMIT/FILE for the Hub."""
    bytes: int
    sha256: str
    checked_by: str | None
    """Where the expected digest came from: `the Hub`, `the card`, `its address`, `its name`; None if it was unknown."""


class FetchedRepo(Strict):
    """One repository at one commit, or files from one other source."""

    repo: str
    """The repository, the base URL, or the `gather` function."""
    revision: str
    """The commit; for other sources the name of the cache folder."""
    files: dict[str, FetchedFile]
    """The files as loaded: pickled files after conversion."""
    origins: list[Origin] = Field(default=[])
    """Origins of individually downloaded files."""


class Manifest(FetchedRepo):
    """All files of a card, including its parts."""

    card: str
    licence: str
    gated: bool
    """Whether the Hub requires accepting terms."""
    parts: dict[str, FetchedRepo] = Field(default={})
    weights_sha256: str
    fetched_utc: str

    def of(self, part: str) -> FetchedRepo | None:
        """The repository of the model (`MAIN`) or of a part; None if that part was not fetched."""
        return self if part == MAIN else self.parts.get(part)


class Pins(Strict):
    """Commits pinned with `--revision`, by part."""

    revisions: dict[str, str]


def is_commit(revision: str | None) -> bool:
    """Whether `revision` is a full commit hash (40 hex digits)."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def revision_of(card: ModelCard, part: str = MAIN) -> str | None:
    """The commit of the model (`MAIN`) or of a part: the one pinned on this machine, otherwise the card's."""
    return pins(card).get(part) or card.sources[part].revision


def folder_of(card: ModelCard, part: str) -> Path:
    """The cache folder of individually downloaded files of a part (`MAIN`: the model); its name includes a digest of
    everything that determines the files."""
    source = card.sources[part]
    content = source.model_dump(exclude={"build", "folder", "version"}) | {
        "revision": revision_of(card, part),
        "as": VERSION,
    }
    return cache_dir() / "files" / f"{card.name.replace(':', '--')}{part and '-' + part}-{digest(content)[:16]}"


def origin_of(card: ModelCard, part: str) -> tuple[str, str | None] | None:
    """Repository and commit of the model or of a part, or their equivalents for other sources; None if it is built."""
    source = card.sources[part]
    if source.repo:
        return source.repo, revision_of(card, part)
    other = source.base_url or source.gather
    return (other, folder_of(card, part).name) if other else None


def pins(card: ModelCard) -> dict[str, str]:
    """The commits pinned on this machine, by part."""
    stored = _read(_file(card, "pins"), Pins, "remove it, then pin the commit again")
    return stored.revisions if stored else {}


def write_pins(card: ModelCard, revisions: dict[str, str]) -> None:
    """Store the commits that differ from the card's."""
    overrides = {part: revision for part, revision in revisions.items() if revision != card.sources[part].revision}
    if overrides or _file(card, "pins").exists():
        write_atomic(_file(card, "pins"), Pins(revisions=overrides).model_dump_json(indent=2).encode())


def read_manifest(card: ModelCard) -> Manifest | None:
    """The manifest of the card; None if there is none or its repositories or commits differ from the card's."""
    manifest = _read(_file(card, "fetched"), Manifest, f"run `local-bench models fetch {card.name}` to write it again")
    if manifest is None:
        return None
    for part in card.sources:
        origin, fetched = origin_of(card, part), manifest.of(part)
        if origin and (fetched is None or (fetched.repo, fetched.revision) != origin):
            return None
    return manifest


def write_manifest(card: ModelCard, manifest: Manifest) -> None:
    """Store the manifest. StorageError if it cannot be written."""
    write_atomic(_file(card, "fetched"), manifest.model_dump_json(indent=2).encode())


def check_fetched(card: ModelCard, part: str, folder: Path) -> None:
    """Compare the folder of the model (`MAIN`) or of a part with the manifest; fast unless a file was modified.

    WeightsError names the first file that differs. Does nothing for a card without a manifest.
    """
    manifest = read_manifest(card)
    fetched = None if manifest is None else manifest.of(part)
    if fetched is None:
        return
    digests = file_digests(folder, fetched.files)
    for name, file in fetched.files.items():
        if digests.get(name) != file.sha256:
            problem = "has changed since it was fetched" if name in digests else "is missing"
            raise WeightsError(
                f"{fetched.repo}: {name} {problem}: run `local-bench models fetch {card.name}` to fetch it again"
            )


def _read(path: Path, model: type[T], remedy: str) -> T | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise WeightsError(f"{path} is damaged: {remedy}") from None


def _file(card: ModelCard, folder: str) -> Path:
    """Without the colon of `library:name`, which is not valid on every file system."""
    return cache_dir() / folder / f"{card.name.replace(':', '--')}.json"
