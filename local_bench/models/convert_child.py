"""Convert one pickled checkpoint to safetensors. Run as a script in a separate process by models/convert.py.

    python -I convert_child.py SOURCE TARGET

The process has no network access (a network namespace where the kernel allows it; in any case an audit hook blocks
sockets, subprocesses and file writes from Python), no tokens in its environment, and writes only TARGET. The exit code
is 0, or 3 with the reason on stdout if SOURCE is refused.

Checkpoints are loaded with `torch.load(weights_only=True)`, which constructs tensors, containers and the classes in
`_allowed`. TorchScript archives (OpenAI's CLIP) are not loaded with `torch.jit.load`, which runs code from the archive
(`__setstate__` of its classes; TorchScript cannot call Python but has operators that open files). Instead, an unpickler
reads the archive's pickle and replaces its classes with plain records; no code is compiled or run.

The target's metadata has one key, `tree`: JSON from which `read_converted` restores the containers. A tensor's name is
its path through the containers, joined by dots.
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
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

REFUSED = 3
_EVENTS = (
    *("socket.", "subprocess.", "urllib.", "webbrowser.", "shutil."),
    *("os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork"),
    *("os.remove", "os.rename", "os.link", "os.symlink", "os.chmod", "os.mkdir", "os.rmdir"),
)
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MAX_DEPTH = 64


class Refused(Exception):
    """The checkpoint is refused; the message is the reason."""


def main(source: str, target: str) -> int:
    _cut_network()
    import numpy as np  # noqa: F401  (imported before the hook is set: importing opens files)
    import torch
    from safetensors.torch import save_file

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_refuse_side_effects)
    try:
        tensors, tree = tree_of(*_read(torch, source))
        save_file(tensors, target, {"tree": tree})
    except Refused as e:
        sys.stdout.write(str(e))
        return REFUSED
    return 0


def tree_of(value: Any, script: bool) -> tuple[dict[str, Any], str]:
    """The tensors in a value by name, and its container structure as JSON. Refused if it contains no tensor."""
    import torch

    tensors: dict[str, Any] = {}
    root = _node(torch, value, (), tensors)
    if not tensors:
        raise Refused("it contains no tensor")
    return tensors, json.dumps({"script": script, "root": root})


def _cut_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        # may fail where namespaces are restricted; the audit hook still applies
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def _refuse_side_effects(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_EVENTS):
        raise Refused(f"loading it triggers {event}, and only tensors are loaded")
    if event == "open":
        _, mode, flags = arguments
        if any(letter in (mode or "") for letter in "wax+") or (isinstance(flags, int) and flags & _WRITING):
            raise Refused("loading it writes a file, and only tensors are loaded")


def _read(torch: Any, source: str) -> tuple[Any, bool]:
    """The content of the checkpoint, and whether it is a TorchScript archive."""
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                n_bytes = sum(entry.file_size for entry in archive.infolist())
                if n_bytes > 4 * os.path.getsize(source) + 1_000_000:
                    raise Refused("its uncompressed size is far larger than the file")
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
        raise Refused(f"it is damaged or not a torch checkpoint ({type(e).__name__})") from e


def _reason(message: str) -> str:
    match = re.search(r"GLOBAL ([\w.]+)|class ([\w.]+)", message)
    if match:
        return f"it uses {match[1] or match[2]}, and only tensors are loaded"
    return "it is damaged, or contains more than tensors"


def _allowed() -> list[Any]:
    """Harmless non-tensor classes that occur in checkpoints."""
    import argparse
    import codecs

    import numpy as np

    multiarray: Any = np._core.multiarray  # type: ignore[attr-defined]
    rebuilders = [multiarray.scalar, multiarray._reconstruct]
    named = [(function, f"numpy.core.multiarray.{function.__name__}") for function in rebuilders]
    dtypes = [type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"]
    return [argparse.Namespace, np.dtype, np.ndarray, codecs.encode, *rebuilders, *named, *dtypes]


class _Record:
    """An object of a TorchScript class: class name and attributes."""

    name = ""
    attributes: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise Refused("it has a custom state format")
        self.attributes = state


class _Script(pickle.Unpickler):
    """Unpickler that reads the parameters and buffers of a TorchScript archive without running its code."""

    def __init__(self, torch: Any, archive: zipfile.ZipFile) -> None:
        self._torch, self._archive = torch, archive
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        self._root = name.removesuffix("data.pkl")
        self._storages: dict[str, Any] = {}
        super().__init__(io.BytesIO(archive.read(name)))

    def state_dict(self) -> dict[str, Any]:
        tensors: dict[str, Any] = {}
        self._collect(self.load(), "", tensors, 0)
        return tensors

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            # One class per name, so that NEWOBJ creates an empty record with that name.
            return type("_Named", (_Record,), {"name": f"{module}.{name}"})
        replacements = {
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
            ("collections", "OrderedDict"): dict,
            ("torch.jit._pickle", "build_intlist"): list,
            ("torch.jit._pickle", "build_doublelist"): list,
            ("torch.jit._pickle", "build_boollist"): list,
            ("torch.jit._pickle", "build_tensorlist"): list,
            ("torch.jit._pickle", "restore_type_tag"): lambda value, _: value,
        }
        if (module, name) in replacements:
            return replacements[module, name]
        if module == "torch" and name.endswith("Storage"):
            return name
        raise Refused(f"it uses {module}.{name}, and only tensors are loaded")

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

    def _collect(self, value: Any, prefix: str, tensors: dict[str, Any], depth: int) -> None:
        if depth > _MAX_DEPTH or not isinstance(value, _Record):
            raise Refused("it is not a torch module")
        declared = self._declared(value.name)
        for name, inner in value.attributes.items():
            if isinstance(inner, _Record):
                self._collect(inner, f"{prefix}{name}.", tensors, depth + 1)
            elif isinstance(inner, self._torch.Tensor) and (declared is None or name in declared):
                tensors[prefix + name] = inner

    def _declared(self, qualified: str) -> set[str] | None:
        """The names of a class's parameters and buffers, parsed from its source; None if the source is not found."""
        module, _, name = qualified.rpartition(".")
        path = f"{self._root}code/{module.replace('.', '/')}.py"
        if path not in self._archive.namelist():
            return None
        text = self._archive.read(path).decode("utf-8", "replace")
        body = re.search(rf"^class {re.escape(name)}\(.*?(?=^class |\Z)", text, re.MULTILINE | re.DOTALL)
        kinds = ("__parameters__", "__buffers__")
        lists = [re.search(rf"^  {kind} = \[(.*?)\]", body[0], re.MULTILINE) for kind in kinds] if body else []
        if not lists or any(match is None for match in lists):
            return None
        return {name for match in lists if match for name in re.findall(r"\"([^\"]+)\"", match[1])}


def _node(torch: Any, value: Any, path: tuple[str, ...], tensors: dict[str, Any]) -> Any:
    """The JSON node of a value; contiguous copies of its tensors are added to `tensors`."""
    import numpy as np

    if len(path) > _MAX_DEPTH:
        raise Refused("its containers are nested too deeply")
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": _add_tensor(torch.from_numpy(np.array(value)), path, tensors)}
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise Refused("it contains sparse or quantised tensors")
        return {"tensor": _add_tensor(value.detach(), path, tensors)}
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
            [_node(torch, key, (*path, "key"), tensors), _node(torch, inner, (*path, str(key)), tensors)]
            for key, inner in value.items()
            if isinstance(key, kinds) or key is None
        ]
        return {"dict": rows}
    if isinstance(value, list | tuple):
        rows = [_node(torch, inner, (*path, str(i)), tensors) for i, inner in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": rows}
    return {"dropped": type(value).__name__}


def _add_tensor(tensor: Any, path: tuple[str, ...], tensors: dict[str, Any]) -> str:
    name = ".".join(path) or "tensor"
    while name in tensors:
        name += "#"
    tensors[name] = tensor.clone().contiguous()
    return name


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main(sys.argv[1], sys.argv[2]))
