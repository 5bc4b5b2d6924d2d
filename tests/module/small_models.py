"""Small models."""

from __future__ import annotations

from typing import Any

import numpy as np

import xrt
from xrt.graph import DType, Function, TensorType
from xrt.testing.corpus.entry import graph, node

ENGINES = ["toy", "ort", "tvm", ["tvm", "ort"]]


class Affine(xrt.Graph):
    def build(self, x, y):
        return {"sum": xrt.ops.Relu(x + y), "product": x * y}


def relu(shape: tuple[Any, ...] = (2, 3)) -> Function:
    type_ = TensorType(DType.FLOAT32, shape)
    return graph({"x": type_}, {"y": type_}, node("Relu", "x", "y"), opset=14)


def chain(*ops: str, aliases: Any = ()) -> Function:
    """Return x -> op -> v1 -> op -> v2 ... -> y, of nodes n0, n1, ..."""
    names = ["x", *(f"v{i}" for i in range(1, len(ops))), "y"]
    nodes = [node(op, names[i], names[i + 1], name=f"n{i}") for i, op in enumerate(ops)]
    return graph({"x": "float32[2,3]"}, {"y": "float32[2,3]"}, *nodes, opset=20, aliases=aliases)


X = np.array([[-1, 0, 1], [2, -3, 4]], "float32")


def recurrent(batch: Any = "batch") -> Function:
    """Return h_next = tanh(x + h), of a batch that inputs settle."""
    ends = [dict.fromkeys(names, f"float32[{batch},3]") for names in (("x", "h"), ("sum", "h_next"))]
    nodes = node("Add", "x h", "sum"), node("Tanh", "sum", "h_next")
    return graph(*ends, *nodes, opset=20, aliases=(("h", "h_next"),)).replace(name="recurrent")


def token_sums() -> Function:
    """Return a model that adds ``x`` to its state, which is updated in place, and picks the columns ``ids`` of it."""
    inputs = {"ids": "int64[1]", "x": "float32[1,3]", "h": "float32[1,3]"}
    outputs = {"y": "float32[1,1]", "h_next": "float32[1,3]"}
    nodes = node("Add", "h x", "h_next"), node("Gather", "h_next ids", "y", axis=1)
    return graph(inputs, outputs, *nodes, opset=20, aliases=(("h", "h_next"),))
