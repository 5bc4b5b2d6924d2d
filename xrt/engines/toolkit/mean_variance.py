"""MeanVarianceNormalization in other operators, for libraries that divide by zero where all elements are equal."""

from __future__ import annotations

import numpy as np

from xrt.engines.toolkit.node_writer import NodeWriter
from xrt.graph import Attribute, DType, read_attributes

__all__ = ["write_mean", "write_mean_variance"]

EPSILON = 1e-9
"""What the definition adds to the deviation: https://onnx.ai/onnx/operators/onnx__MeanVarianceNormalization.html"""
MEAN_TAKES_AXES = 18
"""The first opset in which ReduceMean reads its axes from an input."""


def write_mean_variance(writer: NodeWriter, opset: int, output: str = "") -> str | None:
    """Write (x - mean) / (deviation + epsilon), and return the name of it; None for types that cannot hold the epsilon.

    ``opset`` is that of the model, ``output`` the name for the result, by default a new one.

    The mean of the squares less the square of the mean may be rounded below zero, which has no root; and next to the epsilon
    it matters by how little rows of one number miss their mean: so they are centered twice.
    """
    if writer.dtype(writer.x) not in (DType.FLOAT32, DType.FLOAT64):
        return None
    axes = read_attributes({"axes": writer.node.attr("axes", (0, 2, 3))})
    centered = _write_centered(writer, _write_centered(writer, writer.x, axes, opset), axes, opset)
    variance = write_mean(writer, writer.op("Mul", centered, centered), axes, opset)
    deviation = writer.op("Add", writer.op("Sqrt", variance), writer.number(EPSILON))
    return writer.op("Div", centered, deviation, output=output)


def _write_centered(writer: NodeWriter, x: str, axes: tuple[Attribute, ...], opset: int) -> str:
    """Write the numbers less their mean along axes. What the mean was rounded by stays, and goes when they are centered again."""
    return writer.op("Sub", x, write_mean(writer, x, axes, opset))


def write_mean(writer: NodeWriter, x: str, axes: tuple[Attribute, ...], opset: int, output: str = "") -> str:
    """Write the mean along axes, which stay as extents of 1; ``opset`` is that of the model, ``output`` the name to give it."""
    if opset < MEAN_TAKES_AXES:
        return writer.op("ReduceMean", x, attributes=axes, output=output)
    return writer.op("ReduceMean", x, writer.constant(np.array(axes[0].value)), output=output)
