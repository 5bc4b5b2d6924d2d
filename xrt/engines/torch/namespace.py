"""The array namespace of PyTorch: NumPy's functions by name over plain tensors, with the methods of `ArrayNamespace`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from xrt.engines.kernels.arrays import NARROW, trim
from xrt.engines.kernels.namespace import ArrayNamespace
from xrt.engines.kernels.windows import convolve, fold, max_windows
from xrt.engines.torch.dtypes import COMPLEX, DIRECT, from_numpy, get_torch_dtype
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, States
    from xrt.operators.windows import Placement, Window


Tensor = Any
"""A tensor of PyTorch."""
Axes = int | Sequence[int] | None

_DTYPES: dict[Any, torch.dtype] = {
    **{dtype.numpy: get_torch_dtype(dtype) for dtype in DType if dtype is not DType.STRING},
    **{dtype.numpy.type: kind for dtype, kind in {**DIRECT, **COMPLEX}.items()},
    bool: torch.bool,
    None: torch.float64,
}
"""PyTorch's types by NumPy's; NumPy's own default is float64."""
_KINDS = {
    kind: "b" if kind is torch.bool else "c" if kind.is_complex else "f" if kind.is_floating_point else "iu"[not kind.is_signed]
    for kind in (*DIRECT.values(), *COMPLEX.values())
}
_CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_POOL: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def is_integral(x: Tensor) -> bool:
    """Whether a tensor has integers or booleans."""
    return not x.dtype.is_floating_point


def count_from_start(indices: Tensor, extent: int) -> Tensor:
    """Indices as int64; negative ones count from the end."""
    return torch.where(indices < 0, indices + extent, indices).long()


def _list_axes(x: Tensor, axis: Axes) -> list[int]:
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return [index % x.ndim for index in axes]


