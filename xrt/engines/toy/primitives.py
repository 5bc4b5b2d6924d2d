"""What the shared kernels leave to the engine, for NumPy and CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from xrt.engines.kernels.reduction import greatest
from xrt.engines.toy.kernels.layout import apply_padding, conversion
from xrt.engines.toy.kernels.special import erf
from xrt.engines.toy.kernels.windows import convolve, fold, sum_windows
from xrt.engines.toy.products import multiply

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, Array, States
    from xrt.engines.toolkit.array_ops.windows import Placement, Window
    from xrt.graph import DType

__all__ = ["ArrayPrimitives"]


@dataclass(frozen=True, slots=True)
class ArrayPrimitives:
    """The primitives over an array module whose arrays can be written to."""

    xp: Any
    exact: ClassVar[Any] = np.float64
    """Products of 8-bit numbers, summed in it, are exact: no sum comes near 2**53. And BLAS has no integers."""

    def erf(self, x: Array) -> Array:
        return erf(self.xp, x)

    def matmul(self, a: Array, b: Array) -> Array:
        return multiply(self.xp, a, b)

    def convert(self, x: Array, to: DType, saturate: bool) -> Array:
        return conversion(to, saturate)(x)

    def subtract_max(self, x: Array, axis: int) -> Array:
        return x - greatest(self.xp, x, axis, True)

    def convolve(self, x: Array, w: Array, window: Window, group: int) -> Array:
        return convolve(self.xp, x, w, window, group)

    def sum_windows(self, x: Array, place: Placement) -> Array:
        return sum_windows(self.xp, x, place)

    def fold(self, columns: Array, place: Placement, extents: Sequence[int]) -> Array:
        return fold(self.xp, columns, place, extents)

    def pad(self, x: Array, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Array:
        return apply_padding(self.xp, x, pads, mode, value, axes)

    def scatter(self, x: Array, places: tuple[Array, ...], values: Array, reduction: str, out: Array | None = None) -> Array:
        if out is None:
            out = x.copy()
        elif not _is_same(x, out):
            out[...] = x
        if reduction == "none":
            out[places] = values
        else:
            names = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}
            getattr(self.xp, names[reduction]).at(out, places, values)
        return out

    def walk(self, gates: Array, states: States, lengths: Array, backwards: bool, advance: Advance) -> tuple[Array, States]:
        xp, steps = self.xp, len(gates)
        history = xp.zeros((steps, *states[0].shape), dtype=states[0].dtype)
        for t in range(steps - 1, -1, -1) if backwards else range(steps):
            alive = (t < lengths)[:, None]
            following = advance(gates[t], states)
            states = tuple(xp.where(alive, new, old) for new, old in zip(following, states, strict=True))
            history[t] = xp.where(alive, states[0], 0)
        return history, states


def _is_same(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape are the same elements of the same memory."""
    first, second = (getattr(x, "__array_interface__", None) or x.__cuda_array_interface__ for x in (a, b))
    return bool(first["data"][0] == second["data"][0] and a.strides == b.strides)
