"""Decompositions of ONNX operators into simpler ones, for engines without the operator and for gradients.

ONNX defines many operators by function bodies, which `xrt.passes.decomposition` applies. An operator has a rule here if ONNX has
no body for it, or if the body is less accurate or harder to compile; the rule then says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from xrt.graph import DType
from xrt.operators.rewriting import NodeWriter, WriteReplacement
from xrt.operators.traits import is_training

DECOMPOSITIONS: dict[str, tuple[int, WriteReplacement]] = {}
"""Operator to its rule, and to the first opset for which the rule is valid."""
_Rule = TypeVar("_Rule", bound=Callable[[NodeWriter], "str | Sequence[str] | None"])


def decomposition(*operators: str, since: int) -> Callable[[_Rule], _Rule]:
    """Decorator: register a decomposition, which applies from opset ``since`` on."""

    def register(rule: _Rule) -> _Rule:
        DECOMPOSITIONS.update(dict.fromkeys(operators, (since, rule)))
        return rule

    return register


def write_decomposition(writer: NodeWriter) -> str | Sequence[str] | None:
    """Write the decomposition of the writer's node; None if no rule supports the node."""
    since, rule = DECOMPOSITIONS.get(writer.node.op, (0, None))
    return None if rule is None or writer.function.opsets.get("", 0) < since else rule(writer)


@decomposition("Sum", since=8)
def _sum(w: NodeWriter) -> str:
    """Add two operands at a time."""
    return reduce(lambda a, b: w.op("Add", a, b), w.node.inputs)


@decomposition("Mean", since=8)
def _mean(w: NodeWriter) -> str:
    """Divide the sum by the number of operands."""
    return w.op("Div", _sum(w), w.number(len(w.node.inputs)))


@decomposition("Max", "Min", since=9)
def _extreme(w: NodeWriter) -> str:
    """Compare two operands at a time, constants last, and select by Where."""
    comparison = "Greater" if w.node.op == "Max" else "Less"
    ordered = sorted(w.node.inputs, key=w.function.constants.__contains__)
    return reduce(lambda a, b: w.op("Where", w.op(comparison, b, a), b, a), ordered)


@decomposition("Equal", since=7)
def _equal(w: NodeWriter) -> str | None:
    """Write Equal of booleans as Not(Xor); keep Equal of other types."""
    type_ = w.find_type(w.x)
    if type_ is None or type_.dtype is not DType.BOOL:
        return None
    return w.op("Not", w.op("Xor", *w.node.inputs))


@decomposition("Pow", since=7)
def _pow(w: NodeWriter) -> str | None:
    """Write the powers 1 to 4 as products, and the power 0.5 as a square root; keep other powers."""
    exponent, x = w.find_input(1), w.x
    if exponent is None or exponent.size != 1 or exponent.ndim > w.rank(x):
        return None
    value = float(exponent.reshape(-1)[0])
    if value == 0.5 and w.dtype(x).is_float:
        return w.op("Sqrt", x)
    if value == 4:
        square = w.op("Mul", x, x)
        return w.op("Mul", square, square)
    if value not in (1, 2, 3):
        return None
    power = x
    for _ in range(int(value) - 1):
        power = w.op("Mul", power, x)
    return power


@decomposition("CastLike", since=15)
def _cast_like(w: NodeWriter) -> str:
    return w.op("Cast", w.x, attributes=w.node.attributes, to=w.dtype(w.node.inputs[1]).onnx)


@decomposition("Celu", since=12)
def _celu(w: NodeWriter) -> str:
    """Compute alpha Elu(x / alpha). ONNX's body casts to float32."""
    alpha = w.number(w.attr("alpha", 1.0))
    return w.op("Mul", alpha, w.op("Elu", w.op("Div", w.x, alpha)))


@decomposition("Softplus", since=7)
def _softplus(w: NodeWriter) -> str:
    """Compute max(x, 0) + log(1 + exp(-|x|)). ONNX's body, log(1 + exp(x)), overflows."""
    small = w.op("Exp", w.op("Neg", w.op("Abs", w.x)))
    return w.op("Add", w.op("Relu", w.x), w.op("Log", w.op("Add", small, w.number(1))))


@decomposition("Mish", since=18)
def _mish(w: NodeWriter) -> str:
    """Compute x tanh(Softplus(x)) without overflow."""
    return w.op("Mul", w.x, w.op("Tanh", _softplus(w)))


@decomposition("Softsign", since=7)
def _softsign(w: NodeWriter) -> str:
    """Compute x / (1 + |x|). ONNX has a body only from opset 18 on."""
    return w.op("Div", w.x, w.op("Add", w.op("Abs", w.x), w.number(1)))


