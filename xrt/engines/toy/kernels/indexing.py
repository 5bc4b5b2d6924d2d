"""Operators that read at places given by indices or conditions, and that look for places."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.array_ops.elements import NARROW
from xrt.engines.toy.table import CPU, Array, Run, ops
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Node

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext


@ops("Gather")
def gather(node: Node, env: KernelContext) -> Run:
    take, axis = env.xp.take, node.attr("axis", 0)
    return lambda x, indices: take(x, indices, axis=axis)


@ops("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, env: KernelContext) -> Run:
    def run(x: Array, indices: Array) -> Array:
        picked = env.xp.take(x, indices.reshape(-1), axis=-1)
        return picked.reshape(1, -1) if x.ndim == 1 else picked

    return run


@ops("Compress")
def compress(node: Node, env: KernelContext) -> Run:
    axis = node.attr("axis")
    return lambda x, condition: env.xp.compress(condition, x, axis=axis)


@ops("NonZero")
def non_zero(node: Node, env: KernelContext) -> Run:
    """A tensor without axes has places without coordinates: its result has no rows."""
    xp = env.xp

    def run(x: Array) -> Array:
        return xp.stack(xp.nonzero(xp.atleast_1d(x))).astype(np.int64, copy=False)[: x.ndim]

    return run


@ops("Unique")
def unique(node: Node, env: KernelContext) -> Run:
    """Return the distinct elements (or parts along an axis), their first positions, which is where, and how many of each."""
    xp, axis, in_order = env.xp, node.attr("axis"), bool(node.attr("sorted", 1))

    def run(x: Array) -> tuple[Array, ...]:
        _, first, inverse, counts = xp.unique(x, True, True, True, axis=axis)
        inverse = inverse.reshape(-1)
        if not in_order:
            order = xp.argsort(first)
            first, counts, inverse = first[order], counts[order], xp.argsort(order)[inverse]
        y = x.reshape(-1)[first] if axis is None else xp.take(x, first, axis=axis)
        return y, *(v.astype(np.int64, copy=False) for v in (first, inverse, counts))

    return run


@ops("OneHot", host=(1,))
def one_hot(node: Node, env: KernelContext) -> Run:
    xp, axis = env.xp, node.attr("axis", -1)

    def run(indices: Array, depth: Array, values: Array) -> Array:
        count = int(depth.reshape(()))
        hits = xp.expand_dims(indices % count, axis) == _along(xp.arange(count), axis, indices.ndim + 1)
        in_range = xp.expand_dims((indices >= -count) & (indices < count), axis)
        return xp.where(hits & in_range, values[1], values[0])

    return run


def _along(x: Array, axis: int, rank: int) -> Array:
    """Return a vector laid along one axis of a tensor of that rank."""
    return x.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def _top(xp: Any, x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """Return the k extreme elements along an axis, in order, and their places; equal elements by place, NaN last as greatest."""
    along = axis % x.ndim
    if largest:
        # A stable sort of the flipped axis, flipped back, is a stable descending sort; no negation, which wraps unsigned numbers.
        order = x.shape[along] - 1 - xp.flip(xp.argsort(xp.flip(x, along), axis=along, kind="stable"), along)
    else:
        order = xp.argsort(x, axis=along, kind="stable")
    order = xp.take(order, xp.arange(k), axis=along)
    return xp.take_along_axis(x, order, axis=along), order.astype(np.int64, copy=False)


@ops("TopK", until=9)
def top_k_by_attribute(node: Node, env: KernelContext) -> Run:
    xp, k, axis = env.xp, node.attr("k"), node.attr("axis", -1)
    return lambda x: _top(xp, x, k, axis, largest=True)


@ops("TopK", since=10, host=(1,))
def top_k(node: Node, env: KernelContext) -> Run:
    xp, axis, largest = env.xp, node.attr("axis", -1), bool(node.attr("largest", 1))
    return lambda x, k: _top(xp, x, int(k.reshape(())), axis, largest)


@ops("Constant")
def constant(node: Node, env: KernelContext) -> Run:
    value = constant_value(node)
    return lambda: value


def constant_value(node: Node) -> Array:
    """Return a Constant node's tensor, read-only; its one attribute says in its name what it holds."""
    for attribute in node.attributes:
        if isinstance(attribute.value, Constant):
            return attribute.value.array
        if attribute.name in _CONSTANT_TYPES:
            return Constant(np.array(attribute.value, dtype=_CONSTANT_TYPES[attribute.name])).array
    raise CompileRefused(f"node {node.name!r} (Constant) has none of the attributes that hold a value")


_CONSTANT_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": np.object_,
    "value_strings": np.object_,
}


@ops("ConstantOfShape", host=(0,))
def constant_of_shape(node: Node, env: KernelContext) -> Run:
    given = node.attr("value")
    value = np.zeros(1, dtype=np.float32) if given is None else given.array
    return lambda extents: env.xp.full(extents.tolist(), value.reshape(()), dtype=value.dtype)


@ops("EyeLike")
def eye_like(node: Node, env: KernelContext) -> Run:
    xp, k, to = env.xp, node.attr("k", 0), node.attr("dtype")
    dtype = None if to is None else DType.from_onnx(to).numpy
    return lambda x: xp.eye(*x.shape, k=k, dtype=dtype or x.dtype)


