"""Functions for the openvino engine, and running them on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.engines import written
from tests.engines.written import Array, node, tensor
from xrt.engines import CompileContext
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.executable import COPY_TO, OpenVinoExecutable
from xrt.graph import DType, Function, Node, TensorType

__all__ = ["CONTEXT", "F32", "LARGE", "SQUARE", "compiled", "function", "node", "relu", "run", "tensor", "two_outputs"]

F32 = DType.FLOAT32
CONTEXT = CompileContext(threads=2)
SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
LARGE = COPY_TO  # columns of float32, so that two rows are well over what is copied


def function(
    inputs: Mapping[str, TensorType | None],
    outputs: Mapping[str, TensorType | None],
    nodes: Sequence[Node],
    constants: Mapping[str, Array] | None = None,
    opset: int = 21,
) -> Function:
    return written.function(*nodes, inputs=inputs, outputs=outputs, constants=constants, opset=opset)


def relu(columns: int = 3) -> Function:
    return function({"x": tensor(2, columns)}, {"y": tensor(2, columns)}, [node("Relu", "x", "y")])


def compiled(f: Function, engine: OpenVino = OpenVino()) -> OpenVinoExecutable:
    assert [engine.why_not(n, f) for n in f.nodes] == [None] * len(f.nodes)
    executable = engine.compile(f, CONTEXT)
    executable.prepare()
    return executable


def run(f: Function, *inputs: Any) -> Sequence[Any]:
    return compiled(f).run(inputs)


def two_outputs(columns: int) -> Function:
    type_ = tensor(2, columns)
    return function({"x": type_}, {"y": type_, "z": type_}, [node("Relu", "x", "y"), node("Neg", "x", "z")])
