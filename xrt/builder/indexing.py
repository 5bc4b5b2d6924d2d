"""``x[...]``, with the meaning that NumPy gives it.

In three steps, which together are NumPy's rule: slices (integers too, if no array is among the indices) cut, None inserts axes,
and arrays gather. A boolean mask means the positions where it is true, one array per axis it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.numerics import cast
from xrt.builder.record_op import emit
from xrt.builder.shape_methods import integers, squeeze, unsqueeze
from xrt.builder.symbol import Symbol, current
from xrt.errors import ModelError
from xrt.graph.dtypes import DType

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["index"]

INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class _Item:
    """One index and the axis of the tensor, counted from the front, that it is for."""

    axis: int
    index: Any


def index(x: Tensor, key: Any) -> Tensor:
    """Return ``x[key]``; raises ModelError for a key that NumPy refuses, or that ONNX has no operators for."""
    keys = [_normal(x, item) for item in (key if isinstance(key, tuple) else (key,))]
    items, new_axes = _placed(x, keys)
    for item in items:
        _check_range(x, item)
    arrays = [item for item in items if isinstance(item.index, Symbol | np.ndarray)]
    if not arrays:
        return unsqueeze(_cut(x, items), new_axes)
    # Among arrays, integers are arrays of no axes; a lone tensor of no axes gathers by itself.
    gathered = [item for item in items if not isinstance(item.index, slice)]
    cut = _cut(x, [item for item in items if isinstance(item.index, slice)])
    return _gather(unsqueeze(cut, new_axes), [_Item(_shifted(i.axis, new_axes), i.index) for i in gathered])


def _shifted(axis: int, new_axes: Sequence[int]) -> int:
    """Return the position of an axis after axes were inserted at those places of the result."""
    for place in sorted(new_axes):
        axis += place <= axis
    return axis


# ---------------------------------------------------------------------- the key


def _normal(x: Tensor, item: Any) -> Any:
    """Return one item of a key as None, Ellipsis, an int, a slice, an integer or boolean array, or a tensor."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, bool | np.bool_):
        raise ModelError(f"{x.name!r}[{item}]: True and False are no indices of a tensor in a graph; use None to add an axis")
    if isinstance(item, int | np.integer):
        return int(item)
    if isinstance(item, Symbol):
        return _checked_kind(x, item, item.dtype)
    if isinstance(item, list | tuple | np.ndarray):
        array = np.asarray(item)
        array = array.astype(np.int64) if array.size == 0 and not isinstance(item, np.ndarray) else array
        return int(array) if array.ndim == 0 and array.dtype.kind in "iu" else _checked_kind(x, array, DType.of(array))
    what = f"{type(item).__name__} {item!r}"
    raise ModelError(f"{x.name!r} cannot be indexed with {what}; use integers, slices, None, ... or arrays")


def _checked_kind(x: Tensor, item: Any, dtype: DType) -> Any:
    if dtype is not DType.BOOL and not dtype.is_integer:
        raise ModelError(f"{x.name!r} cannot be indexed with an array of {dtype}; an index is of integers, a mask of bool")
    if dtype is DType.BOOL and item.ndim == 0:
        raise ModelError(f"{x.name!r} cannot be indexed with a mask of no axes")
    return item


