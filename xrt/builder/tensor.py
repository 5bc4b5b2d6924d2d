"""The symbolic tensor: NumPy's operators, indexing, shape changes and reductions, recorded as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from xrt.builder import numerics
from xrt.builder.numerics import cast
from xrt.builder.record_op import Symbol, emit, get_builder
from xrt.errors import ModelError, did_you_mean
from xrt.graph.schemas import require_operator
from xrt.graph.types import DType

if TYPE_CHECKING:
    from xrt.builder.record_op import DTypeLike, Operand


def integers(items: Sequence[Any]) -> Any:
    """Combine integers and 0-d tensors to one int64 vector: an array if all are integers, else a tensor."""
    if not any(isinstance(item, Symbol) for item in items):
        return np.asarray(items, np.int64)
    parts = [_make_row(item) for item in items]
    return parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=0)


def _make_row(item: Any) -> Tensor:
    if not isinstance(item, Symbol):
        return get_builder("a constant").symbol(np.asarray([item], np.int64))
    tensor: Tensor = item  # type: ignore[assignment]  # builders create only Tensors
    if not tensor.dtype.is_integer:
        raise ModelError(f"{tensor.name!r} is used as an integer, but it is {tensor.type}")
    return emit("Reshape", cast(tensor, DType.INT64), np.asarray([1], np.int64))


def _make_extent(x: Tensor, item: Any, index: int, has_zero: bool) -> Any:
    """Convert an extent of a Reshape; integers and tensors are unchanged.

    A symbolic dim of ``x`` that stays on its axis becomes 0, which means to copy the axis, unless the target has a literal 0
    (``has_zero``). In all other cases a Shape node reads the dim.
    """
    if isinstance(item, int | np.integer | Symbol) and not isinstance(item, bool):
        return item
    names = [dim for dim in x.shape if isinstance(dim, str)]
    if not isinstance(item, str) or item not in names:
        hint = did_you_mean(item, names) if isinstance(item, str) else ""
        raise ModelError(f"an extent of reshape is an integer, a tensor or a name in {x.name!r} ({x.type}); got {item!r}.{hint}")
    axis = index if index < x.ndim and x.shape[index] == item else x.shape.index(item)
    return 0 if axis == index and not has_zero else emit("Shape", x, start=axis, end=axis + 1)


def _normalize_axis(x: Tensor, axis: Any) -> int:
    """Normalize an axis to count from the front; raises ModelError if it is out of range."""
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise ModelError(f"an axis must be an integer; got {axis!r}")
    rank = x.tensor_type.rank
    if rank is None:
        return int(axis)
    if not -rank <= axis < rank:
        raise ModelError(f"{x.name!r} is {x.type} and has no axis {axis}")
    return int(axis) % rank


def squeeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Remove these axes of extent 1; returns ``x`` if there are none."""
    return emit("Squeeze", x, np.asarray(axes, np.int64)) if axes else x


