"""A convolution with few results and a large window, as the gradient of a convolution's weights is one, as a product of matrices.

ONNX Runtime takes twice as long for it otherwise, and IREE up to eight times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from xrt.engines.toolkit.node_writer import NodeWriter, write_nodes
from xrt.graph import DType, Function, Node, TensorType

__all__ = ["write_convolutions_as_products"]

MOST_PLACES = 9
"""Places of the result up to which it is quicker as a product: it is so for 3 x 3, and not for 5 x 5."""
SINCE = 11
"""The opset from which Pad and Slice take all of their arguments as inputs."""
MOST_BYTES = 1 << 26
"""Of the columns, which are as many times the input as the result has places."""


def write_convolutions_as_products(function: Function) -> Function:
    """Return the Function with each such Conv of computed weights as a Gemm; itself where there is none.

    Weights that are dequantized stay with their Conv, which libraries compute in integers.
    """
    return write_nodes(function, _write_convolution)


Sizes = tuple[int, ...]


def _write_convolution(writer: NodeWriter) -> bool:
    sizes = _find_sizes(writer.node, writer.function)
    if sizes is not None:
        _write_product(writer, *sizes)
    return sizes is not None


def _find_sizes(node: Node, function: Function) -> tuple[Sizes, Sizes, Sizes] | None:
    """Return the shapes of the input, the weights and the result of a Conv that is to be a product; None for other nodes."""
    if node.op != "Conv" or len(node.inputs) != 2 or node.attr("group", 1) != 1 or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    if not _is_computed(node.inputs[1], function) or function.opset() < SINCE:
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
    places, elements = math.prod(y[2:]), math.prod(w[2:])
    is_small = places * math.prod(x[:2]) * elements * size <= MOST_BYTES
    return (x, w, y) if places <= MOST_PLACES and places < elements and is_small else None


def _is_computed(name: str, function: Function) -> bool:
    """Whether weights are neither constant nor dequantized."""
    producer = function.producer(name)
    return name not in function.constants and (producer is None or producer.op != "DequantizeLinear")


def _write_product(writer: NodeWriter, x: Sizes, w: Sizes, y: Sizes) -> None:
    """Write the weights (M, C * window) by columns (places * N, C * window), and bring the result into its order."""
    node, axes = writer.node, len(x) - 2
    strides, dilations = (node.attr(name) or (1,) * axes for name in ("strides", "dilations"))
    pads = node.attr("pads") or (0,) * (2 * axes)
    source = writer.x
    if any(pads):
        begins, ends = (0, 0, *pads[:axes]), (0, 0, *pads[axes:])
        source = writer.op("Pad", source, _row(writer, [*begins, *ends]))
    spatial, steps = _row(writer, range(2, 2 + axes)), _row(writer, dilations)
    parts = []
    for place in product(*map(range, y[2:])):
        starts = [position * stride for position, stride in zip(place, strides, strict=True)]
        stops = [start + (size - 1) * step + 1 for start, size, step in zip(starts, w[2:], dilations, strict=True)]
        parts.append(writer.op("Slice", source, _row(writer, starts), _row(writer, stops), spatial, steps))
    whole = parts[0] if len(parts) == 1 else writer.op("Concat", *parts, axis=0)
    columns = writer.op("Reshape", whole, _row(writer, [-1, math.prod(w[1:])]))
    weights = writer.op("Reshape", node.inputs[1], _row(writer, [w[0], -1]))
    found = writer.op("Gemm", weights, columns, transB=1)
    spread = writer.op("Reshape", found, _row(writer, [w[0], *y[2:], x[0]]))
    writer.op("Transpose", spread, perm=[1 + axes, 0, *range(1, 1 + axes)], output=node.outputs[0])


def _row(writer: NodeWriter, items: Sequence[int]) -> str:
    return writer.constant(np.asarray(items, np.int64))
