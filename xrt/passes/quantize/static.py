"""Quantization by the ranges of a calibration table: operands of bytes, and biases of 32 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from xrt.errors import CalibrationError, OptionError
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import Function, Node
from xrt.passes.quantize.bounds import drop_bounds
from xrt.passes.quantize.candidates import CONVOLUTIONS, find_end, find_root, list_activations, why_not_quantized
from xrt.passes.quantize.emission import Emission, require_opset
from xrt.passes.quantize.options import QuantizationOptions
from xrt.passes.quantize.parameters import Parameters, fit_activation
from xrt.passes.quantize.weights import Array, QuantizedWeight, find_channel_axis, quantize_channels

__all__ = ["quantize"]

_JOINS = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"})
"""Operators that libraries compute in bytes where operands and result are bytes."""
_REQUANTIZED = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators whose float weights ONNX Runtime quantizes by itself where the operands are dequantized (WeightBiasQuantization)."""
LARGEST_BIAS = 2.0**30
"""The most steps of a bias, of the 2^31 that its type has."""


def quantize(function: Function, table: CalibrationTable, options: QuantizationOptions | None = None) -> Function:
    """Return the Function with its products and convolutions on operands of bytes, by QuantizeLinear and DequantizeLinear.

    Activations have one scale each, weights one per channel; biases are integers of 32 bits whose scale is the product of both. A
    value has one pair of nodes whatever reads it, and a weight is stored once. A Relu or Clip whose bounds the integers keep is
    dropped. A Conv or Gemm that stays in floating point reads quantized values through a Max of one operand, which changes
    nothing: otherwise ONNX Runtime would quantize its weights too.

    Nodes with a range that is all but zero stay as they are, as do those of which `why_not_quantized` gives a reason, and bodies.
    Types must be known: infer shapes first. The opset is raised to 13 where it is lower.

    Raises CalibrationError where the table is of another model, or lacks the range of a value; OptionError for weights of 4 bits.
    """
    options = options or QuantizationOptions()
    if options.weight_dtype.bits < 8:
        raise OptionError(f"weights of {options.weights} are for quantize_weights; with quantized activations they are of 8 bits")
    ranges = table.bind(function)
    selected = {node.name for node in function.nodes if why_not_quantized(node, function, options) is None}
    if not selected:
        return function
    upgraded = require_opset(function)
    return _StaticQuantization(upgraded, _fit_ranges(function, ranges, selected, options), selected, options).run()


def _fit_ranges(
    function: Function, ranges: Mapping[str, ValueRange], selected: set[str], options: QuantizationOptions
) -> dict[str, Parameters | None]:
    """Return the parameters of each value that is to be in bytes; None where its range is all but zero."""
    fitted: dict[str, Parameters | None] = {}
    missing: dict[str, None] = {}
    for node in function.nodes:
        for value in list_activations(node, function) if node.name in selected else ():
            known = ranges.get(root := find_root(value, function))
            if known is None:
                missing[root] = None
                continue
            fitted[value] = fit_activation(
                known.low, known.high, options.activation_dtype, symmetric=options.symmetric_activations
            )
    if missing:
        listed = ", ".join(map(repr, list(missing)[:3])) + (", ..." if len(missing) > 3 else "")
        raise CalibrationError(
            f"the calibration table has no range for {len(missing)} of the values to quantize: {listed}. "
            "Calibrate this model, or exclude the nodes that read them"
        )
    return fitted


class _StaticQuantization:
    """One Function being quantized."""

    def __init__(
        self, function: Function, fitted: Mapping[str, Parameters | None], selected: set[str], options: QuantizationOptions
    ) -> None:
        self.function, self.options = function, options
        self.emission = Emission(function)
        refused = {node.name for node in function.nodes if node.name in selected and self._is_flat(node, fitted)}
        self.selected = selected - refused
        nodes = [node for node in function.nodes if node.name in self.selected]
        values = {value for node in nodes for value in list_activations(node, function)}
        self.fitted = {value: found for value, found in fitted.items() if value in values and found is not None}
        self.ends = {find_end(node, function) for node in nodes if node.op in CONVOLUTIONS}
        """Results of convolutions: all that reads them reads their quantized form."""

    def _is_flat(self, node: Node, fitted: Mapping[str, Parameters | None]) -> bool:
        return any(fitted[value] is None for value in list_activations(node, self.function))

    def run(self) -> Function:
        made = self.emission.finish([self.rewrite(node) for node in self.function.nodes])
        return drop_bounds(made)

    def rewrite(self, node: Node) -> Node:
        """Return the node with its operands in their quantized form, where it is to read that."""
        if node.name in self.selected:
            return replace(node, inputs=tuple(self.operands(node)))
        inputs = tuple(
            self.emission.quantize(name, self.fitted[name]) if self.reads_quantized(name, node) else name for name in node.inputs
        )
        if inputs == node.inputs:
            return node
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
        """Yield the operands of a quantized node."""
        activation, second, *bias = node.inputs
        yield self.emission.quantize(activation, self.fitted[activation])
        if second not in self.function.constants:
            yield self.emission.quantize(second, self.fitted[second])
            return
        floats = self.function.constants[second].array
        steps = self.find_bias(node, bias, floats)
        scale = self.fitted[activation].scale
        axis = find_channel_axis(node, floats) if self.options.per_channel else None
        floor = 0.0 if steps is None or axis is None else np.abs(steps) / (float(scale) * LARGEST_BIAS)
        weight = quantize_channels(floats, axis, self.options, floor)
        yield self.emission.dequantize(second, weight, (second, weight.axis, weight.parameters.scale.tobytes()))
        if bias:
            yield self.quantize_bias(bias[0], steps, scale * weight.parameters.scale) or bias[0]

    def find_bias(self, node: Node, bias: list[str], weight: Array) -> Array | None:
        """Return a bias that can be an integer for each channel; None where there is none."""
        if not bias or bias[0] not in self.function.constants or (node.op == "Gemm" and not _is_unscaled(node)):
            return None
        channels = weight.shape[1] * node.attr("group", 1) if node.op == "ConvTranspose" else weight.shape[_find_rows(node)]
        found = self.function.constants[bias[0]].array
        return found if found.shape == (channels,) else None

    def quantize_bias(self, name: str, bias: Array | None, scale: Array) -> str | None:
        """Return the bias as integers of 32 bits, dequantized; None where it stays as it is."""
        if bias is None:
            return None
        steps = np.rint(bias.astype(np.float64) / scale)
        if np.abs(steps).max(initial=0.0) > 2 * LARGEST_BIAS - 1:
            return None
        parameters = Parameters(scale, np.zeros(scale.shape, np.int32))
        weight = QuantizedWeight(steps.astype(np.int32), parameters, 0 if scale.ndim else None)
        return self.emission.dequantize(name, weight, (name, scale.tobytes()))


def _is_unscaled(node: Node) -> bool:
    return bool(node.attr("alpha", 1.0) == 1.0 == node.attr("beta", 1.0))


def _find_rows(node: Node) -> int:
    """Return the axis of a weight with the channels of the bias."""
    return 1 if node.op == "Gemm" and not node.attr("transB", 0) else 0