class TorchNamespace:
    """NumPy's functions on tensors; names that are not defined here are PyTorch's functions of the same name."""

    narrow = NARROW | {torch.float16, torch.bfloat16}
    exact = torch.int32
    wide = torch.float32
    constants = ArrayNamespace(np)
    equal = staticmethod(torch.eq)

    def __getattr__(self, name: str) -> Any:
        # Stored, so that the next access does not come here.
        value = getattr(torch, name)
        setattr(self, name, value)
        return value

    # ------------------------------------------------------------------ element types

    def kind(self, x: Tensor) -> str:
        return _KINDS.get(x.dtype) or x.dtype.kind

    def extreme(self, dtype: torch.dtype, *, lowest: bool) -> Any:
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

    # ------------------------------------------------------------------ new tensors

    def sizes(self, sizes: Any) -> Tensor:
        return torch.tensor(sizes, dtype=torch.int64)

    def asarray(self, value: Any, dtype: Any = None) -> Tensor:
        if isinstance(value, np.ndarray):
            value = from_numpy(DType.of(value))(np.ascontiguousarray(value))
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

    def copy(self, x: Tensor) -> Tensor:
        return x.clone()

    # ------------------------------------------------------------------ axes

    def transpose(self, x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
        return x.permute(tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))

    def expand_dims(self, x: Tensor, axis: int | Sequence[int]) -> Tensor:
        axes = (axis,) if isinstance(axis, int) else axis
        rank = x.ndim + len(axes)
        for position in sorted(index % rank for index in axes):
            x = x.unsqueeze(position)
        return x

    def squeeze(self, x: Tensor, axis: Axes = None) -> Tensor:
        return x.squeeze() if axis is None else x.squeeze(axis if isinstance(axis, int) else tuple(axis))

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
        x, remaining = trim(x, pads, axes)
        if not any(begin or end for begin, end in remaining):
            return x
        if mode == "constant":
            return functional.pad(x, [n for pair in reversed(remaining) for n in pair], value=value)
        for axis, (begin, end) in enumerate(remaining):
            if begin or end:
                x = x.index_select(axis, _mirror(torch.arange(-begin, x.shape[axis] + end), x.shape[axis], mode))
        return x

    # ------------------------------------------------------------------ element by element

    def maximum(self, a: Tensor, b: Any, out: Tensor = None) -> Tensor:
        return torch.maximum(a, b, out=out) if isinstance(b, torch.Tensor) else torch.clamp(a, min=b)

    def minimum(self, a: Tensor, b: Any, out: Tensor = None) -> Tensor:
        return torch.minimum(a, b, out=out) if isinstance(b, torch.Tensor) else torch.clamp(a, max=b)

    def clip(self, x: Tensor, low: Any, high: Any) -> Tensor:
        return torch.clamp(x, low, high)

    def rint(self, x: Tensor) -> Tensor:
        return torch.round(x)

    def mod(self, a: Tensor, b: Any) -> Tensor:
        return torch.remainder(a, b)

    def sign(self, x: Tensor) -> Tensor:
        """The sign of NaN is NaN, and zero in PyTorch."""
        return torch.sign(x) if is_integral(x) else torch.where(torch.isnan(x), x, torch.sign(x))

    def logaddexp(self, x: Tensor, y: Any) -> Tensor:
        return torch.logaddexp(x, y if isinstance(y, torch.Tensor) else torch.full((), y, dtype=x.dtype))

    def left_shift(self, x: Tensor, amount: Tensor) -> Tensor:
        return torch.bitwise_left_shift(x, amount.to(x.dtype))

    def right_shift(self, x: Tensor, amount: Tensor) -> Tensor:
        return torch.bitwise_right_shift(x, amount.to(x.dtype))

    def einsum(self, equation: str, *operands: Tensor, optimize: bool = False) -> Tensor:
        return torch.einsum(equation, *operands)

    # ------------------------------------------------------------------ reductions

    def sum(self, x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
        return x if axis == () else torch.sum(x, _list_axes(x, axis), keepdims) if x.ndim else x

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
        # PyTorch multiplies along one axis at a time; from the last one, so that the others keep their positions.
        for index in sorted(_list_axes(x, axis), reverse=True):
            x = torch.prod(x, index, keepdims, dtype=x.dtype)
        return x

    def cumsum(self, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
        return torch.cumsum(x, axis, dtype=_DTYPES.get(dtype, dtype) if dtype else None)

    def cumprod(self, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
        return torch.cumprod(x, axis, dtype=_DTYPES.get(dtype, dtype) if dtype else None)

    def subtract_max(self, x: Tensor, axis: int) -> Tensor:
        return x - torch.amax(x, axis, True)

    # ------------------------------------------------------------------ places

    def take(self, x: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
        if axis is None:
            x, axis = x.reshape(-1), 0
        axis %= x.ndim
        elements = x.index_select(axis, count_from_start(indices.reshape(-1), x.shape[axis]))
        return elements if indices.ndim == 1 else elements.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        return torch.take_along_dim(x, count_from_start(indices, x.shape[axis]), axis)

    def order(self, x: Tensor, axis: int, descending: bool) -> Tensor:
        return torch.argsort(x, stable=True, dim=axis, descending=descending)

    def nonzero(self, x: Tensor) -> Any:
        return torch.nonzero(x, as_tuple=True)

    def compress(self, condition: Tensor, x: Tensor, axis: int | None = None) -> Tensor:
        places = condition.nonzero()[:, 0]
        return x.reshape(-1).index_select(0, places) if axis is None else x.index_select(axis, places)

    def unique(self, x: Tensor, *returned: bool, axis: int | None = None) -> tuple[Tensor, ...]:
        values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=axis)
        # PyTorch does not return first positions: the least position per value.
        first = torch.zeros(len(counts), dtype=torch.int64)
        flat = inverse.reshape(-1)
        first.scatter_reduce_(0, flat, torch.arange(len(flat)), "amin", include_self=False)
        return values, first, inverse, counts

    def scatter(self, x: Tensor, places: tuple[Tensor, ...], values: Tensor, reduction: str) -> Tensor:
        places = tuple(count_from_start(place, n) for place, n in zip(places, x.shape, strict=False))
        if places:
            return _write(x, places, values, reduction)
        for value in values.reshape(-1, *x.shape).unbind():  # an index without coordinates is the whole tensor
            x = value if reduction == "none" else _COMBINE[reduction](x, value)
        return x

    # ------------------------------------------------------------------ windows and time

    def convolve(self, x: Tensor, w: Tensor, window: Window, group: int, bias: Tensor = None) -> Tensor:
        call = _CONVOLVE.get(x.ndim - 2)
        if call is None:
            return convolve(self, x, w, window, group)
        place = window.over(x.shape[2:])
        # PyTorch's padding is the same at both ends of an axis.
        even = place.begins == place.ends and all(n >= 0 for n in place.begins)
        pads = place.begins if even else (0,) * len(place.begins)
        return call(x if even else self.around(place, x, 0), w, bias, window.strides, pads, window.dilations, group)

    def around(self, place: Placement, x: Tensor, fill: float) -> Tensor:
        if not any(place.begins) and not any(place.ends):
            return x
        return functional.pad(x, [n for pair in reversed(place.pads) for n in pair], value=fill)

    def sum_windows(self, x: Tensor, place: Placement) -> Tensor:
        padded, window = self.around(place, x, 0), place.window
        # A mean with a divisor of 1 is a sum; PyTorch has no dilated means.
        if len(place.extents) == 2 and set(window.dilations) == {1}:
            return functional.avg_pool2d(padded, window.kernel, window.strides, divisor_override=1)
        total: Any = sum(padded[region] for _, region in place.offsets())
        return total

    def max_windows(self, x: Tensor, place: Placement) -> Tensor:
        pool, window = _POOL.get(x.ndim - 2), place.window
        if pool is None or is_integral(x):
            return max_windows(self, x, place)
        return pool(self.around(place, x, float("-inf")), window.kernel, window.strides, 0, window.dilations)

    def fold(self, columns: Tensor, place: Placement, extents: Sequence[int]) -> Tensor:
        return fold(self, columns, place, extents)

    def walk(self, gates: Tensor, states: States, lengths: Tensor, backwards: bool, advance: Advance) -> tuple[Tensor, States]:
        history: list[Tensor] = []
        for time in reversed(range(len(gates))) if backwards else range(len(gates)):
            following = advance(gates[time], states)
            if lengths is None:
                states = following
                history.append(states[0])
            else:
                alive = (time < lengths)[:, None]
                states = tuple(torch.where(alive, new, old) for new, old in zip(following, states, strict=True))
                history.append(torch.where(alive, states[0], 0))
        if not history:
            return gates.new_zeros((0, *states[0].shape)), states
        return torch.stack(history[::-1] if backwards else history), states


def _mirror(places: Tensor, extent: int, mode: str) -> Tensor:
    """The index that each padded position reads."""
    if mode == "edge":
        return places.clamp(0, extent - 1)
    if mode == "wrap":
        return places.remainder(extent)
    if extent == 1:
        return torch.zeros_like(places)
    # Reflection has a period of twice the extent without the ends, which are not repeated.
    around = places.remainder(2 * extent - 2)
    return torch.minimum(around, 2 * extent - 2 - around)


_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}
_COMBINE: dict[str, Any] = {"add": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum}


def _write(x: Tensor, places: tuple[Tensor, ...], values: Tensor, reduction: str) -> Tensor:
    """Write values at indices of a copy; a reduction includes repeated indices."""
    if reduction == "none":
        return x.index_put(places, values)
    if reduction == "add" and x.dtype is not torch.bool:
        return x.index_put(places, values, accumulate=True)
    rows, shape = prod(x.shape[: len(places)]), x.shape
    steps = [prod(shape[i + 1 : len(places)]) for i in range(len(places))]
    flat: Any = sum(place * step for place, step in zip(places, steps, strict=True))
    if x.dtype is torch.bool:
        wide = _write(x.to(torch.uint8), places, values.to(torch.uint8), "max" if reduction in ("add", "max") else "min")
        return wide.to(torch.bool)
    target = x.reshape(rows, -1)
    index = flat.reshape(-1, 1).expand(-1, target.shape[1])
    parts = values.expand(*flat.shape, *shape[len(places) :]).reshape(index.shape)
    return target.scatter_reduce(0, index, parts, _REDUCTIONS[reduction]).reshape(shape)


TORCH = TorchNamespace()
