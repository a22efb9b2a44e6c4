"""A GPU that only tracks devices: code for CUDA runs on a CPU, and a tensor left on the CPU raises as on a GPU.

Tensors on `cuda:0` are torch's fake tensors: shape, dtype, strides and device are those of a GPU, and an operation on
tensors of two devices is an error. Added to torch's FakeTensorMode:

- Operations on CPU tensors alone are real, so tokenizers, schedulers, image processors and safetensors run as they are.
- A tensor on `cuda:0` that comes from CPU data keeps its values on the CPU, and so does everything computed of such
  tensors alone. Where values decide what happens next (`.item()`, `nonzero`, `.cpu().numpy()`), they are there. Random
  weights made on `cuda:0` have no values: such models compute shapes and devices only, at any size in no memory.
- Errors of CUDA that fake tensors do not raise: a convolution of two devices, an index on the GPU into a tensor on the
  CPU, operations without a deterministic CUDA kernel while deterministic algorithms are enforced.

What it cannot show: kernels, their supported dtypes and shapes, memory, streams.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers.models import model_loading_utils
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint, pipeline_qwenimage_inpaint  # noqa: F401
from diffusers.pipelines.stable_diffusion_3 import pipeline_stable_diffusion_3_inpaint  # noqa: F401
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils.weak import WeakTensorKeyDictionary

DEVICE = torch.device("cuda", 0)
MIXED_DEVICES = "two different devices|on the same device"
"""A pattern for the errors of mixed devices."""

aten = torch.ops.aten
_MOST_ELEMENTS = 1 << 26
"""Of what an operation with values reads; a larger one has no values afterwards, unless it copies."""
_COPIES = {aten._to_copy, aten.copy_, aten.clone}
_DEPENDS_ON_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
_NOT_DETERMINISTIC = {aten.histc, aten.put, aten.put_, aten.median.dim, aten.median.dim_values}
"""From the documentation of `torch.use_deterministic_algorithms`: what raises on CUDA in a forward pass; weighted
`bincount` and `cumsum` of floats besides."""
_NOT_DETERMINISTIC_FLOATS = {aten.cumsum, aten.cumsum_}
_VALUES: Any = WeakTensorKeyDictionary()
"""The values of fake tensors, on the CPU. Not attributes: accelerate hands a parameter's `__dict__` to its class."""


def _leaves(given: Any) -> list[Any]:
    """What an operation's arguments or results contain; torch's own trees take several times as long."""
    if isinstance(given, dict):
        given = given.values()
    elif not isinstance(given, tuple | list):
        return [given]
    return [leaf for part in given for leaf in (_leaves(part) if isinstance(part, tuple | list | dict) else (part,))]


def _mapped(kind: type, change: Callable[[Any], Any], given: Any) -> Any:
    """`given` with its leaves of one kind changed."""
    if isinstance(given, kind):
        return change(given)
    if isinstance(given, dict):
        return {name: _mapped(kind, change, part) for name, part in given.items()}
    if isinstance(given, tuple | list):
        parts = [_mapped(kind, change, part) for part in given]
        return parts if type(given) is list else tuple(parts) if type(given) is tuple else type(given)(parts)
    return given