@ops("Range", host=(0, 1, 2))
def range_(node: Node, env: KernelContext) -> Run:
    """Element i is ``start + i * delta``, in float32 for narrower floats."""
    xp = env.xp

    def run(start: Array, limit: Array, delta: Array) -> Array:
        first, end, step = (v.reshape(()).item() for v in (start, limit, delta))
        count = max(0, int(np.ceil((end - first) / step)))
        wide = np.dtype(np.float32) if start.dtype in NARROW else start.dtype
        return (wide.type(first) + xp.arange(count, dtype=wide) * wide.type(step)).astype(start.dtype)

    return run


# ---------------------------------------------------------------------- windows for signals


def _cosines(*terms: float) -> Callable[[Node, KernelContext], Run]:
    """Return a factory of a window that is a sum of cosines of multiples of the angle once around."""

    def factory(node: Node, env: KernelContext) -> Run:
        xp, dtype = env.xp, DType.from_onnx(node.attr("output_datatype", DType.FLOAT32.onnx)).numpy
        shorter = 0 if node.attr("periodic", 1) else 1

        def run(size: Array) -> Array:
            count = int(size.reshape(()))
            angle = 2 * np.pi / max(1, count - shorter) * xp.arange(count)
            return sum(term * xp.cos(k * angle) for k, term in enumerate(terms)).astype(dtype)

        return run

    return factory


ops("HannWindow", host=(0,))(_cosines(0.5, -0.5))
ops("HammingWindow", host=(0,))(_cosines(25 / 46, -21 / 46))
ops("BlackmanWindow", host=(0,))(_cosines(0.42, -0.5, 0.08))
# ---------------------------------------------------------------------- random numbers


def _generator(node: Node) -> Callable[[], np.random.Generator]:
    """Return what gives a generator per call: always the same numbers where the node carries a seed."""
    seed = node.attr("seed")
    if seed is None:
        return np.random.default_rng
    bits = int(np.float32(seed).view(np.uint32))
    return lambda: np.random.default_rng(bits)


def _drawn(node: Node, extents: Any, dtype: Any, generator: np.random.Generator) -> Array:
    """Draw what the operator's name says: Normal with mean and scale, or Uniform between low and high."""
    if "Normal" in node.op_type:
        values = generator.normal(node.attr("mean", 0.0), node.attr("scale", 1.0), extents)
    else:
        values = generator.uniform(node.attr("low", 0.0), node.attr("high", 1.0), extents)
    return np.asarray(values).astype(dtype)


@ops("RandomNormal", "RandomUniform")
def random(node: Node, env: KernelContext) -> Run:
    generator, extents = _generator(node), node.attr("shape")
    dtype = DType.from_onnx(node.attr("dtype", DType.FLOAT32.onnx)).numpy
    return lambda: _drawn(node, extents, dtype, generator())


@ops("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node, env: KernelContext) -> Run:
    generator, to = _generator(node), node.attr("dtype")
    dtype = None if to is None else DType.from_onnx(to).numpy
    return lambda x: _drawn(node, x.shape, dtype or x.dtype, generator())


@ops("Bernoulli", devices=CPU)
def bernoulli(node: Node, env: KernelContext) -> Run:
    generator, to = _generator(node), node.attr("dtype")
    dtype = None if to is None else DType.from_onnx(to).numpy
    return lambda x: np.asarray(generator().random(x.shape) < x).astype(dtype or x.dtype)


@ops("Multinomial", devices=CPU)
def multinomial(node: Node, env: KernelContext) -> Run:
    """Draw classes from each row of unnormalised log-probabilities: where a uniform number falls in their running sum."""
    generator, count = _generator(node), node.attr("sample_size", 1)
    dtype = DType.from_onnx(node.attr("dtype", DType.INT32.onnx)).numpy

    def run(logs: Array) -> Array:
        wide = logs.astype(np.float64)
        sums = np.cumsum(np.exp(wide - wide.max(axis=1, keepdims=True)), axis=1)
        drawn = generator().random((len(logs), count, 1)) * sums[:, None, -1:]
        return (drawn >= sums[:, None, :]).sum(axis=2).astype(dtype)

    return run


# ---------------------------------------------------------------------- Dropout


@ops("Dropout", until=11, train=True)
def dropout_by_attributes(node: Node, env: KernelContext) -> Run:
    """Versions up to 6 train unless ``is_test`` says otherwise, later ones never; the mask was of x's type before 10."""
    ratio, training = node.attr("ratio", 0.5), env.version <= 6 and not node.attr("is_test", 0)
    generator = _generator(node)

    def run(x: Array) -> tuple[Array, Array]:
        y, mask = _dropped(env.xp, x, ratio if training else 0.0, generator)
        return y, mask if env.version >= 10 else mask.astype(x.dtype)

    return run


@ops("Dropout", since=12, train=True, host=(1, 2))
def dropout(node: Node, env: KernelContext) -> Run:
    generator = _generator(node)

    def run(x: Array, ratio: Array | None = None, training: Array | None = None) -> tuple[Array, Array]:
        share = 0.5 if ratio is None else float(ratio.reshape(()))
        return _dropped(env.xp, x, share if training is not None and training.reshape(()) else 0.0, generator)

    return run


def _dropped(xp: Any, x: Array, ratio: float, generator: Callable[[], np.random.Generator]) -> tuple[Array, Array]:
    """Return the tensor with a share of elements zeroed and the rest scaled up, and which were kept."""
    if ratio == 0.0:
        return x, xp.ones(x.shape, dtype=bool)
    mask = xp.asarray(generator().random(x.shape) >= ratio)
    return xp.where(mask, x / (1 - ratio), 0).astype(x.dtype), mask
