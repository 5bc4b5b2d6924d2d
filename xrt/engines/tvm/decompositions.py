"""Lower a Function to the operators that TVM's importer gets right, and fast.

The importer stacks the inputs of Sum, Mean, Max and Min and reduces the stack; ignores IsInf's attributes for the sign;
lacks a power of mixed types; has a softplus that overflows; and compares booleans as floats, which LLVM rejects. It would
recompute values that depend only on weights in every run: BatchNormalization's factors and Gemm's transposed weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xrt.graph import DType, Function, Node, TensorType
from xrt.operators import NodeWriter, rewrite_nodes
from xrt.operators.decompositions import write_decomposition
from xrt.passes import drop_dead_nodes
from xrt.passes.opset_upgrade import upgrade_opset

OLDEST = 9
"""The first opset with Where and IsNaN, and with broadcasting everywhere."""

FARTHEST = 16384
"""Limit on the corner coordinates of RoiAlign's boxes; no image is as large."""


def decompose(function: Function) -> Function:
    """Decompose the operators of `LOWERED`, and rewrite the forms of others that the importer gets wrong."""
    if not any(node.op in LOWERED or node.op in _REWRITTEN for node in function.nodes):
        return function
    if function.opset() < OLDEST:
        if not any(_compares_truths(node, function) for node in function.nodes):
            return function
        function = upgrade_opset(function, OLDEST)
    return drop_dead_nodes(rewrite_nodes(function, _write))


def _compares_truths(node: Node, function: Function) -> bool:
    type_ = function.get_type(node.inputs[0]) if node.op == "Equal" else None
    return isinstance(type_, TensorType) and type_.dtype is DType.BOOL


def _write(w: NodeWriter) -> str | Sequence[str] | None:
    if w.node.op in LOWERED:
        # The importer supports LayerNormalization only without its statistics.
        return None if w.node.op == "LayerNormalization" and not any(w.node.outputs[1:]) else write_decomposition(w)
    rule = _REWRITTEN.get(w.node.op)
    return None if rule is None else rule(w)


def _is_inf(w: NodeWriter) -> str:
    result, zero = w.op("IsInf", w.x), w.number(0)
    if not w.attr("detect_positive", 1):
        result = w.op("And", result, w.op("Less", w.x, zero))
    if not w.attr("detect_negative", 1):
        result = w.op("And", result, w.op("Greater", w.x, zero))
    return result


def _pow(w: NodeWriter) -> str:
    base, exponent = w.node.inputs
    return w.op("Pow", base, w.cast(exponent, w.dtype(base)))


def _batch_normalization(w: NodeWriter) -> str | None:
    """Write one product and one sum with precomputed factors."""
    weights = [weight.astype(np.float64) for place in range(1, 5) if (weight := w.find_input(place)) is not None]
    if len(weights) < 4 or len(w.node.outputs) > 1 or not w.dtype(w.x).is_float:
        return None
    scale, bias, mean, variance = weights
    factor = scale / np.sqrt(variance + w.attr("epsilon", 1e-5))
    return w.op("Add", w.op("Mul", w.x, _write_channels(w, factor)), _write_channels(w, bias - mean * factor))


def _write_channels(w: NodeWriter, values: np.ndarray[Any, Any]) -> str:
    """Write one value per channel as a constant of the input's type."""
    return w.constant(values.reshape((-1, *[1] * (w.rank(w.x) - 2))), w.dtype(w.x).numpy)


def _gemm(w: NodeWriter) -> str | None:
    """Transpose a constant operand at compile time."""
    weights = w.find_input(1)
    if weights is None or not w.attr("transB", 0):
        return None
    turned = w.constant(np.ascontiguousarray(weights.T))
    attributes = tuple(a for a in w.node.attributes if a.name != "transB")
    return w.op("Gemm", w.x, turned, *w.node.inputs[2:], attributes=attributes)


def _roi_align(w: NodeWriter) -> str:
    """Clamp the batch indices to the batch and make the boxes finite: otherwise TVM reads out of bounds."""
    boxes, places = w.node.inputs[1:3]
    finite = w.op("Clip", boxes, w.number(-FARTHEST), w.number(FARTHEST))
    return w.op("RoiAlign", w.x, finite, _inside_batch(w, places), attributes=w.node.attributes)


def _max_roi_pool(w: NodeWriter) -> str:
    """Clamp as for RoiAlign; here the batch index is the first number of each box."""
    boxes = w.node.inputs[1]
    first, second, last, axis = (w.constant(np.array([k])) for k in (0, 1, 5, 1))
    places = _inside_batch(w, w.op("Slice", boxes, first, second, axis))
    kept = w.op("Concat", places, w.op("Slice", boxes, second, last, axis), axis=1)
    return w.op("MaxRoiPool", w.x, kept, attributes=w.node.attributes)


def _inside_batch(w: NodeWriter, places: str) -> str:
    type_, kind = w.function.get_type(w.x), w.dtype(places if w.node.op == "RoiAlign" else w.x).numpy
    extent = type_.shape[0] if isinstance(type_, TensorType) and type_.shape else 1
    batch = extent if isinstance(extent, int) else 1
    return w.op("Clip", places, w.constant(np.array(0, kind)), w.constant(np.array(batch - 1, kind)))


LOWERED = frozenset(
    {
        *("Celu", "Equal", "LayerNormalization", "Max", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Softplus", "Sum"),
    }
)
_REWRITTEN: Mapping[str, Callable[[NodeWriter], str | None]] = {
    "IsInf": _is_inf,
    "Pow": _pow,
    "BatchNormalization": _batch_normalization,
    "Gemm": _gemm,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
}
