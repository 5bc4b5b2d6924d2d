"""Rewrites and predicates that several engines share: convolutions as products, readers that compute in integers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from xrt.graph import DType, Function, Node, TensorType
from xrt.operators import NodeWriter, Trait, has_trait, rewrite_nodes

MAX_OUTPUT_POSITIONS = 9
"""Maximum number of output positions for which a product is faster: measured so for 3 x 3, not for 5 x 5."""
MIN_OPSET = 11
"""The opset from which Pad and Slice take all arguments as inputs."""
MAX_COLUMNS_BYTES = 1 << 26
"""Maximum size of the columns matrix, which copies the input once per output position."""


def write_convolutions_as_products(function: Function) -> Function:
    """Replace each Conv whose weights are not constant and whose output is small by a Gemm.

    A Conv with dequantized weights stays, because libraries compute it in integers.
    """
    return rewrite_nodes(function, _write_product)


Sizes = tuple[int, ...]


def _find_sizes(node: Node, function: Function) -> tuple[Sizes, Sizes, Sizes] | None:
    """Return the shapes of input, weights and output of a Conv that should become a product; None for any other node."""
    # Only the plain form: no bias, groups or auto_pad.
    if node.op != "Conv" or len(node.inputs) != 2 or node.attr("group", 1) != 1 or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    if not _is_computed(node.inputs[1], function) or function.opset() < MIN_OPSET:
        return None
    shapes, size = list[Sizes](), 0
    for name in (*node.inputs, node.outputs[0]):
        type_ = function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in (DType.FLOAT32, DType.FLOAT64):
            return None
        size = type_.dtype.numpy.itemsize
        shapes.append(tuple(extent for extent in type_.shape if isinstance(extent, int)))
        if len(shapes[-1]) != len(type_.shape) or 0 in shapes[-1]:
            return None
    x, w, y = shapes
    positions, window_size = math.prod(y[2:]), math.prod(w[2:])
    # Size of the im2col matrix.
    fits = positions * math.prod(x[:2]) * window_size * size <= MAX_COLUMNS_BYTES
    return (x, w, y) if positions <= MAX_OUTPUT_POSITIONS and positions < window_size and fits else None


def _is_computed(name: str, function: Function) -> bool:
    """Whether weights are neither constant nor dequantized."""
    producer = function.producer(name)
    return name not in function.constants and (producer is None or producer.op != "DequantizeLinear")


def _write_product(writer: NodeWriter) -> str | None:
    """Multiply weights (M, C * window) by im2col columns (positions * N, C * window) and transpose to NC...."""
    if (sizes := _find_sizes(writer.node, writer.function)) is None:
        return None
    x, w, y = sizes
    node, axes = writer.node, len(x) - 2
    strides, dilations = (node.attr(name) or (1,) * axes for name in ("strides", "dilations"))
    pads = node.attr("pads") or (0,) * (2 * axes)
    source = writer.x
    if any(pads):
        begins, ends = (0, 0, *pads[:axes]), (0, 0, *pads[axes:])
        source = writer.op("Pad", source, writer.integers([*begins, *ends]))
    spatial, steps = writer.integers(range(2, 2 + axes)), writer.integers(dilations)
    parts = []
    for position in product(*map(range, y[2:])):
        starts = [coordinate * stride for coordinate, stride in zip(position, strides, strict=True)]
        stops = [start + (size - 1) * step + 1 for start, size, step in zip(starts, w[2:], dilations, strict=True)]
        parts.append(writer.op("Slice", source, writer.integers(starts), writer.integers(stops), spatial, steps))
    windows = parts[0] if len(parts) == 1 else writer.op("Concat", *parts, axis=0)
    columns = writer.op("Reshape", windows, writer.integers([-1, math.prod(w[1:])]))
    weights = writer.op("Reshape", node.inputs[1], writer.integers([w[0], -1]))
    unflattened = writer.op("Reshape", writer.op("Gemm", weights, columns, transB=1), writer.integers([w[0], *y[2:], x[0]]))
    return writer.op("Transpose", unflattened, perm=[1 + axes, 0, *range(1, 1 + axes)])


BYTES = frozenset({DType.INT8, DType.UINT8})
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_BOUNDS = frozenset({"Clip", "Relu"})
"""Operators that libraries fuse into the quantization that follows."""


def list_readers(node: Node, function: Function) -> list[Node]:
    """List the nodes that read the first output; none if that is also an output of the Function."""
    if any(value.name == node.outputs[0] for value in function.outputs):
        return []
    return [use.node for use in function.users(node.outputs[0])]


def has_quantized_readers(node: Node, function: Function, *, quantizing: frozenset[str] = frozenset()) -> bool:
    """Whether a library can compute every reader of a DequantizeLinear in integers.

    Such a reader is a product or convolution whose first operand is dequantized from 8-bit integers that are not constant. The
    result of operators in ``quantizing`` must also be quantized again, possibly after Relu or Clip. ``quantizing`` may have
    elementwise operators: their other operand must be dequantized, and the constant must have a single scale.

    For a constant of one element, a single such reader suffices.
    """
    quantized = [_has_quantized_operand(reader, name, function, quantizing) for reader, name in _iter_readers(node, function)]
    constant = function.constants.get(node.inputs[0])
    # Quantization tools share one scalar between unrelated readers.
    is_number = constant is not None and constant.array.size == 1
    return any(quantized) if is_number else bool(quantized) and all(quantized)


def _iter_readers(node: Node, function: Function) -> Iterator[tuple[Node, str]]:
    """Yield each reader of a node's first output with the name of the value it reads.

    Operators that only rearrange elements are replaced by their readers, since libraries swap them with a dequantization.
    """
    for reader in list_readers(node, function):
        if has_trait(reader, Trait.REARRANGES) and reader.inputs[0] == node.outputs[0]:
            yield from _iter_readers(reader, function)
        else:
            yield reader, node.outputs[0]


def _has_quantized_operand(reader: Node, constant: str, function: Function, quantizing: frozenset[str]) -> bool:
    is_product = reader.op in _PRODUCTS
    if not is_product and reader.op not in quantizing:
        return False
    operands = [reader.inputs[0]] if is_product else [name for name in reader.inputs if name != constant]
    if len(operands) != 1 or not _is_dequantized(operands[0], function):
        return False
    if not is_product and not _has_one_scale(constant, function):
        return False
    return reader.op not in quantizing or all(last.op == "QuantizeLinear" for last in _iter_final_readers(reader, function))


def _has_one_scale(name: str, function: Function) -> bool:
    """Whether a value is dequantized per tensor, not per channel."""
    producer = function.producer(name)
    while producer is not None and has_trait(producer, Trait.REARRANGES):
        producer = function.producer(producer.inputs[0])
    scale = None if producer is None else function.constants.get(producer.inputs[1])
    return scale is not None and scale.array.size == 1


def _is_dequantized(name: str, function: Function) -> bool:
    """Whether a value was dequantized from 8-bit integers that are not constant, and then at most rearranged."""
    producer = function.producer(name)
    while producer is not None and has_trait(producer, Trait.REARRANGES):
        producer = function.producer(producer.inputs[0])
    if producer is None or producer.op != "DequantizeLinear" or producer.inputs[0] in function.constants:
        return False
    type_ = function.get_type(producer.inputs[0])
    return isinstance(type_, TensorType) and type_.dtype in BYTES


def _iter_final_readers(node: Node, function: Function) -> Iterator[Node]:
    """Yield the readers of the node's first output, or behind Relu and Clip their readers; without readers, the node itself."""
    readers = list_readers(node, function)
    if not readers:
        yield node
    for reader in readers:
        if reader.op in _BOUNDS and reader.inputs[0] == node.outputs[0]:
            yield from _iter_final_readers(reader, function)
        else:
            yield reader
