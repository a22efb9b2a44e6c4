"""Redirects pyiqa's downloads to local files while it constructs a network.

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
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from local_bench.core.errors import WeightsError
from local_bench.core.storage import scratch
from local_bench.models.convert import read_converted

SEED = 123
HUB = "https://huggingface.co"
_LOCK = threading.RLock()
_FAMILIES = ("pyiqa", "timm", "torchvision", "clip", "facexlib")
"""Packages whose modules may have imported such a function by name (`from torch.hub import …`)."""
_DEFINERS = ("torch", "torch.hub", "torch.jit", "scipy.io")
"""Modules that define such functions."""


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
        _import(kind)
        _quiet(stack)
        folder = stack.enter_context(scratch())
        for holder, name, replacement in _replacements(_Answers(paths, folder)):
            stack.enter_context(patch.object(holder, name, replacement))
        stack.enter_context(seeded())
        yield


class _Answers:
    """Replacements of the download and load functions."""

    def __init__(self, paths: Mapping[str, Path | None], folder: Path) -> None:
        self._paths, self._folder = paths, folder
        self._behind: dict[str, Path] = {}

    def placeholder_for(self, url: str, target: str | None = None) -> str:
        """The placeholder path for a URL: an empty file, for which the replaced loaders read the local file."""
        url = canonical(url)
        path = self._found(url)
        if path is None:
            raise Missing(url)
        if path.suffix == ".safetensors" and url.endswith(".safetensors"):
            return str(path)
        placeholder = Path(target) if target else self._folder / f"{len(self._behind)}-{path.name}"
        assert placeholder.is_relative_to(self._folder), placeholder
        placeholder.parent.mkdir(parents=True, exist_ok=True)
        placeholder.touch()
        self._behind[str(placeholder)] = path
        return str(placeholder)

    def to_file(self, url: str, dst: str, *_: Any, **__: Any) -> None:
        """torch.hub.download_url_to_file."""
        self.placeholder_for(url, dst)

    def clip(self, url: str, *_: Any, **__: Any) -> str:
        """CLIP's _download."""
        return self.placeholder_for(url)

    def hub(self, repo_id: str, filename: str, *_: Any, revision: str | None = None, **__: Any) -> str:
        """huggingface_hub.hf_hub_download."""
        from huggingface_hub.errors import EntryNotFoundError

        url = f"{HUB}/{repo_id}/resolve/{revision or 'main'}/{filename}"
        if url in self._paths and self._paths[url] is None:
            raise EntryNotFoundError(url)
        return self.placeholder_for(url)

    def load(self, file: Any, *_: Any, **__: Any) -> Any:
        """torch.load."""
        return read_converted(self._path(file))

    def load_script(self, file: Any, *_: Any, **__: Any) -> Any:
        """torch.jit.load."""
        return _script(read_converted(self._path(file)))

    def load_mat(self, file: Any, *arguments: Any, **named: Any) -> Any:
        """scipy.io.loadmat."""
        return _loadmat(str(self._path(file)), *arguments, **named)

    def folder(self, *_: Any) -> str:
        """torch.hub.get_dir."""
        return str(self._folder)

    @property
    def cache_folder(self) -> str:
        return str(self._folder)

    def _found(self, url: str) -> Path | None:
        path = self._paths.get(url)
        return path if path is not None and path.is_file() else None

    def _path(self, file: Any) -> Path:
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


def _import(kind: str) -> None:
    """Imports the module with pyiqa's class of that name, and those whose functions are replaced."""
    for name in ("clip.clip", "pyiqa.archs.clip_model", "pyiqa.archs.afineclip_model", "scipy.io", "timm.models"):
        importlib.import_module(name)
    archs = Path(sys.modules["pyiqa.archs.clip_model"].__file__ or "").parent
    for path in sorted(archs.glob("*_arch.py")):
        if re.search(rf"^class {kind}\(", path.read_text("utf-8"), re.MULTILINE):
            importlib.import_module(f"pyiqa.archs.{path.stem}")


def _quiet(stack: ExitStack) -> None:
    for name in ("pyiqa", "timm", "root"):
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)


def _replacements(answers: _Answers) -> Iterator[tuple[Any, str, Any]]:
    """(holder, name, replacement): each function where it is defined and wherever it was imported by name."""
    import torch

    # By name, for these packages have no types.
    names = ("clip.clip", "pyiqa.archs.clip_model", "pyiqa.archs.afineclip_model")
    clips = [importlib.import_module(name) for name in names]
    scipy_io, timm_hub = (importlib.import_module(name) for name in ("scipy.io", "timm.models._hub"))
    default_cache = importlib.import_module("pyiqa.utils.download_util").DEFAULT_CACHE_DIR
    replaced: list[tuple[Any, Callable[..., Any]]] = [
        (torch.hub.download_url_to_file, answers.to_file),
        (torch.hub.get_dir, answers.folder),
        (torch.load, answers.load),
        (torch.jit.load, answers.load_script),
        (scipy_io.loadmat, answers.load_mat),
        (timm_hub.hf_hub_download, answers.hub),
        *((module._download, answers.clip) for module in clips),
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
                yield module, attribute, answers.cache_folder
    yield socket.socket, "connect", _here(socket.socket.connect, _no_socket)
    yield socket, "getaddrinfo", _here(socket.getaddrinfo, _no_socket)


def _here(original: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
    """`new` in this thread, `original` in others."""
    thread = threading.get_ident()

    def either(*arguments: Any, **named: Any) -> Any:
        return (new if threading.get_ident() == thread else original)(*arguments, **named)

    return either


def _on_cpu(load: Callable[..., Any]) -> Callable[..., Any]:
    """CLIP's load with the device set to the CPU."""

    def loaded(name: str, device: Any = None, **named: Any) -> Any:
        return load(name, "cpu", **named)

    return loaded


def _no_socket(*_: Any, **__: Any) -> Any:
    raise WeightsError(
        "pyiqa tries to open a network connection, and nothing is downloaded at run time: use another metric"
    )


def _loadmat(*arguments: Any, **named: Any) -> Any:
    return importlib.import_module("scipy.io.matlab").loadmat(*arguments, **named)
