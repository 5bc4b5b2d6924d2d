"""Methods of tensors that change a shape or reduce over axes, with the meaning that NumPy gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.numerics import cast
from xrt.builder.record_op import emit
from xrt.builder.symbol import Symbol, current
from xrt.errors import ModelError, did_you_mean
from xrt.graph.dtypes import DType
from xrt.graph.op_schema import require_operator

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["integers", "reduce", "reshape", "squeeze", "transpose", "unsqueeze"]


def integers(items: Sequence[Any]) -> Any:
    """Return a list of integers, some of which may be tensors of the graph, as one operand of int64."""
    if not any(isinstance(item, Symbol) for item in items):
        return np.asarray(items, np.int64)
    parts = [_as_row(item) for item in items]
    return parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=0)


def _as_row(item: Any) -> Tensor:
    if not isinstance(item, Symbol):
        return current("a constant").symbol(np.asarray([item], np.int64))
    whole: Tensor = item  # type: ignore[assignment]  # every Symbol that a builder makes is a Tensor
    if not whole.dtype.is_integer:
        raise ModelError(f"{whole.name!r} is used as an integer, but it is {whole.type}")
    return emit("Reshape", cast(whole, DType.INT64), np.asarray([1], np.int64))


# ---------------------------------------------------------------------- shape


def reshape(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """Return ``x.reshape(*shape)``; an extent is an integer, -1 once, the name of one of x's own, or a 0-d tensor."""
    if len(shape) == 1 and isinstance(shape[0], Symbol) and shape[0].ndim == 1:
        whole: Tensor = shape[0]  # type: ignore[assignment]  # every Symbol that a builder makes is a Tensor
        return emit("Reshape", x, cast(whole, DType.INT64))
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = shape[0]
    has_zero = any(not isinstance(item, Symbol) and item == 0 for item in shape)
    extents = integers([_extent(x, item, place, has_zero) for place, item in enumerate(shape)])
    return emit("Reshape", x, extents, allowzero=1 if has_zero else None)


def _extent(x: Tensor, item: Any, place: int, has_zero: bool) -> Any:
    """Return an extent as Reshape takes it: 0 means x's own extent in that place, unless a real 0 is among them."""
    if isinstance(item, int | np.integer | Symbol) and not isinstance(item, bool):
        return item
    names = [dim for dim in x.shape if isinstance(dim, str)]
    if not isinstance(item, str) or item not in names:
        near = did_you_mean(item, names) if isinstance(item, str) else ""
        raise ModelError(f"an extent of reshape is an integer, a tensor or a name in {x.name!r} ({x.type}); got {item!r}.{near}")
    axis = place if place < x.ndim and x.shape[place] == item else x.shape.index(item)
    return 0 if axis == place and not has_zero else emit("Shape", x, start=axis, end=axis + 1)


def transpose(x: Tensor, axes: Sequence[Any]) -> Tensor:
    """Return ``x.transpose(*axes)``; without axes they are reversed."""
    if len(axes) == 1 and isinstance(axes[0], tuple | list):
        axes = axes[0]
    if not axes:
        return emit("Transpose", x)
    return emit("Transpose", x, perm=[_axis(x, axis) for axis in axes])


def _axis(x: Tensor, axis: Any) -> int:
    """Return an axis counted from the front; raises ModelError where the tensor has none such."""
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise ModelError(f"an axis must be an integer; got {axis!r}")
    rank = x.tensor_type.rank
    if rank is None:
        return int(axis)
    if not -rank <= axis < rank:
        raise ModelError(f"{x.name!r} is {x.type} and has no axis {axis}")
    return int(axis) % rank


def squeeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the tensor without those axes of extent 1; without axes the tensor itself."""
    return emit("Squeeze", x, np.asarray(axes, np.int64)) if axes else x


def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the tensor with new axes of extent 1 at those places; without axes the tensor itself."""
    return emit("Unsqueeze", x, np.asarray(axes, np.int64)) if axes else x


# ---------------------------------------------------------------------- reductions


def reduce(x: Tensor, method: str, axis: Any, keepdims: bool) -> Tensor:
    """Return ``x.sum(...)`` and its like, in the type in which NumPy accumulates."""
    op_type = {"sum": "ReduceSum", "prod": "ReduceProd", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}[method]
    axes = None if axis is None else [_axis(x, a) for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    summed = cast(x, _accumulator(x.dtype, method))
    if axes == []:
        return summed
    if "axes" in require_operator(op_type, current(method).version("")).attributes:
        return emit(op_type, summed, axes=axes, keepdims=int(keepdims))
    return emit(op_type, summed, axes, keepdims=int(keepdims))


def _accumulator(dtype: DType, method: str) -> DType:
    """Return the type of the result: NumPy widens sums of small integers to 64 bits, and takes means in floats."""
    if dtype.is_float or method in ("max", "min"):
        return dtype
    if method == "mean":
        return DType.FLOAT64
    return DType.UINT64 if dtype.text.startswith("uint") else DType.INT64