def _covers(item: Any) -> int:
    """Return how many axes of the tensor an item is for."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray | Symbol) and item.dtype in (DType.BOOL, np.dtype(bool))


def _placed(x: Tensor, keys: Sequence[Any]) -> tuple[list[_Item], list[int]]:
    """Return the items with their axes, and the places in the cut tensor where None inserts an axis."""
    ellipses = sum(item is Ellipsis for item in keys)
    covered = sum(map(_covers, keys))
    rank = x.tensor_type.rank
    if ellipses > 1:
        raise ModelError(f"{x.name!r} is indexed with two '...'; one is the most")
    if rank is not None and covered > rank:
        raise ModelError(f"{x.name!r} is {x.type} and takes {rank} indices; got {covered}")
    arrays = any(isinstance(item, Symbol | np.ndarray) for item in keys)
    items: list[_Item] = []
    new_axes: list[int] = []
    axis = place = 0
    for item in keys:
        if item is None:
            new_axes.append(place)
        elif item is Ellipsis:
            skipped = _skipped(x, keys, covered)
            axis, place = axis + skipped, place + skipped
        else:
            items += _rows(axis, item)
            axis += _covers(item)
            place += _covers(item) if arrays or isinstance(item, slice) else 0
            continue
        place += item is None
    return items, new_axes


def _skipped(x: Tensor, keys: Sequence[Any], covered: int) -> int:
    if keys[-1] is Ellipsis:
        return 0
    return x.ndim - covered


def _rows(axis: int, item: Any) -> list[_Item]:
    """Return an index for each axis that the item covers: a mask of k axes is k integer arrays."""
    if not _is_mask(item):
        return [_Item(axis, item)]
    if isinstance(item, np.ndarray):
        return [_Item(axis + k, row) for k, row in enumerate(np.nonzero(item))]
    positions = emit("NonZero", item)
    return [_Item(axis + k, emit("Gather", positions, np.asarray(k), axis=0)) for k in range(item.ndim)]


def _check_range(x: Tensor, item: _Item) -> None:
    """Refuse constant positions that lie outside an extent that is known, as NumPy does."""
    shape = x.tensor_type.shape
    extent = shape[item.axis] if shape is not None else None
    if not isinstance(extent, int) or isinstance(item.index, slice | Symbol):
        return
    positions = np.asarray(item.index)
    if positions.size and not (-extent <= int(positions.min()) and int(positions.max()) < extent):
        shown = item.index if positions.ndim == 0 else f"{positions.min()} to {positions.max()}"
        raise ModelError(f"index {shown} is out of bounds for axis {item.axis} of {x.name!r}, which is {x.type}")


# ---------------------------------------------------------------------- slices and integers


def _cut(x: Tensor, items: Sequence[_Item]) -> Tensor:
    """Return the tensor with slices taken, and the axes of integers removed."""
    cuts = [item for item in items if item.index != slice(None)]
    if not cuts:
        return x
    bounds = [_bounds(x, item.index) for item in cuts]
    starts, ends, steps = (integers([bound[part] for bound in bounds]) for part in range(3))
    axes = np.asarray([item.axis for item in cuts], np.int64)
    whole = emit("Slice", x, starts, ends, axes, None if all(bound[2] == 1 for bound in bounds) else steps)
    return squeeze(whole, [item.axis for item in cuts if isinstance(item.index, int)])


def _bounds(x: Tensor, item: Any) -> tuple[Any, Any, Any]:
    """Return start, end and step as ONNX's Slice takes them."""
    if isinstance(item, int):
        return item, item + 1 if item != -1 else INT64.max, 1
    step = 1 if item.step is None else _bound(x, item.step)
    if isinstance(step, Symbol):
        raise ModelError(f"the step of a slice of {x.name!r} must be an integer, not a tensor")
    if step == 0:
        raise ModelError(f"the step of a slice of {x.name!r} is 0")
    first, last = (0, INT64.max) if step > 0 else (INT64.max, INT64.min)
    start = first if item.start is None else _bound(x, item.start)
    return start, last if item.stop is None else _bound(x, item.stop), step


def _bound(x: Tensor, value: Any) -> Any:
    if isinstance(value, Symbol) or (isinstance(value, int | np.integer) and not isinstance(value, bool)):
        return value
    raise ModelError(f"the bounds of a slice of {x.name!r} must be integers or tensors of the graph; got {value!r}")


# ---------------------------------------------------------------------- arrays


def _gather(x: Tensor, items: Sequence[_Item]) -> Tensor:
    """Return the elements at arrays of positions, the arrays broadcast against each other."""
    if len(items) == 1:
        return emit("Gather", x, _int64(items[0].index), axis=items[0].axis)
    axes = [item.axis for item in items]
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    front = x if axes == list(range(len(axes))) else emit("Transpose", x, perm=[*axes, *rest])
    positions, rank = _positions([item.index for item in items])
    result = emit("GatherND", front, positions)
    are_adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if not are_adjacent or axes[0] == 0:
        return result
    order = [*range(rank, rank + axes[0]), *range(rank), *range(rank + axes[0], rank + len(rest))]
    return emit("Transpose", result, perm=order)


def _positions(indices: Sequence[Any]) -> tuple[Any, int]:
    """Return the indices of the axes, broadcast and stacked along a last axis, and the rank of one of them."""
    rank = max(np.ndim(item) if not isinstance(item, Symbol) else item.ndim for item in indices)
    if not any(isinstance(item, Symbol) for item in indices):
        return np.stack(_broadcast(indices), axis=-1).astype(np.int64), rank
    tensors = [_int64(item) for item in indices]
    shape = emit("Shape", emit("Max", *tensors))  # Max broadcasts: only its shape is wanted
    rows = [unsqueeze(emit("Expand", tensor, shape), [-1]) for tensor in tensors]
    return emit("Concat", *rows, axis=-1), rank


def _broadcast(indices: Sequence[Any]) -> Sequence[np.ndarray[Any, Any]]:
    try:
        return np.broadcast_arrays(*indices)
    except ValueError as error:
        shapes = ", ".join(str(np.shape(item)) for item in indices)
        raise ModelError(f"the index arrays have shapes {shapes}, which do not broadcast") from error


def _int64(item: Any) -> Tensor:
    """Return positions as a tensor of int64, which every operator that gathers takes."""
    return cast(current("an index").symbol(item if isinstance(item, Symbol) else np.asarray(item, np.int64)), DType.INT64)
