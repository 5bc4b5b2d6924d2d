"""Quantized weights: channel axes, scales, rounding, and a writer of quantize and dequantize nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import ModelError, OptionError
from xrt.formats.onnx import upgrade_opset
from xrt.graph import Constant, DType, Function, Node, TensorType, Type
from xrt.graph.node import FreshNames
from xrt.passes.quantize.candidates import QuantizationOptions
from xrt.passes.simplification import drop_dead_nodes

Array: TypeAlias = np.ndarray[Any, Any]
MIN_SCALE = 1e-30
"""Minimum scale: the product of two smaller scales underflows to zero in engines."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Scales (float32) and zero points: per tensor, per channel, or per block."""

    scale: Array
    zero_point: Array
    """An array of the quantized integer type, with the shape of the scale."""


def get_integer_range(dtype: DType) -> tuple[int, int]:
    half = 1 << dtype.bits - 1
    return (-half, half - 1) if dtype.text.startswith("int") else (0, 2 * half - 1)


def fit_activation(low: float, high: float, dtype: DType, *, symmetric: bool) -> Parameters | None:
    """Fit a scale and zero point to a range, which is extended to contain 0.

    A range of exactly zero gets scale 1. Return None for a nonzero range whose scale would be below `MIN_SCALE`.
    """
    # Zero must be exactly representable: it is the value of padding and of Relu.
    low, high = min(low, 0.0), max(high, 0.0)
    lowest, highest = get_integer_range(dtype)
    if symmetric:
        middle = (lowest + highest + 1) // 2
        scale, zero = max(-low, high) / (highest - middle), middle
    else:
        scale = (high - low) / (highest - lowest)
        zero = round(lowest - low / scale) if scale else lowest
    if 0 < scale < MIN_SCALE:
        return None
    return Parameters(np.array(scale or 1.0, np.float32), np.array(min(max(zero, lowest), highest), dtype.numpy))


def fit_weight(
    low: Array, high: Array, dtype: DType, *, reduce_range: bool = False, min_scale: Array | float = 0.0
) -> Parameters:
    """Fit scales to the ranges of weights, with the middle of ``dtype`` as zero point; each scale is at least ``min_scale``.

    ``low`` and ``high`` are the minima and maxima of the weights: one per channel or block, or 0-d for the whole tensor. The
    smallest integer of ``dtype`` is not used. A channel of zeros gets the scale of the channel with the largest scale.
    """
    lowest, highest = (-64, 64) if reduce_range else get_integer_range(dtype)
    middle = (lowest + highest + 1) // 2
    scale = np.maximum(np.abs(low), np.abs(high)).astype(np.float64) / (highest - middle)
    # The scale of a channel of zeros may be any number but 0.
    largest = max(float(scale.max(initial=0.0)), MIN_SCALE) if scale.any() else 1.0
    scale = np.maximum(np.where(scale > MIN_SCALE, scale, largest), min_scale)
    return Parameters(scale.astype(np.float32), np.full(scale.shape, middle, dtype.numpy))


def round_to_integers(x: Array, parameters: Parameters, dtype: DType) -> Array:
    """Quantize ``x``, rounding ties to even and saturating. Scales and zero points are broadcast to ``x``."""
    # Divide in float32 as engines do, but add the zero point in float64, where the sum is exact.
    scaled = np.rint(x.astype(np.float32) / parameters.scale).astype(np.float64) + parameters.zero_point.astype(np.float64)
    return np.clip(scaled, *get_integer_range(dtype)).astype(np.int32).astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    integers: Array
    parameters: Parameters
    """Scales and zero points in the shape that DequantizeLinear expects."""
    axis: int | None
    """Axis of the channels or blocks; None for a single scale."""


def find_channel_axis(node: Node, weight: Array) -> int | None:
    """Find the axis of a weight that has one index per output channel, or None."""
    if node.op == "ConvTranspose":
        return 1 if node.attr("group", 1) == 1 else None  # an index stands for one channel of each group
    if node.op == "MatMul":
        return 1 if weight.ndim == 2 else None
    return 0 if node.op == "Conv" or node.attr("transB", 0) else 1


def find_inner_axis(node: Node) -> int:
    """Find the contracted axis of the matrix of a Gemm or MatMul: 1 if a Gemm transposes the matrix, else 0."""
    return 1 if node.op == "Gemm" and node.attr("transB", 0) else 0


def quantize_channels(
    weight: Array, axis: int | None, options: QuantizationOptions, min_scale: Array | float = 0.0
) -> QuantizedWeight:
    """Quantize a weight to int8 per index of ``axis``, or with one scale if it is None; each scale is at least ``min_scale``."""
    dtype = DType.INT8
    axis = axis if options.per_channel else None
    reduced_axes = None if axis is None else tuple(other for other in range(weight.ndim) if other != axis)
    low, high = np.asarray(weight.min(axis=reduced_axes)), np.asarray(weight.max(axis=reduced_axes))
    parameters = fit_weight(low, high, dtype, reduce_range=options.reduce_range, min_scale=min_scale)
    broadcastable = parameters
    if axis is not None:
        shape = [1] * weight.ndim
        shape[axis] = -1
        broadcastable = Parameters(parameters.scale.reshape(shape), parameters.zero_point.reshape(shape))
    return QuantizedWeight(round_to_integers(weight, broadcastable, dtype), parameters, axis)


