"""Padding of what reduces over an axis: over a padded one it is masked by what changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xrt.graph import DType, Node
from xrt.passes.padding.extents import ONE, Extent
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.states import Refused

__all__ = ["apply_arg", "apply_cumulative", "apply_global_pool", "apply_normalization", "apply_reduction", "apply_softmax"]

_LEAST, _MOST = "least", "most"
NEUTRAL: dict[str, float | str] = {
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMean", "ReduceSum", "ReduceSumSquare"), 0),
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax", "GlobalMaxPool", "ArgMax"), _LEAST),
    **dict.fromkeys(("ReduceMin", "ArgMin"), _MOST),
    "ReduceProd": 1,
}
"""What an operator may read any number of times without another result."""


def _neutral(p: Padder, node: Node) -> Any:
    number, dtype = NEUTRAL[node.op_type], p.dtype(node.inputs[0])
    if not isinstance(number, str):
        return number
    if dtype.is_float:
        return -np.inf if number == _LEAST else np.inf
    if dtype.numpy.kind not in "iu":
        raise Refused(f"there is no least {dtype}")
    limits = np.iinfo(dtype.numpy)
    return limits.min if number == _LEAST else limits.max


def _read_axes(p: Padder, node: Node) -> list[int]:
    rank = len(p.axes(node.inputs[0]))
    asked = p.integers(node, 1, "axes")
    if not asked:
        return [] if node.attr("noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in asked]


def _reduce(p: Padder, node: Node, over: Sequence[int], *, keep: bool) -> None:
    name = node.inputs[0]
    kept = [(n, ONE if n in over else axis) for n, axis in enumerate(p.axes(name)) if keep or n not in over]
    p.set(node.outputs[0], [axis for _, axis in kept])


def apply_reduction(p: Padder, node: Node) -> Node | None:
    """A mean is the sum, divided by how many elements there are without padding."""
    over = _read_axes(p, node)
    given, axes = node.inputs[0], p.axes(node.inputs[0])
    _reduce(p, node, over, keep=bool(node.attr("keepdims", 1)))
    if not any(p.is_padded(axes[n]) for n in over):
        return None
    masked = p.mask_all(given, over, _neutral(p, node))
    if node.op_type != "ReduceMean":
        return replace(node, inputs=(masked, *node.inputs[1:]))
    total = Extent.of(1)
    for n in over:
        total *= axes[n][0]
    return _divide_sum(p, node, masked, over, total)


def _divide_sum(p: Padder, node: Node, masked: str, over: Sequence[int], total: Extent) -> Node:
    """Return the node that divides the sum over those axes by their true extent."""
    dtype, keep = p.dtype(node.inputs[0]), node.attr("keepdims", 1)
    if dtype not in (DType.FLOAT32, DType.FLOAT64):
        raise p.refuse(f"the sum of a mean in {dtype} may not be in its range", total)
    if p.function.opsets.get("", 0) >= SUM_AXES_OPSET:
        summed = p.node("ReduceSum", masked, p.constant(np.array(over, np.int64)), keepdims=keep)
    else:
        summed = p.node("ReduceSum", masked, axes=tuple(over), keepdims=keep)
    count = p.node("Cast", p.value(total), to=dtype.onnx)
    return replace(node, op_type="Div", inputs=(summed, count), attributes=())


SUM_AXES_OPSET = 13
"""From here on ReduceSum takes its axes as an input."""


def apply_global_pool(p: Padder, node: Node) -> Node | None:
    """As a reduction over all axes but the first two."""
    (given,) = node.inputs
    axes, over = p.axes(given), range(2, len(p.axes(given)))
    _reduce(p, node, over, keep=True)
    if not any(p.is_padded(axes[n]) for n in over):
        return None
    if node.op_type == "GlobalMaxPool":
        return replace(node, inputs=(p.mask_all(given, over, _neutral(p, node)),))
    total = Extent.of(1)
    for n in over:
        total *= axes[n][0]
    return _divide_sum(p, node.with_attributes(keepdims=1), p.mask_all(given, over, 0), over, total)


def apply_arg(p: Padder, node: Node) -> Node:
    """The place of the largest element, the first of several: what is masked comes after all others."""
    axes = p.axes(node.inputs[0])
    axis = node.attr("axis", 0) % len(axes)
    _reduce(p, node, [axis], keep=bool(node.attr("keepdims", 1)))
    if not p.is_padded(axes[axis]):
        return node
    if node.attr("select_last_index", 0):
        raise p.refuse("it gives the last of several places over a padded axis", axes[axis])
    return replace(node, inputs=(p.mask(node.inputs[0], axis, _neutral(p, node)),))


WHOLE_AXIS_OPSET = 13
"""Before it, Softmax worked on all axes from the given one on."""


def apply_softmax(p: Padder, node: Node) -> Node:
    """What is behind has the score of minus infinity, so its share is zero."""
    (given,) = node.inputs
    axes, is_new = p.axes(given), p.function.opsets.get("", 0) >= WHOLE_AXIS_OPSET
    first = node.attr("axis", -1 if is_new else 1) % max(len(axes), 1)
    over = [first] if is_new else list(range(first, len(axes)))
    masked = p.mask_all(given, over, -np.inf)
    shares = {n for n in over if p.is_padded(axes[n])} if node.op_type == "Softmax" else set()
    p.set(node.outputs[0], axes, shares)
    return replace(node, inputs=(masked,))


def apply_normalization(p: Padder, node: Node) -> None:
    """Normalization over axes that are not padded."""
    given, rank = node.inputs[0], len(p.axes(node.inputs[0]))
    axes = p.axes(given)
    over = _find_normalized(node, rank)
    for n in over:
        if p.is_padded(axes[n]):
            raise p.refuse("it normalizes by statistics over the padded axis", axes[n])
    if node.attr("training_mode", 0):
        raise Refused("it is in training mode")
    if any(name in p.states for name in node.inputs[1:] if name):
        raise Refused("a parameter is padded")
    p.set(node.outputs[0], axes)
    for name in filter(None, node.outputs[1:]):
        p.set(name, [ONE if n in over else axis for n, axis in enumerate(axes)])


def _find_normalized(node: Node, rank: int) -> list[int]:
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        return list(range(node.attr("axis", -1) % rank, rank))
    if node.op_type == "LpNormalization":
        return [node.attr("axis", -1) % rank]
    if node.op_type == "MeanVarianceNormalization":
        return [axis % rank for axis in node.attr("axes", (0, 2, 3))]
    return [1] if node.op_type in ("BatchNormalization", "LRN") else list(range(1, rank))


def apply_cumulative(p: Padder, node: Node) -> Node:
    """What comes later in the order of the sum changes nothing; from the end on it is masked."""
    axes, asked = p.axes(node.inputs[0]), p.integers(node, 1)
    if asked is None:
        raise Refused("its axis is not known")
    axis = asked[0] % len(axes)
    p.set(node.outputs[0], axes)
    if not node.attr("reverse", 0) or not p.is_padded(axes[axis]):
        return node
    return replace(node, inputs=(p.mask(node.inputs[0], axis, 0), *node.inputs[1:]))
