"""Runs pyiqa's formulas in float64, and replaces decisions that depend on the last bit of float32 by fixed rules.

pyiqa's formulas are written for float32. Summation order, fused multiply-add and vectorised functions differ between
instruction sets, so the last bits of a float32 result depend on the CPU. If a formula then rounds, compares or searches
a table, the last bit can change visible digits: luma of exactly .5, the sign of (pixel - local mean) in a flat region,
the nearest entry of a table of shape parameters.

`Float64` is a torch function mode, active only in the calling thread. Inside it

- no function returns float32: dtypes that are requested or implied as float32 become float64 (`imresize` casts float64
  to float32, `torch.arange` makes float32 tables, integers divide to float32);
- `round` treats a value within `TOLERANCE` of .5 as .5 and rounds it to the even integer;
- a comparison with 0 treats a value within `TOLERANCE` of 0 as 0.

In float64 the error of these formulas' intermediate values (sums of some 50 products of 8-bit luma) is below 1e-11. The
remaining difference between instruction sets is the rounding of float64.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

TOLERANCE = 2.0**-36
"""1.5e-11: above the float64 error of luma and its local mean (255 * 49 * 2^-53 is 1.4e-12), far below what two 8-bit
images can differ by after a 7x7 Gaussian (its least weight is 1e-4)."""

_MAKERS = frozenset(
    (torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros)
)
_ROUNDS = frozenset((Tensor.round, torch.round))
_BELOW = frozenset((Tensor.__lt__, Tensor.lt, torch.lt))
_ABOVE = frozenset((Tensor.__gt__, Tensor.gt, torch.gt))


class Float64(TorchFunctionMode):
    """A context in which torch computes in float64 and decides by the rules of this module."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args = [_wide(value) for value in args]
        kwargs = {name: _wide(value) for name, value in (kwargs or {}).items()}
        if func in _ROUNDS:
            return _rounded(*args, **kwargs)
        if func in _BELOW and _with_zero(args):
            return args[0] < -TOLERANCE
        if func in _ABOVE and _with_zero(args):
            return args[0] > TOLERANCE
        if func is Tensor.float:
            func = Tensor.double
        result = func(*args, **kwargs)
        if not (isinstance(result, Tensor) and result.dtype == torch.float32):
            return result
        if func in _MAKERS:
            return func(*args, **kwargs | {"dtype": torch.float64})
        return func(*map(_of_integers, args), **kwargs)


def _wide(value: Any) -> Any:
    """float32 as float64: a tensor, the dtype itself, either in a list or tuple."""
    if isinstance(value, Tensor):
        return value.double() if value.dtype == torch.float32 else value
    if type(value) in (list, tuple):
        return type(value)(map(_wide, value))
    return torch.float64 if value is torch.float32 else value


def _of_integers(value: Any) -> Any:
    """Integers that are divided or averaged, in float64."""
    return value.double() if isinstance(value, Tensor) else value


def _with_zero(args: Sequence[Any]) -> bool:
    return (
        isinstance(args[0], Tensor) and args[0].is_floating_point() and type(args[1]) in (int, float) and args[1] == 0
    )


def _rounded(x: Tensor) -> Tensor:
    half = torch.floor(2 * x + 0.5) / 2
    return torch.round(torch.where((x - half).abs() < TOLERANCE, half, x))
