"""Rules of operators that move elements: shapes, casts, joins, splits, creation, indexing and masking."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.builder.tensor import stack_indices
from xrt.frontends.torch.rules.table import (
    Rule,
    Unsupported,
    as_tensor,
    cast,
    constant,
    ints,
    normalize_axes,
    normalize_axis,
    reshape,
    reshape_exactly,
    rule,
    scalar,
)
from xrt.frontends.torch.symbols import make_shape, set_shape
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor
    from xrt.graph import Shape

NO_END = 2**63 - 1
"""The end of a slice without an end, in PyTorch and in ONNX: the largest int64."""


@rule("to.dtype", "to.device", "to.dtype_layout", "to.other", "_to_copy")
def to(result: TensorType, x: Tensor, *_: Any, **__: Any) -> Tensor:
    if x.dtype.is_float and result.dtype.is_integer and result.dtype.numpy.kind == "u":
        x = cast(x, DType.INT64)  # undefined in C, but wraps around in PyTorch
    return cast(x, result.dtype)


@rule("view", "reshape", "_unsafe_view", "unflatten.int", "view_as", "flatten.using_ints")
def view(result: TensorType, x: Tensor, *args: Any) -> Tensor:
    has_sizes = bool(args) and isinstance(args[0], list | tuple)  # not for view_as and flatten
    return reshape_to(x, result, args[0] if has_sizes else None)


def reshape_to(x: Tensor, result: TensorType, sizes: Any = None) -> Tensor:
    """Reshape to the shape of the result. ``sizes``, if known, are the sizes that the call passes."""
    old_shape, new_shape = x.shape, result.shape or ()
    if old_shape == new_shape and None not in old_shape:
        return x
    if all(isinstance(size, int) for size in new_shape):
        return reshape_exactly(x, new_shape)  # type: ignore[arg-type]  # all are numbers
    if 0 in (*old_shape, *new_shape):
        raise Unsupported("a shape with an extent of zero and symbolic ones")
    # 0 copies a size and -1 infers one, so that no shape has to be read at run time.
    target = []
    for axis, size in enumerate(new_shape):
        is_copied = axis < len(old_shape) and old_shape[axis] == size
        symbolic_size = 0 if is_copied else -1
        target.append(size if isinstance(size, int) else symbolic_size)
    if target.count(-1) <= 1:
        return emit("Reshape", x, np.array(target, np.int64))
    if sizes is None or len(sizes) != len(new_shape):
        raise Unsupported("a shape of which several extents are symbolic")
    return emit("Reshape", x, make_shape(sizes))


@rule("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(result: TensorType, x: Tensor, dim: Any = None) -> Tensor:
    if x.ndim == 0 or (isinstance(dim, list | tuple) and not dim):
        return x
    axes = [axis for axis in normalize_axes(x, dim) if x.shape[axis] == 1]
    return emit("Squeeze", x, ints(*axes)) if axes else x


@rule("permute")
def permute(result: TensorType, x: Tensor, dims: Any) -> Tensor:
    order = [dim % x.ndim for dim in dims]
    return x if order == sorted(order) else emit("Transpose", x, perm=order)


@rule("expand")
def expand(result: TensorType, x: Tensor, sizes: Any, implicit: bool = False) -> Tensor:
    new_shape = result.shape or ()
    if x.shape == new_shape and None not in new_shape:
        return x
    if all(isinstance(size, int) for size in new_shape):
        return emit("Expand", x, np.array(new_shape, np.int64))
    added = len(new_shape) - x.ndim  # leading axes that are added
    target = []
    for axis, size in enumerate(sizes):
        is_unchanged = axis >= added and (size == -1 or x.shape[axis - added] == new_shape[axis])
        target.append(1 if is_unchanged else size)  # 1 keeps the size
    return x if added == 0 and all(size == 1 for size in target) else emit("Expand", x, make_shape(target))


@rule("repeat")
def repeat(result: TensorType, x: Tensor, repeats: Any) -> Tensor:
    added = len(repeats) - x.ndim
    x = emit("Unsqueeze", x, ints(*range(added))) if added else x
    return emit("Tile", x, make_shape(repeats))


@rule("cat")
def cat(result: TensorType, tensors: Any, dim: int = 0) -> Tensor:
    nonempty = [tensor for tensor in tensors if tensor.shape != (0,)]  # PyTorch ignores tensors of shape (0,)
    if not nonempty:
        return cast(tensors[0], result.dtype)
    operands = [cast(tensor, result.dtype) for tensor in nonempty]
    return operands[0] if len(operands) == 1 else emit("Concat", *operands, axis=normalize_axis(nonempty[0], dim))


@rule("split.Tensor", "split_with_sizes", "chunk")
def split(result: tuple[TensorType, ...], x: Tensor, size: Any, dim: int = 0) -> Any:
    axis = dim % x.ndim
    if len(result) == 1:
        return (x,)
    # A captured type always has a shape; `or ()` is for the type checker.
    sizes = [(type_.shape or ())[axis] for type_ in result]
    if not all(isinstance(extent, int) for extent in sizes):
        if not isinstance(size, list | tuple):
            raise Unsupported("parts of which the sizes are symbolic")
        return apply("Split", (x, make_shape(size)), {"axis": axis}, outputs=len(result))
    return apply("Split", (x, np.array(sizes, np.int64)), {"axis": axis}, outputs=len(result))


@rule("slice.Tensor")
def slice_(result: TensorType, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    begin = 0 if start is None else start
    stop = NO_END if end is None else end
    axis = dim % x.ndim
    if begin == 0 and stop == NO_END and step == 1:
        return x
    # Constant bounds that keep the size select the whole axis.
    is_same_size = x.shape[axis] is not None and x.shape[axis] == (result.shape or ())[axis]
    if is_same_size and isinstance(begin, int) and isinstance(stop, int) and step == 1:
        return x
    return emit("Slice", x, make_shape([begin]), make_shape([stop]), ints(axis), ints(step))


@rule("flip")
def flip(result: TensorType, x: Tensor, dims: Any) -> Tensor:
    if not dims:
        return x
    axes = normalize_axes(x, dims)
    last, before_first = ints(*[-1] * len(axes)), ints(*[-NO_END] * len(axes))
    return emit("Slice", x, last, before_first, ints(*axes), ints(*[-1] * len(axes)))


_PADS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@rule("pad")
def pad(result: TensorType, x: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Tensor:
    """Pad the last axes; ``pad`` has two widths per axis, the last axis first. Negative widths crop."""
    if mode != "constant" and not all(isinstance(width, int) for width in pad):
        raise Unsupported("padding by symbolic numbers")
    if all(width == 0 for width in pad):
        return x
    before: list[Any] = [0] * x.ndim
    after: list[Any] = [0] * x.ndim
    for i in range(len(pad) // 2):
        axis = x.ndim - 1 - i
        before[axis] = pad[2 * i]
        after[axis] = pad[2 * i + 1]
    if mode != "constant":
        return _pad_from_input(x, before, after, mode)
    fill = scalar(value if value is not None else 0, x.dtype)
    return emit("Pad", x, make_shape([*before, *after]), fill, mode="constant")


def _pad_from_input(x: Tensor, before: list[int], after: list[int], mode: str) -> Tensor:
    """Pad with elements of the input. PyTorch crops by negative widths after padding, so padding may repeat cropped elements."""
    has_crop = min(*before, *after) < 0
    if has_crop and mode == "circular":
        raise Unsupported("circular padding that cuts off")
    y = emit("Pad", x, ints(*(max(width, 0) for width in (*before, *after))), mode=_PADS[mode])
    if not has_crop:
        return y
    starts = [max(-width, 0) for width in before]
    ends = [width if width < 0 else NO_END for width in after]
    return emit("Slice", y, ints(*starts), ints(*ends), ints(*range(x.ndim)))


for _prefix, _mode in {"reflection": "reflect", "replication": "replicate"}.items():
    rule(*(f"{_prefix}_pad{count}d" for count in (1, 2, 3)))(partial(pad, mode=_mode))


def _triangle(upper: int, result: TensorType, x: Tensor, diagonal: int = 0) -> Tensor:
    y = cast(x, DType.INT32) if x.dtype is DType.BOOL else x
    return cast(emit("Trilu", y, scalar(diagonal, DType.INT64), upper=upper), x.dtype)


for _name, _upper in {"tril": 0, "triu": 1}.items():
    rule(_name)(partial(_triangle, _upper))


@rule("diagonal")
def diagonal(result: TensorType, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rows, columns = x.shape[a], x.shape[b]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise Unsupported("the diagonal of a matrix of symbolic size")
    order = [axis for axis in range(x.ndim) if axis not in (a, b)] + [a, b]
    # A positive offset starts at a later column, a negative one at a later row.
    steps = np.arange(int((result.shape or ())[-1] or 0))
    row_indices, column_indices = steps + max(-offset, 0), steps + max(offset, 0)
    transposed = set_shape(emit("Transpose", x, perm=order), tuple(x.shape[axis] for axis in order))
    flat = reshape(transposed, *[0] * (x.ndim - 2), -1)  # (*other axes, rows * columns)
    return emit("Gather", flat, constant(row_indices * columns + column_indices, DType.INT64), axis=x.ndim - 2)


@rule("unfold")
def unfold(result: TensorType, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    axis = dimension % max(x.ndim, 1)
    count = (result.shape or ())[axis]
    if x.ndim == 0 or not isinstance(count, int):
        raise Unsupported("unfold along an axis of symbolic size")
    positions = np.arange(count)[:, None] * step + np.arange(size)
    windows = emit("Gather", x, constant(positions, DType.INT64), axis=axis)
    # The axis of positions in a window becomes the last one.
    order = [*range(axis + 1), *range(axis + 2, x.ndim + 1), axis + 1]
    return windows if order == sorted(order) else emit("Transpose", windows, perm=order)


def _fill(value: Any, sizes: Any, dtype: DType) -> Tensor:
    element = cast(value, dtype)
    return emit("Expand", element, make_shape(sizes)) if len(sizes) else element


def _expand_to(y: Tensor, shape: Shape, x: Tensor, result: TensorType) -> Tensor:
    """Broadcast ``y``, which has shape ``shape``, to the shape of ``x``, which is also that of the result."""
    # Not y.shape: the rank of a tensor that a rule has just recorded is not known.
    if shape == x.shape and None not in shape:
        return y
    return emit("Expand", y, np.array(result.shape, np.int64) if result.is_static else emit("Shape", x))


@rule("empty.memory_format", "empty_permuted", "_efficientzerotensor", "empty_strided", "new_empty_strided")
def empty(result: TensorType, *args: Any, **_: Any) -> Tensor:
    return _fill(0, next(arg for arg in args if isinstance(arg, list | tuple)), result.dtype)


@rule("arange.start_step")
def arange_step(result: TensorType, start: Any, end: Any, step: Any = 1, **_: Any) -> Tensor:
    """Emit a constant if all arguments are known, since Range would round differently; else emit a Range."""
    if all(isinstance(number, int | float) for number in (start, end, step)):
        count = math.ceil((end - start) / step)
        is_whole = all(isinstance(number, int) for number in (start, end, step))
        numbers = start + step * np.arange(count, dtype=np.int64 if is_whole else np.float64)
        return constant(numbers, result.dtype)
    dtype = result.dtype if result.dtype in _RANGE_TYPES else DType.INT64
    return cast(emit("Range", cast(start, dtype), cast(end, dtype), cast(step, dtype)), result.dtype)


_RANGE_TYPES = frozenset({DType.FLOAT32, DType.FLOAT64, DType.INT16, DType.INT32, DType.INT64})
"""The types of ONNX's Range."""


