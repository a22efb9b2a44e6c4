"""Storage of pyiqa's weights: one folder of converted files per metric, and their use while pyiqa constructs a network.

pyiqa downloads the files that a metric's class needs during construction, and unpickles them. `gather` constructs the
network repeatedly and fetches each missing file until construction succeeds. The folder's `pyiqa.json` has the metric,
its options and the file names, so one loader serves fetched folders and the small ones used in tests. At run time a
missing file is an error message, never a download.

Inside `local_files` the download functions of torch.hub, torchvision, timm, CLIP and pyiqa are replaced: each returns a
placeholder path, or raises `Missing`. `torch.load`, `torch.jit.load` and scipy's `loadmat` then read the converted file
of that path, and reject all others; sockets cannot be opened. All of this applies only to the calling thread, to one
network at a time, and is undone at the end.
"""

import importlib
import io
import logging
import random
import re
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import numpy as np

from local_bench.core import strictjson
from local_bench.core.errors import WeightsError
from local_bench.core.files import scratch
from local_bench.core.types import canonical_json
from local_bench.judges.metrics.pyiqa_cards import Described, describe
from local_bench.models.cards import ModelCard
from local_bench.models.convert import read_converted
from local_bench.models.fetch import Pulled, check_digest, digest_in, fill, pull_hub, pull_url
from local_bench.models.hub import Purpose, Repository, for_model, repository_info
from local_bench.models.manifest import Origin

SEED = 123
HUB = "https://huggingface.co"
_LOCK = threading.RLock()
_FAMILIES = ("pyiqa", "timm", "torchvision", "clip", "facexlib")
"""Packages whose modules may have imported such a function by name (`from torch.hub import …`)."""
_DEFINERS = ("torch", "torch.hub", "torch.jit", "scipy.io")
"""Modules that define such functions."""
_CLIPS = ("clip.clip", "pyiqa.archs.clip_model", "pyiqa.archs.afineclip_model")
"""Copies of OpenAI's CLIP."""


class Missing(Exception):
    """pyiqa needs the file at `url`, which is not in the store."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def canonical(url: str) -> str:
    """A Hub URL with its canonical host, regardless of HF_ENDPOINT."""
    from huggingface_hub.constants import ENDPOINT

    return HUB + url.removeprefix(ENDPOINT) if url.startswith(f"{ENDPOINT}/") else url


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Seeds Python's, numpy's and torch's random numbers; their previous state is restored at the end."""
    import torch

    state, state_numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(state)
        np.random.set_state(state_numpy)


