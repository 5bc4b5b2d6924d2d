"""Functions for the ort engine, and running them on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.engines.written import node
from xrt.engines import CompileContext
from xrt.engines.ort import Ort
from xrt.engines.ort.executable import OrtExecutable
from xrt.graph import Constant, DType, Function, Node, TensorType, Type, Value

__all__ = ["CONTEXT", "F32", "SQUARE", "compiled", "function", "node", "relu", "run", "two_outputs"]

F32 = DType.FLOAT32
CONTEXT = CompileContext(threads=2)
SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def function(
    inputs: dict[str, Type | None],
    outputs: Sequence[str],
    nodes: Sequence[Node],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 21,
    **opsets: int,
) -> Function:
    return Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name) for name in outputs),
        tuple(nodes),
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset, **{domain.replace("_", "."): version for domain, version in opsets.items()}},
    )


def relu() -> Function:
    return function({"x": TensorType(F32, ("N", 3))}, ["y"], [node("Relu", "x", "y")])


def compiled(f: Function) -> OrtExecutable:
    assert [Ort().why_not(n, f) for n in f.nodes] == [None] * len(f.nodes)
    executable = Ort().compile(f, CONTEXT)
    executable.prepare()
    return executable


def run(f: Function, *inputs: Any) -> Sequence[Any]:
    return compiled(f).run(inputs)


def two_outputs(columns: int) -> Function:
    return function({"x": TensorType(F32, ("N", columns))}, ["y", "z"], [node("Relu", "x", "y"), node("Neg", "x", "z")])
