"""The array namespace of PyTorch: NumPy's functions by name, for plain tensors, and the methods of `ArrayNamespace`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from xrt.engines.kernels.arrays import NARROW_FLOATS, apply_negative_pads
from xrt.engines.kernels.namespace import ArrayNamespace
from xrt.engines.kernels.windows import convolve, fold, max_windows, pad_windows
from xrt.engines.torch.dtypes import COMPLEX, NATIVE, get_torch_dtype, make_from_numpy
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, States
    from xrt.operators.windows import Placement, Window

Tensor = Any
"""A tensor of PyTorch."""
Axes = int | Sequence[int] | None

_DTYPES: dict[Any, torch.dtype] = {
    **{dtype.numpy: get_torch_dtype(dtype) for dtype in DType if dtype is not DType.STRING},
    **{dtype.numpy.type: torch_dtype for dtype, torch_dtype in {**NATIVE, **COMPLEX}.items()},
    bool: torch.bool,
    None: torch.float64,
}
"""PyTorch's types by NumPy's. None is the default of NumPy's functions, float64."""
_DTYPE_KINDS: dict[Any, str] = {get_torch_dtype(dtype): dtype.numpy.kind for dtype in (*NATIVE, *COMPLEX)} | {torch.bfloat16: "f"}
"""NumPy's letter for the kind of a dtype, by PyTorch's dtype."""
_CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_POOL: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def is_integral(x: Tensor) -> bool:
    """Whether the elements of a tensor are integers or booleans."""
    return not x.dtype.is_floating_point


def make_nonnegative(indices: Tensor, extent: int) -> Tensor:
    """Convert indices of an axis with this extent to int64, and negative indices, which count from the end, to positive ones."""
    return torch.where(indices < 0, indices + extent, indices).long()


def _list_axes(x: Tensor, axis: Axes) -> list[int]:
    if axis is None:
        return list(range(x.ndim))
    axes = (axis,) if isinstance(axis, int) else axis
    return [index % x.ndim for index in axes]