def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Insert axes of extent 1; returns ``x`` if there are none."""
    return emit("Unsqueeze", x, np.asarray(axes, np.int64)) if axes else x


def _reduce(x: Tensor, op_type: str, axis: Any, keepdims: bool) -> Tensor:
    """Reduce over the axes, in the type in which NumPy accumulates."""
    axes = None
    if axis is not None:
        requested_axes = axis if isinstance(axis, tuple | list) else [axis]
        axes = [_normalize_axis(x, requested) for requested in requested_axes]
    summed = cast(x, _accumulator(x.dtype, op_type))
    # As in NumPy, no axes means no reduction; ONNX would reduce all of them.
    if axes == []:
        return summed
    # Reductions changed axes from an attribute to an input, at different opsets.
    if "axes" in require_operator(op_type, get_builder(op_type).version("")).attributes:
        return emit(op_type, summed, axes=axes, keepdims=int(keepdims))
    return emit(op_type, summed, axes, keepdims=int(keepdims))


def _accumulator(dtype: DType, op_type: str) -> DType:
    """The type in which NumPy accumulates: 64 bits for sums of integers, float64 for means of integers."""
    if dtype.is_float or op_type in ("ReduceMax", "ReduceMin"):
        return dtype
    if op_type == "ReduceMean":
        return DType.FLOAT64
    return DType.UINT64 if dtype.text.startswith("uint") else DType.INT64


INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class _Item:
    """An index and the axis that it applies to, counted from the front."""

    axis: int
    index: Any


def _shift_axis(axis: int, new_axes: Sequence[int]) -> int:
    """Compute the index of an axis after other axes were inserted at the indices ``new_axes`` of the result."""
    for new_axis in sorted(new_axes):
        if new_axis <= axis:
            axis += 1
    return axis


def _normalize_item(x: Tensor, item: Any) -> Any:
    """Normalize one item of a key to None, Ellipsis, an int, a slice, an integer or boolean array, or a tensor."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, bool | np.bool_):
        raise ModelError(f"{x.name!r}[{item}]: True and False cannot index a tensor of a graph; use None to add an axis")
    if isinstance(item, int | np.integer):
        return int(item)
    if isinstance(item, Symbol):
        return _check_index_dtype(x, item, item.dtype)
    if isinstance(item, list | tuple | np.ndarray):
        array = np.asarray(item)
        if array.size == 0 and not isinstance(item, np.ndarray):
            array = array.astype(np.int64)  # NumPy makes a float64 array of an empty list
        if array.ndim == 0 and array.dtype.kind in "iu":
            return int(array)
        return _check_index_dtype(x, array, DType.from_array(array))
    shown = f"{type(item).__name__} {item!r}"
    raise ModelError(f"{x.name!r} cannot be indexed with {shown}; use integers, slices, None, ... or arrays")


def _check_index_dtype(x: Tensor, item: Any, dtype: DType) -> Any:
    if dtype is not DType.BOOL and not dtype.is_integer:
        raise ModelError(f"{x.name!r} cannot be indexed with an array of {dtype}; use integers, or a mask of bool")
    if dtype is DType.BOOL and item.ndim == 0:
        raise ModelError(f"{x.name!r} cannot be indexed with a mask of rank 0")
    return item


