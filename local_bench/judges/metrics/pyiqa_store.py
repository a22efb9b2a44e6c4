"""Storage of pyiqa's weights: one folder of converted files per metric.

pyiqa downloads the files that a metric's class needs during construction, and unpickles them. `gather` constructs the
network repeatedly (pyiqa_scope.py) and fetches each missing file until construction succeeds. The folder's `pyiqa.json`
has the metric, its options and the file names, so one loader serves fetched folders and the small ones used in tests.
At run time a missing file is an error message, never a download.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from local_bench.core import strictjson
from local_bench.core.errors import WeightsError
from local_bench.core.identity import canonical_json
from local_bench.judges.metrics.pyiqa_cards import Described, describe
from local_bench.judges.metrics.pyiqa_scope import HUB, Missing, local_files
from local_bench.models.cards import ModelCard
from local_bench.models.hub import Purpose, Repository, for_model, repository_info
from local_bench.models.manifest import Origin
from local_bench.models.pull import Pulled, check_digest, digest_in, fill, pull_hub, pull_url

INDEX = "pyiqa.json"
COMMITS = {"chaofengc/IQA-PyTorch-Weights": "0df2df423c65f6a64209309695f3845727431027"}
"""Repositories that pyiqa names by a branch; others are fetched at the branch's commit at that time, which the manifest
records."""
_MOST_FILES = 32
_CLIP = "openaipublic.azureedge.net"


@dataclass(frozen=True)
class Store:
    """The folder from which one pyiqa metric is loaded; without a folder, a metric that needs no file."""

    metric: str
    folder: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Options other than pyiqa's own, for a small network."""
    files: dict[str, str | None] = field(default_factory=dict)
    """The file for each URL that pyiqa requests; None if the URL does not exist."""

    @cached_property
    def described(self) -> Described:
        return describe(self.metric)

    def build(self, paths: dict[str, Path | None] | None = None) -> Any:
        """pyiqa's network (`InferenceModel`, evaluation mode, CPU, float32). Raises Missing if a file is missing.

        Random parameters that no file sets (there should be none) are the same every time.
        """
        if paths is None:
            assert self.folder is not None or not self.files
            folder = self.folder or Path()
            paths = {url: None if name is None else folder / name for url, name in self.files.items()}
        with local_files(self.described.kind, paths):
            import torch
            from pyiqa.models.inference_model import InferenceModel

            return InferenceModel(self.metric, device=torch.device("cpu"), **self.options).float().eval()

    def load(self, card: str) -> Any:
        """`build`; WeightsError for a missing file."""
        try:
            return self.build()
        except Missing as e:
            raise WeightsError(
                f"{file_name(e.url)} of {card} is not on this machine; it comes from {e.url}: run "
                f"`local-bench models fetch {card}` with network access"
            ) from None

    def write(self, folder: Path) -> None:
        """Write the folder's index."""
        index = {"metric": self.metric, "options": self.options, "files": self.files}
        (folder / INDEX).write_text(canonical_json(index))


def read_store(folder: Path) -> Store:
    """The store in `folder`. WeightsError if there is none."""
    try:
        index = strictjson.read(folder / INDEX, WeightsError, missing="fetch it again")
        return Store(index["metric"], folder, index["options"], index["files"])
    except (WeightsError, KeyError, TypeError):
        raise WeightsError(
            f"{folder} is not a pyiqa metric's folder ({INDEX} is missing or damaged): fetch the metric again"
        ) from None


def file_name(url: str) -> str:
    """The file name for a URL that pyiqa requests: with its repository if on the Hub, else its last part."""
    hub = _on_hub(url)
    if hub is None:
        return unquote(urlsplit(url).path).rpartition("/")[2]
    repo, _, name = hub
    return name if repo in COMMITS else f"{repo}/{name}".replace("/", "--")


def gather(folder: Path, card: ModelCard, say: Callable[[str], None]) -> list[Origin]:
    """Fetch all files that the card's metric needs into `folder`, atomically; return their origins.

    WeightsError if one cannot be fetched, fails verification, or cannot be converted.
    """
    store = Store(card.name.partition(":")[2])
    pulled: dict[str, Pulled | None] = {}
    repositories: dict[str, Repository] = {}
    for _ in range(_MOST_FILES):
        try:
            store.build({url: None if file is None else file.path for url, file in pulled.items()})
            break
        except Missing as missing:
            say(f"{card.name}: {missing.url}, licence {card.licence}")
            pulled[missing.url] = _pull(for_model(card.name), missing.url, repositories)
    else:
        raise WeightsError(f"{card.name} requests more than {_MOST_FILES} files: use another metric")
    files = {url: None if file is None else file.name for url, file in pulled.items()}
    found = [file for file in pulled.values() if file is not None]
    fill(folder, found, Store(store.metric, folder, store.options, files).write)
    return [file.origin for file in found]


def _pull(purpose: Purpose, url: str, repositories: dict[str, Repository]) -> Pulled | None:
    """The file at a URL; None if the Hub has no file of that name, in which case pyiqa tries another."""
    hub = _on_hub(url)
    if hub is None:
        parts = urlsplit(url)
        name = file_name(url)
        if parts.hostname == _CLIP:  # OpenAI's URLs contain the digest
            return _named(pull_url(purpose, url, name, parts.path.split("/")[-2], "its address"), url)
        return _named(pull_url(purpose, url, name, digest_in(name), "its name"), url)
    repo, revision, name = hub
    known = repositories.get(repo) or repository_info(purpose, repo, COMMITS.get(repo, revision))
    repositories[repo] = known
    if name not in known.files:
        return None
    wanted = Repository(known.purpose, known.repo, known.revision, known.gated, known.files, (name,))
    pulled = pull_hub(wanted, wanted.download(), name)
    check_digest(purpose, url, pulled.origin.sha256, digest_in(name))
    return _named(pulled, url)


def _named(pulled: Pulled, url: str) -> Pulled:
    suffix = Path(pulled.name).suffix
    return Pulled(Path(file_name(url)).with_suffix(suffix).name, pulled.path, pulled.origin)


def _on_hub(url: str) -> tuple[str, str, str] | None:
    """Repository, revision and file of a Hub URL."""
    repo, resolve, rest = url.removeprefix(f"{HUB}/").partition("/resolve/")
    if not url.startswith(f"{HUB}/") or not resolve:
        return None
    revision, _, name = rest.partition("/")
    return repo, revision, unquote(name.partition("?")[0])
