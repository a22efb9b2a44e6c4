"""The published benchmark files: their download sources (`configs/datasets.yaml`), and `suites fetch`, which downloads
them into a folder, atomically, with a record of the files.

Archives are not unpacked by `tarfile` and `zipfile`: names are checked, then regular files are copied up to a size
limit.
"""

import fnmatch
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, ValidationError

from local_bench.core import strictjson
from local_bench.core.errors import DatasetError, StorageError, count, hint
from local_bench.core.files import configs_dir, is_safe_id, safe_join, scratch, storage_errors
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.models.fetch import Say, download, fetched_files, pull_url
from local_bench.models.hub import Purpose, Repository, check_space, for_dataset, repository_info
from local_bench.models.manifest import FetchedFile, file_sha256, is_commit

_REPO = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
_COMMIT = r"^[0-9a-f]{40}$"
_SUFFIXES = {
    *(".json", ".jsonl", ".csv", ".parquet", ".txt", ".md"),
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
}


class GitHubSource(Strict):
    """A folder of a GitHub repository at a commit, downloaded as an archive."""

    kind: Literal["github"]
    repo: str = Field(pattern=_REPO)
    revision: str = Field(pattern=_COMMIT)
    folder: str
    """Stored under its last path component (src/tasks becomes tasks)."""
    also: list[str] = Field(default=[])
    """Additional files of the repository, such as its licence; stored under their names."""
    host: str = "https://github.com"


class HubSource(Strict):
    """A dataset repository on the Hub."""

    kind: Literal["hub"]
    repo: str = Field(pattern=_REPO)
    revision: str | None = Field(default=None, pattern=_COMMIT)
    """The commit; None if none could be determined from public sources: then the current commit of `main` is used."""
    files: list[str] = Field(min_length=1)
    """Glob patterns of the files to download; `*` also matches `/`."""
    unpack: list[str] = Field(default=[])
    """Names of .zip files among them that are replaced by their content."""


class ImageSource(Strict):
    """Images hosted elsewhere, with one URL per image named in a list of tasks."""

    tasks: str
    """Path of the JSON file in the folder: a list of objects with `task_id` and `input_images`."""
    url: str = Field(pattern=r"\{task_id\}.*\{name\}")
    """URL template; images are stored as TASK_ID/NAME in the folder of that file."""


class Dataset(Strict):
    """The published files of one benchmark."""

    suite: str
    """The suite that reads them."""
    licence: str
    source: Annotated[GitHubSource | HubSource, Field(discriminator="kind")]
    pictures: ImageSource | None = None
    reads: str
    """Glob pattern, relative to the folder, of the suite's `path`."""
    tasks: int = Field(ge=1)
    """Number of tasks at `source.revision`, or according to the paper if no commit is pinned."""
    files: int | None = Field(default=None, ge=1)
    """Number of files at `source.revision`, including images hosted elsewhere, if known."""
    bytes: int | None = Field(default=None, ge=1)
    """Total size of the files in bytes, if known."""
    max_bytes: int = Field(ge=1)
    """Limit on the downloaded and on the unpacked size, in bytes."""
    not_included: str
    """Parts of the benchmark that are not included, and what could not be verified."""


class _File(Strict):
    datasets: dict[str, Dataset]


def datasets() -> dict[str, Dataset]:
    """All entries by name. ConfigError if the file is invalid."""
    return load_yaml(configs_dir() / "datasets.yaml", _File).datasets


def dataset(name: str) -> Dataset:
    """The entry with this name. The DatasetError for an unknown name suggests the nearest one."""
    available = datasets()
    if name not in available:
        raise DatasetError(f"no download source for the suite {name!r}: {hint(name, available)}")
    return available[name]


def is_data(name: str) -> bool:
    """Whether a file is data: JSON, a table, text, an image or a licence; never executable, pickled or hidden."""
    path = PurePosixPath(name)
    if any(part.startswith(".") or part == "__MACOSX" for part in path.parts):
        return False
    return path.suffix.lower() in _SUFFIXES or (not path.suffix and path.name.upper().startswith("LICENSE"))


