"""Weights stored as integers, and computed with in floating point: no calibration, and a smaller model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from xrt.graph import DType, Function, Node, TensorType
from xrt.passes.quantize.candidates import CONVOLUTIONS, PRODUCTS
from xrt.passes.quantize.emission import Emission, require_opset
from xrt.passes.quantize.options import QuantizationOptions
from xrt.passes.quantize.weights import find_channel_axis, find_inner_axis, quantize_blocks, quantize_channels

__all__ = ["quantize_weights", "why_not_stored"]


def quantize_weights(function: Function, options: QuantizationOptions | None = None) -> Function:
    """Return the Function with constant weights as integers, each behind a DequantizeLinear.

    Weights of 8 bits have a scale per channel; those of 4 bits, of products alone, one per block of ``block_size`` rows, which
    needs opset 21. A weight is stored once. Types must be known: infer shapes first. Raises OptionError where the opset cannot
    be raised.
    """
    options = options or QuantizationOptions()
    selected = {node.name for node in function.nodes if why_not_stored(node, function, options) is None}
    if not selected:
        return function
    emission = Emission(require_opset(function, blocks=options.weight_dtype.bits < 8))
    return emission.finish([_rewrite(node, emission, selected, options) for node in emission.function.nodes])


def why_not_stored(node: Node, function: Function, options: QuantizationOptions) -> str | None:
    """Return why a node's weights stay floating point; None where they are stored as integers."""
    is_narrow = options.weight_dtype.bits < 8
    if node.op not in (PRODUCTS if is_narrow else CONVOLUTIONS | PRODUCTS):
        return f"its operator has no weights of {options.weights} here"
    if not options.selects(node):
        return "no pattern selects it"
    constant = function.constants.get(node.inputs[1])
    if constant is None or constant.dtype is not DType.FLOAT32:
        return "its weights are no constant of float32"
    type_ = function.get_type(node.inputs[0])
    if isinstance(type_, TensorType) and type_.dtype is not DType.FLOAT32:
        return "its operands are not float32"
    if constant.array.size == 0 or constant.array.ndim < 2 or (is_narrow and constant.array.ndim != 2):
        return "its weights are no matrix"
    return None


def _rewrite(node: Node, emission: Emission, selected: Collection[str], options: QuantizationOptions) -> Node:
    if node.name not in selected:
        return node
    name = node.inputs[1]
    floats = emission.function.constants[name].array
    if options.weight_dtype.bits < 8:
        weight = quantize_blocks(floats, find_inner_axis(node), options)
    else:
        weight = quantize_channels(floats, find_channel_axis(node, floats), options)
    stored = emission.dequantize(name, weight, (name, weight.axis))
    return replace(node, inputs=(node.inputs[0], stored, *node.inputs[2:]))
