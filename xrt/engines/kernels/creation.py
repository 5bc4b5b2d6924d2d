"""Operators that create tensors (constants, ranges, random numbers), and STFT and Dropout."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from xrt.engines.kernels.table import Array, NodeContext, Run, eager as ops
from xrt.graph import Constant, DType, Node
from xrt.operators import find_node_constant


@ops("Constant")
def constant(node: Node, ctx: NodeContext) -> Run:
    value = find_node_constant(node, ctx.function)
    if value is None:  # the attribute is a string, or a list of strings
        strings = node.attr("value_string", node.attr("value_strings"))
        if strings is None:
            raise ctx.refuse("has no attribute with a value")
        value = Constant(np.array(strings, dtype=object))
    array = value.array  # read-only
    return lambda: array


@ops("ConstantOfShape", host=(0,))
def constant_of_shape(node: Node, ctx: NodeContext) -> Run:
    filling = node.attr("value")
    value = np.zeros(1, dtype=np.float32) if filling is None else filling.array
    return lambda extents: ctx.xp.full(extents.tolist(), value.reshape(()), dtype=value.dtype)


@ops("EyeLike")
def eye_like(node: Node, ctx: NodeContext) -> Run:
    xp, k, dtype = ctx.xp, node.attr("k", 0), ctx.get_dtype_attribute("dtype")
    return lambda x: xp.eye(*x.shape, k=k, dtype=dtype.numpy if dtype else x.dtype)


@ops("Range", host=(0, 1, 2))
def range_(node: Node, ctx: NodeContext) -> Run:
    """Element i is ``start + i * delta``. Floats under 32 bits are computed in float32."""
    xp = ctx.xp

    def run(start: Array, limit: Array, delta: Array) -> Array:
        # As Python numbers, because the difference could overflow or be rounded in the tensors' type.
        first, end, step = (v.reshape(()).item() for v in (start, limit, delta))
        count = max(0, ceil((end - first) / step))
        wide = np.float32 if start.dtype in xp.narrow else start.dtype
        offsets = xp.arange(count, dtype=wide) * xp.asarray(step, dtype=wide)
        return xp.astype(xp.asarray(first, dtype=wide) + offsets, start.dtype)

    return run


@ops("STFT", devices=("cpu",))
def short_time_fourier(node: Node, ctx: NodeContext) -> Run:
    """STFT (batch, frames, bins, 2) of a signal (batch, length, 1 or 2). TorchScript exports also signals (batch, length)."""
    xp, onesided = ctx.xp, bool(node.attr("onesided", 1))

    def run(signal: Array, step: Array, window: Array | None = None, length: Array | None = None) -> Array:
        parts = signal[..., None] if signal.ndim == 2 else signal  # (batch, length, real and imaginary part)
        is_complex = parts.shape[-1] == 2
        if parts.ndim != 3 or parts.shape[-1] not in (1, 2):
            raise ValueError(
                f"the signal has shape {list(signal.shape)}; it must be [batch, length], [batch, length, 1] or [batch, length, 2]"
            )
        if onesided and is_complex:
            raise ValueError(f"the signal {list(signal.shape)} is complex; its transform has two sides, so set onesided=0")
        # The transform has `size` elements. It pads a shorter window with zeros, and crops a longer one.
        window_length = parts.shape[1] if window is None else len(window)
        size = window_length if length is None else int(length.reshape(()))
        width = size if window is None else window_length
        frames = _cut_frames(xp, xp.astype(parts, np.float64), int(step.reshape(())), size, width)
        if window is not None:
            frames = frames * xp.astype(window, np.float64)[:, None]
        values = frames[..., 0] + 1j * frames[..., 1] if is_complex else frames[..., 0]
        transform = xp.fft.rfft if onesided else xp.fft.fft
        result = transform(values, n=size, axis=-1)
        return xp.astype(xp.stack([result.real, result.imag], axis=-1), signal.dtype)

    return run


def _cut_frames(xp: Any, signal: Array, step: int, size: int, width: int) -> Array:
    """Cut a signal (batch, length, parts) into overlapping frames (batch, frames, width, parts), one every ``step`` elements.

    The number of frames is that of frames of ``size`` elements. If ``width`` is larger, the last frames end with zeros.
    """
    count = max(0, 1 + (signal.shape[1] - size) // step)
    if width > size:
        signal = xp.concatenate([signal, xp.zeros((len(signal), width - size, signal.shape[2]))], axis=1)
    indices = xp.arange(count)[:, None] * step + xp.arange(width)
    return signal[:, indices]


def _make_generator_factory(node: Node) -> Callable[[], np.random.Generator]:
    """Make a function that makes a random generator for a call. If the node has a seed, all calls draw the same numbers."""
    seed = node.attr("seed")
    if seed is None:
        return np.random.default_rng
    # The seed is a float. Use its bits, because NumPy needs an integer that differs for each seed.
    bits = int(np.float32(seed).view(np.uint32))
    return lambda: np.random.default_rng(bits)


def _draw_numbers(xp: Any, node: Node, extents: Any, dtype: Any, generator: np.random.Generator) -> Array:
    """Draw numbers from the distribution in the operator's name: normal or uniform, with the node's parameters."""
    if "Normal" in node.op_type:
        values = generator.normal(node.attr("mean", 0.0), node.attr("scale", 1.0), extents)
    else:
        values = generator.uniform(node.attr("low", 0.0), node.attr("high", 1.0), extents)
    return xp.astype(xp.asarray(values), dtype)


@ops("RandomNormal", "RandomUniform")
def random(node: Node, ctx: NodeContext) -> Run:
    make_generator, extents = _make_generator_factory(node), node.attr("shape")
    dtype = (ctx.get_dtype_attribute("dtype") or DType.FLOAT32).numpy
    return lambda: _draw_numbers(ctx.xp, node, extents, dtype, make_generator())


@ops("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node, ctx: NodeContext) -> Run:
    make_generator, dtype = _make_generator_factory(node), ctx.get_dtype_attribute("dtype")
    return lambda x: _draw_numbers(ctx.xp, node, x.shape, dtype.numpy if dtype else x.dtype, make_generator())


@ops("Bernoulli", devices=("cpu",))
def bernoulli(node: Node, ctx: NodeContext) -> Run:
    xp, make_generator, dtype = ctx.xp, _make_generator_factory(node), ctx.get_dtype_attribute("dtype")
    return lambda x: xp.astype(xp.asarray(make_generator().random(x.shape)) < x, dtype.numpy if dtype else x.dtype)


@ops("Multinomial", devices=("cpu",))
def multinomial(node: Node, ctx: NodeContext) -> Run:
    """Sample the class at which the cumulative probability exceeds a random number. Rows are unnormalized log-probabilities."""
    xp, make_generator, count = ctx.xp, _make_generator_factory(node), node.attr("sample_size", 1)
    dtype = (ctx.get_dtype_attribute("dtype") or DType.INT32).numpy

    def run(logs: Array) -> Array:
        wide = xp.astype(logs, np.float64)
        # Subtract the maximum, so that no exponential overflows.
        sums = xp.cumsum(xp.exp(wide - xp.max(wide, axis=1, keepdims=True)), axis=1)
        # Scale the random numbers by the total of each row, because the probabilities are not normalized.
        thresholds = xp.asarray(make_generator().random((len(logs), count, 1))) * sums[:, None, -1:]
        return xp.astype(xp.sum(thresholds >= sums[:, None, :], axis=2), dtype)

    return run


@ops("Dropout", until=11, train=True)
def dropout_by_attributes(node: Node, ctx: NodeContext) -> Run:
    """Only versions up to 6 drop elements, unless ``is_test`` is set. Before version 10 the mask has the dtype of the input."""
    xp, version, make_generator = ctx.xp, ctx.version, _make_generator_factory(node)
    is_training = version <= 6 and not node.attr("is_test", 0)
    ratio = node.attr("ratio", 0.5) if is_training else 0.0

    def run(x: Array) -> tuple[Array, Array]:
        y, mask = _drop_elements(xp, x, ratio, make_generator)
        return y, mask if version >= 10 else xp.astype(mask, x.dtype)

    return run


@ops("Dropout", since=12, train=True, host=(1, 2))
def dropout(node: Node, ctx: NodeContext) -> Run:
    make_generator = _make_generator_factory(node)

    def run(x: Array, ratio: Array | None = None, training: Array | None = None) -> tuple[Array, Array]:
        is_training = training is not None and training.reshape(())
        training_ratio = 0.5 if ratio is None else float(ratio.reshape(()))
        return _drop_elements(ctx.xp, x, training_ratio if is_training else 0.0, make_generator)

    return run


def _drop_elements(xp: Any, x: Array, ratio: float, make_generator: Callable[[], np.random.Generator]) -> tuple[Array, Array]:
    """Set elements to zero with probability ``ratio``, and divide the others by 1 - ratio. Also return the mask of the others."""
    if ratio == 0.0:
        return x, xp.ones(x.shape, dtype=bool)
    mask = xp.asarray(make_generator().random(x.shape) >= ratio)
    return xp.astype(xp.where(mask, x / (1 - ratio), 0), x.dtype), mask
