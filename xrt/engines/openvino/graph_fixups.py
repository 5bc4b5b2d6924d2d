"""What is put right in a model of OpenVINO's before it is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xrt.engines.openvino.library import openvino

__all__ = ["fix_up"]

_ops = openvino.opset13


def fix_up(model: Any) -> None:
    """Replace what the plugin computes otherwise than ONNX says, node by node; each function says what that is."""
    varying: set[str] = set()
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Parameter" or (kind != "ShapeOf" and any(_maker(value) in varying for value in node.input_values())):
            varying.add(node.get_name())
        if kind in _REPAIRS:
            _replace(node, _REPAIRS[kind])
        if kind in _OF_CONSTANTS and node.get_name() not in varying:
            _replace(node, _OF_CONSTANTS[kind])


def _maker(value: Any) -> str:
    return str(value.get_node().get_name())


def _replace(node: Any, mended: Callable[[Any], Any]) -> None:
    """Let those that read the node's results read others in their place."""
    readers = [list(port.get_target_inputs()) for port in node.outputs()]
    right = mended(node)
    for port, those in zip(right.outputs(), readers, strict=False):
        for reader in those:
            reader.replace_source_output(port)


def _element(value: Any) -> str:
    """Return the element type of a value, or of the only one of a node."""
    return str(value.get_element_type().get_type_name())


def _number(value: float, like: Any) -> Any:
    """Return a constant of a value's element type."""
    return _ops.convert(_ops.constant(np.array(value, np.float32)), _element(like))


def _is_float(value: Any) -> bool:
    return _element(value) in ("f16", "bf16", "f32")


