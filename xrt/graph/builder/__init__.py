"""Graphs written in Python: subclass `Graph`, write `build`, and trace it into a Function.

Symbolic tensors go through `build` once, and what is done to them is recorded as nodes, with NumPy's meaning for Python's
operators. A Function comes out. No number is computed here.
"""

from xrt.graph.builder.builder import DEFAULT_OPSET, Builder
from xrt.graph.builder.operand import DTypeLike, Operand
from xrt.graph.builder.tensor import Tensor
from xrt.graph.builder.tracing import Graph, after, device, inline, scope, trace
from xrt.graph.builder.types import Inference

__all__ = [
    "DEFAULT_OPSET",
    "Builder",
    "DTypeLike",
    "Graph",
    "Inference",
    "Operand",
    "Tensor",
    "after",
    "device",
    "inline",
    "scope",
    "trace",
]
