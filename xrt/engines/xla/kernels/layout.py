"""Operators that repeat elements, clear a triangle of them, or put others around them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.toolkit.array_ops.elements import NARROW, trim
from xrt.engines.xla.table import Operand, either, ops
from xrt.graph import DType
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__ = ["MOST_KNOWN", "apply_padding", "convert"]


@ops("Expand")
def expand(at: LoweringContext, x: Operand, target: Operand) -> Operand:
    extents = np.broadcast_shapes(x.shape, at.ints(target, 1))
    return (np if _is_few(x, extents) else jnp).broadcast_to(x, extents)


MOST_KNOWN = 1024
"""Elements up to which what is made of something known is known as well."""


def _is_few(x: Operand, extents: Sequence[int]) -> bool:
    return isinstance(x, np.ndarray) and prod(extents) <= MOST_KNOWN


@ops("Tile", since=6)
def tile(at: LoweringContext, x: Operand, repeats: Operand) -> Operand:
    counts = at.ints(repeats, 1)
    few = isinstance(x, np.ndarray) and x.size * prod(counts) <= MOST_KNOWN
    return (np if few else jnp).tile(x, counts)


@ops("Trilu")
def trilu(at: LoweringContext, x: Operand, k: Operand = None) -> Operand:
    """Element (i, j) belongs to the upper triangle where ``j - i >= k``, to the lower where ``j - i <= k``."""
    offset = 0 if k is None else k.reshape(())
    ahead = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    return jnp.where(ahead >= offset if at.attr("upper", 1) else ahead <= offset, x, jnp.zeros((), x.dtype))


def apply_padding(x: Operand, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Operand:
    """Return the tensor with ``pads`` (all begins, then all ends) elements more at each axis; fewer where negative."""
    x, more = trim(x, pads, axes)
    if mode == "constant":
        return jnp.pad(x, more, constant_values=value)
    return jnp.pad(x, more, mode=mode)


@ops("Pad", since=2, until=10)
def pad_by_attributes(at: LoweringContext, x: Operand) -> Operand:
    return apply_padding(x, at.attr("pads"), at.attr("mode", "constant"), at.attr("value", 0.0))


@ops("Pad", since=11)
def pad(at: LoweringContext, x: Operand, pads: Operand, value: Operand = None, axes: Operand = None) -> Operand:
    fill = 0 if value is None else value.reshape(())
    return apply_padding(x, at.ints(pads, 1), at.attr("mode", "constant"), fill, None if axes is None else at.ints(axes, 3))


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


def count_from_start(indices: Operand, extent: int) -> Operand:
    """Return indices of which negative ones counted from the end."""
    return jnp.where(indices < 0, indices + extent, indices)


@ops("Gather")
@either
def gather(at: LoweringContext, x: Operand, indices: Operand) -> Operand:
    axis = at.attr("axis", 0)
    if at.xp is np:
        return np.take(x, indices, axis=axis)
    return jnp.take(x, count_from_start(indices, x.shape[axis]), axis=axis, mode="clip")


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(at: LoweringContext, x: Operand, indices: Operand) -> Operand:
    picked = jnp.take(x, count_from_start(indices.reshape(-1), x.shape[-1]), axis=-1, mode="clip")
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@ops("OneHot")
def one_hot(at: LoweringContext, indices: Operand, depth: Operand, values: Operand) -> Operand:
    count, axis = at.ints(depth, 1)[0], at.attr("axis", -1)
    rank = indices.ndim + 1
    whole = indices.astype(jnp.int64)
    classes = jnp.arange(count).reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    hits = jnp.expand_dims(count_from_start(whole, count), axis) == classes
    return jnp.where(hits, values[1], values[0])


def _top(x: Operand, k: int, axis: int, largest: bool) -> tuple[Operand, Operand]:
    """Return the k extreme elements along an axis, in order, and their places; equal elements by place, NaN last as greatest."""
    along = axis % x.ndim
    order = jnp.argsort(x, axis=along, stable=True, descending=largest)
    order = jnp.take(order, jnp.arange(k), axis=along)
    return jnp.take_along_axis(x, order, axis=along), order.astype(np.int64)


@ops("TopK", until=9)
def top_k_by_attribute(at: LoweringContext, x: Operand) -> tuple[Operand, Operand]:
    return _top(x, at.attr("k"), at.attr("axis", -1), largest=True)


@ops("TopK", since=10)
def top_k(at: LoweringContext, x: Operand, k: Operand) -> tuple[Operand, Operand]:
    return _top(x, at.ints(k, 1)[0], at.attr("axis", -1), bool(at.attr("largest", 1)))


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
