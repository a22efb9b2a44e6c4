"""Opens safetensors files. The header is checked first (its length, JSON, types, shapes and offsets), so that a damaged
file is reported in one sentence and does not cause a later error in a library."""

import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import LocalBenchError, WeightsError, is_out_of_memory, without_secrets
from local_bench.core.files import open_regular

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""
AGAIN = "fetch its model again (`local-bench models fetch NAME`)"
_FAULTS = (OSError, ImportError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32}
_BITS |= {"U64": 64, "I64": 64, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6}
_BITS |= {"F6_E3M2": 6, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}


def check_header(path: Path) -> None:
    """Raise WeightsError unless `path` is a regular file with a valid safetensors header whose tensors cover its data
    exactly."""
    with open_regular(path, WeightsError, missing=AGAIN) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise _damaged(path, "its header is cut off or too long")
        text = file.read(length)
    try:
        header = strictjson.loads(text.decode("utf-8"))
        fault = _fault(header, size - 8 - length) if isinstance(header, dict) else "its header is not an object"
    except ValueError:
        fault = "its header is not JSON"
    if fault:
        raise _damaged(path, fault)


def _fault(header: dict[str, Any], data_bytes: int) -> str | None:
    extents = []
    for name, entry in header.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
                return "its metadata are not texts"
            continue
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if dtype in _BITS:
                sizes = all(type(n) is int and 0 <= n < 2**48 for n in shape)
                if not sizes or (end - start) * 8 != math.prod(shape) * _BITS[dtype]:
                    return "a tensor's size and offsets disagree"
                extents.append((start, end))
            case _:
                return "a tensor's description does not follow the format"
    extents.sort()
    covered = extents[-1][1] if extents else 0
    if covered != data_bytes or (extents and extents[0][0] != 0) or any(a[1] != b[0] for a, b in pairwise(extents)):
        return "its tensors do not cover its data"
    return None


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """An open safetensors file (`safetensors.safe_open`, torch tensors on the CPU). Raises WeightsError."""
    from safetensors import safe_open

    check_header(path)
    with loading(path), safe_open(path, framework="pt", device="cpu") as file:
        yield file


def load_tensors(path: Path, device: str = "cpu") -> dict[str, Any]:
    """All tensors of a safetensors file by name. Raises WeightsError."""
    from safetensors.torch import load_file

    check_header(path)
    with loading(path):
        tensors: dict[str, Any] = load_file(path, device=device)
    return tensors


@contextmanager
def loading(path: Path | str) -> Iterator[None]:
    """Convert errors of a library that loads the model at `path` to a WeightsError. Out-of-memory errors are kept."""
    from safetensors import SafetensorError

    try:
        yield
    except LocalBenchError:
        raise
    except (SafetensorError, *_FAULTS) as e:
        if is_out_of_memory(e):
            raise
        first = without_secrets((str(e).strip().splitlines() or ["a file is damaged"])[0])
        raise WeightsError(f"{path} cannot be loaded ({first[:200]}): {AGAIN}, or give another folder") from e


@contextmanager
def complete(unused: tuple[str, ...] = ()) -> Iterator[None]:
    """Raise ValueError for a model of transformers that is loaded here and whose files lack weights, which the library
    would initialise at random; but for those whose names begin as in `unused`."""
    from transformers import PreTrainedModel

    usual: Any = PreTrainedModel.__dict__["from_pretrained"]

    def load(cls: Any, /, *given: Any, output_loading_info: bool = False, **named: Any) -> Any:
        model, report = usual.__func__(cls, *given, output_loading_info=True, **named)
        if lacking := sorted(name for name in report["missing_keys"] if not name.startswith(unused)):
            raise ValueError(f"its files lack weights of {cls.__name__}: {lacking[0]}, {len(lacking)} in all")
        return (model, report) if output_loading_info else model

    PreTrainedModel.from_pretrained = classmethod(load)
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = usual


def _damaged(path: Path, what: str) -> WeightsError:
    return WeightsError(f"{path} is damaged ({what}): {AGAIN}")
