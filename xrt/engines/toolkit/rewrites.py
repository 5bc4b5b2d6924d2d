"""Rewrites and predicates that several engines share: convert convolutions to products; find dequantizations to fuse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from xrt.graph import DType, Function, Node, TensorType
from xrt.operators import NodeWriter, Trait, has_trait, rewrite_nodes

MAX_OUTPUT_POSITIONS = 9
"""Maximum number of output positions. Measured: a product is faster for 3 x 3 positions, and slower for 5 x 5."""
MIN_OPSET = 11
"""The first opset in which all arguments of Pad and Slice are inputs."""
MAX_COLUMNS_BYTES = 1 << 26
"""Maximum size of the im2col matrix, which has a copy of a window for each output position."""


def write_convolutions_as_products(function: Function) -> Function:
    """Replace each Conv whose weights are computed and whose output is small by a Gemm, as in the gradient of a convolution.

    A Conv with dequantized weights is unchanged, because libraries compute it in integers.
    """
    return rewrite_nodes(function, _write_product)


Sizes = tuple[int, ...]


def _find_sizes(node: Node, function: Function) -> tuple[Sizes, Sizes, Sizes] | None:
    """Return the shapes of the input, weights and output of a Conv to replace; None for any other node."""
    # Convolutions with a bias, groups or auto_pad are not supported.
    if node.op != "Conv" or len(node.inputs) != 2 or node.attr("group", 1) != 1 or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    weights = node.inputs[1]
    producer = function.producer(weights)
    are_dequantized = producer is not None and producer.op == "DequantizeLinear"
    if weights in function.constants or are_dequantized or function.opset() < MIN_OPSET:
        return None
    shapes: list[Sizes] = []
    itemsize = 0
    for name in (*node.inputs, node.outputs[0]):
        type_ = function.get_type(name)
        # The number of bytes is None for a symbolic shape, and 0 for an empty one.
        if not isinstance(type_, TensorType) or type_.dtype not in (DType.FLOAT32, DType.FLOAT64) or not type_.nbytes:
            return None
        itemsize = type_.dtype.numpy.itemsize
        shapes.append(tuple(extent for extent in type_.shape or () if isinstance(extent, int)))
    x, w, y = shapes
    positions = math.prod(y[2:])
    window_size = math.prod(w[2:])
    columns_bytes = positions * math.prod(x[:2]) * window_size * itemsize
    is_small = positions <= MAX_OUTPUT_POSITIONS and positions < window_size and columns_bytes <= MAX_COLUMNS_BYTES
    return (x, w, y) if is_small else None


def _write_product(writer: NodeWriter) -> str | None:
    """Multiply the weights (M, C * window size) by the im2col matrix (positions * N, C * window size); transpose the result."""
    node = writer.node
    sizes = _find_sizes(node, writer.function)
    if sizes is None:
        return None
    x, w, y = sizes
    axes = len(x) - 2
    strides = node.attr("strides") or (1,) * axes
    dilations = node.attr("dilations") or (1,) * axes
    pads = node.attr("pads") or (0,) * (2 * axes)
    source = writer.x
    if any(pads):
        # Batch and channels are not padded.
        source = writer.op("Pad", source, writer.integers([0, 0, *pads[:axes], 0, 0, *pads[axes:]]))
    spatial_axes = writer.integers(range(2, 2 + axes))
    steps = writer.integers(dilations)
    # One slice (N, C, *window) for each position of the output.
    slices = []
    for position in product(*map(range, y[2:])):
        starts = [coordinate * stride for coordinate, stride in zip(position, strides, strict=True)]
        stops = [start + (size - 1) * step + 1 for start, size, step in zip(starts, w[2:], dilations, strict=True)]
        slices.append(writer.op("Slice", source, writer.integers(starts), writer.integers(stops), spatial_axes, steps))
    windows = slices[0] if len(slices) == 1 else writer.op("Concat", *slices, axis=0)
    columns = writer.op("Reshape", windows, writer.integers([-1, math.prod(w[1:])]))
    weights = writer.op("Reshape", node.inputs[1], writer.integers([w[0], -1]))
    flat = writer.op("Gemm", weights, columns, transB=1)  # (M, positions * N)
    unflattened = writer.op("Reshape", flat, writer.integers([w[0], *y[2:], x[0]]))
    return writer.op("Transpose", unflattened, perm=[1 + axes, 0, *range(1, 1 + axes)])


_EIGHT_BIT = frozenset({DType.INT8, DType.UINT8})
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_CLAMPS = frozenset({"Clip", "Relu"})
"""Operators that libraries fuse with the quantization that reads their result."""


def list_readers(node: Node, function: Function) -> list[Node]:
    """List the nodes that read the node's first output. Empty if it is an output of the Function."""
    if any(value.name == node.outputs[0] for value in function.outputs):
        return []
    return [use.node for use in function.users(node.outputs[0])]