MAX_MEMBERS = 200_000
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
MemberPath = Callable[[str], str | None]
"""Maps a member's name to its path relative to the target folder; None skips the member."""
_Member = tuple[str, int, bool, str, Callable[[], Any]]
"""Name, size, whether it is a folder, what it is if it cannot be extracted, and a function that opens it."""


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            fault = "" if member.isreg() else "a link or a device"
            size = member.size if member.isreg() else 0
            yield member.name, size, member.isdir(), fault, partial(tar.extractfile, member)


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            plain = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG) and not member.flag_bits & 1
            fault = "" if plain else "a link, a device or encrypted"
            yield member.filename, member.file_size, member.is_dir(), fault, partial(zipped.open, member)


def unpack(archive: Path, target: Path, member_path: MemberPath, max_bytes: int, where: str) -> int:
    """Extract the selected data files of a .tar.gz or .zip; return the number of selected files skipped as not data.

    DatasetError (`where` names the archive) for a name that points outside the archive, a selected link or device,
    a duplicate name, more than `max_bytes` or MAX_MEMBERS, and a damaged archive.
    """
    left_out, total = 0, 0
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    try:
        for number, (name, size, is_folder, fault, opened) in enumerate(members(archive), 1):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
                raise DatasetError(
                    f"{where}: the name {name!r} points outside the archive: the archive is not unpacked"
                )
            total += size
            if number > MAX_MEMBERS:
                raise DatasetError(f"{where} has more than {MAX_MEMBERS:,} members: the archive is not unpacked")
            if total > max_bytes:
                raise DatasetError(
                    f"{where} unpacks to more than {max_bytes / 1e9:g} GB: nothing was stored; if the size is correct, "
                    "raise max_bytes of its entry in configs/datasets.yaml"
                )
            relative = member_path(name)
            if relative is None or is_folder:
                continue
            if fault:
                raise DatasetError(f"{where}: {name} is {fault}: the archive is not unpacked")
            if not is_data(relative):
                left_out += 1
                continue
            with opened() as source:
                file = safe_join(target, relative)
                file.parent.mkdir(parents=True, exist_ok=True)
                if file.exists():
                    raise DatasetError(f"{where}: {relative} is in the archive twice: the archive is not unpacked")
                with file.open("xb") as written:
                    shutil.copyfileobj(source, written, 1 << 20)
    except (*_DAMAGE, OSError) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise
        raise DatasetError(f"{where} is damaged: run the same command again later") from e
    return left_out


RECORD = "fetched.json"
MAX_IMAGES = 100_000


class Record(Strict):
    """The fetched files; the same files give the same record."""

    dataset: str
    repo: str
    revision: str
    licence: str
    pictures: str | None = Field(default=None)
    """The URL template of images hosted elsewhere."""
    files: dict[str, FetchedFile]


def fetch_dataset(
    name: str, entry: Dataset, folder: Path, revision: str | None = None, say: Say = lambda _: None
) -> Record:
    """Download the files into `folder`, which must be absent or empty; does nothing if it contains exactly these files.

    `revision` overrides the entry's commit. Every failure, including a full disk, raises DatasetError and leaves
    `folder` unchanged.
    """
    with _storage_as_dataset_errors():
        existing = _existing(name, entry, folder, revision)
        if existing is not None:
            say(f"{name}: all {len(existing.files)} files are already in {folder}")
            return existing
        purpose = for_dataset(name, folder)
        with storage_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with scratch(folder.parent) as work:
                record = _download_all(name, entry, work, revision, purpose, say)
                existing = _existing(name, entry, folder, revision)  # by another process meanwhile
                if existing is None:
                    os.rename(work / "files", folder)
    return existing or record