def quantize_blocks(weight: Array, axis: int, block: int) -> QuantizedWeight:
    """Quantize a matrix to uint8 per block of ``block`` indices of ``axis``; the last block may be shorter."""
    dtype = DType.UINT8
    block_starts = np.arange(0, weight.shape[axis], block)
    low, high = np.minimum.reduceat(weight, block_starts, axis=axis), np.maximum.reduceat(weight, block_starts, axis=axis)
    parameters = fit_weight(low, high, dtype)
    block_of_index = np.arange(weight.shape[axis]) // block
    scale, zero_point = (array.take(block_of_index, axis=axis) for array in (parameters.scale, parameters.zero_point))
    return QuantizedWeight(round_to_integers(weight, Parameters(scale, zero_point), dtype), parameters, axis)


MIN_OPSET = 13
"""First opset of DequantizeLinear with an axis."""


def require_opset(function: Function) -> Function:
    """Convert a Function to an opset that has the operators of quantized models; raises OptionError if that fails."""
    try:
        return upgrade_opset(function, MIN_OPSET)
    except ModelError as error:
        raise OptionError(f"quantization needs opset {MIN_OPSET} of ai.onnx: {error}") from error


class Emission:
    """Collects the new nodes and constants of a rewritten Function. A value is quantized once for all its readers."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = dict(function.constants)
        self.types: dict[str, Type] = dict(function.types)
        self._names = FreshNames.for_function(function)
        self._pairs: dict[str, str] = {}
        self._weights: dict[tuple[object, ...], str] = {}
        self._dynamic: dict[str, tuple[str, str, str]] = {}
        self._matrices: dict[tuple[str, int], tuple[str, ...]] = {}

    def add_constant(self, name: str, array: Any) -> str:
        """Add a constant under a fresh name based on ``name``; return the fresh name."""
        fresh = self._names.take(name)
        self.constants[fresh] = Constant(np.ascontiguousarray(array) if array.ndim else array)  # it makes scalars vectors
        return fresh

    def quantize(self, value: str, parameters: Parameters) -> str:
        """Emit QuantizeLinear and DequantizeLinear for a value, once for all readers; return the output."""
        if value not in self._pairs:
            dtype, shape = DType.from_array(parameters.zero_point), getattr(self.function.get_type(value), "shape", None)
            scale = self.add_constant(f"{value}_scale", parameters.scale)
            zero = self.add_constant(f"{value}_zero_point", parameters.zero_point)
            integers = self.define(f"{value}_quantized", "QuantizeLinear", (value, scale, zero), TensorType(dtype, shape))
            floats = TensorType(DType.FLOAT32, shape)
            self._pairs[value] = self.define(f"{value}_dequantized", "DequantizeLinear", (integers, scale, zero), floats)
        return self._pairs[value]

    def dequantize(self, name: str, weight: QuantizedWeight, key: tuple[object, ...]) -> str:
        """Store a weight as integers and emit a DequantizeLinear, once for equal keys; return the output."""
        if key not in self._weights:
            arrays = {"quantized": weight.integers, "scale": weight.parameters.scale}
            if weight.integers.dtype != np.int32:  # a bias has no zero point
                arrays["zero_point"] = weight.parameters.zero_point
            inputs = tuple(self.add_constant(f"{name}_{suffix}", array) for suffix, array in arrays.items())
            type_ = TensorType(DType.FLOAT32, weight.integers.shape)
            attributes = {} if weight.axis is None else {"axis": weight.axis}
            self._weights[key] = self.define(f"{name}_dequantized", "DequantizeLinear", inputs, type_, attributes)
        return self._weights[key]

    def finish(self, nodes: Iterable[Node]) -> Function:
        """Make the Function of ``nodes`` and the emitted nodes, without dead nodes."""
        function = self.function.replace(nodes=(*nodes, *self.nodes), constants=self.constants, types=self.types)
        return drop_dead_nodes(function)

    def define(
        self, name: str, op: str, inputs: tuple[str, ...], type_: Type | DType, attributes: dict[str, int] | None = None
    ) -> str:
        """Emit a node with one output; return the output. For a DType as ``type_``, the shape is unknown."""
        fresh = self.reserve(name, TensorType(type_, None) if isinstance(type_, DType) else type_)
        self.nodes.append(Node(op, inputs, (fresh,), name=fresh).with_attributes(**attributes or {}))
        return fresh

    def reserve(self, name: str, type_: Type) -> str:
        """Reserve and return a fresh name based on ``name``, for a value of this type that the caller defines."""
        fresh = self._names.take(name)
        self.types[fresh] = type_
        return fresh

    def quantize_in_call(self, value: str) -> tuple[str, str, str]:
        """Emit DynamicQuantizeLinear for a value, once for all readers; return the names of integers, scale and zero point."""
        if value not in self._dynamic:
            shape = getattr(self.function.get_type(value), "shape", None)
            integers = self.reserve(f"{value}_bytes", TensorType(DType.UINT8, shape))
            scale = self.reserve(f"{value}_byte_scale", TensorType(DType.FLOAT32, ()))
            zero = self.reserve(f"{value}_byte_zero_point", TensorType(DType.UINT8, ()))
            self._dynamic[value] = integers, scale, zero
            self.nodes.append(Node("DynamicQuantizeLinear", (value,), self._dynamic[value], name=integers))
        return self._dynamic[value]

    def store_matrix(self, product: Node, quantize: Callable[[Array], Mapping[str, Array]]) -> tuple[str, ...]:
        """Quantize the matrix of a product with shape (inner, columns), once for all its readers, and store the results.

        ``quantize`` returns arrays by a suffix for their names. Return the names of the constants, in the same order.
        """
        name, axis = product.inputs[1], find_inner_axis(product)
        if (name, axis) not in self._matrices:
            matrix = self.function.constants[name].array
            arrays = quantize(matrix.T if axis else matrix)
            constants = tuple(self.add_constant(f"{name}_{suffix}", array) for suffix, array in arrays.items())
            self._matrices[name, axis] = constants
        return self._matrices[name, axis]
