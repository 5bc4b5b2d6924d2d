"""Static quantization with calibrated ranges: 8-bit operands and int32 biases, and the fusions that prepare for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from xrt.errors import CalibrationError
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import Constant, DType, Function, Node, Shape, TensorType
from xrt.operators import is_training
from xrt.passes.quantize.candidates import (
    CONVOLUTIONS,
    QuantizationOptions,
    find_end,
    find_root,
    list_activations,
    why_not_quantized,
)
from xrt.passes.quantize.weights import (
    Array,
    Emission,
    Parameters,
    QuantizedWeight,
    find_channel_axis,
    fit_activation,
    quantize_channels,
    require_opset,
)

_JOINS = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"})
"""Operators that libraries compute in 8 bits if operands and result are quantized."""
_REQUANTIZED = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators whose float weights ONNX Runtime quantizes if the activation is dequantized (WeightBiasQuantization)."""
LARGEST_BIAS = 2.0**30
"""Largest bias in quantization steps: half of the largest int32."""


def quantize(function: Function, table: CalibrationTable, options: QuantizationOptions | None = None) -> Function:
    """Quantize products and convolutions statically, with QuantizeLinear and DequantizeLinear.

    Activations have one scale each, weights one per channel. Biases are int32 with the product of both scales. Each value is
    quantized once for all readers, and each weight is stored once. A Conv or Gemm that stays in floating point reads quantized
    values through a Max of one operand, an identity that prevents ONNX Runtime from quantizing its weights.

    Nodes whose range is almost zero, nodes for which `why_not_quantized` has a reason, and bodies are not changed. Infer shapes
    first. The opset is raised to 13 if lower.

    Raises CalibrationError if the table belongs to another model or lacks a range.
    """
    options = options or QuantizationOptions()
    # Raises CalibrationError if the table was not calibrated on this model.
    ranges = table.bind(function)
    selected = {node.name for node in function.nodes if why_not_quantized(node, function, options) is None}
    if not selected:
        return function
    upgraded = require_opset(function)
    return _StaticQuantization(upgraded, _fit_ranges(function, ranges, selected, options), selected, options).run()


def _fit_ranges(
    function: Function, ranges: Mapping[str, ValueRange], selected: set[str], options: QuantizationOptions
) -> dict[str, Parameters | None]:
    """Compute the quantization parameters of the activations of the selected nodes; None if a range is almost zero."""
    fitted: dict[str, Parameters | None] = {}
    missing: dict[str, None] = {}
    for node in function.nodes:
        for value in list_activations(node, function) if node.name in selected else ():
            range_ = ranges.get(root := find_root(value, function))
            if range_ is None:
                missing[root] = None
                continue
            fitted[value] = fit_activation(
                range_.low, range_.high, options.activation_dtype, symmetric=options.symmetric_activations
            )
    # Report all missing ranges at once.
    if missing:
        listed = ", ".join(map(repr, list(missing)[:3])) + (", ..." if len(missing) > 3 else "")
        raise CalibrationError(
            f"the calibration table has no range for {len(missing)} of the values to quantize: {listed}. "
            "Calibrate this model, or exclude the nodes that read them"
        )
    return fitted