def list_dataset(name: str, entry: Dataset, folder: Path, revision: str | None = None) -> dict[str, Any]:
    """What `fetch_dataset` would download; null for what is not known before (the files of a GitHub archive). Queries
    the Hub, but not GitHub."""
    source, purpose = entry.source, for_dataset(name, folder)
    files: list[str] | None = None
    if isinstance(source, GitHubSource):
        commit, total = _commit(source, revision, purpose), entry.bytes
    else:
        with _storage_as_dataset_errors():
            repository = _repository(source, revision, purpose)
        files, commit = repository.wanted, repository.revision
        total = repository.bytes_of(files)
    n_files, pictures = None if files is None else len(files), entry.pictures and entry.pictures.url
    found = {"repo": source.repo, "revision": commit, "n_files": n_files, "bytes": total}
    return found | {"pictures": pictures, "files": files}


@contextmanager
def _storage_as_dataset_errors() -> Iterator[None]:
    try:
        yield
    except StorageError as e:
        raise DatasetError(str(e)) from e


def _existing(name: str, entry: Dataset, folder: Path, revision: str | None) -> Record | None:
    """The record of a folder that contains exactly these files; None if absent or empty. DatasetError otherwise."""
    remedy = f"give --out a new folder, or move {folder} away"
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder: {remedy}")
    if not any(folder.iterdir()):
        return None
    try:
        record = Record.model_validate_json((folder / RECORD).read_bytes())
    except (FileNotFoundError, ValidationError):
        raise DatasetError(f"{folder} contains files that were not fetched ({RECORD} is missing): {remedy}") from None
    expected = revision or entry.source.revision or record.revision
    if (record.dataset, record.repo, record.revision) != (name, entry.source.repo, expected):
        raise DatasetError(f"{folder} contains {record.dataset} ({record.repo} at {record.revision[:12]}): {remedy}")
    for relative, file in record.files.items():
        path = safe_join(folder, relative)
        if not path.is_file() or path.stat().st_size != file.bytes or file_sha256(path) != file.sha256:
            raise DatasetError(f"{path} has changed since it was fetched: {remedy}")
    return record


def _download_all(name: str, entry: Dataset, work: Path, revision: str | None, purpose: Purpose, say: Say) -> Record:
    files, source = work / "files", entry.source
    files.mkdir()
    if isinstance(source, GitHubSource):
        commit = _commit(source, revision, purpose)
        check_space(purpose, 2 * (entry.bytes or 0), work.parent)
        left_out = _from_github(source, commit, entry, work, purpose, say)
    else:
        repository = _repository(source, revision, purpose)
        commit = repository.revision
        left_out = _from_hub(repository, source, entry, work, purpose, say)
    if left_out:
        say(f"{name}: skipped {count(left_out, 'files that are')} not text, tables or images")
    if entry.pictures is not None:
        _add_images(entry, files, purpose, say)
    record = Record(
        dataset=name,
        repo=source.repo,
        revision=commit,
        licence=entry.licence,
        pictures=entry.pictures.url if entry.pictures else None,
        files=fetched_files(files),
    )
    (files / RECORD).write_text(record.model_dump_json(indent=2) + "\n", "utf-8")
    return record


def _commit(source: GitHubSource, revision: str | None, purpose: Purpose) -> str:
    commit = revision or source.revision
    if not is_commit(commit):
        raise DatasetError(
            f"--revision {commit!r} is not a full commit (40 hex digits), and the files of a branch can change: "
            f"`{purpose.command} --revision COMMIT`"
        )
    return commit


def _from_github(source: GitHubSource, commit: str, entry: Dataset, work: Path, purpose: Purpose, say: Say) -> int:
    url = f"{source.host}/{source.repo}/archive/{commit}.tar.gz"
    say(f"{purpose.name}: {url}, licence: {entry.licence}")
    archive = work / "archive.tar.gz"
    download(purpose, url, archive, entry.max_bytes)
    base = PurePosixPath(source.folder)

    def member_path(member: str) -> str | None:
        path = PurePosixPath(*PurePosixPath(member).parts[1:])  # the archive has one folder, REPOSITORY-COMMIT
        if path.is_relative_to(base):
            return str(PurePosixPath(base.name) / path.relative_to(base))
        return str(path) if str(path) in source.also else None

    left_out = unpack(archive, work / "files", member_path, entry.max_bytes, url)
    archive.unlink()
    if not (work / "files" / base.name).is_dir():
        raise DatasetError(f"{source.repo} has no files in {source.folder} at {commit}: give another --revision")
    return left_out


