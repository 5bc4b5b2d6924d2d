"""Operators said in simpler ones that OpenVINO computes as ONNX says, where the library's own rule is another.

Integers of one and two bytes are computed in wider numbers, where nothing stops at the ends, and cut to their width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import ml_dtypes
import numpy as np

from xrt.engines.openvino.cache_updates import decompose_tensor_scatter
from xrt.engines.openvino.negative_pads import decompose_pad
from xrt.engines.toolkit.node_writer import NodeWriter
from xrt.formats.onnx.clip_bounds import BOUNDS_ARE_INPUTS, add_clip_bounds
from xrt.graph import DType, Function, Node, Shape, TensorType, read_attributes

__all__ = ["SPELLINGS", "decompose_node"]

_BITS = {DType.INT8: 8, DType.UINT8: 8, DType.INT16: 16, DType.UINT16: 16, DType.INT32: 32}
_SIGNED = frozenset({DType.INT8, DType.INT16, DType.INT32})
_BYTES = frozenset({DType.INT8, DType.UINT8})
_NARROWER = frozenset({DType.INT2, DType.UINT2, DType.INT4, DType.UINT4})

SUM_TAKES_AXES = 13
"""The first opset in which ReduceSum reads its axes from an input."""

_limits: Callable[[Any], Any] = ml_dtypes.iinfo


class OpenVinoWriter(NodeWriter):
    """Writes the nodes that say the node of a Function that has no other."""

    __slots__ = ()

    @classmethod
    def of(cls, alone: Function) -> Self:
        """Return a writer for the only node of the Function."""
        (node,) = alone.nodes
        return cls(node, alone, [], dict(alone.constants))

    def is_finite(self, name: str) -> bool:
        """Whether a value is a constant whose numbers are known here, and all finite."""
        found = self.find_constant(name)
        return found is not None and bool(np.isfinite(found.array.astype(np.float32)).all())

    def literal(self, value: object, dtype: type[np.generic] = np.int32) -> str:
        """Write a constant of those values, and return its name."""
        return self.constant(np.array(value, dtype))

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.node.inputs

    def get_input(self, index: int) -> str:
        """Return the input of that place, empty where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def get_input_type(self, index: int) -> TensorType | None:
        """Return the type of the input of that place; None where it is left out, or no tensor."""
        type_ = self.function.get_type(self.get_input(index)) if self.get_input(index) else None
        return type_ if isinstance(type_, TensorType) else None

    def results(self, *names: str) -> Function:
        """Return what was written, with those values as the node's results, in its order."""
        ends = [Node("Identity", (name,), (end,)) for name, end in zip(names, self.node.outputs, strict=False) if end]
        return self.whole(*ends)

    def whole(self, *nodes: Node) -> Function:
        """Return what was written, and those nodes, which define the node's results."""
        written = [replace(node, name="") for node in self.nodes]
        return self.function.replace(nodes=(*written, *nodes), constants=self.constants, types={})


Spelling = Callable[[OpenVinoWriter], Function | None]


def decompose_node(alone: Function) -> Function | None:
    """Return a Function of one node in simpler operators; None where there is no way to say it that was tried."""
    (node,) = alone.nodes
    spelling = None if node.domain else SPELLINGS.get(node.op_type)
    return None if spelling is None else spelling(OpenVinoWriter.of(alone))


def _of_bytes(pen: OpenVinoWriter) -> Function | None:
    """Say arithmetic of bytes in float32, which holds their sums and products exactly, and wrap the result around."""
    type_ = pen.get_input_type(0)
    if type_ is None or type_.dtype not in _BYTES:
        return None
    wide = pen.op(pen.node.op_type, *(pen.cast(name, DType.FLOAT32) for name in pen.inputs))
    lowest = float(np.iinfo(type_.dtype.numpy).min)
    above = pen.op("Sub", wide, pen.literal(lowest, np.float32))
    turns = pen.op("Floor", pen.op("Mul", above, pen.literal(2**-8, np.float32)))
    within = pen.op("Sub", wide, pen.op("Mul", turns, pen.literal(2**8, np.float32)))
    return pen.results(pen.cast(pen.cast(within, DType.INT32), type_.dtype))


