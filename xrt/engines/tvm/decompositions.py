"""Operators that TVM's importer gets slow or wrong, spelled in others that it gets right.

It stacks the inputs of Sum, Mean, Max and Min and reduces the stack; it ignores which side IsInf asks for, has no power of one
type to another, and a softplus that overflows. It compares truth values as if they were floats, which LLVM refuses. What depends
on weights alone, the factors of a BatchNormalization and the transposed weight of a Gemm, it would compute in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from xrt.engines.toolkit.node_writer import NodeWriter, write_mean, write_mean_variance
from xrt.graph import DType, Function, Node, TensorType, read_attributes
from xrt.passes import drop_dead_nodes
from xrt.passes.opset_upgrade import upgrade_opset

__all__ = ["SPELLED", "decompose"]

OLDEST = 9
"""The first opset with Where and IsNaN, and with broadcasting everywhere."""

FARTHEST = 16384
"""Where the corner of a box of RoiAlign ends at the latest; no image is as large."""


def decompose(function: Function) -> Function:
    """Return the Function with the operators of `SPELLED` written out, their results under the same names."""
    if not any(node.op in SPELLED for node in function.nodes):
        return function
    if function.opset() < OLDEST:
        if not any(_compares_truths(node, function) for node in function.nodes):
            return function
        function = upgrade_opset(function, OLDEST)
    nodes: list[Node] = []
    constants = dict(function.constants)
    for node in function.nodes:
        page = TvmWriter(node, function)
        if _write(page):
            nodes += [*page.nodes[:-1], replace(page.nodes[-1], name=node.name, control=node.control)]
            constants |= page.constants
        else:
            nodes.append(node)
    return drop_dead_nodes(function.replace(nodes=tuple(nodes), constants=constants))


def _compares_truths(node: Node, function: Function) -> bool:
    type_ = function.get_type(node.inputs[0]) if node.op == "Equal" else None
    return isinstance(type_, TensorType) and type_.dtype is DType.BOOL


def _write(page: TvmWriter) -> bool:
    """Write the node out on its page; return whether there is a spelling for it."""
    spell = SPELLED.get(page.node.op)
    result = None if spell is None else spell(page)
    if result is None:
        return False
    page.op("Identity", result, output=page.node.outputs[0])
    return True


class TvmWriter(NodeWriter):
    """What one node is written out as, with what the spellings here need."""

    __slots__ = ()

    def channels(self, values: np.ndarray[Any, Any]) -> str:
        """Write one value per channel as a constant of the first input's type, and return its name."""
        type_ = self.function.get_type(self.x)
        rank = (type_.rank if isinstance(type_, TensorType) else None) or 2
        return self.constant(values.astype(self.dtype(self.x).numpy).reshape((-1, *[1] * (rank - 2))))

    def get_input(self, *places: int) -> list[np.ndarray[Any, Any]] | None:
        """Return the constants that the node reads in those places; None where one is not a constant."""
        inputs = self.node.inputs
        found = [self.function.constants.get(inputs[k]) if k < len(inputs) else None for k in places]
        return None if None in found else [constant.array for constant in found if constant is not None]

    def dtype(self, name: str) -> DType:
        """Return the element type of a tensor; what is written here, or unknown, counts as float32."""
        type_ = self.function.get_type(name)
        return type_.dtype if isinstance(type_, TensorType) else DType.FLOAT32


def _sum(page: TvmWriter) -> str:
    return reduce(lambda a, b: page.op("Add", a, b), page.node.inputs)


def _equal(page: TvmWriter) -> str | None:
    return page.op("Not", page.op("Xor", *page.node.inputs)) if _compares_truths(page.node, page.function) else None


def _mean(page: TvmWriter) -> str:
    return page.op("Div", _sum(page), page.number(len(page.node.inputs)))


def _extreme(comparison: str) -> Callable[[TvmWriter], str]:
    """Decompose Max or Min into choices between two, constants last."""

    def of_all(page: TvmWriter) -> str:
        ordered = sorted(page.node.inputs, key=page.function.constants.__contains__)
        return reduce(lambda a, b: page.op("Where", page.op(comparison, b, a), b, a), ordered)

    return of_all


def _mean_variance(page: TvmWriter) -> str | None:
    return write_mean_variance(page, page.opset)


def _is_inf(page: TvmWriter) -> str:
    result, zero = page.op("IsInf", page.x), page.number(0)
    if not page.node.attr("detect_positive", 1):
        result = page.op("And", result, page.op("Less", page.x, zero))
    if not page.node.attr("detect_negative", 1):
        result = page.op("And", result, page.op("Greater", page.x, zero))
    return result


def _pow(page: TvmWriter) -> str:
    base, exponent = page.node.inputs
    return page.op("Pow", base, page.cast(exponent, page.dtype(base)))


