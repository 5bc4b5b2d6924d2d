"""Convolutions."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from xrt.engines.toolkit.array_ops.precision import round_once
from xrt.engines.toolkit.array_ops.windows import Window, compute_padding_trims, make_window
from xrt.engines.xla.kernels.layout import apply_padding
from xrt.engines.xla.kernels.windows import fold
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["convolve", "with_bias"]


def convolve(x: Operand, w: Operand, window: Window, group: int) -> Operand:
    """Return the convolution of (N, C, *spatial) by (M, C/group, *kernel), summed in the tensors' own type."""
    place = window.over(x.shape[2:])
    return jax.lax.conv_general_dilated(
        jnp.asarray(x),
        jnp.asarray(w),
        window.strides,
        place.pads,
        rhs_dilation=window.dilations,
        feature_group_count=group,
        precision=jax.lax.Precision.HIGHEST,
    )


def with_bias(y: Operand, bias: Operand) -> Operand:
    """Add one number per channel."""
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))


@ops("Conv")
def conv(at: LoweringContext, x: Operand, w: Operand, bias: Operand = None) -> Operand:
    window, group = make_window(at.node, w.shape[2:]), at.attr("group", 1)
    return round_once(lambda x, w, bias: with_bias(convolve(x, w, window, group), bias))(x, w, bias)


@ops("ConvTranspose")
def conv_transpose(at: LoweringContext, x: Operand, w: Operand, bias: Operand = None) -> Operand:
    """The gradient of a convolution: a convolution of x spread out by the strides, with the kernel turned around."""
    window, group = make_window(at.node, w.shape[2:]), at.attr("group", 1)

    def compute(x: Operand, w: Operand, bias: Operand) -> Operand:
        whole = _transposed(x, w, window, group)
        pads = compute_padding_trims(at.node, window, whole.shape[2:], x.shape[2:])
        return with_bias(apply_padding(whole, pads, "constant", 0, range(2, x.ndim)), bias)

    return round_once(compute)(x, w, bias)


def _transposed(x: Operand, w: Operand, window: Window, group: int) -> Operand:
    """Return everything that the windows laid down by the elements of x reach."""
    parts = jnp.asarray(w).reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    turned = jnp.flip(parts.reshape(-1, *parts.shape[2:]), range(2, w.ndim))
    return jax.lax.conv_general_dilated(
        jnp.asarray(x),
        turned,
        (1,) * len(window.kernel),
        [(span - 1, span - 1) for span in window.spans],
        lhs_dilation=window.strides,
        rhs_dilation=window.dilations,
        feature_group_count=group,
        precision=jax.lax.Precision.HIGHEST,
    )


@ops("Col2Im")
def col2im(at: LoweringContext, x: Operand, extents: Operand, kernel: Operand) -> Operand:
    """Columns of windows back to images: what overlaps is summed."""
    window, sizes = make_window(at.node, at.ints(kernel, 2)), at.ints(extents, 1)
    place = window.over(sizes)
    columns = x.reshape(len(x), x.shape[1] // prod(window.kernel), *window.kernel, *place.positions)
    whole = fold(columns, place, [b + n + e for b, n, e in zip(place.begins, sizes, place.ends, strict=True)])
    return whole[(..., *(slice(b, b + n) for b, n in zip(place.begins, sizes, strict=True)))]