def _repository(source: HubSource, revision: str | None, purpose: Purpose) -> Repository:
    """The files on the Hub, at `main` if no commit is known."""
    repository = repository_info(purpose, source.repo, revision or source.revision or "main", kind="dataset")
    wanted = [
        name
        for name in repository.files
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in source.files)
        and (is_data(name) or name in source.unpack)
    ]
    if not wanted:
        raise DatasetError(
            f"{source.repo} has none of {', '.join(source.files)} at {repository.revision}: give another --revision"
        )
    return replace(repository, only=tuple(wanted))


def _from_hub(repository: Repository, source: HubSource, entry: Dataset, work: Path, purpose: Purpose, say: Say) -> int:
    total, absent = repository.bytes_of(repository.wanted), repository.not_cached()
    if total > entry.max_bytes:
        raise DatasetError(
            f"{repository.repo} has {total / 1e9:.1f} GB, more than {entry.max_bytes / 1e9:g} GB: if the size is "
            f"correct, raise max_bytes of {purpose.source}"
        )
    say(
        f"{purpose.name}: {repository.repo} at {repository.revision}, licence: {entry.licence}, "
        f"{count(len(repository.wanted), 'files')}, {total / 1e9:.2f} GB"
    )
    check_space(purpose, repository.bytes_of(absent))
    check_space(purpose, total, work.parent)
    snapshot = repository.download()
    left_out = 0
    for name in repository.wanted:
        if name in source.unpack:
            where = f"{repository.repo}: {name}"
            left_out += unpack(snapshot / name, work / "files", lambda member: member, entry.max_bytes, where)
        else:
            target = safe_join(work / "files", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            # not a link: changes in the user's folder must not reach the cache
            shutil.copyfile(snapshot / name, target)
    return left_out


def _add_images(entry: Dataset, files: Path, purpose: Purpose, say: Say) -> None:
    """Download the images named in the list of tasks to the folder of that list, except those already cached."""
    assert entry.pictures is not None
    tasks = safe_join(files, entry.pictures.tasks)
    image_names = _image_names(tasks, purpose)
    say(f"{purpose.name}: {count(len(image_names), 'images')} from {entry.pictures.url}")
    total = 0
    for task_id, name in image_names:
        url = entry.pictures.url.format(task_id=quote(task_id), name=quote(name))
        image = pull_url(purpose, url, name)
        total += image.origin.bytes
        if total > entry.max_bytes:
            raise DatasetError(f"the images exceed {entry.max_bytes / 1e9:g} GB: correct {purpose.source}")
        target = safe_join(tasks.parent, f"{task_id}/{name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image.path, target)


def _image_names(path: Path, purpose: Purpose) -> list[tuple[str, str]]:
    """The distinct (task id, image name) pairs. DatasetError if the file has another format."""
    try:
        data = strictjson.read(path, DatasetError, missing="fetch it again")
        pairs = dict.fromkeys((task["task_id"], name) for task in data for name in task["input_images"])
    except (DatasetError, TypeError, KeyError):
        raise DatasetError(
            f"{purpose.name}: {path.name} is not a list of tasks with task_id and input_images: give another --revision"
        ) from None
    for pair in pairs:
        bad = next((part for part in pair if not isinstance(part, str) or not is_safe_id(part)), None)
        if bad is not None or not is_data(pair[1]) or len(pairs) > MAX_IMAGES:
            raise DatasetError(f"{purpose.name}: {path.name} lists the image {pair!r}, which cannot be fetched")
    return list(pairs)