def _count_axes(item: Any) -> int:
    """Count the axes that an item indexes: 0 for None and ``...``, k for a mask of rank k, else 1."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray | Symbol) and item.dtype in (DType.BOOL, np.dtype(bool))


def _assign_axes(x: Tensor, keys: Sequence[Any]) -> tuple[list[_Item], list[int]]:
    """Assign axes to the items; also return the axes that None inserts, as indices of the sliced tensor."""
    has_arrays = any(isinstance(item, Symbol | np.ndarray) for item in keys)
    items: list[_Item] = []
    new_axes: list[int] = []
    axis = sliced_axis = 0
    for item in _expand_ellipsis(x, keys):
        if item is None:
            new_axes.append(sliced_axis)
            sliced_axis += 1  # the inserted axis
            continue
        items += _expand_item(axis, item)
        axis += _count_axes(item)
        # Slicing removes the axis of an integer, except next to arrays, where integers are gathered later.
        if has_arrays or isinstance(item, slice):
            sliced_axis += _count_axes(item)
    return items, new_axes


def _expand_ellipsis(x: Tensor, keys: Sequence[Any]) -> Sequence[Any]:
    """Replace ``...`` by full slices; raises ModelError for two of them or for more indices than axes."""
    ellipses = [position for position, item in enumerate(keys) if item is Ellipsis]
    covered = sum(map(_count_axes, keys))
    rank = x.tensor_type.rank
    if len(ellipses) > 1:
        raise ModelError(f"{x.name!r} is indexed with two '...'; at most one is allowed")
    if rank is not None and covered > rank:
        raise ModelError(f"{x.name!r} is {x.type} and has {rank} axes to index; got {covered} indices")
    if not ellipses:
        return keys
    (position,) = ellipses
    keys_before = keys[:position]
    keys_after = keys[position + 1 :]
    if not keys_after:
        return keys_before  # a trailing `...` needs no slices, and works for tensors of unknown rank
    return [*keys_before, *[slice(None)] * (x.ndim - covered), *keys_after]


def _expand_item(axis: int, item: Any) -> list[_Item]:
    """Expand an item to an index per axis: a mask of rank k becomes k integer arrays."""
    if not _is_mask(item):
        return [_Item(axis, item)]
    if isinstance(item, np.ndarray):
        return [_Item(axis + k, row) for k, row in enumerate(np.nonzero(item))]
    positions = emit("NonZero", item)
    return [_Item(axis + k, emit("Gather", positions, np.asarray(k), axis=0)) for k in range(item.ndim)]


def _check_range(x: Tensor, item: _Item) -> None:
    """Reject constant indices outside a known extent, as NumPy does."""
    shape = x.tensor_type.shape
    extent = shape[item.axis] if shape is not None else None
    if not isinstance(extent, int) or isinstance(item.index, slice | Symbol):
        return
    positions = np.asarray(item.index)
    if positions.size and not (-extent <= int(positions.min()) and int(positions.max()) < extent):
        shown = item.index if positions.ndim == 0 else f"{positions.min()} to {positions.max()}"
        raise ModelError(f"index {shown} is out of bounds for axis {item.axis} of {x.name!r}, which is {x.type}")


def _slice(x: Tensor, items: Sequence[_Item]) -> Tensor:
    """Apply slices and integers, and remove the axes of integers."""
    cuts = [item for item in items if item.index != slice(None)]
    if not cuts:
        return x
    starts, ends, steps = zip(*[_make_bounds(x, item.index) for item in cuts], strict=True)
    axes = np.asarray([item.axis for item in cuts], np.int64)
    has_steps = any(step != 1 for step in steps)
    sliced = emit("Slice", x, integers(starts), integers(ends), axes, integers(steps) if has_steps else None)
    return squeeze(sliced, [item.axis for item in cuts if isinstance(item.index, int)])


def _make_bounds(x: Tensor, item: Any) -> tuple[Any, Any, Any]:
    """Compute start, end and step of ONNX's Slice for an int or a slice."""
    if isinstance(item, int):
        # The slice [-1:0] would be empty: its end is the front of the axis.
        end = INT64.max if item == -1 else item + 1
        return item, end, 1
    step = 1 if item.step is None else _check_bound(x, item.step)
    if isinstance(step, Symbol):
        raise ModelError(f"the step of a slice of {x.name!r} must be an integer, not a tensor")
    if step == 0:
        raise ModelError(f"the step of a slice of {x.name!r} is 0")
    # Slice clamps bounds to the extent: INT64.min as the end of a negative step includes index 0.
    default_start, default_end = (0, INT64.max) if step > 0 else (INT64.max, INT64.min)
    start = default_start if item.start is None else _check_bound(x, item.start)
    end = default_end if item.stop is None else _check_bound(x, item.stop)
    return start, end, step


def _check_bound(x: Tensor, value: Any) -> Any:
    if isinstance(value, Symbol) or (isinstance(value, int | np.integer) and not isinstance(value, bool)):
        return value
    raise ModelError(f"the bounds of a slice of {x.name!r} must be integers or tensors of the graph; got {value!r}")


def _gather(x: Tensor, items: Sequence[_Item]) -> Tensor:
    """Select elements by index arrays, broadcast against each other."""
    if len(items) == 1:
        return emit("Gather", x, _to_int64(items[0].index), axis=items[0].axis)
    axes = [item.axis for item in items]
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    # Several index arrays need GatherND, which indexes leading axes: move the indexed axes to the front.
    front = x if axes == list(range(len(axes))) else emit("Transpose", x, perm=[*axes, *rest])
    positions, rank = stack_indices([item.index for item in items])
    result = emit("GatherND", front, positions)
    # GatherND puts the axes of the indices in front. NumPy does so only if the indexed axes are not adjacent.
    are_adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if not are_adjacent or axes[0] == 0:
        return result
    # From (*index axes, *other axes): the index axes belong where the first indexed axis was.
    order = [*range(rank, rank + axes[0]), *range(rank), *range(rank + axes[0], rank + len(rest))]
    return emit("Transpose", result, perm=order)


