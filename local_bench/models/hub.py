"""Hub repositories: verified download of a pinned commit, and offline lookup in the cache.

Only `models fetch`, `models add` and `suites fetch` use the network; everything else reads the Hub cache of this
machine.
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

from local_bench.core.environment import require
from local_bench.core.errors import DatasetError, LocalBenchError, MissingExtra, StorageError, UserError, WeightsError
from local_bench.models.manifest import file_digests, file_sha256, git_blob_sha1
from local_bench.models.vet import PIPELINE, Listing, model_file

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo, RepoSibling


@dataclass(frozen=True)
class Purpose:
    """Values used in the messages of `hub` and `fetch`."""

    name: str
    """The name of the model card or dataset."""
    command: str
    """The command line that fetches it, without backquotes."""
    source: str
    """Where its repository or URL is configured: `the card's source`."""
    error: type[UserError] = WeightsError
    """The exception raised if the download fails."""
    larger_disk: str = "set LOCAL_BENCH_CACHE to a larger disk"
    """How to use a larger disk."""

    @property
    def again(self) -> str:
        return f"run `{self.command}` again"


def for_model(card: str) -> Purpose:
    """The files of a model card."""
    return Purpose(card, f"local-bench models fetch {card}", "the card's source")


def for_dataset(name: str, folder: object) -> Purpose:
    """The published files of a benchmark."""
    return Purpose(
        name,
        f"local-bench suites fetch {name} --out {folder}",
        f"{name} in configs/datasets.yaml",
        DatasetError,
        "give --out (and LOCAL_BENCH_CACHE) on a larger disk",
    )


@dataclass(frozen=True)
class Repository:
    """Metadata of one commit of a Hub repository."""

    purpose: Purpose
    repo: str
    revision: str
    gated: bool
    files: dict[str, "RepoSibling"]
    """All files, with the size and digest declared by the Hub."""
    only: tuple[str, ...] = ()
    """The files listed in a card or selected for a dataset; if empty, all files needed to load the model."""
    kind: str = "model"
    """The Hub's `repo_type`: "model" or "dataset"."""

    @cached_property
    def listing(self) -> Listing:
        """The listing for `vet`. Reading a config downloads and verifies it."""
        return Listing(self.repo, frozenset(self.files), lambda name: model_file(self._verified(name)))

    @property
    def wanted(self) -> list[str]:
        """The names of the files to download. The purpose's error if a file in `only` does not exist."""
        missing = next((name for name in self.only if name not in self.files), None)
        if missing is not None:
            raise self.purpose.error(
                f"{self.repo} has no file {missing} at {self.revision}: correct source.files of {self.purpose.name}"
            )
        return sorted(self.only) or self.listing.loaded

    def bytes_of(self, names: list[str]) -> int:
        """The total declared size of these files."""
        return sum(self.files[name].size or 0 for name in names)

    def not_cached(self) -> list[str]:
        """The files to download that are not in the cache yet."""
        from huggingface_hub import try_to_load_from_cache

        cached = {
            name: try_to_load_from_cache(self.repo, name, revision=self.revision, repo_type=self.kind)
            for name in self.wanted
        }
        return [name for name, path in cached.items() if not isinstance(path, str)]

    def download(self) -> Path:
        """Download the files into the Hub cache, compare them with the declared digests and return the snapshot folder.

        A file that differs is downloaded once more; if it differs again, it is deleted and the purpose's error raised.
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
            if not self._matches_declared(name, folder / name, digests.get(name)):
                self._verified(name)
        return folder

    def _verified(self, name: str) -> Path:
        """One file, downloaded if not cached, and once more if it is not the declared one."""
        from huggingface_hub import hf_hub_download

        for force in (False, True):
            with hub_errors(self.purpose, self.repo, self.revision):
                path = Path(
                    hf_hub_download(self.repo, name, repo_type=self.kind, revision=self.revision, force_download=force)
                )
            if self._matches_declared(name, path, None):
                return path
        _remove(path)
        raise self.purpose.error(
            f"{self.repo}: {name} does not match the digest declared by the Hub and was deleted: "
            f"{self.purpose.again} later or pin another commit"
        )

    def _matches_declared(self, name: str, path: Path, sha256: str | None) -> bool:
        """Compare with the digest declared by the Hub: sha256 for LFS files, git blob id for others."""
        declared = self.files[name]
        if not path.is_file():
            return False
        if declared.lfs is None:
            return declared.blob_id is None or git_blob_sha1(path) == declared.blob_id
        return (sha256 or file_sha256(path)) == declared.lfs.sha256


def repository_info(
    purpose: Purpose, repo: str, revision: str, only: Iterable[str] = (), kind: str = "model"
) -> Repository:
    """Query the Hub for the files of a commit or of a branch's current commit. The purpose's error if that fails."""
    from huggingface_hub import HfApi

    api = HfApi()
    with hub_errors(purpose, repo, revision):
        if kind == "dataset":
            info: ModelInfo | DatasetInfo = api.dataset_info(repo, revision=revision, files_metadata=True)
        else:
            info = api.model_info(repo, revision=revision, files_metadata=True)
    files = {file.rfilename: file for file in info.siblings or ()}
    return Repository(purpose, repo, info.sha or revision, bool(info.gated), files, tuple(only), kind)


def check_space(purpose: Purpose, needed_bytes: int, folder: Path | None = None) -> None:
    """The purpose's error if the disk of `folder` has less free space than `needed_bytes`; StorageError if that of the
    Hub cache, the default, has."""
    error: type[LocalBenchError] = purpose.error
    larger_disk = purpose.larger_disk
    if folder is None:
        from huggingface_hub.constants import HF_HUB_CACHE

        error, folder, larger_disk = StorageError, Path(HF_HUB_CACHE), "set HF_HOME to a larger disk"
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise error(
            f"{purpose.name} needs {needed_bytes / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB free: free "
            f"some space or {larger_disk}, then {purpose.again}"
        )


def snapshot(card: str, repo: str, revision: str | None, replaceable: bool = True) -> Path:
    """The folder of a commit in the Hub cache. Never downloads; WeightsError if files are missing, with `weights` of a
    config as a remedy if that would replace them (`replaceable`)."""
    try:
        require("fetch")
    except MissingExtra as e:
        raise WeightsError(f"whether the weights of {card} are on this machine is unknown: {e}") from None
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

    remedy = f"run `{for_model(card).command}` on a machine with network access"
    remedy += ", or give `weights: FOLDER` in the config" * replaceable
    try:
        folder = Path(
            snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=["config.json", PIPELINE])
        )
    except LocalEntryNotFoundError:
        raise WeightsError(
            f"the weights of {card} are not on this machine (the .safetensors of {repo}, "
            f"{revision or 'no commit pinned'}): {remedy}"
        ) from None
    try:
        tree = frozenset(file.path for file in get_cached_repo_tree(repo, revision=revision))
    except CachedRepoTreeNotFoundError:
        return folder
    wanted = Listing(repo, tree, lambda name: model_file(folder / name)).loaded
    missing = next((n for n in wanted if n.endswith(".safetensors") and not (folder / n).is_file()), None)
    if missing is not None:
        raise WeightsError(f"the weights of {card} on this machine are incomplete ({missing} is missing): {remedy}")
    return folder


@contextmanager
def hub_errors(purpose: Purpose, repo: str, revision: str) -> Iterator[None]:
    """Convert Hub, network and disk errors to one sentence with the command to run."""
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
                f"the disk is full while downloading {repo}: free some space or set HF_HOME to a larger disk, then "
                f"{purpose.again}; completed files are kept"
            ) from e
        raise purpose.error(_message(purpose, repo, revision, cause)) from e


def _message(purpose: Purpose, repo: str, revision: str, error: BaseException) -> str:
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
                f"the Hub has no repository {repo} that you can access: check {purpose.source}, "
                f"or set HF_TOKEN to a token with access, and {again}"
            )
        case RevisionNotFoundError():
            return f"{repo} has no commit {revision}: run `{purpose.command} --revision COMMIT` with an existing commit"
        case RemoteEntryNotFoundError():
            return f"a file listed in {repo} at {revision} is missing on the Hub: {again} later or pin another commit"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            return f"the Hub rejects your HF_TOKEN for {repo}: set a token with read access, and {again}"
        case HfHubHTTPError():
            return f"the Hub returned HTTP {error.response.status_code} for {repo}: wait, and {again}"
        case HFValidationError():
            return f"{repo!r} is not a valid Hub repository name: correct {purpose.source}"
        case _:
            return f"{repo} cannot be reached ({type(error).__name__}): check the network (HF_ENDPOINT), and {again}"


def _remove(path: Path) -> None:
    """Delete a file of the Hub cache and the targets of its links."""
    while path.is_symlink():
        target = path.parent / path.readlink()
        path.unlink()
        path = target
    path.unlink(missing_ok=True)