class FakeCuda(FakeTensorMode):
    """A dispatch mode. Tensors on the CPU are real in it, tensors on `cuda:0` are fake."""

    def __init__(self, weights_have_values: bool) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._weights_have_values = weights_have_values
        self._within = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._within:  # steps of an operation, whose values are computed once, by itself
            return super().__torch_dispatch__(func, types, args, kwargs)
        leaves = _leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        to_gpu = any(isinstance(leaf, torch.device) and leaf.type == "cuda" for leaf in leaves)
        if not to_gpu and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return func(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})  # needs CUDA
        _raise_as_cuda_does(func, args, tensors)
        if func is aten.index.Tensor:  # the shape depends on the values of its masks, not of what is indexed
            args = (args[0], [place for index in args[1] for place in self._places(index)])
        known = _has_values(func, args, kwargs, tensors)
        if not self._weights_have_values:
            known = known and not any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors)
        if func is not aten.index.Tensor and _DEPENDS_ON_VALUES.intersection(func.tags):
            if not known:
                raise ValueError(f"{func} depends on values, and its input comes from random weights")
            found = _on_the_cpu(func, args, kwargs)
            return _mapped(torch.Tensor, lambda tensor: self._fake(tensor, DEVICE), found)
        self._within = True
        try:
            out = self.dispatch(func, types, *_mapped(torch.Tensor, self._as_fake, (args, kwargs)))
        except (DataDependentOutputException, DynamicOutputShapeException):
            self._within = False
            with self:  # one of its steps depends on values
                return func.decompose(*args, **kwargs)
        finally:
            self._within = False
        if known:
            _keep(out, _on_the_cpu(func, args, kwargs))
        elif func is aten.copy_.default and isinstance(out, FakeTensor) and values(args[1]) is not None:
            _VALUES[out] = values(args[1]).to(out.dtype).expand(out.shape).clone()
        else:
            _forget((out, _written(func, args, kwargs)))
        return _mapped(FakeTensor, _real_if_on_the_cpu, out)

    def _places(self, index: torch.Tensor | None) -> list[torch.Tensor | None]:
        """A mask as the indices that it stands for, since fake tensors do not know how many these are."""
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        mask = values(index)
        if mask is None:
            raise ValueError("a mask depends on values, and it comes from random weights")
        return [self._fake(place.clone(), index.device) for place in mask.nonzero().unbind(1)]

    def _as_fake(self, tensor: torch.Tensor) -> FakeTensor:
        return tensor if isinstance(tensor, FakeTensor) else self._fake(tensor, tensor.device)

    def _fake(self, tensor: torch.Tensor, device: torch.device) -> FakeTensor:
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        fake = FakeTensor(self, meta, device)
        _VALUES[fake] = tensor
        return fake