@decomposition("Swish", since=24)
def _swish(w: NodeWriter) -> str:
    """Compute x Sigmoid(alpha x). ONNX's body computes alpha in float32."""
    return w.op("Mul", w.x, w.op("Sigmoid", w.op("Mul", w.x, w.number(w.attr("alpha", 1.0)))))


@decomposition("com.microsoft.QuickGelu", since=7)
def _quick_gelu(w: NodeWriter) -> str:
    """Compute x Sigmoid(1.702 x), an approximation of Gelu; Hendrycks and Gimpel, arXiv:1606.08415."""
    return w.op("Mul", w.x, w.op("Sigmoid", w.op("Mul", w.x, w.number(w.attr("alpha", 1.702)))))


@decomposition("Gelu", since=20)
def _gelu(w: NodeWriter) -> str | None:
    """Compute the approximation of Gelu by tanh; None for the exact Gelu. ONNX's body computes the cube by Pow."""
    if w.attr("approximate", "none") != "tanh":
        return None
    cube = w.op("Mul", w.op("Mul", w.x, w.x), w.x)
    inner = w.op("Add", w.x, w.op("Mul", cube, w.number(0.044715)))
    tanh = w.op("Tanh", w.op("Mul", inner, w.number(np.sqrt(2 / np.pi))))
    return w.op("Mul", w.op("Mul", w.x, w.number(0.5)), w.op("Add", tanh, w.number(1)))


@decomposition("Dropout", since=7)
def _dropout(w: NodeWriter) -> str | None:
    """Replace a Dropout in inference mode by Identity, unless its mask is read."""
    outputs = {value.name for value in w.function.outputs}
    has_mask = any(name and (w.function.users(name) or name in outputs) for name in w.node.outputs[1:])
    return None if has_mask or is_training(w.node, w.function) else w.op("Identity", w.x)


@decomposition("ReduceLogSumExp", since=13)
def _log_sum_exp(w: NodeWriter) -> str | None:
    """Subtract the largest element first: ONNX's body overflows."""
    axes_attribute, keepdims = w.attr("axes"), w.attr("keepdims", 1)
    if not w.dtype(w.x).is_float or w.attr("noop_with_empty_axes", 0):
        return None
    axes_inputs = sum_inputs = w.node.inputs[1:]
    max_attributes: dict[str, Any] = {}
    if axes_attribute is not None:  # up to opset 17: an attribute of ReduceMax, but an input of ReduceSum
        max_attributes["axes"] = tuple(axes_attribute)
        sum_inputs = (w.integers(axes_attribute),)
    largest = w.op("ReduceMax", w.x, *axes_inputs, **max_attributes)
    total = w.op("ReduceSum", w.op("Exp", w.op("Sub", w.x, largest)), *sum_inputs, keepdims=keepdims)
    # Now over axes of extent 1, which it only removes. Squeeze would need `axes` in another form.
    if not keepdims:
        largest = w.op("ReduceMax", largest, *axes_inputs, keepdims=0, **max_attributes)
    return w.op("Add", w.op("Log", total), largest)


@decomposition("LpNormalization", since=12)
def _lp_normalization(w: NodeWriter) -> str:
    """Divide by the p-norm: x / |x|_p along an axis; 0 where the norm is 0."""
    norm = w.reduce("ReduceL1" if w.attr("p", 2) == 1 else "ReduceL2", w.x, [w.attr("axis", -1)])
    # Where computes both branches: 0 / 1 replaces 0 / 0, whose gradient is NaN.
    is_zero = w.op("LessOrEqual", norm, w.number(0))
    zero, one = w.number(0), w.number(1)
    return w.op("Where", is_zero, zero, w.op("Div", w.x, w.op("Where", is_zero, one, norm)))


MOMENTS_EPSILON = 1e-9
"""ONNX's definition adds this number to the deviation: https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html"""


@decomposition("MeanVarianceNormalization", since=9)
def _mean_variance_normalization(w: NodeWriter) -> str:
    """Normalize: (x - mean) / (deviation + epsilon), in float32 for narrower types, which round the epsilon to 0."""
    # ONNX's body computes the variance as E[x^2] - E[x]^2, which can round to a negative number. Centering twice also removes the
    # rounding error of the mean, which the epsilon would magnify for constant rows.
    dtype, axes = w.dtype(w.x), w.attr("axes", (0, 2, 3))
    stash = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    centered = w.x if dtype is stash else w.cast(w.x, stash)
    for _ in range(2):
        centered = w.op("Sub", centered, w.reduce("ReduceMean", centered, axes))
    deviation = w.op("Sqrt", w.reduce("ReduceMean", w.op("Mul", centered, centered), axes))
    normal = w.op("Div", centered, w.op("Add", deviation, w.constant(MOMENTS_EPSILON, stash.numpy)))
    return normal if dtype is stash else w.cast(normal, dtype)