def _extreme(edge: float, is_beyond: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return how to keep NaN in an extreme, and the extreme of nothing but infinities, where the plugin gives the number that
    it begins with: a second extreme, of what each number is.
    """

    def mended(node: Any) -> Any:
        if not _is_float(node):
            return node
        value, axes = node.input_value(0), node.input_value(1)
        limit, nan = _number(edge, node), _number(math.nan, node)
        none, some, lost = (_ops.constant(np.float32(k)) for k in (0, 1, 2))
        kind = _ops.select(_ops.is_nan(value), lost, _ops.select(is_beyond(value, limit), some, none))
        most = _ops.reduce_max(kind, axes, node.get_attributes()["keep_dims"])  # a logical one wants its axes as a constant
        number = _ops.select(_ops.greater(most, _ops.constant(np.float32(0.5))), node.output(0), limit)
        return _ops.select(_ops.greater(most, _ops.constant(np.float32(1.5))), nan, number)

    return mended


def _of_nan(node: Any) -> Any:
    """Keep NaN, of which the plugin makes infinity or a number."""
    if not _is_float(node):
        return node
    return _ops.select(_ops.is_nan(node.input_value(0)), node.input_value(0), node.output(0))


def _of_two(node: Any) -> Any:
    """Keep the NaN of the first of two numbers; that of the second the plugin keeps, so a constant without one comes first."""
    first, second = node.input_values()
    if not _is_float(node):
        return node
    if _is_all_numbers(second):
        node.input(0).replace_source_output(second)
        node.input(1).replace_source_output(first)
        return node
    return node if _is_all_numbers(first) else _ops.select(_ops.is_nan(first), first, node.output(0))


def _is_all_numbers(value: Any) -> bool:
    """Whether it is a constant without NaN."""
    maker = value.get_node()
    return maker.get_type_name() == "Constant" and not np.isnan(maker.get_data(dtype=np.float32)).any()


def _turned(compare: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return how to ask what is greater by asking what is less: the plugin finds NaN greater than any number, and not less."""

    def mended(node: Any) -> Any:
        first, second = node.input_values()
        return compare(second, first) if _is_float(first) else node

    return mended


def _true_of_nan(node: Any) -> Any:
    """Make NaN true, and the lowest int32, which the plugin takes for zero."""
    value = node.input_value(0)
    if _element(node) != "boolean" or not (_is_float(value) or _element(value) == "i32"):
        return node
    return _ops.not_equal(value, _number(0, value))


_SHORTS = ("i16", "u16")


def _low_bits(node: Any) -> Any:
    """Keep the low bits of an integer of two bytes, which the plugin computes in int32 and does not wrap around."""
    if _element(node) not in _SHORTS:
        return node
    low = _ops.bitwise_and(_ops.convert(node, "i32"), _ops.constant(np.int32(0xFFFF)))
    if _element(node) == "i16":
        sign = _ops.constant(np.int32(0x8000))
        low = _ops.subtract(_ops.bitwise_xor(low, sign), sign)
    return _ops.convert(low, _element(node))


def _converted(node: Any) -> Any:
    """Convert to truth values, and to integers of two bytes from wider ones, as ONNX does."""
    is_cut = _element(node) in _SHORTS and node.input_value(0).get_element_type().is_integral_number()
    return _low_bits(node) if is_cut else _true_of_nan(node)


def _sign_taken(node: Any) -> Any:
    """Take the sign from what is computed of constants alone, which the library leaves where it folds them."""
    value = node.input_value(0)
    zero = _ops.convert(_ops.constant(np.array(0, np.int8)), _element(node))
    return _ops.select(_ops.less(value, zero), _ops.negative(value), value)


def _quotient(node: Any) -> Any:
    """Round the quotient of integers to zero, where the library rounds one of constants down, or to the next."""
    if not node.get_element_type().is_integral_number():
        return node
    quotient = _ops.divide(*(_ops.convert(value, "f32") for value in node.input_values()))
    to_zero = _ops.select(_ops.less(quotient, _ops.constant(np.float32(0))), _ops.ceiling(quotient), _ops.floor(quotient))
    return _ops.convert(to_zero, _element(node))


def _to_limit(node: Any) -> Any:
    """Let a range end where it begins when its steps lead away from the limit, where the plugin counts them all the same."""
    start, limit, step = (_ops.convert(value, _element(node)) for value in node.input_values())
    falls = _ops.less(step, _ops.convert(_ops.constant(np.array(0, np.int8)), _element(node)))
    end = _ops.select(falls, _ops.minimum(start, limit), _ops.maximum(start, limit))
    node.input(1).replace_source_output(end.output(0))
    return node


def _above_threshold(node: Any) -> Any:
    """Suppress a box that overlaps by more than the threshold, where the plugin suppresses by as much: the next number is put."""
    threshold = node.input_value(3)
    step, least = (_ops.convert(_ops.constant(np.float32(k)), _element(threshold)) for k in (1.25 * 2**-24, 2**-126))
    above = _ops.maximum(_ops.add(threshold, _ops.multiply(threshold, step)), least)
    node.input(3).replace_source_output(above.output(0))
    return node


def _stable(node: Any) -> Any:
    """Order equal elements by their places."""
    how = node.get_attributes()
    data, count = node.input_value(0), node.input_value(1)
    return _ops.topk(data, count, how["axis"], how["mode"], "value", how["index_element_type"], stable=True)


def _by_nothing(node: Any) -> Any:
    """Make nothing of an integer that is divided by nothing, where the plugin makes the lowest number."""
    divisor = node.input_value(1)
    if not node.get_element_type().is_integral_number() or _has_no_zero(divisor.get_node()):
        return node
    zero, one = (_ops.convert(_ops.constant(np.array(k, np.int8)), _element(node)) for k in (0, 1))
    is_nothing = _ops.equal(divisor, zero)
    node.input(1).replace_source_output(_ops.select(is_nothing, one, divisor).output(0))
    return _ops.select(is_nothing, zero, node.output(0))


def _has_no_zero(maker: Any) -> bool:
    return maker.get_type_name() == "Constant" and bool(maker.data.all())


_OF_CONSTANTS: Mapping[str, Callable[[Any], Any]] = {"Abs": _sign_taken, "Divide": _quotient}
"""What is put right where the library computes it of constants alone, before it compiles."""

_REPAIRS: Mapping[str, Callable[[Any], Any]] = {
    "ReduceMax": _extreme(-math.inf, _ops.greater),
    "ReduceMin": _extreme(math.inf, _ops.less),
    **dict.fromkeys(["Exp", "HardSigmoid"], _of_nan),
    **dict.fromkeys(["Maximum", "Minimum"], _of_two),
    "Greater": _turned(_ops.less),
    "GreaterEqual": _turned(_ops.less_equal),
    **dict.fromkeys(["Abs", "Add", "Multiply", "Negative", "Subtract"], _low_bits),
    "Convert": _converted,
    "NonMaxSuppression": _above_threshold,
    "Range": _to_limit,
    "TopK": _stable,
    **dict.fromkeys(["Divide", "FloorMod", "Mod"], _by_nothing),
}
