"""Repositories on the Hub: fetching a pinned commit whole and checked, and finding it again without a network.

Only `models fetch` and `suites fetch` come to `take`; everything else reads the Hub's cache on this machine.
"""

import errno
import glob
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.core.errors import StorageError, WeightsError
from local_bench.models.digests import file_digests, file_sha256, git_blob_sha1
from local_bench.models.manifest import FetchedFile, FetchedRepo
from local_bench.models.purpose import Purpose, for_model
from local_bench.models.vet import PIPELINE, Listing

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo, RepoSibling


@dataclass(frozen=True)
class Repository:
    """One commit of a repository, as the Hub describes it."""

    purpose: Purpose
    repo: str
    revision: str
    gated: bool
    files: dict[str, "RepoSibling"]
    """All there are, with the size and the digest that the Hub declares."""
    only: tuple[str, ...] = ()
    """The files that a card names, or those of a data set; all that a model is loaded from if empty."""
    kind: str = "model"
    """What the Hub calls `repo_type`: "model" or "dataset"."""

    @cached_property
    def listing(self) -> Listing:
        """For `vet`; a config that it reads is downloaded and checked."""
        return Listing(self.repo, frozenset(self.files), lambda name: self._checked(name).read_bytes())

    @property
    def wanted(self) -> list[str]:
        """The names of the files to fetch. WeightsError if one that the card names is not there."""
        missing = next((name for name in self.only if name not in self.files), None)
        if missing is not None:
            raise self.purpose.error(
                f"{self.repo} has no file {missing} at {self.revision}: mend source.files of {self.purpose.name}"
            )
        return sorted(self.only) or self.listing.loaded

    def bytes_of(self, names: list[str]) -> int:
        """Their size as declared."""
        return sum(self.files[name].size or 0 for name in names)

    def absent(self) -> list[str]:
        """The wanted files that are not in the cache yet."""
        from huggingface_hub import try_to_load_from_cache

        found = {
            name: try_to_load_from_cache(self.repo, name, revision=self.revision, repo_type=self.kind)
            for name in self.wanted
        }
        return [name for name, path in found.items() if not isinstance(path, str)]

    def take(self) -> Path:
        """Downloads what is wanted into the Hub's cache, compares every file with what the Hub declares; the folder.

        A file that differs is downloaded once more. The purpose's error if it still differs; nothing of it is kept.
        """
        from huggingface_hub import snapshot_download

        with hub_errors(self.purpose, self.repo, self.revision):
            folder = Path(
                snapshot_download(
                    self.repo,
                    repo_type=self.kind,
                    revision=self.revision,
                    allow_patterns=[glob.escape(name) for name in self.wanted],
                )
            )
        digests = file_digests(folder, self.wanted)
        for name in self.wanted:
            if not self._is_as_declared(name, folder / name, digests.get(name)):
                self._again(name)
        return folder

    def fetched(self, folder: Path) -> FetchedRepo:
        """What the manifest says of this repository, its files being in `folder`."""
        digests = file_digests(folder, self.wanted)
        files = {n: FetchedFile(bytes=(folder / n).stat().st_size, sha256=digests[n]) for n in self.wanted}
        return FetchedRepo(repo=self.repo, revision=self.revision, files=files)

    def _checked(self, name: str) -> Path:
        """One small file, downloaded if it is not here."""
        path = self._download(name, force=False)
        return path if self._is_as_declared(name, path, None) else self._again(name)

    def _again(self, name: str) -> Path:
        path = self._download(name, force=True)
        if not self._is_as_declared(name, path, None):
            _remove(path)
            raise self.purpose.error(
                f"{self.repo}: {name} is not what the Hub declares it to be: nothing of it was kept, "
                f"{self.purpose.again} later or pin another commit"
            )
        return path

    def _download(self, name: str, force: bool) -> Path:
        from huggingface_hub import hf_hub_download

        with hub_errors(self.purpose, self.repo, self.revision):
            return Path(
                hf_hub_download(self.repo, name, repo_type=self.kind, revision=self.revision, force_download=force)
            )

    def _is_as_declared(self, name: str, path: Path, sha256: str | None) -> bool:
        """By the digest that the Hub declares: sha256 of a large file, git's own of a small one."""
        declared = self.files[name]
        if not path.is_file():
            return False
        if declared.lfs is None:
            return declared.blob_id is None or git_blob_sha1(path) == declared.blob_id
        return (sha256 or file_sha256(path)) == declared.lfs.sha256


