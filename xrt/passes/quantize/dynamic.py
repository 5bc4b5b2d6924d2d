"""Products in integers whose first operand is quantized in each call, by its own range: nothing is calibrated.

The result is ONNX's DynamicQuantizeLinear and MatMulInteger, which ONNX Runtime fuses. A value has one scale for all elements.
"""

from __future__ import annotations

from dataclasses import replace

from xrt.graph import DType, Function, Node, TensorType
from xrt.passes.quantize.candidates import PRODUCTS
from xrt.passes.quantize.emission import Emission, require_opset
from xrt.passes.quantize.options import QuantizationOptions
from xrt.passes.quantize.weights import find_inner_axis, quantize_channels

__all__ = ["quantize_dynamically", "why_not_matrix"]

FLOAT = 1
"""ONNX's number of float32."""


def quantize_dynamically(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Return the Function with products by constant matrices in integers; the ranges of the other operand are those of the call.

    Weights are int8 with a scale for each column. Types must be known: infer shapes first. Raises OptionError where the opset
    cannot be raised to 13.
    """
    options = options or QuantizationOptions()
    selected = {node.name for node in function.nodes if why_not_matrix(node, function, options) is None}
    if not selected:
        return function
    emission = Emission(require_opset(function))
    return emission.finish([_rewrite(one, emission, options) if one.name in selected else one for one in emission.function.nodes])


def why_not_matrix(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Return why a node is no product of a computed value of float32 by a constant matrix; None where it is one."""
    if node.op not in PRODUCTS:
        return "it is no product"
    if not options.selects(node):
        return "no pattern selects it"
    matrix = function.constants.get(node.inputs[1])
    if matrix is None or matrix.dtype is not DType.FLOAT32 or len(matrix.shape) != 2 or 0 in matrix.shape:
        return "its weights are no constant matrix of float32"
    type_ = function.get_type(node.inputs[0])
    if node.inputs[0] in function.constants or not isinstance(type_, TensorType) or type_.dtype is not DType.FLOAT32:
        return "its first operand is no computed value of float32"
    if node.op == "Gemm" and (node.attr("transA", 0) or node.attr("alpha", 1.0) != 1.0 or node.attr("beta", 1.0) != 1.0):
        return "it transposes or scales its operands"
    return None


def _rewrite(node: Node, emission: Emission, options: QuantizationOptions) -> Node:
    name, is_turned = node.inputs[1], find_inner_axis(node) == 1
    matrix = emission.function.constants[name].array
    found = quantize_channels(
        matrix.T if is_turned else matrix, 1, replace(options, weights="int8", symmetric_weights=True, per_channel=True)
    )
    integers, scale, zero = emission.quantize_in_call(node.inputs[0])
    stored, stored_scale, stored_zero = emission.store_matrix(name, found.integers, found.parameters, is_turned=is_turned)
    sums = emission.define(f"{node.name}_sums", "MatMulInteger", (integers, stored, zero, stored_zero), DType.INT32)
    floats = emission.define(f"{node.name}_floats", "Cast", (sums,), DType.FLOAT32, {"to": FLOAT})
    scales = emission.define(f"{node.name}_scales", "Mul", (scale, stored_scale), DType.FLOAT32)
    if not any(node.inputs[2:]):
        return Node("Mul", (floats, scales), node.outputs, name=node.name)
    product = emission.define(f"{node.name}_product", "Mul", (floats, scales), DType.FLOAT32)
    return Node("Add", (product, node.inputs[2]), node.outputs, name=node.name)
