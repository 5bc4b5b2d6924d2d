"""Small models, and an engine that takes and refuses what it is told to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import xrt
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Value

ENGINES = ["toy", "ort", "tvm", ["tvm", "ort"]]


class Affine(xrt.Graph):
    def build(self, x, y):
        return {"sum": xrt.ops.Relu(x + y), "product": x * y}


def relu(shape: tuple[Any, ...] = (2, 3)) -> Function:
    return Function(
        (Value("x", TensorType(DType.FLOAT32, shape)),), (Value("y"),), (Node("Relu", ("x",), ("y",)),), opsets={"": 14}
    )


def chain(*ops: str, **fields: Any) -> Function:
    """x -> op -> h0 -> op -> h1 ... -> y"""
    names = ["x", *(f"h{i}" for i in range(len(ops) - 1)), "y"]
    nodes = tuple(Node(op, (names[i],), (names[i + 1],), name=f"node{i}") for i, op in enumerate(ops))
    type_ = TensorType(DType.FLOAT32, (2, 3))
    return Function((Value("x", type_),), (Value("y", type_),), nodes, opsets={"": 20}, **fields)


X = np.array([[-1, 0, 1], [2, -3, 4]], "float32")


@dataclass(frozen=True)
class Picky(GraphCompiler):
    """Takes what `takes` names, compiles on toy, and refuses at compile what `refuses` names."""

    name: ClassVar[str] = "picky"
    takes: str = "Relu"
    refuses: str = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return None if node.op_type in self.takes.split("|") else f"{node.op} is not among {self.takes}"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        culprits = [n.name for n in function.nodes if n.op_type in self.refuses.split("|")]
        if culprits:
            raise CompileRefused(f"picky cannot compile {culprits[0]}", culprits)
        return registry.create("toy").compile(function, context)


def recurrent(batch: Any = "batch") -> Function:
    """Return h_next = tanh(x + h), of a batch that inputs settle."""
    type_ = TensorType(DType.FLOAT32, (batch, 3))
    nodes = (Node("Add", ("x", "h"), ("sum",)), Node("Tanh", ("sum",), ("h_next",)))
    ends = (Value("x", type_), Value("h", type_)), (Value("sum", type_), Value("h_next", type_))
    return Function(*ends, nodes, opsets={"": 20}, aliases=(("h", "h_next"),), name="recurrent")


def token_sums() -> Function:
    """Return a model that adds ``x`` to its state, which is updated in place, and picks the columns ``ids`` of it."""
    state = TensorType(DType.FLOAT32, (1, 3))
    inputs = Value("ids", TensorType(DType.INT64, (1,))), Value("x", state), Value("h", state)
    outputs = Value("y", TensorType(DType.FLOAT32, (1, 1))), Value("h_next", state)
    nodes = Node("Add", ("h", "x"), ("h_next",)), Node("Gather", ("h_next", "ids"), ("y",)).with_attributes(axis=1)
    return Function(inputs, outputs, nodes, opsets={"": 20}, aliases=(("h", "h_next"),))