def _cut(pen: OpenVinoWriter, name: str, dtype: DType) -> str:
    """Return an int32 value in a narrower type, of its low bits alone."""
    bits = _BITS[dtype]
    if bits == 32:
        return name
    low = pen.op("BitwiseAnd", name, pen.literal((1 << bits) - 1))
    if dtype in _SIGNED:
        sign = pen.literal(1 << (bits - 1))
        low = pen.op("Sub", pen.op("BitwiseXor", low, sign), sign)
    return pen.cast(low, dtype)


# ---------------------------------------------------------------------- shifts


def _shift(pen: OpenVinoWriter) -> Function | None:
    type_ = pen.get_input_type(0)
    if type_ is None or type_.dtype not in _BITS:
        return None
    x, by = (pen.cast(name, DType.INT32) for name in pen.inputs)
    bits, to_left = _BITS[type_.dtype], pen.node.attr("direction") in ("LEFT", b"LEFT")
    inside = pen.op("And", pen.op("GreaterOrEqual", by, pen.literal(0)), pen.op("Less", by, pen.literal(bits)))
    by = pen.op("Where", inside, by, pen.literal(bits - 1))
    shifted = _left(pen, x, by) if to_left else _right(pen, x, by)
    if to_left or type_.dtype not in _SIGNED:
        shifted = pen.op("Where", inside, shifted, pen.literal(0))
    return pen.results(_cut(pen, shifted, type_.dtype))


def _left(pen: OpenVinoWriter, x: str, by: str) -> str:
    powers = [1 << k if k < 31 else -(1 << 31) for k in range(32)]
    return pen.op("Mul", x, pen.op("Gather", pen.literal(powers), by))


def _right(pen: OpenVinoWriter, x: str, by: str) -> str:
    """Shift both halves of 16 bits in float32, which holds each of them exactly, before and after."""
    low = pen.op("BitwiseAnd", x, pen.literal(0xFFFF))
    high = pen.op("Sub", x, low)
    fractions = pen.literal([math.ldexp(1, -k) for k in range(32)], np.float32)
    factor = pen.op("Gather", fractions, by)
    halves = [pen.op("Floor", pen.op("Mul", pen.cast(half, DType.FLOAT32), factor)) for half in (high, low)]
    return pen.op("Add", *(pen.cast(half, DType.INT32) for half in halves))


# ---------------------------------------------------------------------- quantised numbers


MOST = 512.0
"""A quotient beyond it is out of the range of bytes, whatever the zero point."""


def _quantised(pen: OpenVinoWriter) -> Function | None:
    """Say QuantizeLinear of float32 to bytes or less, along no axis, one or its blocks: the library rounds ties up."""
    x, scale, to = pen.get_input_type(0), pen.get_input_type(1), _quantised_type(pen)
    if x is None or scale is None or to not in _BYTES | _NARROWER or {x.dtype, scale.dtype} != {DType.FLOAT32}:
        return None
    place = _placing(pen, x.shape, scale.shape)
    if place is None or pen.node.attr("precision", 0) not in (0, 1):
        return None
    number = _nearest_quotient(pen, pen.inputs[0], place(pen.inputs[1]))
    if pen.get_input(2):
        number = pen.op("Add", number, place(pen.cast(pen.get_input(2), DType.FLOAT32)))
    return pen.results(_stopped(pen, number, to))


def _nearest_quotient(pen: OpenVinoWriter, x: str, scale: str) -> str:
    """Return the whole number next to what IEEE division gives, to even from the middle of two.

    The library's own quotient is a little off, so that it cannot tell the middle. What remains of x behind the middle is
    exact where it is small: the scale is taken in three parts of 8 bits, whose products with the middle fit in float32.
    """
    quotient = pen.op("Clip", pen.op("Div", x, scale), pen.literal(-MOST, np.float32), pen.literal(MOST, np.float32))
    low = pen.op("Floor", quotient)
    middle = pen.op("Add", low, pen.literal(0.5, np.float32))
    rest = x
    for part in _parts(pen, scale):
        rest = pen.op("Sub", rest, pen.op("Mul", middle, part))
    is_beyond = pen.op("Greater", pen.op("Abs", rest), pen.op("Mul", scale, _half_step(pen, middle)))
    above = pen.op("Add", low, pen.literal(1, np.float32))
    side = pen.op("Where", pen.op("Greater", rest, pen.literal(0, np.float32)), above, low)
    return pen.op("Where", is_beyond, side, pen.op("Round", middle))