@decomposition("InstanceNormalization", since=6)
def _instance_normalization(w: NodeWriter) -> str:
    """Normalize: scale (x - mean) / sqrt(variance + epsilon) + bias, with statistics per instance and channel."""
    axes = range(2, w.rank(w.x))
    scale, bias = (w.op("Reshape", name, w.integers([-1, *[1] * len(axes)])) for name in w.node.inputs[1:])
    centered = w.op("Sub", w.x, w.reduce("ReduceMean", w.x, axes))
    variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), axes)
    normal = w.op("Div", centered, w.op("Sqrt", w.op("Add", variance, w.number(w.attr("epsilon", 1e-5)))))
    return w.op("Add", w.op("Mul", normal, scale), bias)


@decomposition("LayerNormalization", since=17)
def _layer_normalization(w: NodeWriter) -> str | None:
    """Normalize over the last axes. ONNX's body flattens the input, for which it computes shapes at run time."""
    type_ = w.find_type(w.x)
    if type_ is None or type_.rank is None:
        return None
    _, mean_name, inverse_name = (*w.node.outputs, "", "")[:3]  # "" for outputs that the node omits
    axes = range(w.attr("axis", -1) % type_.rank, type_.rank)
    dtype, stash = type_.dtype, DType.from_onnx(w.attr("stash_type", 1))
    wide = w.x if dtype is stash else w.cast(w.x, stash)
    centered = w.op("Sub", wide, w.reduce("ReduceMean", wide, axes, output=mean_name))
    variance = w.reduce("ReduceMean", w.op("Mul", centered, centered), axes)
    epsilon = w.constant(w.attr("epsilon", 1e-5), stash.numpy)
    inverse = w.op("Reciprocal", w.op("Sqrt", w.op("Add", variance, epsilon)), output=inverse_name)
    normal = w.op("Mul", centered, inverse)
    # Input 1 is the scale, input 2 the bias.
    scaled = w.op("Mul", normal if dtype is stash else w.cast(normal, dtype), w.node.inputs[1])
    return w.op("Add", scaled, w.node.inputs[2]) if w.has_input(2) else scaled


@decomposition("RMSNormalization", since=23)
def _rms_normalization(w: NodeWriter) -> str:
    """Divide by the root mean square, in float32 for narrower types. ONNX's body computes the axes at run time."""
    dtype, rank = w.dtype(w.x), w.rank(w.x)
    is_narrow = dtype in (DType.FLOAT16, DType.BFLOAT16)
    stash = DType.FLOAT32 if is_narrow else dtype
    wide = w.cast(w.x, stash) if is_narrow else w.x
    mean = w.reduce("ReduceMean", w.op("Mul", wide, wide), range(w.attr("axis", -1) % rank, rank))
    root = w.op("Sqrt", w.op("Add", mean, w.constant(w.attr("epsilon", 1e-5), stash.numpy)))
    normal = w.op("Div", wide, root)
    return w.op("Mul", w.cast(normal, dtype) if is_narrow else normal, w.node.inputs[1])


@decomposition("GlobalLpPool", since=2)
def _global_lp_pool(w: NodeWriter) -> str:
    """Compute the p-norm (sum |x|^p)^(1/p) over all axes after the first two."""
    power, axes = float(w.attr("p", 2)), range(2, w.rank(w.x))
    if power == 2:
        return w.reduce("ReduceL2", w.x, axes)
    total = w.reduce("ReduceSum", w.op("Pow", w.op("Abs", w.x), w.number(power)), axes)
    return w.op("Pow", total, w.number(1 / power))


