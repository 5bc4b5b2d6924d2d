"""Rules of indexing and masking operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.builder.tensor import stack_indices
from xrt.frontends.torch.rules.shape import expand
from xrt.frontends.torch.rules.table import Unsupported, as_tensor, cast, constant, ints, reshape, rule, scalar
from xrt.frontends.torch.symbols import make_shape
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


@rule("embedding")
def embedding(result: TensorType, weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
    return emit("Gather", weight, indices, axis=0)


@rule("index_select")
def index_select(result: TensorType, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if x.ndim == 0:
        return x
    return emit("Gather", x, index, axis=dim % x.ndim)


@rule("gather")
def gather(result: TensorType, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    if x.ndim == 0:
        return x
    return emit("GatherElements", x, index, axis=dim % x.ndim)


@rule("index.Tensor")
def index_tensor(result: TensorType, x: Tensor, indices: Any) -> Tensor:
    """Index by arrays and masks as in NumPy. A single mask becomes Compress or GatherND."""
    masks = [index is not None and index.dtype in (DType.BOOL, DType.UINT8) for index in indices]
    indices = [cast(index, DType.BOOL) if is_mask else index for index, is_mask in zip(indices, masks, strict=True)]
    if masks != [True]:
        return x[tuple(slice(None) if index is None else index for index in indices)]
    if indices[0].ndim == 1:
        return emit("Compress", x, indices[0], axis=0)
    return emit("GatherND", x, emit("Transpose", emit("NonZero", indices[0]), perm=[1, 0]))


@rule("index_put")
def index_put(result: TensorType, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) == 1 and used[0] == 0 and indices[0].dtype is DType.BOOL:
        return _put_masked(x, indices[0], values, accumulate)
    if any(indices[i].dtype is DType.BOOL for i in used):
        raise Unsupported("a write by mask and numbers")
    if used != list(range(len(used))):
        return _put_behind(x, indices, used, values, accumulate)
    return _put_first(x, [indices[i] for i in used], x.ndim, values, accumulate)


def _put_first(x: Tensor, indices: list[Tensor], rank: int, values: Tensor, accumulate: bool) -> Tensor:
    """Write by indices of the leading axes."""
    where, _ = stack_indices(indices)
    shape: Any = emit("Shape", where, start=0, end=-1)
    if rank > len(indices):
        shape = emit("Concat", shape, emit("Shape", x, start=len(indices)), axis=0)
    updates = emit("Expand", cast(values, x.dtype), shape)
    return emit("ScatterND", x, where, updates, reduction="add" if accumulate else "none")


def _put_behind(x: Tensor, indices: Any, used: list[int], values: Tensor, accumulate: bool) -> Tensor:
    """Write by indices of adjacent inner axes, which are transposed to the front and back."""
    if used != list(range(used[0], used[0] + len(used))):
        raise Unsupported("a write by index of axes that are no neighbors")
    lead, wide = used[0], max(indices[i].ndim for i in used)
    order = [*used, *range(lead), *range(used[-1] + 1, x.ndim)]
    rank = wide + x.ndim - len(used)  # rank of the values: leading axes, index axes, trailing axes
    if values.ndim:
        values = emit("Unsqueeze", values, ints(*range(rank - values.ndim))) if values.ndim < rank else values
        moved = [*range(lead, lead + wide), *range(lead), *range(lead + wide, rank)]
        values = emit("Transpose", values, perm=moved)
    written = _put_first(emit("Transpose", x, perm=order), [indices[i] for i in used], x.ndim, values, accumulate)
    return emit("Transpose", written, perm=[order.index(axis) for axis in range(x.ndim)])


def _put_masked(x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    if values.ndim == 0 or values.shape == (1,):
        if accumulate:
            raise Unsupported("a sum into the elements of a mask")
        wide = emit("Reshape", mask, _mask_shape(x, mask))
        return emit("Where", wide, cast(values, x.dtype), x)
    where = emit("Transpose", emit("NonZero", mask), perm=[1, 0])
    shape: Any = emit("Shape", where, start=0, end=1)
    if x.ndim > mask.ndim:
        shape = emit("Concat", shape, emit("Shape", x, start=mask.ndim), axis=0)
    updates = emit("Expand", cast(values, x.dtype), shape)
    return emit("ScatterND", x, where, updates, reduction="add" if accumulate else "none")


def _mask_shape(x: Tensor, mask: Tensor) -> Any:
    """The mask's shape, extended by ones to the rank of the tensor."""
    return (
        emit("Concat", emit("Shape", mask), ints(*[1] * (x.ndim - mask.ndim)), axis=0)
        if x.ndim > mask.ndim
        else emit("Shape", mask)
    )


def _to_front(x: Tensor, dim: int) -> tuple[Tensor, list[int]]:
    if x.ndim == 0:
        raise Unsupported("an index into a 0-d tensor")
    axis = dim % x.ndim
    order = [axis, *(other for other in range(x.ndim) if other != axis)]
    return (emit("Transpose", x, perm=order) if axis else x), order


def _along(x: Tensor, dim: int, index: Tensor, source: Tensor, reduction: str) -> Tensor:
    return _write_rows(x, dim, index, _to_front(source, dim)[0], reduction)


