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
    find_fused_result,
    find_range_source,
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

_INT8_OPERATORS = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"})
"""Operators that libraries compute in 8 bits if operands and result are quantized."""
MAX_BIAS_STEPS = 2.0**30
"""Largest bias in quantization steps: half of the largest int32."""


def quantize(function: Function, table: CalibrationTable, options: QuantizationOptions | None = None) -> Function:
    """Quantize matrix products and convolutions, with calibrated ranges. Infer shapes first.

    An activation has one scale, a weight one scale per channel. A bias becomes int32, with the product of both scales. Each value
    is quantized once for all readers, and each weight is stored once.

    A node stays in floating point if `why_not_quantized` returns a reason or the range of an operand is almost zero. Bodies are
    not changed. The opset becomes at least 13. Raises CalibrationError if the table belongs to another model or lacks a range.
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
    """Compute the scales and zero points of the activations of the selected nodes; None if a range is almost zero."""
    fitted: dict[str, Parameters | None] = {}
    missing: dict[str, None] = {}
    dtype, is_symmetric = options.activation_dtype, options.symmetric_activations
    for node in function.nodes:
        if node.name not in selected:
            continue
        for value in list_activations(node, function):
            source = find_range_source(value, function)
            range_ = ranges.get(source)
            if range_ is None:
                missing[source] = None
            else:
                fitted[value] = fit_activation(range_.low, range_.high, dtype, symmetric=is_symmetric)
    # Report all missing ranges at once.
    if missing:
        listed = ", ".join(map(repr, list(missing)[:3])) + (", ..." if len(missing) > 3 else "")
        raise CalibrationError(
            f"the calibration table has no range for {len(missing)} of the values to quantize: {listed}. "
            "Calibrate this model, or exclude the nodes that read them"
        )
    return fitted


class _StaticQuantization:
    """Rewrites one Function. Of the selected nodes, those whose operands all have usable ranges are quantized."""

    def __init__(
        self, function: Function, fitted: Mapping[str, Parameters | None], selected: set[str], options: QuantizationOptions
    ) -> None:
        self.function, self.options = function, options
        self.emission = Emission(function)
        # One operand with an unusable range keeps the whole node in floating point.
        operands = {node.name: set(list_activations(node, function)) for node in function.nodes if node.name in selected}
        self.selected = {name for name, values in operands.items() if all(fitted[value] is not None for value in values)}
        nodes = [node for node in function.nodes if node.name in self.selected]
        # A value that no quantized node reads stays in floating point.
        quantized_values = set[str]().union(*(operands[node.name] for node in nodes))
        self.fitted = {value: x for value, x in fitted.items() if x is not None and value in quantized_values}
        """Scale and zero point of each quantized activation."""
        self.fused_results = {find_fused_result(node, function) for node in nodes if node.op in CONVOLUTIONS}
        """Results of quantized convolutions. All readers read them in quantized form."""

    def run(self) -> Function:
        return self.emission.finish([self.rewrite(node) for node in self.function.nodes])

    def rewrite(self, node: Node) -> Node:
        """Make a quantized node read all operands in quantized form, and another node those for which `reads_quantized` holds."""
        if node.name in self.selected:
            return replace(node, inputs=tuple(self.list_quantized_operands(node)))
        inputs = list(node.inputs)
        for index, name in enumerate(node.inputs):
            if self.reads_quantized(name, node):
                inputs[index] = self.emission.quantize(name, self.fitted[name])
        return replace(node, inputs=tuple(inputs))

    def reads_quantized(self, value: str, node: Node) -> bool:
        """Whether a node that stays in floating point reads this value in quantized form."""
        if value not in self.fitted:
            return False
        if value in self.fused_results:
            return True
        if node.op not in _INT8_OPERATORS:
            return False
        computed_inputs = [name for name in node.inputs if name not in self.function.constants]
        return all(name in self.fitted for name in (*computed_inputs, find_fused_result(node, self.function)))

    def list_quantized_operands(self, node: Node) -> Iterator[str]:
        """Yield the inputs of a node in quantized form: activation, weight or second activation, and bias if it has one."""
        activation, second, *bias_names = node.inputs
        yield self.emission.quantize(activation, self.fitted[activation])
        if second not in self.function.constants:
            yield self.emission.quantize(second, self.fitted[second])
            return
        weight = self.function.constants[second].array
        bias = self.find_bias(node, bias_names, weight)
        scale = self.fitted[activation].scale
        axis = find_channel_axis(node, weight) if self.options.per_channel else None
        # The scale of the int32 bias is the product of both scales. A tiny weight scale would overflow it, so limit the scale.
        min_scale = 0.0 if bias is None or axis is None else np.abs(bias) / (float(scale) * MAX_BIAS_STEPS)
        quantized = quantize_channels(weight, axis, self.options, min_scale)
        yield self.emission.dequantize(second, quantized, (second, quantized.axis, quantized.parameters.scale.tobytes()))
        if bias_names:
            yield self.quantize_bias(bias_names[0], bias, scale * quantized.parameters.scale) or bias_names[0]

    def find_bias(self, node: Node, names: list[str], weight: Array) -> Array | None:
        """Return the bias if it is a constant with one element per output channel, or None; ``names`` has at most one name."""
        if not names or names[0] not in self.function.constants:
            return None
        if node.op == "Gemm" and (node.attr("alpha", 1.0) != 1.0 or node.attr("beta", 1.0) != 1.0):
            return None
        if node.op == "ConvTranspose":
            channels = weight.shape[1] * node.attr("group", 1)
        elif node.op == "Gemm" and not node.attr("transB", 0):
            channels = weight.shape[1]
        else:
            channels = weight.shape[0]
        bias = self.function.constants[names[0]].array
        return bias if bias.shape == (channels,) else None

    def quantize_bias(self, name: str, bias: Array | None, scale: Array) -> str | None:
        """Store the bias as dequantized int32 and return its name; None if it stays in floating point."""
        if bias is None:
            return None
        steps = np.rint(bias.astype(np.float64) / scale)
        # The bias would not fit into int32.
        if np.abs(steps).max(initial=0.0) > 2 * MAX_BIAS_STEPS - 1:
            return None
        parameters = Parameters(scale, np.zeros(scale.shape, np.int32))
        weight = QuantizedWeight(steps.astype(np.int32), parameters, 0 if scale.ndim else None)
        return self.emission.dequantize(name, weight, (name, scale.tobytes()))


BROADCASTING_OPSET = 8
"""First opset in which Add, Sum and Gemm broadcast as today."""


def fuse_biases(function: Function) -> Function:
    """Fuse a MatMul with a constant matrix and the Add of a constant bias into a Gemm. Infer shapes first.

    The purpose is an int32 bias: ONNX Runtime does the same fusion later, and has an integer kernel of the Gemm only for an int32
    bias. Activations of rank 3 or more are reshaped to a matrix, once for all readers; one leading extent may be unknown.
    A Sum of two operands becomes an Add. Return ``function`` itself if nothing changes. Linear time.
    """
    if function.opset() < BROADCASTING_OPSET:
        return function
    emission = Emission(function)
    # A node at which a control edge starts must not be replaced.
    control_predecessors = {name for node in function.nodes for name in node.control}
    nodes: list[Node] = []
    fused: set[str] = set()
    rows: dict[str, str] = {}
    for original in function.nodes:
        node = replace(original, op_type="Add") if original.op == "Sum" and len(original.inputs) == 2 else original
        product = None if node.name in control_predecessors else _find_product(node, function)
        if product is not None:
            fused.add(product.outputs[0])
            node = _fuse(product, node, emission, rows)
        nodes.append(node)
    if nodes == list(function.nodes):
        return function
    return emission.finish(node for node in nodes if node.outputs[0] not in fused)


def _find_product(node: Node, function: Function) -> Node | None:
    """Find the MatMul with which an Add of a constant bias can be fused, or None."""
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
    has_bias_per_column = bias.shape == (*[1] * (len(bias.shape) - 1), weight.shape[1])
    if not has_bias_per_column or shape is None or len(shape) < 2 or len(bias.shape) > len(shape):
        return False
    if len(shape) == 2:
        return True
    # Reshape can infer one extent, and cannot infer it next to an extent of 0.
    unknown_extents = [dim for dim in shape[:-1] if not isinstance(dim, int)]
    return len(unknown_extents) <= 1 and 0 not in shape


def _fuse(product: Node, add: Node, emission: Emission, rows: dict[str, str]) -> Node:
    """Make the Gemm of a product and the bias that ``add`` adds; return the node that replaces ``add``.

    For an activation of rank 2, that node is the Gemm. Otherwise emit a Reshape of the activation to a matrix and the Gemm, and
    return the Reshape of the result. ``rows`` maps each activation to its matrix, which all products of it share.
    """
    function, (value, matrix) = emission.function, product.inputs
    shape = _get_shape(value, function) or ()
    bias_name = next(operand for operand in add.inputs if operand != product.outputs[0])
    bias = emission.add_constant(f"{product.name}_bias", function.constants[bias_name].array.reshape(-1))
    gemm = replace(product, op_type="Gemm", inputs=(value, matrix, bias), outputs=add.outputs)
    if len(shape) == 2:
        return gemm
    inner, columns = function.constants[matrix].shape
    # Reshape infers the extent -1. `_can_fuse` allows only one unknown extent.
    extents = [dim if isinstance(dim, int) else -1 for dim in shape[:-1]]
    row_count = None if -1 in extents else math.prod(extents)
    if value not in rows:
        target = emission.add_constant(f"{value}_rows_shape", np.array([-1, inner]))
        rows[value] = emission.define(f"{value}_rows", "Reshape", (value, target), TensorType(DType.FLOAT32, (row_count, inner)))
    flat = emission.reserve(f"{gemm.name}_rows", TensorType(DType.FLOAT32, (row_count, columns)))
    emission.nodes.append(replace(gemm, inputs=(rows[value], matrix, bias), outputs=(flat,)))
    target = emission.add_constant(f"{gemm.name}_shape", np.array([*extents, columns]))
    return replace(add, op_type="Reshape", inputs=(flat, target))


def _get_shape(name: str, function: Function) -> Shape | None:
    type_ = function.get_type(name)
    return type_.shape if isinstance(type_, TensorType) and type_.dtype is DType.FLOAT32 else None


def fold_batch_normalization(function: Function) -> Function:
    """Fold a BatchNormalization with constant parameters into the constant weights of the preceding Conv.

    No other node may read the result of the Conv. Return ``function`` itself if nothing is folded. Linear time.
    """
    folded: dict[str, Node] = {}
    dropped: set[str] = set()
    emission = Emission(function)
    control_predecessors = {name for node in function.nodes for name in node.control}
    for node in function.nodes:
        convolution = _find_convolution(node, function)
        if convolution is not None and not (node.control or node.name in control_predecessors):
            parts = zip(("weight", "bias"), _fold_weights(convolution, node, function), strict=True)
            names = [emission.add_constant(f"{convolution.name}_folded_{part}", array) for part, array in parts]
            folded[convolution.name] = replace(convolution, inputs=(convolution.inputs[0], *names), outputs=node.outputs[:1])
            dropped.add(node.name)
    if not folded:
        return function
    return emission.finish(folded.get(node.name, node) for node in function.nodes if node.name not in dropped)


def _find_convolution(node: Node, function: Function) -> Node | None:
    """Find the Conv into which a BatchNormalization can be folded, or None. Both must have constant parameters."""
    if node.op != "BatchNormalization" or is_training(node, function) or any(node.outputs[1:]):
        return None
    producer = function.producer(node.inputs[0])
    if producer is None or producer.op != "Conv" or len(function.users(producer.outputs[0])) != 1:
        return None
    if any(value.name == producer.outputs[0] for value in function.outputs):
        return None
    parameters = [name for name in (*node.inputs[1:], *producer.inputs[1:]) if name]
    return producer if all(name in function.constants for name in parameters) else None


def _fold_weights(convolution: Node, node: Node, function: Function) -> tuple[np.ndarray, np.ndarray]:
    """Compute weights and bias of the Conv that computes ``convolution`` and then the BatchNormalization ``node``."""
    # Fold in float64, so that the weights are rounded only once.
    scale, shift, mean, variance = (function.constants[name].array.astype(np.float64) for name in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attr("epsilon", 1e-5))
    weight = function.constants[convolution.inputs[1]].array
    bias_name = next(iter(convolution.inputs[2:]), "")
    bias = function.constants[bias_name].array.astype(np.float64) if bias_name else 0.0
    channel_factor = factor.reshape(-1, *[1] * (weight.ndim - 1))
    folded_bias = (bias - mean) * factor + shift
    return (weight * channel_factor).astype(weight.dtype), folded_bias.astype(weight.dtype)