class _StaticQuantization:
    """Rewrites one Function; the nodes whose operands all have usable ranges are quantized."""

    def __init__(
        self, function: Function, fitted: Mapping[str, Parameters | None], selected: set[str], options: QuantizationOptions
    ) -> None:
        self.function, self.options = function, options
        self.emission = Emission(function)
        # One operand with an unusable range keeps the whole node in floating point.
        operands = {node.name: set(list_activations(node, function)) for node in function.nodes if node.name in selected}
        self.selected = {name for name, values in operands.items() if all(fitted[value] is not None for value in values)}
        nodes = [node for node in function.nodes if node.name in self.selected]
        values = set[str]().union(*(operands[node.name] for node in nodes))
        # Values that only other nodes read stay in floating point.
        self.fitted = {value: parameters for value, parameters in fitted.items() if value in values and parameters is not None}
        self.ends = {find_end(node, function) for node in nodes if node.op in CONVOLUTIONS}
        """Results of convolutions; all readers read them in quantized form."""

    def run(self) -> Function:
        return self.emission.finish([self.rewrite(node) for node in self.function.nodes])

    def rewrite(self, node: Node) -> Node:
        """Make a node read quantized operands: all of them if it is quantized, otherwise those that `reads_quantized`."""
        if node.name in self.selected:
            return replace(node, inputs=tuple(self.operands(node)))
        inputs = tuple(
            self.emission.quantize(name, self.fitted[name]) if self.reads_quantized(name, node) else name for name in node.inputs
        )
        if inputs == node.inputs:
            return node
        # Otherwise ONNX Runtime would quantize the weights of this float node.
        if node.op in _REQUANTIZED and inputs[0] != node.inputs[0] and inputs[1] in self.function.constants:
            inputs = (self.emission.shield(inputs[0]), *inputs[1:])
        return replace(node, inputs=inputs)

    def reads_quantized(self, value: str, node: Node) -> bool:
        if value not in self.fitted:
            return False
        if value in self.ends:
            return True
        computed = [name for name in node.inputs if name not in self.function.constants]
        return node.op in _JOINS and all(name in self.fitted for name in (*computed, find_end(node, self.function)))

    def operands(self, node: Node) -> Iterator[str]:
        """Yield the operands of a node in quantized form, with its bias."""
        activation, second, *bias = node.inputs
        yield self.emission.quantize(activation, self.fitted[activation])
        if second not in self.function.constants:
            yield self.emission.quantize(second, self.fitted[second])
            return
        floats = self.function.constants[second].array
        steps = self.find_bias(node, bias, floats)
        scale = self.fitted[activation].scale
        axis = find_channel_axis(node, floats) if self.options.per_channel else None
        # The scale of the int32 bias is the product of both scales: a tiny weight scale would overflow it, so raise that.
        floor = 0.0 if steps is None or axis is None else np.abs(steps) / (float(scale) * LARGEST_BIAS)
        weight = quantize_channels(floats, axis, self.options, floor)
        yield self.emission.dequantize(second, weight, (second, weight.axis, weight.parameters.scale.tobytes()))
        if bias:
            yield self.quantize_bias(bias[0], steps, scale * weight.parameters.scale) or bias[0]

    def find_bias(self, node: Node, bias: list[str], weight: Array) -> Array | None:
        """Find a constant bias with one element per channel of ``weight``, or None; ``bias`` has at most one name."""
        if not bias or bias[0] not in self.function.constants:
            return None
        if node.op == "Gemm" and not node.attr("alpha", 1.0) == 1.0 == node.attr("beta", 1.0):
            return None
        channel_axis = 1 if node.op == "Gemm" and not node.attr("transB", 0) else 0
        channels = weight.shape[1] * node.attr("group", 1) if node.op == "ConvTranspose" else weight.shape[channel_axis]
        constant = self.function.constants[bias[0]].array
        return constant if constant.shape == (channels,) else None

    def quantize_bias(self, name: str, bias: Array | None, scale: Array) -> str | None:
        """Store the bias as dequantized int32 and return its name; None if it stays in floating point."""
        if bias is None:
            return None
        steps = np.rint(bias.astype(np.float64) / scale)
        # Would not fit int32.
        if np.abs(steps).max(initial=0.0) > 2 * LARGEST_BIAS - 1:
            return None
        parameters = Parameters(scale, np.zeros(scale.shape, np.int32))
        weight = QuantizedWeight(steps.astype(np.int32), parameters, 0 if scale.ndim else None)
        return self.emission.dequantize(name, weight, (name, scale.tobytes()))


BROADCASTING_OPSET = 8
"""First opset in which Add, Sum and Gemm broadcast as today."""


def fuse_biases(function: Function) -> Function:
    """Fuse a MatMul with a constant matrix and the Add of a constant bias into a Gemm.

    Operands of higher rank are reshaped to rows, once for all readers; at most one leading extent may be dynamic. A Sum of two
    operands becomes an Add. ONNX Runtime does the same fusion, but has an integer kernel of the Gemm only if the bias is int32.
    Results differ only in summation order. Infer shapes first. Return `function` itself if nothing changes. Linear time.
    """
    if function.opset() < BROADCASTING_OPSET:
        return function
    # Nodes that others wait for (control dependencies) are not replaced.
    emission, awaited = Emission(function), {name for node in function.nodes for name in node.control}
    nodes: list[Node] = []
    fused: set[str] = set()
    rows: dict[str, str] = {}
    for original in function.nodes:
        node = replace(original, op_type="Add") if original.op == "Sum" and len(original.inputs) == 2 else original
        product = None if node.name in awaited else _find_product(node, function)
        if product is not None:
            fused.add(product.outputs[0])
            node = _fuse(product, node, emission, rows)
        nodes.append(node)
    if nodes == list(function.nodes):
        return function
    return emission.finish(node for node in nodes if node.outputs[0] not in fused)


def _find_product(node: Node, function: Function) -> Node | None:
    """Find the MatMul that an Add of a constant bias can be fused with, or None."""
    if node.op != "Add" or node.control:
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        product, bias = function.producer(value), function.constants.get(other)
        if product is not None and bias is not None and _can_fuse(product, bias, function):
            return product
    return None


