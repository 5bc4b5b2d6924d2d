"""Graphs written in Python: subclass `Graph`, write `build`, and trace it into a Function.

Symbolic tensors go through `build` once, and what is done to them is recorded as nodes, with NumPy's meaning for Python's
operators. A Function comes out. No number is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.builder.builder import DEFAULT_OPSET as DEFAULT_OPSET
    from xrt.builder.builder import Builder as Builder
    from xrt.builder.record_op import DTypeLike as DTypeLike
    from xrt.builder.record_op import Operand as Operand
    from xrt.builder.tensor import Tensor as Tensor
    from xrt.builder.tracing import GraphBase as GraphBase
    from xrt.builder.tracing import after as after
    from xrt.builder.tracing import device as device
    from xrt.builder.tracing import inline as inline
    from xrt.builder.tracing import scope as scope
    from xrt.builder.tracing import trace as trace
    from xrt.graph.schemas import Inference as Inference

_MODULES = {
    "Builder": "xrt.builder.builder",
    "DEFAULT_OPSET": "xrt.builder.builder",
    "DTypeLike": "xrt.builder.record_op",
    "GraphBase": "xrt.builder.tracing",
    "Inference": "xrt.graph.schemas",
    "Operand": "xrt.builder.record_op",
    "Tensor": "xrt.builder.tensor",
    "after": "xrt.builder.tracing",
    "device": "xrt.builder.tracing",
    "inline": "xrt.builder.tracing",
    "scope": "xrt.builder.tracing",
    "trace": "xrt.builder.tracing",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