@rule("index.Tensor")
def index_tensor(result: TensorType, x: Tensor, indices: Any) -> Tensor:
    """Index by arrays and masks as in NumPy. An index that is a single mask becomes Compress or GatherND."""
    masks = [index is not None and index.dtype in (DType.BOOL, DType.UINT8) for index in indices]
    indices = [cast(index, DType.BOOL) if is_mask else index for index, is_mask in zip(indices, masks, strict=True)]
    if masks != [True]:
        return x[tuple(slice(None) if index is None else index for index in indices)]
    if indices[0].ndim == 1:
        return emit("Compress", x, indices[0], axis=0)
    return emit("GatherND", x, emit("Transpose", emit("NonZero", indices[0]), perm=[1, 0]))


@rule("index_put")
def index_put(result: TensorType, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """Write by one mask of the leading axes, or by index arrays, one per axis; None selects the whole axis."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if axes == [0] and indices[0].dtype is DType.BOOL:
        return _put_masked(x, indices[0], values, accumulate)
    if any(indices[axis].dtype is DType.BOOL for axis in axes):
        raise Unsupported("a write by mask and numbers")
    if axes != list(range(len(axes))):
        return _put_at_inner_axes(x, indices, axes, values, accumulate)
    return _put_at(x, stack_indices([indices[axis] for axis in axes])[0], len(axes), values, accumulate)


def _put_at(x: Tensor, indices: Tensor, depth: int, values: Tensor, accumulate: bool) -> Tensor:
    """Write ``values`` into ``x``. The last axis of ``indices`` has an index for each of the leading ``depth`` axes of ``x``."""
    shape: Any = emit("Shape", indices, start=0, end=-1)
    if x.ndim > depth:
        shape = emit("Concat", shape, emit("Shape", x, start=depth), axis=0)
    updates = emit("Expand", cast(values, x.dtype), shape)
    return emit("ScatterND", x, indices, updates, reduction="add" if accumulate else "none")


def _put_at_inner_axes(x: Tensor, indices: Any, axes: list[int], values: Tensor, accumulate: bool) -> Tensor:
    """Write ``values`` at indices of adjacent inner axes: transpose these axes to the front, write, and transpose back."""
    first = axes[0]
    if axes != list(range(first, first + len(axes))):
        raise Unsupported("a write by index of axes that are no neighbors")
    order = [*axes, *range(first), *range(axes[-1] + 1, x.ndim)]
    if values.ndim:
        # The axes of the values: those of x before the indexed axes, those of the indices, those of x after them.
        index_rank = max(indices[axis].ndim for axis in axes)
        rank = index_rank + x.ndim - len(axes)
        values = emit("Unsqueeze", values, ints(*range(rank - values.ndim))) if values.ndim < rank else values
        value_order = [*range(first, first + index_rank), *range(first), *range(first + index_rank, rank)]
        values = emit("Transpose", values, perm=value_order)
    transposed = set_shape(emit("Transpose", x, perm=order), tuple(x.shape[axis] for axis in order))
    written = _put_at(transposed, stack_indices([indices[axis] for axis in axes])[0], len(axes), values, accumulate)
    inverse_order = [order.index(axis) for axis in range(x.ndim)]
    return emit("Transpose", written, perm=inverse_order)


def _put_masked(x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Write where a mask of the leading axes is true: one number, or one row of ``values`` per true element."""
    if values.ndim == 0 or values.shape == (1,):
        if accumulate:
            raise Unsupported("a sum into the elements of a mask")
        shape = emit("Shape", mask)
        if x.ndim > mask.ndim:
            shape = emit("Concat", shape, ints(*[1] * (x.ndim - mask.ndim)), axis=0)
        return emit("Where", emit("Reshape", mask, shape), cast(values, x.dtype), x)
    true_indices = emit("Transpose", emit("NonZero", mask), perm=[1, 0])
    return _put_at(x, true_indices, mask.ndim, values, accumulate)


def _move_to_front(x: Tensor, dim: int) -> tuple[Tensor, list[int]]:
    if x.ndim == 0:
        raise Unsupported("an index into a 0-d tensor")
    axis = dim % x.ndim
    order = [axis, *(other for other in range(x.ndim) if other != axis)]
    return (emit("Transpose", x, perm=order) if axis else x), order


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@rule("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def scatter(result: TensorType, x: Tensor, dim: int, index: Tensor, source: Any, reduce: str | None = None) -> Tensor:
    return _scatter(x, dim, index, source, "none" if reduce is None else _REDUCTIONS[reduce])


@rule("scatter_reduce.two")
def scatter_reduce(
    result: TensorType, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    if reduce == "mean" or not include_self:
        raise Unsupported("scatter_reduce of means, or without the elements of the tensor itself")
    return _scatter(x, dim, index, source, _REDUCTIONS[reduce])


def _scatter(x: Tensor, dim: int, index: Tensor, source: Any, reduction: str) -> Tensor:
    if x.ndim == 0:
        raise Unsupported("a write by index into a 0-d tensor")
    axis, values = dim % x.ndim, as_tensor(source)
    if values.ndim == 0:
        values = emit("Expand", cast(source, x.dtype), emit("Shape", index))
    elif values.shape != index.shape or None in index.shape:
        # PyTorch ignores values beyond the shape of the index.
        values = emit("Slice", values, ints(*[0] * x.ndim), emit("Shape", index))
    return emit("ScatterElements", x, index, cast(values, x.dtype), axis=axis, reduction=reduction)


@rule("slice_scatter")
def slice_scatter(
    result: TensorType, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    axis = dim % x.ndim
    begin = 0 if start is None else start
    stop = NO_END if end is None else end
    if source.shape == x.shape and None not in x.shape and step == 1:
        return cast(source, x.dtype)
    size = x.shape[axis]
    if isinstance(size, int) and isinstance(begin, int) and isinstance(stop, int):
        indices = constant(np.arange(size)[begin:stop:step], DType.INT64)
    else:
        extent = emit("Squeeze", emit("Shape", x, start=axis, end=axis + 1), ints(0))
        numbers = emit("Range", scalar(0, DType.INT64), extent, scalar(1, DType.INT64))
        indices = emit("Slice", numbers, make_shape([begin]), make_shape([stop]), ints(0), ints(step))
    # ScatterND writes along the front axis.
    transposed, order = _move_to_front(x, dim)
    transposed_source, _ = _move_to_front(source, dim)
    written = emit("ScatterND", transposed, reshape(indices, -1, 1), cast(transposed_source, x.dtype))
    inverse_order = [order.index(other) for other in range(x.ndim)]
    return emit("Transpose", written, perm=inverse_order) if axis else written


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
    flags = reshape(emit("Expand", mask, shape), -1)
    # The n-th true element of the mask reads element n of the source. Before the first one the index would be -1: read 0.
    source_index = emit("Sub", emit("CumSum", cast(flags, DType.INT64), scalar(0, DType.INT64)), scalar(1, DType.INT64))
    picked = emit("Gather", reshape(source, -1), emit("Max", source_index, scalar(0, DType.INT64)))
    flat = reshape(emit("Expand", x, shape), -1)
    return emit("Reshape", emit("Where", flags, cast(picked, x.dtype), flat), shape)


def _broadcast_shape(x: Tensor, mask: Tensor) -> Any:
    if x.shape == mask.shape and None not in x.shape:
        return emit("Shape", x)
    # Any operator that broadcasts would do.
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
    """Gather from the flat tensor. The lowering has checked that its memory is contiguous."""
    offset = storage_offset or 0
    if not all(isinstance(number, int) for number in (*size, *stride, offset)):
        raise Unsupported("as_strided of symbolic sizes")
    addresses = np.full((), offset)
    for extent, step in zip(size, stride, strict=True):
        addresses = addresses[..., None] + np.arange(extent) * step
    return emit("Gather", reshape(x, -1), constant(addresses, DType.INT64))


_EXPRESSIONS: dict[str, Rule] = {
    "clone contiguous detach alias lift_fresh_copy lift_fresh lift positive detach_": lambda result, x, *_, **__: x,
    "unsqueeze": lambda result, x, dim: emit("Unsqueeze", x, ints(dim % (x.ndim + 1))),
    "unbind.int": lambda result, x, dim=0: tuple(emit("Gather", x, np.int64(i), axis=dim % x.ndim) for i in range(len(result))),
    "constant_pad_nd": lambda result, x, pads, value=0: pad(result, x, pads, "constant", value),
    "full": lambda result, size, fill_value, **_: _fill(fill_value, size, result.dtype),
    "copy": lambda result, x, source, *_, **__: _expand_to(cast(source, result.dtype), source.shape, x, result),
    "full_like": lambda result, x, fill_value, **_: _expand_to(cast(fill_value, result.dtype), (), x, result),
    "select.int": lambda result, x, dim, index: emit("Gather", x, as_tensor(index), axis=dim % x.ndim),
    "embedding": lambda result, weight, indices, *_, **__: emit("Gather", weight, indices, axis=0),
    "index_select": lambda result, x, dim, index: emit("Gather", x, index, axis=dim % x.ndim) if x.ndim else x,
    "gather": lambda result, x, dim, index, **_: emit("GatherElements", x, index, axis=dim % x.ndim) if x.ndim else x,
    "scatter_add": lambda result, x, dim, index, source: _scatter(x, dim, index, source, "add"),
}
for _name, _function in _EXPRESSIONS.items():
    rule(*_name.split())(_function)
