"""Conversion between element types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.table import Operand, either, ops
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["convert"]

SATURABLE = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ})
"""Types for which ONNX says whether what is too large becomes the largest number."""


def convert(xp: Any, x: Operand, to: DType, saturate: bool = True) -> Operand:
    """Return the tensor in that type, as ONNX's Cast converts it."""
    if to.numpy == x.dtype:
        return x
    if to is DType.BOOL:
        return x != 0
    if to in SATURABLE and saturate:
        most = float(jnp.finfo(to.numpy).max)
        x = xp.clip(x.astype(np.float32) if x.dtype.itemsize < 4 else x, -most, most)
    if to.is_integer and to.bits < 8:
        x = x.astype(np.int32)  # whole numbers keep their lowest bits, as ONNX says; XLA would saturate a float
    if x.dtype == np.bool_ and to.is_float:
        # XLA takes a product with a converted truth value for a choice of zero, though NaN times zero is NaN.
        return xp.where(x, to.numpy.type(1), to.numpy.type(0))
    return x.astype(to.numpy)


@ops("Cast", since=6)
@either
def cast(at: LoweringContext, x: Operand) -> Operand:
    return convert(at.xp, x, DType.from_onnx(at.attr("to")), bool(at.attr("saturate", 1)))


@ops("CastLike")
@either
def cast_like(at: LoweringContext, x: Operand, like: Operand) -> Operand:
    return convert(at.xp, x, DType.of(like), bool(at.attr("saturate", 1)))


@ops("BitCast")
def bit_cast(at: LoweringContext, x: Operand) -> Operand:
    return jax.lax.bitcast_convert_type(x, at.dtype("to"))
