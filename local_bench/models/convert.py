"""Pickled checkpoints become safetensors once, in a process that can do no harm; after that only those are read."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from local_bench.core.errors import WeightsError
from local_bench.core.storage import storage_errors
from local_bench.models.convert_child import REFUSED, tree_of

VERSION = 1
"""Of what is written; a higher number converts anew."""
PICKLED = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
_CHILD = Path(__file__).with_name("convert_child.py")
_TIMEOUT_S = 1800


def converted_name(name: str) -> str:
    """What a file is called once it has been converted; its own name if it need not be."""
    path = Path(name)
    return path.with_suffix(".safetensors").as_posix() if path.suffix in PICKLED else name


def convert(source: Path, target: Path, what: str) -> None:
    """Writes the pickled checkpoint `source` as safetensors to `target`, whole or not at all.

    Nested containers become names joined by dots and a tree in the file's metadata (`read_converted`); what is neither
    container, tensor nor plain scalar is dropped. WeightsError where the file holds more than that, or is damaged;
    `what` names it in the sentence. Nothing that is in the file is run (core/convert_child.py).
    """
    with storage_errors(target), tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting.") as scratch:
        written = Path(scratch) / "converted"
        command = [sys.executable, "-I", str(_CHILD), str(source.resolve()), str(written)]
        try:
            ended = subprocess.run(
                command,
                env=_environment(scratch),
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _refusal(what, f"it took more than {_TIMEOUT_S // 60} minutes") from None
        if ended.returncode == REFUSED:
            raise _refusal(what, ended.stdout.strip() or "it holds more than tensors")
        if ended.returncode or not written.is_file():
            last = (ended.stderr.strip().splitlines() or ["nothing was said"])[-1]
            raise _refusal(what, f"its reading ended with {ended.returncode} ({last[:200]})")
        os.replace(written, target)


def write_converted(value: Any, path: Path) -> None:
    """Writes containers of tensors and plain scalars as `convert` would have, had they been a checkpoint."""
    from safetensors.torch import save_file

    tensors, tree = tree_of(value, script=False)
    save_file(tensors, path, {"tree": tree})


def read_converted(path: Path) -> Any:
    """What was in the checkpoint: its containers, tensors (CPU) and scalars; a plain dict for other safetensors.

    WeightsError if it is no whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tree = (file.metadata() or {}).get("tree")
            names = list(file.keys())
            if tree is None:
                return {name: file.get_tensor(name) for name in names}
            return _value(json.loads(tree)["root"], file)
    except (SafetensorError, ValueError, KeyError, TypeError, OSError) as e:
        raise WeightsError(f"{path} is damaged ({type(e).__name__}): fetch its model again") from e


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


def _environment(scratch: str) -> dict[str, str]:
    """No tokens, no settings of the user's: what the process needs to find its libraries."""
    own = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    return own | {"HOME": scratch, "TMPDIR": scratch, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def _refusal(what: str, reason: str) -> WeightsError:
    return WeightsError(
        f"{what} is not converted: {reason}; nothing of it was run or kept, fetch it again or use another model"
    )