def _write_rows(x: Tensor, dim: int, index: Tensor, rows: Tensor, reduction: str = "none") -> Tensor:
    """Write rows along an axis, which is the first one of the rows."""
    moved, order = _to_front(x, dim)
    where = reshape(cast(index, DType.INT64), -1, 1)
    written = emit("ScatterND", moved, where, cast(rows, x.dtype), reduction=reduction)
    return emit("Transpose", written, perm=[int(i) for i in np.argsort(order)]) if dim % x.ndim else written


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@rule("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def scatter(result: TensorType, x: Tensor, dim: int, index: Tensor, source: Any, reduce: str | None = None) -> Tensor:
    return _scatter(x, dim, index, source, "none" if reduce is None else _REDUCTIONS[reduce])


@rule("scatter_add")
def scatter_add(result: TensorType, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _scatter(x, dim, index, source, "add")


@rule("scatter_reduce.two")
def scatter_reduce(
    result: TensorType, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    if reduce == "mean" or not include_self:
        raise Unsupported("scatter_reduce of means, or without the elements that are there")
    return _scatter(x, dim, index, source, _REDUCTIONS[reduce])


def _scatter(x: Tensor, dim: int, index: Tensor, source: Any, reduction: str) -> Tensor:
    if x.ndim == 0:
        raise Unsupported("a write by index into a 0-d tensor")
    axis, values = dim % x.ndim, as_tensor(source)
    if values.ndim == 0:
        values = emit("Expand", cast(source, x.dtype), emit("Shape", index))
    elif values.shape != index.shape or None in index.shape:  # there may be more values than masked elements
        ends = emit("Shape", index)
        values = emit("Slice", values, ints(*[0] * x.ndim), ends)
    return emit("ScatterElements", x, index, cast(values, x.dtype), axis=axis, reduction=reduction)


@rule("slice_scatter")
def slice_scatter(
    result: TensorType, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    axis = dim % x.ndim
    begin, stop = 0 if start is None else start, 2**63 - 1 if end is None else end
    if source.shape == x.shape and None not in x.shape and step == 1:
        return cast(source, x.dtype)
    size = x.shape[axis]
    if isinstance(size, int) and isinstance(begin, int) and isinstance(stop, int):
        where = constant(np.arange(size)[begin:stop:step], DType.INT64)
    else:
        extent = emit("Squeeze", emit("Shape", x, start=axis, end=axis + 1), ints(0))
        numbers = emit("Range", scalar(0, DType.INT64), extent, scalar(1, DType.INT64))
        where = emit("Slice", numbers, make_shape([begin]), make_shape([stop]), ints(0), ints(step))
    return _along(x, dim, where, source, "none")


@rule("masked_select")
def masked_select(result: TensorType, x: Tensor, mask: Tensor) -> Tensor:
    if x.shape == mask.shape:
        return emit("Compress", x, reshape(mask, -1))
    shape = _broadcast_shape(x, mask)
    flat = reshape(emit("Expand", mask, shape), -1)
    return emit("Compress", emit("Expand", x, shape), flat)


@rule("masked_scatter")
def masked_scatter(result: TensorType, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    if 0 in (*(result.shape or ()), *source.shape):
        return expand(result, x, list(result.shape or ()))  # nothing is written
    shape = _broadcast_shape(x, mask)
    wide = reshape(emit("Expand", mask, shape), -1)
    place = emit("Sub", emit("CumSum", cast(wide, DType.INT64), scalar(0, DType.INT64)), scalar(1, DType.INT64))
    picked = emit("Gather", reshape(source, -1), emit("Max", place, scalar(0, DType.INT64)))
    flat = reshape(emit("Expand", x, shape), -1)
    return emit("Reshape", emit("Where", wide, cast(picked, x.dtype), flat), shape)


def _broadcast_shape(x: Tensor, mask: Tensor) -> Any:
    """The broadcast shape of a tensor and a mask."""
    if x.shape == mask.shape and None not in x.shape:
        return emit("Shape", x)
    return emit("Shape", emit("Or", mask, emit("Equal", cast(x, DType.BOOL), cast(x, DType.BOOL))))


@rule("nonzero")
def nonzero(result: TensorType, x: Tensor) -> Tensor:
    if x.ndim == 0:
        raise Unsupported("nonzero of a 0-d tensor")
    return emit("Transpose", emit("NonZero", x), perm=[1, 0])


@rule("bucketize.Tensor")
def bucketize(result: TensorType, x: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    above = emit("GreaterOrEqual" if right else "Greater", emit("Unsqueeze", x, ints(-1)), boundaries)
    return emit("ReduceSum", cast(above, result.dtype), ints(-1), keepdims=0)


@rule("as_strided")
def as_strided(result: TensorType, x: Tensor, size: Any, stride: Any, storage_offset: Any = None) -> Tensor:
    """Gather from the flat tensor; the caller ensures contiguous memory."""
    offset = storage_offset or 0
    if not all(isinstance(one, int) for one in (*size, *stride, offset)):
        raise Unsupported("as_strided of symbolic sizes")
    where = np.full((), offset)
    for extent, step in zip(size, stride, strict=True):
        where = where[..., None] + np.arange(extent) * step
    return emit("Gather", reshape(x, -1), constant(where, DType.INT64))
