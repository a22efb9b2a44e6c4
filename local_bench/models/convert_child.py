"""Reads one pickled checkpoint and writes it as safetensors: a script for a process of its own (core/convert.py).

    python -I convert_child.py SOURCE TARGET

The process has no network (a namespace without any, where the kernel lets us; an audit hook refuses sockets, programs
and writing from Python in any case), no tokens in its environment, and writes TARGET alone. It ends with 0, or with 3
and one clause on stdout that says why SOURCE is refused.

A checkpoint is read by torch's unpickler for weights alone, which builds tensors, containers and the few harmless
classes of `_allowed`, and calls nothing else. TorchScript archives (OpenAI's CLIP) are not given to `torch.jit.load`:
that runs code of the archive at load time (`__setstate__` of its classes; TorchScript cannot call Python, but has
operators that open files). Here the archive's pickle is read by an unpickler that knows tensors and turns all of the
archive's own classes into plain records; none of its code is compiled or run.

The target's metadata holds one key, `tree`: JSON from which `read_converted` builds the containers again. A tensor is
called by its way through them, joined by dots.
"""

import ctypes
import io
import json
import os
import pickle
import re
import resource
import sys
import zipfile
from typing import Any

REFUSED = 3
_EVENTS = (
    *("socket.", "subprocess.", "urllib.", "webbrowser.", "shutil."),
    *("os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork"),
    *("os.remove", "os.rename", "os.link", "os.symlink", "os.chmod", "os.mkdir", "os.rmdir"),
)
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_DEEP = 64


class Refused(Exception):
    """Why a checkpoint is not converted: one clause."""


def main(source: str, target: str) -> int:
    _cut_network()
    import numpy as np  # noqa: F401  (before the hook, for importing opens files)
    import torch
    from safetensors.torch import save_file

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_refuse_effects)
    try:
        tensors, tree = tree_of(*_read(torch, source))
        save_file(tensors, target, {"tree": tree})
    except Refused as e:
        sys.stdout.write(str(e))
        return REFUSED
    return 0


def tree_of(value: Any, script: bool) -> tuple[dict[str, Any], str]:
    """The tensors in a value by name, and the JSON of its containers. Refused where there is no tensor."""
    import torch

    tensors: dict[str, Any] = {}
    root = _node(torch, value, (), tensors)
    if not tensors:
        raise Refused("there is no tensor in it")
    return tensors, json.dumps({"script": script, "root": root})


def _cut_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)  # not allowed everywhere: the hook below holds in any case


def _refuse_effects(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_EVENTS):
        raise Refused(f"it wants {event}, and only tensors are read")
    if event == "open":
        _, mode, flags = arguments
        if any(letter in (mode or "") for letter in "wax+") or (isinstance(flags, int) and flags & _WRITING):
            raise Refused("it wants to write a file, and only tensors are read")


def _read(torch: Any, source: str) -> tuple[Any, bool]:
    """What is in the checkpoint, and whether it was a TorchScript archive."""
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                _refuse_bomb(archive, os.path.getsize(source))
                if any(name.endswith("constants.pkl") for name in archive.namelist()):
                    return _Script(torch, archive).state_dict(), True
        with torch.serialization.safe_globals(_allowed()):
            return torch.load(source, map_location="cpu", weights_only=True), False
    except Refused:
        raise
    except pickle.UnpicklingError as e:
        raise Refused(_reason(str(e))) from e
    except MemoryError as e:
        raise Refused("it is larger than this machine's memory") from e
    except Exception as e:
        raise Refused(f"it is damaged or no checkpoint of torch ({type(e).__name__})") from e


def _refuse_bomb(archive: zipfile.ZipFile, size: int) -> None:
    if sum(entry.file_size for entry in archive.infolist()) > 4 * size + 1_000_000:
        raise Refused("it unpacks to far more than its size")


def _reason(message: str) -> str:
    found = re.search(r"GLOBAL ([\w.]+)|class ([\w.]+)", message)
    if found:
        return f"it asks for {found[1] or found[2]}, and only tensors are read"
    return "it is damaged, or holds more than tensors"


