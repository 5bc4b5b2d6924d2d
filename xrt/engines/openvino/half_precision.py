"""Numbers of 16 bits in a model of OpenVINO's: rounded where the model says so, though the plugin computes them in float32.

The plugin makes float32 of float16 throughout, and of bfloat16 on processors that lack it, and drops the conversions. So a
conversion to one of these types rounds by arithmetic first, and one from it does where the plugin has computed the value. Between
them a value may be more exact than its type, as the tolerance of the type allows; but it is infinite where the type ends.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from xrt.engines.openvino.library import openvino
from xrt.graph import DType, Function, Node, TensorType

__all__ = ["find_growing_halves", "keep_halves"]

_ops = openvino.opset13

_HALVES = ("f16", "bf16")
_OVERFLOWS = 65520.0
"""The least number that float16 rounds to infinity."""

_EXACT = frozenset({"Broadcast", "Concat", "Gather", "GatherElements", "GatherND", "MaxPool", "ReduceMax", "ReduceMin", "Relu"})
_EXACT |= {"Reshape", "Select", "Slice", "Split", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unsqueeze", "VariadicSplit"}
"""Operators that give nothing but numbers that they are given, and zero."""

_GIVES_NO_MORE = frozenset(
    {
        "ArgMax",
        "AveragePool",
        "Cast",
        "CastLike",
        "Ceil",
        "Clip",
        "Concat",
        "Constant",
        "DepthToSpace",
        "Dropout",
        "Erf",
        "Expand",
    }
    | {"Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "GridSample"}
    | {"HardSigmoid", "HardSwish", "Identity", "LogSoftmax", "Max", "MaxPool", "Min", "Mish", "Neg", "Pad", "ReduceMax"}
    | {"ReduceMean", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "ScatterElements", "ScatterND", "Sigmoid"}
    | {"Sign", "Slice", "Softmax", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Swish", "Tanh", "Tile", "Transpose"}
    | {"Trilu", "Unsqueeze", "Where"}
)
"""Operators of ONNX that give no larger number than they are given."""


def find_growing_halves(function: Function, nodes: Sequence[Node]) -> frozenset[str]:
    """Return the values of float16 that those nodes compute and that may be larger than all that they are computed of."""
    made = [name for node in nodes if node.op_type not in _GIVES_NO_MORE for name in node.defines]
    types = ((name, function.get_type(name)) for name in made)
    return frozenset(name for name, type_ in types if isinstance(type_, TensorType) and type_.dtype is DType.FLOAT16)


def keep_halves(model: Any, growing: Collection[str]) -> None:
    """Let the model round and overflow where it says so; `growing` are the names of the values that may overflow."""
    nodes = list(model.get_ordered_ops())
    for node in nodes:
        if node.get_type_name() == "Convert":
            _keep_conversion(node)
    for port in (port for node in nodes for port in node.outputs()) if growing else ():
        if _element(port) == "f16" and not port.names.isdisjoint(growing):
            readers = list(port.get_target_inputs())
            limited = _overflowing(port).output(0)
            for reader in readers:
                reader.replace_source_output(limited)


def _keep_conversion(node: Any) -> None:
    given, to = node.input_value(0), _element(node.output(0))
    source = _before_rounding(given)
    if _element(source) in _HALVES and not _is_exact(source):
        source = _rounded(source, _element(source))
    if to in _HALVES and not _is_within(given, to):
        source = _rounded(source, to)
    node.input(0).replace_source_output(source)


def _is_exact(value: Any) -> bool:
    """Whether the plugin has the value of 16 bits as it is: it is given, or rounded, or one of such values."""
    maker = value.get_node()
    kind = maker.get_type_name()
    if kind in ("Parameter", "Constant", "Convert"):
        return True
    numbers = [given for given in maker.input_values() if _element(given) in _HALVES]
    return kind in _EXACT and all(map(_is_exact, numbers))


def _is_within(value: Any, to: str) -> bool:
    """Whether the type holds all that the value may be."""
    return _element(value) in ("boolean", "u8", "i8") or (_element(value) == to and _is_exact(value))


def _before_rounding(value: Any) -> Any:
    """Return the float32 value, rounded by arithmetic, that a value of 16 bits was converted from; others as they are.

    The plugin would take it through the type, and bfloat16 loses what is less than any normal number there.
    """
    maker = value.get_node()
    was_rounded = maker.get_type_name() == "Convert" and _element(value) in _HALVES
    return maker.input_value(0) if was_rounded and _element(maker.input_value(0)) == "f32" else value


def _rounded(value: Any, to: str) -> Any:
    """Return, in float32, a value rounded to the type, to even from the middle of two, infinite where the type ends."""
    x = value if _element(value) == "f32" else _ops.convert(value, "f32")
    if to == "bf16":
        return _rounded_to_bfloat16(x)
    number = _rounded_to_bits(x, 11, 2.0**-14)
    return _ops.select(_reaches_end(x), _ops.multiply(x, _float(math.inf)), number).output(0)


def _rounded_to_bfloat16(x: Any) -> Any:
    """Round x in the middle of float32's range, where nothing under- or overflows on the way."""
    size = _ops.abs(x)
    is_large = _ops.greater_equal(size, _float(1))
    scale = _ops.select(is_large, _float(2.0**-32), _float(2.0**64))
    number = _rounded_to_bits(_ops.multiply(x, scale), 8, 2.0 ** (64 - 126))
    number = _ops.divide(number, scale)
    return _ops.select(_ops.less(size, _float(math.inf)), number, x).output(0)


def _rounded_to_bits(x: Any, bits: int, least: float) -> Any:
    """Return x rounded to a mantissa of that many bits, numbers below `least` to the step of that.

    The power of two below x comes of Rump's formula: x is taken up by 24 bits, and all but its last unit off again. A number
    is rounded by adding and taking off another one that is so much larger that just the bits wanted are left.
    """
    wide = _ops.multiply(_ops.abs(x), _float(2.0**23 + 1))
    most = _ops.abs(_ops.multiply(wide, _float(1 - 2.0**-24)))  # positive anyway; but a product is rounded before it is taken off
    power = _ops.subtract(wide, most)
    larger = _ops.multiply(_ops.maximum(power, _float(least)), _float(1.5 * 2.0 ** (24 - bits)))
    number = _ops.subtract(_ops.add(x, larger), larger)
    signed = _ops.multiply(x, _float(2.0**-126))  # what is rounded to nothing is zero of the same sign
    return _ops.select(_ops.equal(number, _float(0)), signed, number)


def _overflowing(value: Any) -> Any:
    """Return the value, infinite where float16 ends."""
    wide = _ops.convert(value, "f32")
    number = _ops.select(_reaches_end(wide), _ops.multiply(wide, _float(math.inf)), wide)
    return _ops.convert(number, "f16")


def _reaches_end(x: Any) -> Any:
    return _ops.greater_equal(_ops.abs(x), _float(_OVERFLOWS))


def _float(value: float) -> Any:
    return _ops.constant(np.float32(value))


def _element(value: Any) -> str:
    return str(value.get_element_type().get_type_name())
