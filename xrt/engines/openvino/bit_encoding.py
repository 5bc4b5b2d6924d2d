"""Numbers that the library lacks (float8, and what is narrower than a byte) as codes: the bytes that hold them.

Codes go in and out as uint8 over the same memory, and are moved about unchanged. Where they are cast, the library looks up what
they say in a table, or computes them of other numbers; all else that is said of such numbers is said by casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from xrt import passes
from xrt.engines.openvino.coded_types import CODED, FLOATS, INTEGERS, is_encoded
from xrt.engines.openvino.decompositions import OpenVinoWriter
from xrt.engines.openvino.operator_definitions import REMEMBERED, find_decomposition
from xrt.engines.toolkit.node_rewrite import as_function, insert_nodes
from xrt.errors import ModelError
from xrt.graph import Constant, DType, Function, Node, TensorType, Type, Value

__all__ = ["encode", "has_codes", "retype"]

_limits: Callable[[Any], Any] = ml_dtypes.finfo

_EXACT_IN_FLOAT32 = frozenset(
    {DType.BOOL, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32}
)
_MOVERS = frozenset(
    {"Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape"}
    | {"ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze", "Where"}
)
"""Operators to which it does not matter what the elements say."""


def has_codes(node: Node, function: Function) -> bool:
    """Whether the node reads or gives a value that is held as codes."""
    return any(is_encoded(function.get_type(name)) for name in (*node.uses, *node.defines))


def encode(function: Function) -> Function | None:
    """Return the Function on codes; itself where it has none, None where one of its nodes cannot be said on them."""
    if not any(has_codes(node, function) for node in function.nodes) and not any(map(is_encoded, _border(function))):
        return function
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        if not has_codes(node, function) or (node.op_type in _MOVERS and not node.domain):
            nodes.append(node)
        elif (said := _said(node, function)) is not None:
            nodes += insert_nodes(said, node, constants, types)
        else:
            return None
    return retype(function.replace(nodes=tuple(nodes), constants=constants, types=types))


def _border(function: Function) -> list[Type | None]:
    return [value.type for value in (*function.inputs, *function.outputs)]


def _said(node: Node, function: Function) -> Function | None:
    """Return the node as a Function on codes."""
    if node.domain or node.bodies or node.control:
        return None
    if node.op_type == "Cast":
        return _cast(as_function(node, function))
    meaning = find_decomposition(node, function)
    return None if meaning is None else encode(meaning)


@lru_cache(maxsize=REMEMBERED)
def _cast(one: Function) -> Function | None:
    pen = OpenVinoWriter.of(one)
    source, to = pen.get_input_type(0), DType.from_onnx(pen.node.attr("to"))
    if source is None:
        return None
    name, dtype = _decoded(pen, pen.inputs[0], source.dtype)
    if to in INTEGERS:
        result = _low_bits(pen, name, to)
    elif to in FLOATS and dtype in _EXACT_IN_FLOAT32:
        result = _encoded(pen, name if dtype is DType.FLOAT32 else pen.cast(name, DType.FLOAT32), to)
    elif to in CODED:
        return None
    else:
        result = pen.cast(name, to)
    try:
        return passes.infer_shapes(retype(pen.results(result)))
    except ModelError:
        return None


# ---------------------------------------------------------------------- types and constants


def _coded_type(type_: Type | None) -> Any:
    """Return the type of the codes of what is of the type; the same where it is not held as codes."""
    return replace(type_, dtype=DType.UINT8) if isinstance(type_, TensorType) and type_.dtype in CODED else type_


def retype(function: Function) -> Function:
    """Return the Function with the types of codes."""
    inputs, outputs = (
        tuple(Value(value.name, _coded_type(value.type)) for value in values) for values in (function.inputs, function.outputs)
    )
    constants = {name: Constant(c.array.view(np.uint8)) if c.dtype in CODED else c for name, c in function.constants.items()}
    types = {name: _coded_type(type_) for name, type_ in function.types.items()}
    return function.replace(inputs=inputs, outputs=outputs, constants=constants, types=types)


# ---------------------------------------------------------------------- what codes say


def _decoded(pen: OpenVinoWriter, name: str, dtype: DType) -> tuple[str, DType]:
    """Return what codes say, in a type of the library's that holds it; other values as they are.

    The library takes a constant that is less than any normal number for nothing: it is said as a product.
    """
    if dtype not in CODED:
        return name, dtype
    to = DType.FLOAT32 if dtype.is_float else DType.INT8
    codes = np.arange(2**dtype.bits, dtype=np.uint8)
    places = pen.cast(name, DType.INT32)
    if dtype.bits < 8:  # the other bits of a byte mean nothing
        places = pen.op("BitwiseAnd", places, pen.literal(len(codes) - 1))
    numbers = codes.view(dtype.numpy).astype(to.numpy)
    if dtype is not DType.FLOAT8E8M0:
        return _looked_up(pen, numbers, places), to
    halves = np.where(numbers < np.finfo(np.float32).tiny, numbers.dtype.type(0.5), numbers.dtype.type(1))
    return pen.op("Mul", *(_looked_up(pen, part, places) for part in (numbers / halves, halves))), to


# ---------------------------------------------------------------------- codes of numbers


def _low_bits(pen: OpenVinoWriter, name: str, to: DType) -> str:
    """Return the codes of numbers in a type of integers: their low bits, the fraction dropped."""
    low = pen.op("BitwiseAnd", pen.cast(name, DType.INT32), pen.literal(2**to.bits - 1))
    return pen.cast(low, DType.UINT8)


def _encoded(pen: OpenVinoWriter, x: str, to: DType) -> str:
    """Return the codes of the numbers next to those of float32, to even from the middle of two.

    A code is the sign, then the exponent counted from the lowest, then the mantissa: so exponent and mantissa are one number
    that counts on, and what is rounded up to the next power of two is right of itself.
    """
    size = pen.op("Abs", pen.op("Where", pen.op("IsNaN", x), _float(pen, 0), x))
    number = _unsigned(pen, size, to)
    one_by = pen.op("Div", _float(pen, 1), x)  # tells what is less than nothing by its sign alone
    is_negative = pen.op("Or", *(pen.op("Less", value, _float(pen, 0)) for value in (x, one_by)))
    is_over = pen.op("Greater", number, _float(pen, _code(to, _largest(to))))
    negative = pen.op("Add", number, _float(pen, 2 ** (to.bits - 1)))
    if _code(to, -0.0) == 0:
        negative = pen.op("Where", pen.op("Greater", number, _float(pen, 0)), negative, number)
    beyond = [_float(pen, _code(to, sign * _far(pen, to))) for sign in (-1, 1)]
    code = pen.op("Where", is_over, pen.op("Where", is_negative, *beyond), pen.op("Where", is_negative, negative, number))
    code = pen.op("Where", pen.op("IsNaN", x), _float(pen, _code(to, math.nan)), code)
    return pen.cast(pen.cast(code, DType.INT32), DType.UINT8)


def _unsigned(pen: OpenVinoWriter, size: str, to: DType) -> str:
    """Return exponent and mantissa of numbers not less than nothing; more than those of any number where they are too large."""
    lowest, bits = _mantissa(to)
    top = math.frexp(_largest(to))[1] - lowest
    size = pen.op("Min", size, _float(pen, 2.0 ** (lowest + top)))
    exponent = pen.op("Floor", pen.op("Mul", pen.op("Log", size), _float(pen, 1 / math.log(2))))
    place = _within(pen, pen.op("Sub", exponent, _float(pen, lowest)), top)
    power = _power(pen, range(lowest, lowest + top + 1), place)
    less, more = (pen.cast(test, DType.FLOAT32) for test in (pen.op("Less", size, power), _is_double(pen, size, power)))
    place = _within(pen, pen.op("Add", pen.op("Sub", place, less), more), top)  # the logarithm may be a little off
    steps = _power(pen, (bits - lowest - k for k in range(top + 1)), place)
    mantissa = pen.op("Round", pen.op("Mul", size, steps))
    return pen.op("Add", pen.op("Mul", place, _float(pen, 2**bits)), mantissa)


def _is_double(pen: OpenVinoWriter, size: str, power: str) -> str:
    return pen.op("GreaterOrEqual", size, pen.op("Add", power, power))


def _within(pen: OpenVinoWriter, number: str, top: int) -> str:
    return pen.op("Clip", number, _float(pen, 0), _float(pen, top))


def _looked_up(pen: OpenVinoWriter, table: np.ndarray[Any, Any], places: str) -> str:
    return pen.op("Gather", pen.literal(table, table.dtype.type), places)


def _power(pen: OpenVinoWriter, exponents: Iterable[int], place: str) -> str:
    return _looked_up(pen, np.array([2.0**k for k in exponents], np.float32), pen.cast(place, DType.INT32))


def _float(pen: OpenVinoWriter, value: float) -> str:
    return pen.literal(value, np.float32)


def _far(pen: OpenVinoWriter, to: DType) -> float:
    """Return what a number that is too large becomes."""
    return _largest(to) if pen.node.attr("saturate", 1) else math.inf


def _largest(to: DType) -> float:
    return float(_limits(to.numpy).max)


def _mantissa(to: DType) -> tuple[int, int]:
    """Return the lowest exponent, and the bits of the mantissa."""
    return int(_limits(to.numpy).minexp), int(_limits(to.numpy).nmant)


def _code(to: DType, value: float) -> int:
    with np.errstate(all="ignore"):
        return int(np.array(value, np.float32).astype(to.numpy).view(np.uint8))
