"""The gradient of a convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from xrt.engines.kernels.convolution import with_bias
from xrt.engines.toolkit.array_ops.precision import round_once
from xrt.engines.toolkit.array_ops.windows import Window, compute_padding_trims, make_window
from xrt.engines.xla.kernels.layout import apply_padding
from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


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
