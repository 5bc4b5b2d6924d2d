"""Padding rules of elementwise operators, reductions, matrix products, softmax and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xrt.graph import DType, Node
from xrt.operators import Trait, has_trait, list_operators
from xrt.passes.extents import multiply
from xrt.passes.padding.padder import ONE, Axis, Padder, Unpaddable, rule

_MICROSOFT = ("com.microsoft.BiasGelu", "com.microsoft.FastGelu", "com.microsoft.Gelu", "com.microsoft.QuickGelu")


@rule(*sorted(list_operators(Trait.ELEMENTWISE)), *_MICROSOFT)
def apply_elementwise(p: Padder, node: Node) -> None:
    """An output axis is padded like the axes of the inputs. Along it each input must have the same padded extent, or 1."""
    axes = broadcast(p, node)
    zeros = p.get_zero_axes(node.inputs[0]) if has_trait(node, Trait.KEEPS_ZERO) else ()
    p.set_axes(node.outputs[0], axes, zeros)


@rule("Div", "Mod")
def apply_integer_division(p: Padder, node: Node) -> Node:
    """Like an elementwise operator. Padding of integer divisors is set to 1, because a division by zero can crash the process."""
    apply_elementwise(p, node)
    dividend, divisor = node.inputs
    if not p.get_dtype(dividend).is_float:
        divisor = p.mask(divisor, range(len(p.get_axes(divisor))), 1)
    return replace(node, inputs=(dividend, divisor))


def broadcast(p: Padder, node: Node, skip: int = 0) -> list[Axis]:
    """List the axes that the inputs broadcast to, without the last `skip` axes of each input."""
    shapes = [p.get_axes(name) for name in node.inputs if name]
    shapes = [shape[: len(shape) - skip] for shape in shapes]
    rank = max(map(len, shapes), default=0)
    # Shapes are aligned at their last axes.
    aligned = [(None,) * (rank - len(shape)) + shape for shape in shapes]
    groups = enumerate(zip(*aligned, strict=True))
    return [_broadcast_axes(p, node, index, [axis for axis in axes if axis]) for index, axes in groups]


def _broadcast_axes(p: Padder, node: Node, index: int, axes: Sequence[Axis]) -> Axis:
    """Find the axis that several axes broadcast to: output axis ``index``. Raises Unpaddable if padding makes them unequal."""
    # An axis of extent 1 broadcasts to any other.
    distinct = list(dict.fromkeys(axis for axis in axes if axis != ONE))
    if len(distinct) < 2:
        return distinct[0] if distinct else ONE
    if any(map(p.is_padded, distinct)):
        shown = " and ".join("*".join(map(str, axis)) for axis in distinct)
        raise p.refuse(f"its inputs have the extents {shown} along one axis, which padding would make unequal", *distinct)
    return next((axis for axis in distinct if axis[0].number is not None), p.make_symbol(node.outputs[0], index))


def _contract(p: Padder, left: str, left_axis: int, right: str, right_axis: int) -> tuple[str, str]:
    """Mask the contracted axis of both operands with zeros; return the names of the masked operands.

    A mask of one operand is not enough, because zero times an infinity or NaN in the padding of the other one is NaN.
    """
    axes = p.get_axes(left)[left_axis], p.get_axes(right)[right_axis]
    if not any(map(p.is_padded, axes)):
        return left, right
    if axes[0] != axes[1]:
        raise p.refuse("it sums over a padded axis whose extent differs between its operands", *axes)
    return p.mask(left, [left_axis], 0), p.mask(right, [right_axis], 0)


@rule("MatMul")
def apply_matmul(p: Padder, node: Node) -> Node:
    """Rows, columns and batch axes may be padded; a padded contracted axis is masked."""
    left, right = node.inputs
    left_rank, right_rank = len(p.get_axes(left)), len(p.get_axes(right))
    if left_rank == 0 or right_rank == 0:
        raise Unpaddable("an operand is a scalar")
    left, right = _contract(p, left, left_rank - 1, right, max(right_rank - 2, 0))
    rows = p.get_axes(left)[-2:-1] if left_rank > 1 else ()
    columns = p.get_axes(right)[-1:] if right_rank > 1 else ()
    batched = tuple(name for name, rank in ((left, left_rank), (right, right_rank)) if rank > 2)
    batch = broadcast(p, replace(node, inputs=batched), skip=2)
    p.set_axes(node.outputs[0], [*batch, *rows, *columns])
    return replace(node, inputs=(left, right))


@rule("Gemm")
def apply_gemm(p: Padder, node: Node) -> Node:
    """Like MatMul; the bias broadcasts to the product."""
    left, right, *bias = node.inputs
    row_axis, contracted_axis = (1, 0) if node.attr("transA", 0) else (0, 1)
    other_contracted_axis, column_axis = (1, 0) if node.attr("transB", 0) else (0, 1)
    left, right = _contract(p, left, contracted_axis, right, other_contracted_axis)
    product: tuple[Axis, ...] = (p.get_axes(left)[row_axis], p.get_axes(right)[column_axis])
    bias_axes = p.get_axes(bias[0]) if bias and bias[0] else ()
    for axis, other in zip(reversed(product), reversed(bias_axes), strict=False):
        if other not in (axis, ONE) and (p.is_padded(axis) or p.is_padded(other)):
            raise p.refuse("its bias has a different extent than the padded axis", axis, other)
    p.set_axes(node.outputs[0], product)
    return replace(node, inputs=(left, right, *bias))


@rule("Einsum")
def apply_einsum(p: Padder, node: Node) -> Node:
    """Axes that remain in the output may be padded; a contracted axis is masked in each input."""
    equation = node.attr("equation", "").replace(" ", "")
    if "." in equation or "->" not in equation:
        raise Unpaddable("its equation has an ellipsis, or no output")
    operands, result = equation.split("->")
    axes: dict[str, Axis] = {}
    names = list(node.inputs)
    for index, letters in enumerate(operands.split(",")):
        for axis, letter in zip(p.get_axes(names[index]), letters, strict=True):
            earlier = axes.setdefault(letter, axis)
            if earlier != axis and (p.is_padded(axis) or p.is_padded(earlier)):
                raise p.refuse(f"the extents of {letter!r} differ", axis, earlier)
        if len(set(letters)) != len(letters) and names[index] in p.states:
            raise p.refuse("a letter occurs repeatedly in one input", *p.get_axes(names[index]))
        names[index] = p.mask(names[index], [n for n, letter in enumerate(letters) if letter not in result], 0)
    p.set_axes(node.outputs[0], [axes[letter] for letter in result])
    return replace(node, inputs=tuple(names))


NEUTRAL: dict[str, float] = {
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMean"), 0),
    **dict.fromkeys(("ReduceSum", "ReduceSumSquare", "GlobalAveragePool"), 0),
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax", "GlobalMaxPool", "ArgMax"), -np.inf),
    **dict.fromkeys(("ReduceMin", "ArgMin"), np.inf),
    "ReduceProd": 1,
}
"""Operator to the fill value that does not change its result; infinity is the extreme value of the dtype. ArgMax and ArgMin
select the first of equal extremes, which is never padding."""
SUM_AXES_OPSET = 13
"""First opset in which ReduceSum reads its axes from an input."""


@rule(*NEUTRAL)
def apply_reduction(p: Padder, node: Node) -> Node | None:
    """Mask padding with the neutral element. A mean becomes a sum, divided by the number of elements without padding."""
    data, axes = node.inputs[0], p.get_axes(node.inputs[0])
    reduced = _read_axes(p, node)
    keep = node.attr("keepdims", 1)
    result = [ONE if n in reduced else axis for n, axis in enumerate(axes) if keep or n not in reduced]
    p.set_axes(node.outputs[0], result)
    if not any(p.is_padded(axes[n]) for n in reduced):
        return None
    if node.attr("select_last_index", 0):
        raise p.refuse("it selects the last of equal elements along a padded axis", *(axes[n] for n in reduced))
    masked = p.mask(data, reduced, _find_neutral(node, p.get_dtype(data)))
    if node.op_type not in ("ReduceMean", "GlobalAveragePool"):
        return replace(node, inputs=(masked, *node.inputs[1:]))
    total, dtype = multiply([axes[n][0] for n in reduced]), p.get_dtype(data)
    if dtype not in (DType.FLOAT32, DType.FLOAT64):
        # The sum of many float16 numbers may overflow although their mean does not.
        raise p.refuse(f"the sum of a mean in {dtype} may not be in its range", total)
    if p.function.opsets.get("", 0) >= SUM_AXES_OPSET:
        summed = p.add_node("ReduceSum", masked, p.add_constant(np.array(reduced, np.int64)), keepdims=keep)
    else:
        summed = p.add_node("ReduceSum", masked, axes=tuple(reduced), keepdims=keep)
    return replace(node, op_type="Div", inputs=(summed, p.add_node("Cast", p.emit_extent(total), to=dtype.onnx)), attributes=())


def _read_axes(p: Padder, node: Node) -> list[int]:
    rank = len(p.get_axes(node.inputs[0]))
    if node.op_type.startswith("Global"):
        return list(range(2, rank))
    axes = [node.attr("axis", 0)] if node.op_type.startswith("Arg") else p.read_integers(node, 1, "axes")
    if not axes:
        return [] if node.attr("noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in axes]


def _find_neutral(node: Node, dtype: DType) -> Any:
    """Find the fill value that does not change a reduction of this type. Raises Unpaddable for bool, which has no extremes."""
    neutral = NEUTRAL[node.op_type]
    if np.isfinite(neutral) or dtype.is_float:
        return neutral
    if dtype.numpy.kind not in "iu":
        raise Unpaddable(f"{dtype} has no minimum or maximum")
    limits = np.iinfo(dtype.numpy)
    return limits.min if neutral < 0 else limits.max


SINGLE_AXIS_OPSET = 13
"""First opset in which Softmax normalizes over one axis. Before, it normalizes over all axes from this one on."""


@rule("Softmax", "LogSoftmax", "Hardmax")
def apply_softmax(p: Padder, node: Node) -> Node:
    """Mask with minus infinity, so padding has weight 0."""
    (data,) = node.inputs
    axes, has_single_axis = p.get_axes(data), p.function.opsets.get("", 0) >= SINGLE_AXIS_OPSET
    first = node.attr("axis", -1 if has_single_axis else 1) % max(len(axes), 1)
    normalized = [first] if has_single_axis else list(range(first, len(axes)))
    masked = p.mask(data, normalized, -np.inf)
    zeros = {n for n in normalized if p.is_padded(axes[n])} if node.op_type == "Softmax" else set()
    p.set_axes(node.outputs[0], axes, zeros)
    return replace(node, inputs=(masked,))


@rule("BatchNormalization", "GroupNormalization", "InstanceNormalization")
@rule("LRN", "LayerNormalization", "LpNormalization", "MeanVarianceNormalization", "RMSNormalization")
def apply_normalization(p: Padder, node: Node) -> None:
    """The normalized axes must not be padded."""
    axes = p.get_axes(node.inputs[0])
    normalized_axes = _find_normalized_axes(node, len(axes))
    for n in normalized_axes:
        if p.is_padded(axes[n]):
            raise p.refuse("it normalizes by statistics over the padded axis", axes[n])
    if node.attr("training_mode", 0):
        raise Unpaddable("it is in training mode")
    p.check_parameters(node)
    p.set_axes(node.outputs[0], axes)
    for name in filter(None, node.outputs[1:]):
        p.set_axes(name, [ONE if n in normalized_axes else axis for n, axis in enumerate(axes)])


def _find_normalized_axes(node: Node, rank: int) -> list[int]:
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        return list(range(node.attr("axis", -1) % rank, rank))
    if node.op_type == "LpNormalization":
        return [node.attr("axis", -1) % rank]
    if node.op_type == "MeanVarianceNormalization":
        return [axis % rank for axis in node.attr("axes", (0, 2, 3))]
    return [1] if node.op_type in ("BatchNormalization", "LRN") else list(range(1, rank))


@rule("CumSum")
def apply_cumulative(p: Padder, node: Node) -> Node:
    """A forward sum reaches the padding last, so only a reverse sum needs a mask."""
    axes, axis_operand = p.get_axes(node.inputs[0]), p.read_integers(node, 1)
    if axis_operand is None:
        raise Unpaddable("its axis is not known")
    axis = axis_operand[0] % len(axes)
    p.set_axes(node.outputs[0], axes)
    if not node.attr("reverse", 0) or not p.is_padded(axes[axis]):
        return node
    return replace(node, inputs=(p.mask(node.inputs[0], [axis], 0), *node.inputs[1:]))


@rule("Dropout")
def apply_dropout(p: Padder, node: Node) -> None:
    """In inference mode both outputs, data and mask, have the axes of the input."""
    if len(node.inputs) > 2 and node.inputs[2] and p.read_integers(node, 2) != [0]:
        raise Unpaddable("it is in training mode")
    p.check_parameters(node)
    for name in filter(None, node.outputs):
        p.set_axes(name, p.get_axes(node.inputs[0]))


@rule("CastLike")
def apply_cast_like(p: Padder, node: Node) -> None:
    """Like a Cast: of the second input only the type is used."""
    p.set_axes(node.outputs[0], p.get_axes(node.inputs[0]), p.get_zero_axes(node.inputs[0]))


@rule("QuantizeLinear", "DequantizeLinear")
def apply_quantized(p: Padder, node: Node) -> None:
    """An axis with one scale per element must not be padded."""
    p.check_parameters(node)
    if node.attr("block_size", 0):
        raise Unpaddable("it has one scale per block")
    axes = p.get_axes(node.inputs[0])
    has_scale_per_element = len(p.get_axes(node.inputs[1])) > 0
    if has_scale_per_element and p.is_padded(axes[node.attr("axis", 1)]):
        raise p.refuse("it has a scale for each element of the padded axis", axes[node.attr("axis", 1)])
    p.set_axes(node.outputs[0], axes)


@rule("Trilu")
def apply_trilu(p: Padder, node: Node) -> None:
    """The triangle depends only on positions, and padding does not move elements."""
    axes = p.get_axes(node.inputs[0])
    for axis in axes[-2:]:
        p.get_single_extent(axis)  # raises if merged: padding then moves elements
    p.set_axes(node.outputs[0], axes, p.get_zero_axes(node.inputs[0]))