def _parts(pen: OpenVinoWriter, number: str) -> list[str]:
    """Return three numbers of at most 8 bits, and a sign, whose sum is the number."""
    parts = []
    for _ in range(2):
        wide = pen.op("Mul", number, pen.literal(2**16 + 1, np.float32))
        parts.append(pen.op("Sub", wide, pen.op("Sub", wide, number)))
        number = pen.op("Sub", number, parts[-1])
    return [*parts, number]


def _half_step(pen: OpenVinoWriter, middle: str) -> str:
    """Return half of the step from the number to the next in float32."""
    steps = [np.spacing(np.float32(k + 0.5)) / 2 for k in range(int(MOST) + 2)]
    whole = pen.cast(pen.op("Floor", pen.op("Abs", middle)), DType.INT32)
    return pen.op("Gather", pen.literal(steps, np.float32), whole)


def _stopped(pen: OpenVinoWriter, number: str, to: DType) -> str:
    """Return a whole float32 number in a type of integers, which it stops at the ends of."""
    ends = _limits(to.numpy)
    clipped = pen.op("Clip", number, pen.literal(int(ends.min), np.float32), pen.literal(int(ends.max), np.float32))
    return pen.cast(pen.cast(clipped, DType.INT32), to)


def _quantised_type(pen: OpenVinoWriter) -> DType | None:
    if pen.get_input(2):
        zero = pen.get_input_type(2)
        return None if zero is None else zero.dtype
    return DType.from_onnx(pen.node.attr("output_dtype", 0) or DType.UINT8.onnx)


def _dequantised(pen: OpenVinoWriter) -> Function | None:
    """Say DequantizeLinear of what the library lacks: of bytes, or by the numbers themselves."""
    x, scale = pen.get_input_type(0), pen.get_input_type(1)
    if x is None or scale is None or x.dtype.bits > 8 or x.dtype in _BYTES:
        return None
    if not x.dtype.is_float:
        numbers = [pen.cast(name, DType.INT8) if name else "" for name in (pen.inputs[0], pen.get_input(2))]
        read = (numbers[0], pen.inputs[1], numbers[1]) if numbers[1] else (numbers[0], pen.inputs[1])
        return pen.whole(Node("DequantizeLinear", read, pen.node.outputs, pen.node.attributes))
    place = _placing(pen, x.shape, scale.shape)
    if place is None or pen.node.attr("output_dtype", 0) not in (0, scale.dtype.onnx):
        return None
    number = pen.cast(pen.inputs[0], scale.dtype)
    if pen.get_input(2):
        number = pen.op("Sub", number, place(pen.cast(pen.get_input(2), scale.dtype)))
    return pen.results(pen.op("Mul", number, place(pen.inputs[1])))