def values(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's values, on the CPU; None where they are not known."""
    return _VALUES.get(tensor) if isinstance(tensor, FakeTensor) else tensor


@contextmanager
def fake_cuda(weights_have_values: bool = True) -> Iterator[None]:
    """Makes `cuda:0` a device that tensors and modules can be moved to.

    Without values of the weights nothing that passes through a model is computed: quicker, and enough where only shapes
    and devices matter.
    """
    fork_rng = torch.random.fork_rng
    with pytest.MonkeyPatch.context() as patch, FakeCuda(weights_have_values):
        # It saves the state of each CUDA device's generator, and none is there.
        patch.setattr(torch.random, "fork_rng", lambda devices=None, *a, **k: fork_rng([], *a, **k))
        # It swaps a fake parameter with its copy, which torch refuses while anything refers to it weakly.
        patch.setattr(torch.nn.Module, "_apply", _applied(torch.nn.Module._apply))
        # It makes a parameter by the class of the one before it, and a fake tensor is not made that way.
        set_parameter = _sets_parameters(model_loading_utils.set_module_tensor_to_device)
        patch.setattr(model_loading_utils, "set_module_tensor_to_device", set_parameter)
        # `torch.tensor` with fake scalars in a list asks for the driver; with real ones it reads them, as `.item()`.
        # In loaded modules (the families' that do so are imported above), as transformers relies on the original.
        for name, module in list(sys.modules.items()):
            if (
                name.startswith(
                    ("diffusers.pipelines.", "transformers.models.qwen2_5_vl.", "transformers.models.qwen3_vl.")
                )
                and vars(module).get("torch") is torch
            ):
                patch.setattr(module, "torch", _ReadsScalars())
        yield


def _applied(real: Any) -> Any:
    """`Module._apply` that replaces fake parameters."""

    def apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)
        if not any(isinstance(parameter, FakeTensor) for parameter in self._parameters.values()):
            return real(self, fn, recurse=False)
        for name, parameter in self._parameters.items():
            if parameter is not None and (moved := fn(parameter)) is not parameter:
                self._parameters[name] = torch.nn.Parameter(moved, parameter.requires_grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    return apply


class _ReadsScalars:
    """The module `torch`, but that `tensor` makes a tensor on the CPU of a list of scalars on the GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, data: Any, **options: Any) -> torch.Tensor:
        return torch.tensor(_mapped(FakeTensor, lambda scalar: scalar.item(), data), **options)


def _sets_parameters(real: Any) -> Any:
    """accelerate's `set_module_tensor_to_device` that replaces fake parameters."""

    def set_parameter(module: torch.nn.Module, name: str, device: Any, value: Any = None, **options: Any) -> None:
        owner, _, leaf = name.rpartition(".")
        part = module.get_submodule(owner)
        before = part._parameters.get(leaf)
        if isinstance(before, FakeTensor):
            part._parameters[leaf] = torch.nn.Parameter(value.to(device, before.dtype), requires_grad=False)
        else:
            real(module, name, device, value=value, **options)

    return set_parameter


def _has_values(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> bool:
    """Whether the result has values: all its inputs have, and it draws no random numbers."""
    if sum(tensor.numel() for tensor in tensors) > _MOST_ELEMENTS and not _copies(func):
        return False
    if torch.Tag.nondeterministic_seeded in func.tags:
        given = {argument.name: argument.default_value for argument in func._schema.arguments} | _named(func, args)
        given |= kwargs
        if given.get("dropout_p") != 0 and given.get("train") is not False:  # attention and dropout that drop nothing
            return False
    return all(values(tensor) is not None for tensor in tensors)


def _copies(func: Any) -> bool:
    """Whether it computes nothing: a copy or a view."""
    views = all(returned.alias_info is not None for returned in func._schema.returns)
    return func.overloadpacket in _COPIES or (views and not func._schema.is_mutable)


def _named(func: Any, args: Any) -> dict[str, Any]:
    return dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """What of the arguments is written to."""
    given = _named(func, args) | kwargs
    written = (a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return [given[name] for name in written if name in given]


def _on_the_cpu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    args, kwargs = _mapped(torch.Tensor, values, (args, kwargs))
    args, kwargs = _mapped(torch.device, lambda device: torch.device("cpu"), (args, kwargs))
    return func(*args, **kwargs)


def _keep(out: Any, found: Any) -> None:
    for fake, real in zip(_leaves(out), _leaves(found), strict=True):
        if isinstance(fake, FakeTensor):
            _VALUES[fake] = real


def _forget(given: Any) -> None:
    for tensor in _leaves(given):
        if isinstance(tensor, FakeTensor):
            _VALUES.pop(tensor, None)


def _real_if_on_the_cpu(fake: FakeTensor) -> torch.Tensor:
    real = values(fake)
    return real if real is not None and fake.device.type == "cpu" else fake


def _raise_as_cuda_does(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    packet = func.overloadpacket
    on_gpu = [tensor for tensor in tensors if tensor.device.type == "cuda"]
    if on_gpu and packet in _INDEXING and args[0].device.type == "cpu":
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if on_gpu and "conv" in str(packet) and len({tensor.device for tensor in tensors}) > 1:
        raise RuntimeError("Expected all tensors to be on the same device: a convolution's input and weight are not")
    if on_gpu and torch.are_deterministic_algorithms_enabled():
        floats = any(tensor.is_floating_point() for tensor in on_gpu)
        weighted = packet is aten.bincount and len(on_gpu) > 1
        refused = packet in _NOT_DETERMINISTIC or func in _NOT_DETERMINISTIC
        if refused or weighted or (packet in _NOT_DETERMINISTIC_FLOATS and floats):
            raise RuntimeError(f"{packet} on CUDA does not have a deterministic implementation")
