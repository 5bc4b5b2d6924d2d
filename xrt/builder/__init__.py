"""Write graphs in Python: subclass `Graph`, implement `build`, and trace it to a Function.

`build` runs once on symbolic tensors. Each operation on them is recorded as a node, with NumPy semantics for Python's
operators. Nothing is computed while tracing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.builder.builder import DEFAULT_OPSET as DEFAULT_OPSET, Builder as Builder
    from xrt.builder.record_op import DTypeLike as DTypeLike, Operand as Operand
    from xrt.builder.tensor import Tensor as Tensor
    from xrt.builder.tracing import (
        Graph as Graph,
        device as device,
        inline as inline,
        scope as scope,
        trace as trace,
    )
    from xrt.graph.schemas import Inference as Inference

__all__, __getattr__, __dir__ = load_lazily(__name__)