def _allowed() -> list[Any]:
    """Harmless classes that checkpoints hold beside their tensors."""
    import argparse
    import codecs

    import numpy as np

    multiarray: Any = np._core.multiarray  # type: ignore[attr-defined]
    named = [(function, f"numpy.core.multiarray.{function.__name__}") for function in _rebuilders(multiarray)]
    dtypes = [type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"]
    return [argparse.Namespace, np.dtype, np.ndarray, codecs.encode, *_rebuilders(multiarray), *named, *dtypes]


def _rebuilders(multiarray: Any) -> list[Any]:
    return [multiarray.scalar, multiarray._reconstruct]


class _Record:
    """An object of a TorchScript class: its name and its attributes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise Refused("it keeps its state in a way of its own")
        self.attributes = state


class _Script(pickle.Unpickler):
    """The parameters and buffers of a TorchScript archive, read as data."""

    def __init__(self, torch: Any, archive: zipfile.ZipFile) -> None:
        self._torch, self._archive = torch, archive
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        self._root = name.removesuffix("data.pkl")
        self._storages: dict[str, Any] = {}
        super().__init__(io.BytesIO(archive.read(name)))

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._collect(self.load(), "", found, 0)
        return found

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            # A class of its own for each, so that NEWOBJ makes an empty record of that name.
            qualified = f"{module}.{name}"
            return type(
                "_Named", (_Record,), {"__new__": lambda cls, *_: _record(cls, qualified), "__init__": _nothing}
            )
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
            ("collections", "OrderedDict"): dict,
            ("torch.jit._pickle", "build_intlist"): list,
            ("torch.jit._pickle", "build_doublelist"): list,
            ("torch.jit._pickle", "build_boollist"): list,
            ("torch.jit._pickle", "build_tensorlist"): list,
            ("torch.jit._pickle", "restore_type_tag"): lambda value, _: value,
        }
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name.endswith("Storage"):
            return name
        raise Refused(f"it asks for {module}.{name}, and only tensors are read")

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, _, _ = pid
        if key not in self._storages:
            dtype = getattr(self._torch, kind).dtype
            data = bytearray(self._archive.read(f"{self._root}data/{key}"))
            empty = self._torch.empty(0, dtype=dtype)
            self._storages[key] = self._torch.frombuffer(data, dtype=dtype) if data else empty
        return self._storages[key]

    def _tensor(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Any:
        return storage.as_strided(tuple(size), tuple(stride), offset)

    def _collect(self, value: Any, prefix: str, found: dict[str, Any], depth: int) -> None:
        if depth > _MOST_DEEP or not isinstance(value, _Record):
            raise Refused("it is no module")
        kept = self._declared(value.name)
        for name, inner in value.attributes.items():
            if isinstance(inner, _Record):
                self._collect(inner, f"{prefix}{name}.", found, depth + 1)
            elif isinstance(inner, self._torch.Tensor) and (kept is None or name in kept):
                found[prefix + name] = inner

    def _declared(self, qualified: str) -> set[str] | None:
        """The names of a class's parameters and buffers, from the text of its code; None where that is not found."""
        module, _, name = qualified.rpartition(".")
        path = f"{self._root}code/{module.replace('.', '/')}.py"
        if path not in self._archive.namelist():
            return None
        text = self._archive.read(path).decode("utf-8", "replace")
        body = re.search(rf"^class {re.escape(name)}\(.*?(?=^class |\Z)", text, re.MULTILINE | re.DOTALL)
        lists = [re.search(rf"^  {kind} = \[(.*?)\]", body[0], re.MULTILINE) for kind in _LISTS] if body else []
        if not lists or any(found is None for found in lists):
            return None
        return {name for found in lists if found for name in re.findall(r"\"([^\"]+)\"", found[1])}


_LISTS = ("__parameters__", "__buffers__")


def _record(cls: Any, name: str) -> Any:
    record = object.__new__(cls)
    _Record.__init__(record, name)
    return record


def _nothing(*_: Any) -> None:
    pass


def _node(torch: Any, value: Any, way: tuple[str, ...], tensors: dict[str, Any]) -> Any:
    """The JSON for a value; its tensors go to `tensors`, each a contiguous copy of its own."""
    import numpy as np

    if len(way) > _MOST_DEEP:
        raise Refused("its containers are nested too deeply")
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": _keep(torch.from_numpy(np.array(value)), way, tensors)}
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise Refused("it holds sparse or quantised tensors")
        return {"tensor": _keep(value.detach(), way, tensors)}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return {"value": value}
    if isinstance(value, float):
        return {"float": value.hex()}
    if hasattr(value, "__dict__") and type(value).__name__ == "Namespace":
        value = vars(value)
    if isinstance(value, dict):
        kinds = (str, int, float, bool, tuple)
        rows = [
            [_node(torch, key, (*way, "key"), tensors), _node(torch, inner, (*way, str(key)), tensors)]
            for key, inner in value.items()
            if isinstance(key, kinds) or key is None
        ]
        return {"dict": rows}
    if isinstance(value, list | tuple):
        rows = [_node(torch, inner, (*way, str(i)), tensors) for i, inner in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": rows}
    return {"dropped": type(value).__name__}


def _keep(tensor: Any, way: tuple[str, ...], tensors: dict[str, Any]) -> str:
    name = ".".join(way) or "tensor"
    while name in tensors:
        name += "#"
    tensors[name] = tensor.clone().contiguous()
    return name


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main(sys.argv[1], sys.argv[2]))