def _placing(pen: OpenVinoWriter, shape: Shape | None, scale: Shape | None) -> Callable[[str], str] | None:
    """Return how a scale or a zero point is laid along its axis; None where that is not known."""
    if shape is None or scale is None:
        return None
    if not scale:
        return lambda name: name
    axis, size = pen.node.attr("axis", 1) % max(1, len(shape)), pen.node.attr("block_size", 0)
    if size and len(scale) == len(shape) and isinstance(extent := shape[axis], int):
        blocks = pen.literal([k // size for k in range(extent)], np.int64)
        return lambda name: pen.op("Gather", name, blocks, axis=axis)
    if size or len(scale) != 1 or not shape:
        return None
    others = pen.literal([k for k in range(len(shape)) if k != axis], np.int64)
    return lambda name: pen.op("Unsqueeze", name, others)


def _quantised_product(pen: OpenVinoWriter) -> Function | None:
    """Say QLinearMatMul, of one scale for each matrix, by the product of the integers: the library rounds ties up."""
    types = [pen.get_input_type(k) for k in range(8)]
    if any(type_ is None or (k not in (0, 3) and type_.shape not in ((), (1,))) for k, type_ in enumerate(types)):
        return None
    to = types[7].dtype if types[7] is not None else None
    if to is None or to not in _BYTES:
        return None
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = pen.inputs
    product = pen.cast(pen.op("MatMulInteger", a, b, a_zero, b_zero), DType.FLOAT32)
    scales = [pen.cast(scale, DType.FLOAT32) for scale in (a_scale, b_scale, y_scale)]
    factor = pen.op("Div", pen.op("Mul", *scales[:2]), scales[2])
    number = pen.op("Add", pen.op("Round", pen.op("Mul", product, factor)), pen.cast(y_zero, DType.FLOAT32))
    return pen.results(_stopped(pen, number, to))


# ---------------------------------------------------------------------- infinities


def _threshold(pen: OpenVinoWriter) -> Function | None:
    """Say ThresholdedRelu by a choice, where the library multiplies."""
    type_ = pen.get_input_type(0)
    if type_ is None:
        return None
    alpha, zero = (pen.cast(pen.literal(k, np.float32), type_.dtype) for k in (pen.node.attr("alpha", 1.0), 0))
    return pen.results(pen.op("Where", pen.op("Greater", pen.inputs[0], alpha), pen.inputs[0], zero))


def _shrink(pen: OpenVinoWriter) -> Function | None:
    """Say Shrink by choices likewise."""
    type_, x = pen.get_input_type(0), pen.inputs[0]
    if type_ is None:
        return None
    lambd, bias = pen.node.attr("lambd", 0.5), pen.node.attr("bias", 0.0)
    above, below, bias, zero = (pen.cast(pen.literal(k, np.float32), type_.dtype) for k in (lambd, -lambd, bias, 0))
    inner = pen.op("Where", pen.op("Greater", x, above), pen.op("Sub", x, bias), zero)
    return pen.results(pen.op("Where", pen.op("Less", x, below), pen.op("Add", x, bias), inner))


def _slopes(pen: OpenVinoWriter) -> Function | None:
    """Write PRelu as a choice unless its slopes are finite constants, and else with slopes of all axes.

    Without AVX-512 the library adds slope * min(x, 0) to max(x, 0): an infinite slope gives NaN for x >= 0. It takes slopes of
    the last axis for those of the channels where there are as many.
    """
    type_, slopes, x = pen.get_input_type(0), pen.get_input_type(1), pen.inputs[0]
    if type_ is not None and type_.dtype.is_float and not pen.is_finite(pen.inputs[1]):
        zero = pen.cast(pen.literal(0, np.float32), type_.dtype)
        return pen.results(pen.op("Where", pen.op("Less", x, zero), pen.op("Mul", x, pen.inputs[1]), x))
    if type_ is None or slopes is None or not type_.shape or slopes.rank != 1 or pen.opset < SUM_TAKES_AXES:
        return None
    others = pen.literal(list(range(len(type_.shape) - 1)), np.int64)
    return pen.results(pen.op("PRelu", x, pen.op("Unsqueeze", pen.inputs[1], others)))


def _bounded(pen: OpenVinoWriter) -> Function | None:
    """Say Clip with what a bound is that is left out: an infinity, and the largest finite number where it is an attribute."""
    type_ = pen.get_input_type(0)
    if pen.opset < BOUNDS_ARE_INPUTS:
        bounded = add_clip_bounds(pen.node)
        return None if bounded is pen.node else pen.whole(bounded)
    if type_ is None or not type_.dtype.is_float or (pen.get_input(1) and pen.get_input(2)):
        return None
    low, high = (
        pen.get_input(place) or pen.literal(np.array(end, type_.dtype.numpy), type_.dtype.numpy.type)
        for place, end in ((1, -math.inf), (2, math.inf))
    )
    return pen.whole(Node("Clip", (pen.inputs[0], low, high), pen.node.outputs))


def _log_sum_exp(pen: OpenVinoWriter) -> Function | None:
    """Compute ReduceLogSumExp relative to a finite number: an infinity less itself would be NaN."""
    type_, node = pen.get_input_type(0), pen.node
    if type_ is None or not type_.dtype.is_float or node.attr("noop_with_empty_axes", 0):
        return None
    along: dict[str, Any] = {"axes": list(axes)} if (axes := node.attr("axes")) is not None else {}
    x, rest = pen.inputs[0], pen.inputs[1:]
    widest = pen.op("ReduceMax", x, *rest, **along)
    finite_max = pen.op("Where", pen.op("IsInf", widest), pen.cast(pen.literal(0, np.float32), type_.dtype), widest)
    powers, keepdims = pen.op("Exp", pen.op("Sub", x, finite_max)), node.attr("keepdims", 1)
    axes_read = (pen.literal(list(axes), np.int64),) if axes is not None and pen.opset >= SUM_TAKES_AXES else rest
    total = pen.op("ReduceSum", powers, *axes_read, **({} if axes_read is not rest else along), keepdims=keepdims)
    aside = finite_max if keepdims else pen.op("ReduceMax", finite_max, *rest, **along, keepdims=0)
    return pen.results(pen.op("Add", pen.op("Log", total), aside))


# ---------------------------------------------------------------------- layouts and places


def _sequence_first(pen: OpenVinoWriter) -> Function | None:
    """Say a recurrent operator whose batches come first by one whose sequences do."""
    if pen.node.attr("layout", 0) != 1:
        return None
    states = {"GRU": (0, 5), "RNN": (0, 5), "LSTM": (0, 5, 6)}[pen.node.op_type]
    turned = [pen.op("Transpose", n, perm=[1, 0, 2]) if n and k in states else n for k, n in enumerate(pen.inputs)]
    plain = tuple(attribute for attribute in pen.node.attributes if attribute.name != "layout")
    inner = tuple(f"{name}/turned" if name else "" for name in pen.node.outputs)
    orders = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
    pairs = zip(inner, pen.node.outputs, orders, strict=False)
    ends = [Node("Transpose", (old,), (new,), read_attributes({"perm": order})) for old, new, order in pairs if new]
    return pen.whole(Node(pen.node.op_type, tuple(turned), inner, plain), *ends)


_HALVES = frozenset({DType.FLOAT16, DType.BFLOAT16})


def _in_float32(pen: OpenVinoWriter) -> Function | None:
    """Say an operator whose first result is of 16 bits by one of float32, which holds what it moves about or sums."""
    dtypes = [None if (type_ := pen.get_input_type(k)) is None else type_.dtype for k in range(len(pen.inputs))]
    dtype = next((dtype for dtype in dtypes if dtype in _HALVES), None)
    if dtype is None:
        return None
    inputs = tuple(pen.cast(n, DType.FLOAT32) if d is dtype else n for n, d in zip(pen.inputs, dtypes, strict=True))
    first, *others = pen.node.outputs
    wide = Node(pen.node.op_type, inputs, (f"{first}/wide", *others), pen.node.attributes)
    return pen.whole(wide, Node("Cast", wide.outputs[:1], (first,), read_attributes({"to": dtype.onnx})))


def _one_hot(pen: OpenVinoWriter) -> Function | None:
    """Say OneHot of places that are floating-point numbers by whole ones."""
    type_ = pen.get_input_type(0)
    if type_ is None or not type_.dtype.is_float:
        return _in_float32(pen)
    places = pen.cast(pen.inputs[0], DType.INT32)
    return pen.whole(Node("OneHot", (places, *pen.inputs[1:]), pen.node.outputs, pen.node.attributes))


SPELLINGS: Mapping[str, Spelling] = {
    **dict.fromkeys(["Add", "Mul", "Sub"], _of_bytes),
    "BitShift": _shift,
    "DequantizeLinear": _dequantised,
    "QuantizeLinear": _quantised,
    "QLinearMatMul": _quantised_product,
    **dict.fromkeys(["GRU", "LSTM", "RNN"], _sequence_first),
    "OneHot": _one_hot,
    "Clip": _bounded,
    "Pad": decompose_pad,
    "PRelu": _slopes,
    "Shrink": _shrink,
    "TensorScatter": decompose_tensor_scatter,
    "ThresholdedRelu": _threshold,
    "ReduceLogSumExp": _log_sum_exp,
    **dict.fromkeys(["Einsum", "Range", "ReverseSequence", "Unique"], _in_float32),
}
"""How each operator is said, where its types and attributes are such that it can be."""