@contextmanager
def local_files(kind: str, paths: Mapping[str, Path | None]) -> Iterator[None]:
    """A context in which pyiqa's class `kind` is constructed. `paths`: the file for each URL, None if it does not
    exist.

    Raises Missing for a URL that is not in `paths`, or whose file was deleted; WeightsError for a damaged file.
    """
    with _LOCK, ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(redirect_stdout(io.StringIO()))
        for name in (*_CLIPS, "scipy.io", "timm.models"):
            importlib.import_module(name)
        for path in sorted(Path(sys.modules[_CLIPS[1]].__file__ or "").parent.glob("*_arch.py")):
            if re.search(rf"^class {kind}\(", path.read_text("utf-8"), re.MULTILINE):
                importlib.import_module(f"pyiqa.archs.{path.stem}")
        for name in ("pyiqa", "timm", "root"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        for holder, name, replacement in _replacements(_Answers(paths, stack.enter_context(scratch()))):
            stack.enter_context(patch.object(holder, name, replacement))
        stack.enter_context(seeded())
        yield


class _Answers:
    def __init__(self, paths: Mapping[str, Path | None], folder: Path) -> None:
        self._paths, self.folder = paths, folder
        self._behind: dict[str, Path] = {}

    def placeholder_for(self, url: str, target: str | None = None) -> str:
        """The placeholder path for a URL: an empty file, for which the replaced loaders read the local file."""
        url = canonical(url)
        path = self._paths.get(url)
        if path is None or not path.is_file():
            raise Missing(url)
        if path.suffix == ".safetensors" and url.endswith(".safetensors"):
            return str(path)
        placeholder = Path(target) if target else self.folder / f"{len(self._behind)}-{path.name}"
        assert placeholder.is_relative_to(self.folder), placeholder
        placeholder.parent.mkdir(parents=True, exist_ok=True)
        placeholder.touch()
        self._behind[str(placeholder)] = path
        return str(placeholder)

    def hub(self, repo_id: str, filename: str, *_: Any, revision: str | None = None, **__: Any) -> str:
        """huggingface_hub.hf_hub_download."""
        from huggingface_hub.errors import EntryNotFoundError

        url = f"{HUB}/{repo_id}/resolve/{revision or 'main'}/{filename}"
        if url in self._paths and self._paths[url] is None:
            raise EntryNotFoundError(url)
        return self.placeholder_for(url)

    def path(self, file: Any) -> Path:
        name = str(getattr(file, "name", file))
        if name not in self._behind:
            raise WeightsError(f"pyiqa tries to read {name}, which is not in the store: use another metric")
        return self._behind[name]


def _script(tree: dict[str, Any]) -> Any:
    """Replacement of a TorchScript module: its tensors, and the only computation of such a pyiqa module: a linear
    regression (ARNIQA's `weights` and `biases`)."""
    from torch import nn

    class Script(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in tree.items():
                if "." not in name:
                    self.register_buffer(name, tensor)

        def state_dict(self, *_: Any, **__: Any) -> Any:
            return tree

        def forward(self, x: Any) -> Any:
            if set(tree) != {"weights", "biases"}:
                raise WeightsError(
                    "pyiqa tries to run code of a TorchScript file, which is not allowed: use another metric"
                )
            return x @ tree["weights"].to(x).reshape(-1, x.shape[-1]).T + tree["biases"].to(x)

    return Script()


def _replacements(answers: _Answers) -> Iterator[tuple[Any, str, Any]]:
    """(holder, name, replacement): each function where it is defined and wherever it was imported by name."""
    import torch

    # By name, for these packages have no types.
    clips = [importlib.import_module(name) for name in _CLIPS]
    scipy_io, timm_hub = (importlib.import_module(name) for name in ("scipy.io", "timm.models._hub"))
    loadmat = importlib.import_module("scipy.io.matlab").loadmat  # this name of it is not replaced
    default_cache = importlib.import_module("pyiqa.utils.download_util").DEFAULT_CACHE_DIR
    replaced: list[tuple[Any, Callable[..., Any]]] = [
        (torch.hub.download_url_to_file, lambda url, dst, *_, **__: answers.placeholder_for(url, dst)),
        (torch.hub.get_dir, lambda *_: str(answers.folder)),
        (torch.load, lambda file, *_, **__: read_converted(answers.path(file))),
        (torch.jit.load, lambda file, *_, **__: _script(read_converted(answers.path(file)))),
        (scipy_io.loadmat, lambda file, *others, **named: loadmat(str(answers.path(file)), *others, **named)),
        (timm_hub.hf_hub_download, answers.hub),
        *((module._download, lambda url, *_, **__: answers.placeholder_for(url)) for module in clips),
        *((module.load, _on_cpu(module.load)) for module in clips),
    ]
    ours = {id(original): _here(original, new) for original, new in replaced}
    for name, module in sorted(sys.modules.items()):
        if module is None or not (name.split(".")[0] in _FAMILIES or name in _DEFINERS):
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in ours:
                yield module, attribute, ours[id(value)]
            elif attribute == "DEFAULT_CACHE_DIR" and value == default_cache:
                yield module, attribute, str(answers.folder)
    yield socket.socket, "connect", _here(socket.socket.connect, _no_socket)
    yield socket, "getaddrinfo", _here(socket.getaddrinfo, _no_socket)


def _here(original: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    """`new` in this thread, `original` in others."""
    thread = threading.get_ident()

    def either(*arguments: Any, **named: Any) -> Any:
        return (new if threading.get_ident() == thread else original)(*arguments, **named)

    return either


def _on_cpu(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(name: str, device: Any = None, **named: Any) -> Any:
        return load(name, "cpu", **named)

    return loaded


def _no_socket(*_: Any, **__: Any) -> Any:
    raise WeightsError(
        "pyiqa tries to open a network connection, and nothing is downloaded at run time: use another metric"
    )


INDEX = "pyiqa.json"
COMMITS = {"chaofengc/IQA-PyTorch-Weights": "0df2df423c65f6a64209309695f3845727431027"}
"""Repositories that pyiqa names by a branch; others are fetched at the branch's commit at that time, which the manifest
records."""
_MOST_FILES = 32
_CLIP = "openaipublic.azureedge.net"
"""The host of OpenAI's CLIP, whose URLs contain the digest."""


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
    existing = [file for file in pulled.values() if file is not None]
    fill(folder, existing, Store(store.metric, folder, store.options, files).write)
    return [file.origin for file in existing]


def _pull(purpose: Purpose, url: str, repositories: dict[str, Repository]) -> Pulled | None:
    """The file at a URL; None if the Hub has no file of that name, in which case pyiqa tries another."""
    hub = _on_hub(url)
    if hub is None:
        parts, name = urlsplit(url), file_name(url)
        stated = digest_in(name), "its name"
        if parts.hostname == _CLIP:
            stated = parts.path.split("/")[-2], "its address"
        pulled = pull_url(purpose, url, name, *stated)
    else:
        repo, revision, name = hub
        repository = repositories.get(repo) or repository_info(purpose, repo, COMMITS.get(repo, revision))
        repositories[repo] = repository
        if name not in repository.files:
            return None
        wanted = replace(repository, only=(name,))
        pulled = pull_hub(wanted, wanted.download(), name)
        check_digest(purpose, url, pulled.origin.sha256, digest_in(name))
    return replace(pulled, name=Path(file_name(url)).with_suffix(Path(pulled.name).suffix).name)


def _on_hub(url: str) -> tuple[str, str, str] | None:
    repo, resolve, rest = url.removeprefix(f"{HUB}/").partition("/resolve/")
    if not url.startswith(f"{HUB}/") or not resolve:
        return None
    revision, _, name = rest.partition("/")
    return repo, revision, unquote(name.partition("?")[0])
