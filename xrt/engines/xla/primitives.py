"""What the shared kernels leave to the engine, in operations of XLA's; all of it can be traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.kernels.layout import apply_padding, convert

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, States
    from xrt.engines.toolkit.array_ops.windows import Placement, Window
    from xrt.engines.xla.table import Operand
    from xrt.graph import DType

__all__ = ["PRIMITIVES", "XlaPrimitives"]


class XlaPrimitives:
    """The primitives; they have no state."""

    exact: Any = np.int32

    def erf(self, x: Operand) -> Operand:
        return jax.lax.erf(x)

    def matmul(self, a: Operand, b: Operand) -> Operand:
        return jnp.matmul(a, b)

    def convert(self, x: Operand, to: DType, saturate: bool) -> Operand:
        return convert(jnp, x, to, saturate)

    def subtract_max(self, x: Operand, axis: int) -> Operand:
        """The greatest itself gives exactly zero.

        If x is a product, XLA computes it again for the difference, within an FMA and so unrounded: for large numbers, the
        greatest would be hundreds away from itself.
        """
        top = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
        return jnp.where(x == top, top - top, x - top)

    def convolve(self, x: Operand, w: Operand, window: Window, group: int) -> Operand:
        return jax.lax.conv_general_dilated(
            jnp.asarray(x),
            jnp.asarray(w),
            window.strides,
            window.over(x.shape[2:]).pads,
            rhs_dilation=window.dilations,
            feature_group_count=group,
            precision=jax.lax.Precision.HIGHEST,
        )

    def sum_windows(self, x: Operand, place: Placement) -> Operand:
        return combine_windows(place, x, jax.lax.add, 0)

    def fold(self, columns: Operand, place: Placement, extents: Sequence[int]) -> Operand:
        out: Any = jnp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
        for offset, picked in place.offsets():
            out = out.at[picked].add(columns[(slice(None), slice(None), *offset)])
        return out

    def pad(self, x: Operand, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Operand:
        return apply_padding(x, pads, mode, value, axes)

    def scatter(self, x: Operand, places: tuple[Operand, ...], values: Operand, reduction: str) -> Operand:
        target: Any = jnp.asarray(x).at[places]
        write = {"none": target.set, "add": target.add, "mul": target.multiply, "min": target.min, "max": target.max}[reduction]
        return write(values)

    def walk(self, gates: Operand, states: States, lengths: Operand, backwards: bool, advance: Advance) -> tuple[Operand, States]:
        def step(states: States, now: tuple[Operand, Operand]) -> tuple[States, Operand]:
            time, part = now
            alive = (time < lengths)[:, None]
            following = advance(part, states)
            states = tuple(jnp.where(alive, new, old) for new, old in zip(following, states, strict=True))
            return states, jnp.where(alive, states[0], 0)

        first = tuple(map(jnp.asarray, states))
        last, history = jax.lax.scan(step, first, (jnp.arange(len(gates)), gates), reverse=backwards)
        return history, last


PRIMITIVES = XlaPrimitives()


def around(place: Placement, x: Operand, fill: Any) -> Operand:
    """Return the tensor (..., *spatial) with its padding."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(place.extents)) + place.pads, constant_values=fill)


def combine_windows(place: Placement, x: Operand, combine: Any, neutral: Any) -> Operand:
    """Return (N, C, *spatial) with what each window sees combined, ``neutral`` being what padding is."""
    window = place.window
    return jax.lax.reduce_window(
        x,
        np.asarray(neutral, x.dtype),
        combine,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        [(0, 0), (0, 0), *place.pads],
        window_dilation=(1, 1, *window.dilations),
    )