def stack_indices(indices: Sequence[Any]) -> tuple[Any, int]:
    """Broadcast the index arrays and stack them along a new last axis; also return their rank before stacking."""
    rank = max(np.ndim(item) if not isinstance(item, Symbol) else item.ndim for item in indices)
    if not any(isinstance(item, Symbol) for item in indices):
        return np.stack(_broadcast(indices), axis=-1).astype(np.int64), rank
    tensors = [_to_int64(item) for item in indices]
    # The shapes of `indices`, not of `tensors`: without type inference, the results of the casts have no known rank.
    shapes = {item.shape if isinstance(item, Symbol) else np.shape(item) for item in indices}
    if len(shapes) > 1 or any(None in shape for shape in shapes):
        shape = emit("Shape", emit("Max", *tensors))  # Max broadcasts; only the shape of its result is used
        tensors = [emit("Expand", tensor, shape) for tensor in tensors]
    return emit("Concat", *[unsqueeze(tensor, [-1]) for tensor in tensors], axis=-1), rank


def _broadcast(indices: Sequence[Any]) -> Sequence[np.ndarray[Any, Any]]:
    try:
        return np.broadcast_arrays(*indices)
    except ValueError as error:
        shapes = ", ".join(str(np.shape(item)) for item in indices)
        raise ModelError(f"the index arrays have shapes {shapes}, which do not broadcast") from error


def _to_int64(item: Any) -> Tensor:
    """Convert indices to int64, which all gather operators accept."""
    indices = item if isinstance(item, Symbol) else np.asarray(item, np.int64)
    return cast(get_builder("an index").symbol(indices), DType.INT64)


Method: TypeAlias = "Callable[[Tensor, Operand], Tensor]"


def _make_operator(symbol: str) -> tuple[Method, Method]:
    """Make the methods of a binary operator: with the tensor as left operand, and as right operand (``__radd__``)."""

    def left(self: Tensor, other: Operand) -> Tensor:
        return numerics.apply_binary(symbol, self, other) if numerics.is_operand(other) else NotImplemented

    def right(self: Tensor, other: Operand) -> Tensor:
        return numerics.apply_binary(symbol, other, self) if numerics.is_operand(other) else NotImplemented

    return left, right