def look(purpose: Purpose, repo: str, revision: str, only: Iterable[str] = (), kind: str = "model") -> Repository:
    """Asks the Hub what is in a commit of a repository, or in the commit that a branch is at now. The purpose's error
    where it does not say."""
    from huggingface_hub import HfApi

    api = HfApi()
    with hub_errors(purpose, repo, revision):
        if kind == "dataset":
            info: ModelInfo | DatasetInfo = api.dataset_info(repo, revision=revision, files_metadata=True)
        else:
            info = api.model_info(repo, revision=revision, files_metadata=True)
    files = {file.rfilename: file for file in info.siblings or ()}
    return Repository(purpose, repo, info.sha or revision, bool(info.gated), files, tuple(only), kind)


def check_space(purpose: Purpose, needed_bytes: int) -> None:
    """StorageError if the disk with the Hub's cache has not that much room."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE)
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise StorageError(
            f"{purpose.name} needs {needed_bytes / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB free: make room "
            f"there or set HF_HOME to a larger disk, then {purpose.again}"
        )


def snapshot(card: str, repo: str, revision: str | None) -> Path:
    """The folder in the Hub's cache that holds a commit whole. Never downloads; WeightsError says how to get it."""
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

    mend = f"run `{for_model(card).command}` where there is a network, or give `weights: FOLDER` in the config"
    try:
        folder = Path(
            snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=["config.json", PIPELINE])
        )
    except LocalEntryNotFoundError:
        raise WeightsError(
            f"the weights of {card} are not on this machine (the .safetensors of {repo}, "
            f"{revision or 'no commit pinned'}): {mend}"
        ) from None
    try:
        tree = frozenset(file.path for file in get_cached_repo_tree(repo, revision=revision))
    except CachedRepoTreeNotFoundError:
        return folder
    wanted = Listing(repo, tree, lambda name: (folder / name).read_bytes()).loaded
    missing = next((n for n in wanted if n.endswith(".safetensors") and not (folder / n).is_file()), None)
    if missing is not None:
        raise WeightsError(f"the weights of {card} are not all on this machine ({missing} is missing): {mend}")
    return folder


@contextmanager
def hub_errors(purpose: Purpose, repo: str, revision: str) -> Iterator[None]:
    """Turns what goes wrong between us and the Hub into one sentence with the command that mends it."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as e:
        cause: BaseException = e
        while isinstance(cause, ValueError | LocalEntryNotFoundError) and cause.__cause__:
            cause = cause.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"there is no room for {repo}: make some or set HF_HOME to a larger disk, "
                f"then {purpose.again}, what is whole is kept"
            ) from e
        raise purpose.error(_sentence(purpose, repo, revision, cause)) from e


def _sentence(purpose: Purpose, repo: str, revision: str, error: BaseException) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    again = purpose.again
    match error:
        case GatedRepoError():
            return f"{repo} is gated: accept its terms on its page, set HF_TOKEN to your token, and {again}"
        case RepositoryNotFoundError():
            return (
                f"the Hub has no repository {repo} that you may read: check {purpose.source}, "
                f"or set HF_TOKEN to a token that may, and {again}"
            )
        case RevisionNotFoundError():
            return f"{repo} has no commit {revision}: `{purpose.command} --revision COMMIT` with one it has"
        case RemoteEntryNotFoundError():
            return f"{repo} lacks a file that it lists at {revision}: {again} later or pin another commit"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            return f"the Hub does not take your HF_TOKEN for {repo}: set one that may read it, and {again}"
        case HfHubHTTPError():
            return f"the Hub answers HTTP {error.response.status_code} for {repo}: wait, and {again}"
        case HFValidationError():
            return f"{repo!r} is no repository on the Hub: correct {purpose.source}"
        case _:
            return f"{repo} cannot be reached ({type(error).__name__}): check the network (HF_ENDPOINT), and {again}"


def _remove(path: Path) -> None:
    """A file of the Hub's cache, and what its links lead to."""
    while path.is_symlink():
        target = path.parent / path.readlink()
        path.unlink()
        path = target
    path.unlink(missing_ok=True)