@decomposition("LpPool", since=18)
def _lp_pool(w: NodeWriter) -> str | None:
    """Compute the p-norm (sum |x|^p)^(1/p) over windows, with the sum as a mean times the window's size."""
    if w.attr("ceil_mode", 0):
        return None  # its windows extend beyond the padding, where a mean counts fewer elements
    power = float(w.attr("p", 2))
    # The attributes that AveragePool shares.
    windows = [attribute for attribute in w.node.attributes if attribute.name not in ("p", "ceil_mode")]
    raised = w.op("Mul", w.x, w.x) if power == 2 else w.op("Pow", w.op("Abs", w.x), w.number(power))
    mean = w.op("AveragePool", raised, attributes=windows, count_include_pad=1)
    total = w.op("Mul", mean, w.number(float(np.prod(w.attr("kernel_shape")))))
    is_zero, zero = w.op("Equal", total, w.number(0)), w.number(0)
    # The root has an infinite slope at 0, so it is taken at 1 there.
    root = w.op("Pow", w.op("Where", is_zero, w.number(1), total), w.number(1 / power))
    return w.op("Where", is_zero, zero, root)


@decomposition("LRN", since=13)
def _lrn(w: NodeWriter) -> str:
    """Divide by (bias + alpha / size * sum of squares over neighboring channels)^beta; Krizhevsky et al. (2012), 3.3."""
    size = w.attr("size")
    before = (size - 1) // 2
    after = size - 1 - before
    shape = w.op("Shape", w.x)
    leading = w.op("Slice", shape, w.integers([0]), w.integers([2]))
    # The channels become rows of an image with one channel, over which a pool averages neighbors.
    rows = w.op("Reshape", w.op("Mul", w.x, w.x), w.op("Concat", leading, w.integers([-1]), axis=0))
    pool: dict[str, Any] = {"kernel_shape": (size, 1), "pads": (before, 0, after, 0), "count_include_pad": 1}
    mean = w.op("Reshape", w.op("AveragePool", w.op("Unsqueeze", rows, w.integers([1])), **pool), shape)
    scale = w.op("Add", w.op("Mul", mean, w.number(w.attr("alpha", 0.0001))), w.number(w.attr("bias", 1.0)))
    return w.op("Div", w.x, w.op("Pow", scale, w.number(w.attr("beta", 0.75))))


@decomposition("Pad", since=13)
def _pad(w: NodeWriter) -> str | None:
    """Write the modes reflect and wrap as one Gather per padded axis."""
    mode, pads = w.attr("mode", "constant"), w.find_input(1)
    if mode not in ("reflect", "wrap") or pads is None or (pads < 0).any():
        return None
    extents = w.extents(w.x)
    axes = w.find_input(3) if len(w.node.inputs) > 3 else np.arange(len(extents))
    if 0 in extents or axes is None:
        return None
    name = w.x
    widths_by_axis = pads.reshape(2, -1).T  # `pads` has all widths before an axis, then all widths after
    for axis, widths in zip(axes.tolist(), widths_by_axis.tolist(), strict=True):
        if any(widths):
            # Padding the indices of the axis gives, for each padded element, the index of the element to copy.
            name = w.op("Gather", name, w.constant(np.pad(np.arange(extents[axis]), widths, mode)), axis=axis)
    return name


@decomposition("DepthToSpace", since=11)
def _depth_to_space(w: NodeWriter) -> str | None:
    """Write mode CRD like ONNX's body, but with extents that are constants."""
    if w.attr("mode", "DCR") != "CRD":
        return None
    size, (count, channels, height, width) = w.attr("blocksize"), w.extents(w.x)
    split = w.op("Reshape", w.x, w.integers([count, channels // size**2, size, size, height, width]))
    joined = w.integers([count, channels // size**2, height * size, width * size])
    return w.op("Reshape", w.op("Transpose", split, perm=[0, 1, 4, 2, 5, 3]), joined)


@decomposition("TensorScatter", since=24)
def _tensor_scatter(w: NodeWriter) -> str | None:
    """Update a cache by ScatterElements. Keep the operator for dynamic shapes and for the mode circular."""
    cache, update = w.find_type(w.x), w.find_type(w.node.inputs[1])
    if cache is None or update is None or not cache.is_static or not update.is_static:
        return None
    if not cache.shape or not update.shape or w.attr("mode", "linear") != "linear":
        return None
    rank = len(update.shape)
    axis = w.attr("axis", -2) % rank
    shape = w.extents(w.node.inputs[1])
    steps = np.arange(shape[axis], dtype=np.int32).reshape([-1 if index == axis else 1 for index in range(rank)])
    positions = w.constant(np.broadcast_to(steps, shape))
    # Input 2, write_indices, holds the first position of each batch entry (axis 0).
    if w.has_input(2):
        starts = w.op("Reshape", w.cast(w.node.inputs[2], DType.INT32), w.integers([-1, *[1] * (rank - 1)]))
        positions = w.op("Add", starts, positions)
    return w.op("ScatterElements", w.x, positions, w.node.inputs[1], axis=axis)