def has_quantized_readers(node: Node, function: Function, *, quantizing: frozenset[str] = frozenset()) -> bool:
    """Whether a library can compute every reader of a DequantizeLinear of a constant in integers.

    It can compute a product or convolution whose first operand is dequantized from 8-bit integers that are not constant. With the
    operators in ``quantizing`` it can do so only if their result is quantized again, possibly after Relu or Clip. These may also
    be elementwise operators: then the other operand must be dequantized, and the constant must have a single scale.

    For a constant with one element, one such reader is enough, because quantization tools share scalars between unrelated nodes.
    """
    are_quantized = [_is_quantized_reader(reader, name, function, quantizing) for reader, name in _iter_readers(node, function)]
    constant = function.constants.get(node.inputs[0])
    if constant is not None and constant.array.size == 1:
        return any(are_quantized)
    return bool(are_quantized) and all(are_quantized)


def _iter_readers(node: Node, function: Function) -> Iterator[tuple[Node, str]]:
    """Yield each reader of the node's first output, with the name of the value that it reads.

    For an operator that only rearranges elements, yield its readers instead, because libraries move a dequantization behind it.
    """
    for reader in list_readers(node, function):
        if has_trait(reader, Trait.REARRANGES) and reader.inputs[0] == node.outputs[0]:
            yield from _iter_readers(reader, function)
        else:
            yield reader, node.outputs[0]


def _is_quantized_reader(reader: Node, constant: str, function: Function, quantizing: frozenset[str]) -> bool:
    """Whether a library can compute this reader of the dequantized ``constant`` in integers (see `has_quantized_readers`)."""
    if reader.op in _PRODUCTS:
        operands = [reader.inputs[0]]
    elif reader.op in quantizing and _has_one_scale(constant, function):
        operands = [name for name in reader.inputs if name != constant]
    else:
        return False
    if len(operands) != 1 or not _is_dequantized(operands[0], function):
        return False
    return reader.op not in quantizing or all(last.op == "QuantizeLinear" for last in _iter_final_readers(reader, function))


def _find_source(name: str, function: Function) -> Node | None:
    """Find the node that computes the elements of a value, which other nodes may have rearranged since."""
    producer = function.producer(name)
    while producer is not None and has_trait(producer, Trait.REARRANGES):
        producer = function.producer(producer.inputs[0])
    return producer


def _has_one_scale(name: str, function: Function) -> bool:
    """Whether a value is dequantized per tensor, not per channel."""
    source = _find_source(name, function)
    scale = None if source is None else function.constants.get(source.inputs[1])
    return scale is not None and scale.array.size == 1


def _is_dequantized(name: str, function: Function) -> bool:
    """Whether a value was dequantized from 8-bit integers that are not constant. It may have been rearranged since."""
    producer = _find_source(name, function)
    if producer is None or producer.op != "DequantizeLinear" or producer.inputs[0] in function.constants:
        return False
    type_ = function.get_type(producer.inputs[0])
    return isinstance(type_, TensorType) and type_.dtype in _EIGHT_BIT


def _iter_final_readers(node: Node, function: Function) -> Iterator[Node]:
    """Yield the readers of the node's first output, but for Relu and Clip their readers. Without readers, yield the node."""
    readers = list_readers(node, function)
    if not readers:
        yield node
    for reader in readers:
        if reader.op in _CLAMPS and reader.inputs[0] == node.outputs[0]:
            yield from _iter_final_readers(reader, function)
        else:
            yield reader