def _batch_normalization(page: TvmWriter) -> str | None:
    """Write one product and one sum, whose factors are computed here."""
    weights = page.get_input(1, 2, 3, 4)
    if weights is None or len(page.node.outputs) > 1 or not page.dtype(page.x).is_float:
        return None
    scale, bias, mean, variance = (weight.astype(np.float64) for weight in weights)
    factor = scale / np.sqrt(variance + page.node.attr("epsilon", 1e-5))
    return page.op("Add", page.op("Mul", page.x, page.channels(factor)), page.channels(bias - mean * factor))


def _gemm(page: TvmWriter) -> str | None:
    """Write the product with a transposed constant as one with the constant transposed here."""
    weights = page.get_input(1)
    if weights is None or not page.node.attr("transB", 0):
        return None
    turned = page.constant(np.ascontiguousarray(weights[0].T))
    kept = tuple(a for a in page.node.attributes if a.name != "transB")
    return page.op("Gemm", page.x, turned, *page.node.inputs[2:], attributes=kept)


def _layer_normalization(page: TvmWriter) -> str | None:
    """Write a normalization of which the mean or the inverse deviation is read: TVM's importer leaves those out."""
    node, (x, scale, *bias) = page.node, page.node.inputs
    outputs, type_ = (*node.outputs, "", "")[:3], page.function.get_type(x)
    if not any(outputs[1:]) or not isinstance(type_, TensorType) or type_.rank is None:
        return None
    own, stash = page.dtype(x), DType.from_onnx(node.attr("stash_type", 1))
    axes = read_attributes({"axes": tuple(range(node.attr("axis", -1) % type_.rank, type_.rank))})
    wide = x if own is stash else page.cast(x, stash)
    centered = page.op("Sub", wide, write_mean(page, wide, axes, page.opset, outputs[1]))
    variance = write_mean(page, page.op("Mul", centered, centered), axes, page.opset)
    epsilon = page.constant(np.array(node.attr("epsilon", 1e-5), stash.numpy))
    inverse = page.op("Reciprocal", page.op("Sqrt", page.op("Add", variance, epsilon)), output=outputs[2])
    normal = page.op("Mul", centered, inverse)
    scaled = page.op("Mul", normal if own is stash else page.cast(normal, own), scale)
    return page.op("Add", scaled, bias[0]) if any(bias) else scaled


def _celu(page: TvmWriter) -> str:
    alpha, x = page.number(page.node.attr("alpha", 1.0)), page.x
    below = page.op("Mul", alpha, page.op("Sub", page.op("Exp", page.op("Div", x, alpha)), page.number(1)))
    return page.op("Where", page.op("Greater", x, page.number(0)), x, below)


def _softplus(page: TvmWriter) -> str:
    """Write max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    small = page.op("Exp", page.op("Neg", page.op("Abs", page.x)))
    return page.op("Add", page.op("Relu", page.x), page.op("Log", page.op("Add", small, page.number(1))))


def _mish(page: TvmWriter) -> str:
    return page.op("Mul", page.x, page.op("Tanh", _softplus(page)))


def _roi_align(page: TvmWriter) -> str:
    """Write it with the batch indices inside of the batch and the boxes finite: from others TVM reads foreign memory."""
    boxes, places = page.node.inputs[1:3]
    finite = page.op("Clip", boxes, page.number(-FARTHEST), page.number(FARTHEST))
    return page.op("RoiAlign", page.x, finite, _inside_batch(page, places), attributes=page.node.attributes)


def _max_roi_pool(page: TvmWriter) -> str:
    """Write the same; here the batch index is the first number of each box."""
    boxes = page.node.inputs[1]
    first, second, last, axis = (page.constant(np.array([k])) for k in (0, 1, 5, 1))
    places = _inside_batch(page, page.op("Slice", boxes, first, second, axis))
    kept = page.op("Concat", places, page.op("Slice", boxes, second, last, axis), axis=1)
    return page.op("MaxRoiPool", page.x, kept, attributes=page.node.attributes)


def _inside_batch(page: TvmWriter, places: str) -> str:
    type_, kind = page.function.get_type(page.x), page.dtype(places if page.node.op == "RoiAlign" else page.x).numpy
    extent = type_.shape[0] if isinstance(type_, TensorType) and type_.shape else 1
    batch = extent if isinstance(extent, int) else 1
    return page.op("Clip", places, page.constant(np.array(0, kind)), page.constant(np.array(batch - 1, kind)))


SPELLED: Mapping[str, Callable[[TvmWriter], str | None]] = {
    "Equal": _equal,
    "Sum": _sum,
    "Mean": _mean,
    "Max": _extreme("Greater"),
    "Min": _extreme("Less"),
    "MeanVarianceNormalization": _mean_variance,
    "IsInf": _is_inf,
    "Pow": _pow,
    "Celu": _celu,
    "Softplus": _softplus,
    "Mish": _mish,
    "BatchNormalization": _batch_normalization,
    "Gemm": _gemm,
    "LayerNormalization": _layer_normalization,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
}