def _can_fuse(product: Node, bias: Constant, function: Function) -> bool:
    """Whether a node is a MatMul with a constant float32 matrix and one reader, and the bias has one element per column."""
    if product.op != "MatMul" or product.control or len(function.users(product.outputs[0])) != 1:
        return False
    weight, shape = function.constants.get(product.inputs[1]), _get_shape(product.inputs[0], function)
    if weight is None or weight.dtype is not DType.FLOAT32 or len(weight.shape) != 2:
        return False
    if any(value.name == product.outputs[0] for value in function.outputs):
        return False
    if bias.shape != (*[1] * (len(bias.shape) - 1), weight.shape[1]) or shape is None or len(shape) < 2:
        return False
    # Reshape can infer one extent, and cannot infer it next to an extent of 0.
    unknown = sum(not isinstance(dim, int) for dim in shape[:-1])
    return len(bias.shape) <= len(shape) and (len(shape) == 2 or (unknown <= 1 and 0 not in shape))


def _fuse(product: Node, node: Node, emission: Emission, rows: dict[str, str]) -> Node:
    """Make the Gemm of a product and its bias; return the node that replaces the Add.

    For an activation of rank 2, that node is the Gemm. Otherwise the emission gets a Reshape to rows and the Gemm, and the node
    is the Reshape back. ``rows`` maps activations to their reshaped rows, which all products share.
    """
    function, (value, matrix) = emission.function, product.inputs
    shape = _get_shape(value, function) or ()
    name = next(operand for operand in node.inputs if operand != product.outputs[0])
    bias = emission.add_constant(f"{product.name}_bias", function.constants[name].array.reshape(-1))
    gemm = replace(product, op_type="Gemm", inputs=(value, matrix, bias), outputs=node.outputs)
    if len(shape) == 2:
        return gemm
    inner, columns = function.constants[matrix].shape
    extents = [dim if isinstance(dim, int) else -1 for dim in shape[:-1]]
    count = None if -1 in extents else math.prod(extents)
    if value not in rows:
        target = emission.add_constant(f"{value}_rows_shape", np.array([-1, inner]))
        rows[value] = emission.define(f"{value}_rows", "Reshape", (value, target), TensorType(DType.FLOAT32, (count, inner)))
    flat = emission.reserve(f"{gemm.name}_rows", TensorType(DType.FLOAT32, (count, columns)))
    emission.nodes.append(replace(gemm, inputs=(rows[value], matrix, bias), outputs=(flat,)))
    target = emission.add_constant(f"{gemm.name}_shape", np.array([*extents, columns]))
    return replace(node, op_type="Reshape", inputs=(flat, target))


def _get_shape(name: str, function: Function) -> Shape | None:
    """The shape of a float32 tensor, or None."""
    type_ = function.get_type(name)
    return type_.shape if isinstance(type_, TensorType) and type_.dtype is DType.FLOAT32 else None


def fold_batch_normalization(function: Function) -> Function:
    """Fold a constant BatchNormalization into the constant weights of the preceding Conv.

    The Conv must have no other reader. Results are equal up to rounding. Return `function` itself if nothing is folded. Linear
    time.
    """
    folded: dict[str, Node] = {}
    dropped: set[str] = set()
    emission, awaited = Emission(function), {name for node in function.nodes for name in node.control}
    for node in function.nodes:
        convolution = _find_convolution(node, function)
        if convolution is not None and not (node.control or node.name in awaited):
            parts = zip(("weight", "bias"), _fold_weights(convolution, node, function), strict=True)
            names = [emission.add_constant(f"{convolution.name}_folded_{part}", array) for part, array in parts]
            folded[convolution.name] = replace(convolution, inputs=(convolution.inputs[0], *names), outputs=node.outputs[:1])
            dropped.add(node.name)
    if not folded:
        return function
    return emission.finish(folded.get(node.name, node) for node in function.nodes if node.name not in dropped)


def _find_convolution(node: Node, function: Function) -> Node | None:
    """Find the Conv that a BatchNormalization can be folded into, or None."""
    if node.op != "BatchNormalization" or is_training(node, function) or any(node.outputs[1:]):
        return None
    before = function.producer(node.inputs[0])
    if before is None or before.op != "Conv" or len(function.users(before.outputs[0])) != 1:
        return None
    if any(value.name == before.outputs[0] for value in function.outputs):
        return None
    operands = [name for name in (*node.inputs[1:], *before.inputs[1:]) if name]
    return before if all(name in function.constants for name in operands) else None


def _fold_weights(convolution: Node, node: Node, function: Function) -> tuple[np.ndarray, np.ndarray]:
    """Compute the weights and bias of a Conv that includes the BatchNormalization ``node``."""
    # Fold in float64, so that the weights are rounded only once.
    scale, shift, mean, variance = (function.constants[name].array.astype(np.float64) for name in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attr("epsilon", 1e-5))
    weight = function.constants[convolution.inputs[1]].array
    biases = convolution.inputs[2:]
    bias = function.constants[biases[0]].array.astype(np.float64) if biases and biases[0] else 0.0
    spread = factor.reshape(-1, *[1] * (weight.ndim - 1))
    return (weight * spread).astype(weight.dtype), ((bias - mean) * factor + shift).astype(weight.dtype)