def _make_reduction(op_type: str, doc: str) -> Callable[..., Tensor]:
    """Make the method of a reduction."""

    def reduction(self: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        return _reduce(self, op_type, axis, keepdims)

    reduction.__doc__ = doc
    return reduction


class Tensor(Symbol):
    """A value of the graph being traced: a type and a name, without data.

    Python's operators and indexing follow NumPy: a Python number adopts the type of the tensor, two tensors are promoted as in
    NumPy, ``//`` floors and ``%`` has the sign of the divisor. Operations that need data (``bool(x)``, ``float(x)``, iteration)
    raise ModelError.
    """

    __slots__ = ()
    __array_ufunc__ = None  # so that NumPy defers `array * tensor` to Tensor.__rmul__

    __hash__ = object.__hash__  # == records a node, so tensors hash by identity
    __add__, __radd__ = _make_operator("+")
    __sub__, __rsub__ = _make_operator("-")
    __mul__, __rmul__ = _make_operator("*")
    __truediv__, __rtruediv__ = _make_operator("/")
    __floordiv__, __rfloordiv__ = _make_operator("//")
    __mod__, __rmod__ = _make_operator("%")
    __pow__, __rpow__ = _make_operator("**")
    __matmul__, __rmatmul__ = _make_operator("@")
    __eq__ = _make_operator("==")[0]  # type: ignore[assignment]  # as in NumPy
    __ne__ = _make_operator("!=")[0]  # type: ignore[assignment]  # as in NumPy
    __lt__, __gt__ = _make_operator("<")[0], _make_operator(">")[0]
    __le__, __ge__ = _make_operator("<=")[0], _make_operator(">=")[0]
    __and__, __rand__ = _make_operator("&")
    __or__, __ror__ = _make_operator("|")
    __xor__, __rxor__ = _make_operator("^")
    __lshift__, __rlshift__ = _make_operator("<<")
    __rshift__, __rrshift__ = _make_operator(">>")

    def __neg__(self) -> Tensor:
        return numerics.negative(self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return numerics.absolute(self)

    def __invert__(self) -> Tensor:
        return numerics.invert(self)

    # ------------------------------------------------------------------ shape and type

    def __getitem__(self, key: Any) -> Tensor:
        """Index as NumPy does; raises ModelError for keys that NumPy rejects or that ONNX has no operators for."""
        key_items = key if isinstance(key, tuple) else (key,)
        keys = [_normalize_item(self, item) for item in key_items]
        items, new_axes = _assign_axes(self, keys)
        for item in items:
            _check_range(self, item)
        arrays = [item for item in items if isinstance(item.index, Symbol | np.ndarray)]
        if not arrays:
            return unsqueeze(_slice(self, items), new_axes)
        # As in NumPy, an integer next to arrays is a 0-d array and broadcasts with them.
        gathered = [item for item in items if not isinstance(item.index, slice)]
        cut = _slice(self, [item for item in items if isinstance(item.index, slice)])
        return _gather(unsqueeze(cut, new_axes), [_Item(_shift_axis(i.axis, new_axes), i.index) for i in gathered])

    @property
    def T(self) -> Tensor:  # noqa: N802  # as NumPy calls it
        """The tensor with its axes reversed."""
        return self.transpose()

    def transpose(self, *axes: Any) -> Tensor:
        """Permute the axes; reverses them by default."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
        return emit("Transpose", self, perm=[_normalize_axis(self, axis) for axis in order] or None)

    def reshape(self, *shape: Any) -> Tensor:
        """Change the shape. Extents are integers, -1 at most once, symbolic extents of this tensor, or 0-d tensors."""
        if len(shape) == 1 and isinstance(shape[0], Tensor) and shape[0].ndim == 1:
            return emit("Reshape", self, cast(shape[0], DType.INT64))
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = tuple(shape[0])
        has_zero = any(not isinstance(item, Symbol) and item == 0 for item in shape)
        extents = integers([_make_extent(self, item, index, has_zero) for index, item in enumerate(shape)])
        return emit("Reshape", self, extents, allowzero=1 if has_zero else None)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Convert to an element type: a DType, a NumPy type, or a name such as ``"float32"``."""
        return numerics.cast(self, dtype)

    sum = _make_reduction("ReduceSum", "Sum over the axes; integers are summed in 64 bits, as in NumPy.")
    prod = _make_reduction("ReduceProd", "Product over the axes; integers are multiplied in 64 bits, as in NumPy.")
    mean = _make_reduction("ReduceMean", "Mean over the axes; in float64 for integers, as in NumPy.")
    max = _make_reduction("ReduceMax", "Maximum over the axes.")
    min = _make_reduction("ReduceMin", "Minimum over the axes.")

    # ------------------------------------------------------------------ operations that need data

    def __len__(self) -> int:
        extent = self.shape[0] if self.shape else None
        if not isinstance(extent, int):
            raise ModelError(f"len() of {self.value} is not known while the graph is traced; xrt.ops.Shape computes it")
        return extent

    def __bool__(self) -> NoReturn:  # noqa: PLE0304  # there is no truth to return
        self._refuse(
            "its truth value is used (by if, while, and, or, not, in)", "use xrt.ops.If or xrt.ops.Where; & | ~ for and, or, not"
        )

    def __iter__(self) -> NoReturn:
        self._refuse("it is iterated over", "use x[i] for the parts you need, xrt.ops.Split, or xrt.ops.Loop and xrt.ops.Scan")

    def __int__(self) -> NoReturn:
        self._refuse("it is converted to an int", "keep it a tensor, or convert it with .astype")

    def __float__(self) -> NoReturn:
        self._refuse("it is converted to a float", "keep it a tensor, or convert it with .astype")

    def __index__(self) -> NoReturn:  # noqa: PLE0305  # as above
        self._refuse("it is used as a Python integer", "keep it a tensor; slices and indices of tensors may be tensors")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("NumPy reads its numbers", "use xrt.ops and Python's operators instead of NumPy's functions")

    def _refuse(self, problem: str, advice: str) -> NoReturn:
        raise ModelError(f"{self.value} has no numbers while the graph is traced, but {problem}; {advice}")
