"""The environment of local-bench and its child processes: offline, without telemetry, without imports from the working
folder, and with the caches of all libraries in the cache folder of local-bench.

`isolate` must run before the libraries are imported, because they read the variables at import.
"""

import os
import sys
import sysconfig
import warnings
from pathlib import Path

from local_bench.core.paths import cache_dir

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
_ONE_MACHINE = {"VLLM_HOST_IP": "127.0.0.1"}
"""vLLM otherwise opens a socket to 8.8.8.8 to find its own address, and rendezvous ports on it."""
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
        **_ONE_MACHINE,
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
    sys.path[:] = _trusted(sys.path, named)
    if not any(Path(entry).resolve() == _PACKAGE_ROOT for entry in sys.path):  # a checkout that is not installed
        sys.path.append(str(_PACKAGE_ROOT))
        named.append(str(_PACKAGE_ROOT))
    if named:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
    else:
        os.environ.pop("PYTHONPATH", None)


def _trusted(search: list[str], named: list[str]) -> list[str]:
    try:
        here = Path.cwd()
    except OSError:  # it has been removed
        return [entry for entry in search if entry]
    trusted = {Path(entry).absolute() for entry in named} | {Path(path) for path in sysconfig.get_paths().values()}
    if here in trusted | {_PACKAGE_ROOT}:
        return [entry for entry in search if entry]
    return [entry for entry in search if entry and Path(entry) != here]
