"""Conversion of pickled checkpoints to safetensors in a sandboxed process. Only the converted files are loaded."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import LedgerError, WeightsError
from local_bench.core.files import scratch, storage_errors
from local_bench.models.convert_child import REFUSED, tree_of
from local_bench.models.tensors import open_tensors

VERSION = 1
"""Version of the converted format; increase it to convert again."""
PICKLED = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
_CHILD = Path(__file__).with_name("convert_child.py")
_TIMEOUT_S = 1800
_SETTINGS = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def converted_name(name: str) -> str:
    """The file's name after conversion; unchanged if the file is not pickled."""
    path = Path(name)
    return path.with_suffix(".safetensors").as_posix() if path.suffix in PICKLED else name


def convert(source: Path, target: Path, what: str) -> None:
    """Convert the pickled checkpoint `source` to the safetensors file `target`, atomically.

    Keys of nested containers are joined by dots; the structure is stored in the file's metadata (see
    `read_converted`). Objects of other types are dropped if their classes are harmless. WeightsError if the file is
    damaged or contains any other class; `what` names the file in the message. Code in the file is never run
    (models/convert_child.py).
    """
    with storage_errors(target), scratch(target.parent) as folder:
        converted = folder / "converted"
        command = [sys.executable, "-I", str(_CHILD), str(source.resolve()), str(converted)]
        # library paths, but no tokens or settings of the user
        inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
        try:
            completed = subprocess.run(
                command,
                env=inherited | {"HOME": str(folder), "TMPDIR": str(folder)} | _SETTINGS,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _refusal(what, f"the conversion took more than {_TIMEOUT_S // 60} minutes") from None
        if completed.returncode == REFUSED:
            raise _refusal(what, completed.stdout.strip() or "it contains more than tensors")
        if completed.returncode or not converted.is_file():
            last = (completed.stderr.strip().splitlines() or ["no error output"])[-1]
            raise _refusal(what, f"the conversion process exited with {completed.returncode} ({last[:200]})")
        os.replace(converted, target)


def write_converted(value: Any, path: Path) -> None:
    """Write containers of tensors and plain scalars in the format of `convert`."""
    from safetensors.torch import save_file

    tensors, tree = tree_of(value, script=False)
    save_file(tensors, path, {"tree": tree})


def read_converted(path: Path) -> Any:
    """Load a converted checkpoint: its containers, tensors (on the CPU) and scalars; a flat dict for other safetensors.

    WeightsError if the file is damaged.
    """
    try:
        with open_tensors(path) as file:
            tree = (file.metadata() or {}).get("tree")
            names = list(file.keys())
            if tree is None:
                return {name: file.get_tensor(name) for name in names}
            return _value(strictjson.stored(tree)["root"], file)
    except (LedgerError, ValueError, KeyError, TypeError, OSError) as e:
        raise WeightsError(f"{path} is damaged: fetch its model again") from e


def _value(node: dict[str, Any], file: Any) -> Any:
    ((kind, inner),) = node.items()
    match kind:
        case "tensor":
            return file.get_tensor(inner)
        case "array":
            return file.get_tensor(inner).numpy()
        case "value":
            return inner
        case "float":
            return float.fromhex(inner)
        case "dict":
            return {_value(key, file): _value(value, file) for key, value in inner}
        case "list":
            return [_value(value, file) for value in inner]
        case "tuple":
            return tuple(_value(value, file) for value in inner)
        case "dropped":
            return None
    raise ValueError(kind)


def _refusal(what: str, reason: str) -> WeightsError:
    return WeightsError(
        f"{what} was not converted: {reason}; none of its code was run and nothing was stored: fetch it again or use "
        "another model"
    )
