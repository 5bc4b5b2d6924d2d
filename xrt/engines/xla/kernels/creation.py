"""Operators that make tensors from little or nothing; and Dropout, which only passes them on when it does not train."""

from __future__ import annotations

from math import ceil, prod
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.array_ops.precision import NARROW
from xrt.engines.xla.kernels.layout import MOST_KNOWN
from xrt.engines.xla.table import Operand, ops
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


@ops("Constant")
def constant(at: LoweringContext) -> Operand:
    value = find_constant(at.node, at.function)
    if value is None:
        raise at.refuse("of no numbers is not lowered")
    return value.array


@ops("ConstantOfShape")
def constant_of_shape(at: LoweringContext, shape: Operand) -> Operand:
    extents, given = at.ints(shape, 0), at.attr("value")
    value = np.zeros((), np.float32) if given is None else given.array.reshape(())
    xp: Any = np if prod(extents) <= MOST_KNOWN else jnp
    return xp.full(extents, value, dtype=value.dtype)


@ops("EyeLike")
def eye_like(at: LoweringContext, x: Operand) -> Operand:
    return np.eye(x.shape[0], x.shape[1], k=at.attr("k", 0), dtype=at.dtype("dtype", x.dtype))


@ops("Range")
def range_(at: LoweringContext, start: Operand, limit: Operand, delta: Operand) -> Operand:
    """Element i is ``start + i * delta``, in float32 for narrower floats."""
    first, end, step = (at.get_constant(v, i).reshape(()).item() for i, v in enumerate((start, limit, delta)))
    count = max(0, ceil((end - first) / step))
    wide = np.dtype(np.float32) if start.dtype in NARROW else start.dtype
    xp: Any = np if count <= MOST_KNOWN else jnp
    return (wide.type(first) + xp.arange(count, dtype=wide) * wide.type(step)).astype(start.dtype)


@ops("Dropout", since=7)
def dropout(at: LoweringContext, x: Operand, ratio: Operand = None, training: Operand = None) -> Operand:
    """Versions before 10 have a mask of x's type."""
    mask = jnp.ones(x.shape, bool if at.version >= 10 else x.dtype)
    return (x, mask) if at.wants(1) else x
