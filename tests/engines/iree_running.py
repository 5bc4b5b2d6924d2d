"""Functions for the iree engine, and compiling them on it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from xrt.engines import CompileContext, Executable
from xrt.engines.iree import Iree
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, attributes_of
from xrt.passes import infer_shapes

Array = np.ndarray[Any, Any]
IREE = Iree()
CONTEXT = CompileContext(threads=2)


def tensor(*shape: int | str, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


def function(
    *nodes: Node,
    inputs: dict[str, TensorType | None],
    outputs: tuple[str, ...] = ("y",),
    constants: dict[str, Array] | None = None,
    opset: int = 18,
) -> Function:
    made = Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name) for name in outputs),
        nodes,
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset},
    )
    return infer_shapes(made)


def one(op_type: str, *shapes: TensorType, opset: int = 18, **attributes: Any) -> Function:
    names = [f"x{k}" for k in range(len(shapes))]
    node = Node(op_type, tuple(names), ("y",), attributes_of(attributes))
    return function(node, inputs=dict(zip(names, shapes, strict=True)), opset=opset)


def compiled(f: Function, engine: Iree = IREE, context: CompileContext = CONTEXT) -> Executable:
    executable = engine.compile(f, context)
    executable.prepare()
    return executable


@cache
def negation() -> Executable:
    """A compile costs half a second; most tests need no more than this one."""
    return compiled(one("Neg", tensor(4, 6)))


def why(f: Function) -> str:
    return IREE.why_not(f.nodes[-1], f) or ""