class TorchNamespace:
    """NumPy's functions on tensors, and the methods of `ArrayNamespace`. Names that are not defined here are PyTorch's."""

    narrow = NARROW_FLOATS | {torch.float16, torch.bfloat16}
    product_dtype = torch.int32
    resize_dtype = torch.float32
    constants = ArrayNamespace(np)
    equal = staticmethod(torch.eq)
    copy = staticmethod(torch.clone)
    clip = staticmethod(torch.clamp)
    rint = staticmethod(torch.round)
    mod = staticmethod(torch.remainder)

    def __getattr__(self, name: str) -> Any:
        # Stored, so that the next access does not reach this method.
        value = getattr(torch, name)
        setattr(self, name, value)
        return value

    def dtype_kind(self, x: Tensor) -> str:
        return _DTYPE_KINDS.get(x.dtype) or str(x.dtype.kind)

    def get_extreme_value(self, dtype: torch.dtype, *, lowest: bool) -> Any:
        if dtype is torch.bool:
            return not lowest
        if dtype.is_floating_point:
            return float("-inf") if lowest else float("inf")
        info = torch.iinfo(dtype)
        return info.min if lowest else info.max

    def astype(self, x: Tensor, dtype: Any) -> Tensor:
        return x.to(_DTYPES.get(dtype, dtype))

    def convert(self, x: Tensor, to: DType, saturate: bool = True, round_mode: str = "up") -> Tensor:
        from xrt.engines.torch.kernels import convert

        return convert(x, None, to, saturate)

    def make_sizes(self, sizes: Any) -> Tensor:
        return torch.tensor(sizes, dtype=torch.int64)

    def asarray(self, value: Any, dtype: Any = None) -> Tensor:
        # An array first becomes a tensor of the type that represents its element type (see `dtypes`).
        if isinstance(value, np.ndarray):
            value = make_from_numpy(DType.from_array(value))(np.ascontiguousarray(value))
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value, dtype=None if dtype is None else _DTYPES.get(dtype, dtype))
        return value if dtype is None else self.astype(value, dtype)

    def zeros(self, shape: Any, dtype: Any = None) -> Tensor:
        return torch.zeros(shape, dtype=_DTYPES.get(dtype, dtype))

    def ones(self, shape: Any, dtype: Any = None) -> Tensor:
        return torch.ones(shape, dtype=_DTYPES.get(dtype, dtype))

    def empty(self, shape: Any, dtype: Any = None) -> Tensor:
        return torch.empty(shape, dtype=_DTYPES.get(dtype, dtype))

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Tensor:
        return torch.full((shape,) if isinstance(shape, int) else tuple(shape), value, dtype=_DTYPES.get(dtype, dtype))

    def arange(self, count: int, dtype: Any = np.int64) -> Tensor:
        return torch.arange(count, dtype=_DTYPES.get(dtype, dtype))

    def eye(self, rows: int, columns: int, k: int = 0, dtype: Any = None) -> Tensor:
        return self.astype(torch.arange(columns) == torch.arange(rows)[:, None] + k, dtype)

    def transpose(self, x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
        return x.permute(tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))

    def expand_dims(self, x: Tensor, axis: int | Sequence[int]) -> Tensor:
        axes = (axis,) if isinstance(axis, int) else axis
        rank = x.ndim + len(axes)
        for position in sorted(index % rank for index in axes):
            x = x.unsqueeze(position)
        return x

    def squeeze(self, x: Tensor, axis: Axes = None) -> Tensor:
        if axis is None:
            return x.squeeze()
        return x.squeeze(axis if isinstance(axis, int) else tuple(axis))

    def flip(self, x: Tensor, axis: int) -> Tensor:
        return x.flip(axis)

    def concatenate(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat(tuple(parts), axis)

    def stack(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.stack(tuple(parts), axis)

    def split(self, x: Tensor, count: int, axis: int = 0) -> Any:
        return x.tensor_split(count, axis)

    def repeat(self, x: Tensor, count: int, axis: int | None = None) -> Tensor:
        return x.repeat_interleave(count, axis)

    def pad_axes(self, x: Tensor, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Tensor:
        x, remaining = apply_negative_pads(x, pads, axes)
        if not any(begin or end for begin, end in remaining):
            return x
        if mode == "constant":
            # PyTorch lists (begin, end) of the last axis first.
            return functional.pad(x, list(chain.from_iterable(reversed(remaining))), value=value)
        for axis, (begin, end) in enumerate(remaining):
            if begin or end:
                positions = torch.arange(-begin, x.shape[axis] + end)
                x = x.index_select(axis, _map_padded_indices(positions, x.shape[axis], mode))
        return x

    def maximum(self, a: Tensor, b: Any, out: Tensor = None) -> Tensor:
        return torch.maximum(a, b, out=out) if isinstance(b, torch.Tensor) else torch.clamp(a, min=b)

    def minimum(self, a: Tensor, b: Any, out: Tensor = None) -> Tensor:
        return torch.minimum(a, b, out=out) if isinstance(b, torch.Tensor) else torch.clamp(a, max=b)

    def sign(self, x: Tensor) -> Tensor:
        """Compute signs. The sign of NaN is NaN, as in NumPy; PyTorch's is zero."""
        return torch.sign(x) if is_integral(x) else torch.where(torch.isnan(x), x, torch.sign(x))

    def logaddexp(self, x: Tensor, y: Any) -> Tensor:
        return torch.logaddexp(x, y if isinstance(y, torch.Tensor) else torch.full((), y, dtype=x.dtype))

    def left_shift(self, x: Tensor, amount: Tensor) -> Tensor:
        return torch.bitwise_left_shift(x, amount.to(x.dtype))

    def right_shift(self, x: Tensor, amount: Tensor) -> Tensor:
        return torch.bitwise_right_shift(x, amount.to(x.dtype))

    def einsum(self, equation: str, *operands: Tensor, optimize: bool = False) -> Tensor:
        return torch.einsum(equation, *operands)

    def sum(self, x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return x if axis == () or not x.ndim else torch.sum(x, _list_axes(x, axis), keepdims)

    def mean(self, x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
        x = x.double() if is_integral(x) else x
        return x if axis == () or not x.ndim else torch.mean(x, _list_axes(x, axis), keepdims)

    def var(self, x: Tensor, axis: Axes = None) -> Tensor:
        return torch.var(x, _list_axes(x, axis), correction=0)

    def max(self, x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return x if axis == () or not x.ndim else torch.amax(x, _list_axes(x, axis), keepdims)

    def min(self, x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return x if axis == () or not x.ndim else torch.amin(x, _list_axes(x, axis), keepdims)

    def prod(self, x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
        # PyTorch multiplies along one axis at a time. The last axis comes first, so that the indices of the others stay valid.
        for index in sorted(_list_axes(x, axis), reverse=True):
            x = torch.prod(x, index, keepdims, dtype=x.dtype)
        return x

    def cumsum(self, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
        return torch.cumsum(x, axis, dtype=_DTYPES.get(dtype, dtype) if dtype else None)

    def cumprod(self, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
        return torch.cumprod(x, axis, dtype=_DTYPES.get(dtype, dtype) if dtype else None)

    def subtract_max(self, x: Tensor, axis: int) -> Tensor:
        return x - torch.amax(x, axis, True)

    def take(self, x: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
        if axis is None:
            x, axis = x.reshape(-1), 0
        axis %= x.ndim
        # index_select accepts only a vector of indices: flatten them, then replace the axis by the axes of the indices.
        elements = x.index_select(axis, make_nonnegative(indices.reshape(-1), x.shape[axis]))
        return elements if indices.ndim == 1 else elements.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        return torch.take_along_dim(x, make_nonnegative(indices, x.shape[axis]), axis)

    def argsort_stable(self, x: Tensor, axis: int, descending: bool) -> Tensor:
        return torch.argsort(x, stable=True, dim=axis, descending=descending)

    def nonzero(self, x: Tensor) -> Any:
        return torch.nonzero(x, as_tuple=True)

    def compress(self, condition: Tensor, x: Tensor, axis: int | None = None) -> Tensor:
        indices = condition.nonzero()[:, 0]
        return x.reshape(-1).index_select(0, indices) if axis is None else x.index_select(axis, indices)

    def unique(self, x: Tensor, *returned: bool, axis: int | None = None) -> tuple[Tensor, ...]:
        values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=axis)
        # PyTorch does not return the first index of each value: compute the minimum of its indices.
        first = torch.zeros(len(counts), dtype=torch.int64)
        flat = inverse.reshape(-1)
        first.scatter_reduce_(0, flat, torch.arange(len(flat)), "amin", include_self=False)
        return values, first, inverse, counts

    def scatter(self, x: Tensor, indices: tuple[Tensor, ...], values: Tensor, reduction: str) -> Tensor:
        indices = tuple(make_nonnegative(index, n) for index, n in zip(indices, x.shape, strict=False))
        if indices:
            return _write_elements(x, indices, values, reduction)
        for value in values.reshape(-1, *x.shape).unbind():  # without indices each value is for the whole tensor
            x = value if reduction == "none" else _COMBINING_FUNCTIONS[reduction](x, value)
        return x

    def convolve(self, x: Tensor, w: Tensor, window: Window, group: int, bias: Tensor = None) -> Tensor:
        call = _CONVOLVE.get(x.ndim - 2)
        if call is None:
            return convolve(self, x, w, window, group)
        placement = window.place(x.shape[2:])
        # PyTorch's convolution pads both ends of an axis equally. Other pads are applied beforehand.
        has_equal_pads = placement.begins == placement.ends and all(n >= 0 for n in placement.begins)
        if has_equal_pads:
            return call(x, w, bias, window.strides, placement.begins, window.dilations, group)
        no_pads = (0,) * len(placement.begins)
        return call(pad_windows(self, placement, x, 0), w, bias, window.strides, no_pads, window.dilations, group)

    def sum_windows(self, x: Tensor, placement: Placement) -> Tensor:
        padded, window = pad_windows(self, placement, x, 0), placement.window
        # A mean with a divisor of 1 is a sum. PyTorch's means support no dilations.
        if len(placement.extents) == 2 and set(window.dilations) == {1}:
            return functional.avg_pool2d(padded, window.kernel, window.strides, divisor_override=1)
        total: Any = sum(padded[region] for _, region in placement.iterate_offsets())
        return total

    def max_windows(self, x: Tensor, placement: Placement) -> Tensor:
        pool, window = _POOL.get(x.ndim - 2), placement.window
        if pool is None or is_integral(x):
            return max_windows(self, x, placement)
        return pool(pad_windows(self, placement, x, float("-inf")), window.kernel, window.strides, 0, window.dilations)

    def fold(self, columns: Tensor, placement: Placement, extents: Sequence[int]) -> Tensor:
        return fold(self, columns, placement, extents)

    def scan_time(
        self, gates: Tensor, states: States, lengths: Tensor, backwards: bool, advance: Advance
    ) -> tuple[Tensor, States]:
        history: list[Tensor] = []
        last = len(gates) - 1
        times = range(last, -1, -1) if backwards else range(len(gates))
        for time in times:
            following = advance(gates[time], states)
            if lengths is None:
                states = following
                history.append(states[0])
            else:
                # After its end a sequence keeps its states, and its history is zero.
                alive = (time < lengths)[:, None]  # (batch, 1), for states (batch, hidden)
                states = tuple(torch.where(alive, new, old) for new, old in zip(following, states, strict=True))
                history.append(torch.where(alive, states[0], 0))
        if not history:
            return gates.new_zeros((0, *states[0].shape)), states
        return torch.stack(history[::-1] if backwards else history), states


def _map_padded_indices(indices: Tensor, extent: int, mode: str) -> Tensor:
    """Map indices on a padded axis, which may be outside of the data, to the elements to read, by the mode of a Pad."""
    if mode == "edge":
        return indices.clamp(0, extent - 1)
    if mode == "wrap":
        return indices.remainder(extent)
    if extent == 1:
        return torch.zeros_like(indices)
    # Reflection reads forwards and backwards without repeating the first and last element: a period of 2 * extent - 2.
    phase = indices.remainder(2 * extent - 2)
    return torch.minimum(phase, 2 * extent - 2 - phase)


_SCATTER_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}
_COMBINING_FUNCTIONS: dict[str, Any] = {"add": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum}


def _write_elements(x: Tensor, indices: tuple[Tensor, ...], values: Tensor, reduction: str) -> Tensor:
    """Copy ``x``, and write ``values`` to its elements ``x[indices]``, or combine both by a reduction other than ``"none"``."""
    if reduction == "none":
        return x.index_put(indices, values)
    if reduction == "add" and x.dtype is not torch.bool:
        return x.index_put(indices, values, accumulate=True)
    if x.dtype is torch.bool:
        # The sum of booleans is their maximum, and the product is their minimum.
        extreme = "max" if reduction in ("add", "max") else "min"
        return _write_elements(x.to(torch.uint8), indices, values.to(torch.uint8), extreme).to(torch.bool)
    # scatter_reduce has indices along one axis only: flatten the indexed axes to rows, and the other axes to columns.
    shape = x.shape
    rows = prod(shape[: len(indices)])
    strides = [prod(shape[i + 1 : len(indices)]) for i in range(len(indices))]
    flat: Any = sum(index * stride for index, stride in zip(indices, strides, strict=True))
    target = x.reshape(rows, -1)
    index = flat.reshape(-1, 1).expand(-1, target.shape[1])  # (number of updates, columns), as are the values
    parts = values.expand(*flat.shape, *shape[len(indices) :]).reshape(index.shape)
    return target.scatter_reduce(0, index, parts, _SCATTER_REDUCTIONS[reduction]).reshape(shape)


TORCH = TorchNamespace()
