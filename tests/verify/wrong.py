"""An engine with a wrong kernel planted in it, and models that have it deep inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import xrt
from xrt.engines import CompileContext, Executable
from xrt.engines.toy import Toy
from xrt.graph import Function, Node, TensorType, Value

TYPE = TensorType(xrt.DType.FLOAT32, (4, 8))

table = Toy.kernels.extend("wrong")


@table("Atan", devices=("cpu", "cuda"), priority=9)
def atan(node: Node, env: Any) -> Any:
    return lambda x: env.xp.arctan(x) + np.float32(0.01)


@dataclass(frozen=True)
class Wrong(Toy):
    """Right but for Atan."""

    name: ClassVar[str] = "wrong"
    kernels = table


@dataclass(frozen=True)
class WronglyFusing(Toy):
    """Right on every node alone, wrong where a Sin is compiled together with the Cos that reads it."""

    name: ClassVar[str] = "wrongly_fusing"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        spoilt = tuple(self._spoilt(node, function) for node in function.nodes)
        return super().compile(function.replace(nodes=spoilt), context)

    def _spoilt(self, node: Node, function: Function) -> Node:
        maker = function.producer(node.inputs[0])
        if node.op_type != "Cos" or maker is None or maker.op_type != "Sin":
            return node
        return Node("Neg", node.inputs, node.outputs, name=node.name)


def long_model(special: str = "Atan", at: int = 117, count: int = 200) -> Function:
    """Return a model of so many nodes, of which one is the special operator."""
    steps = ("Sin", "Abs", "Cos", "Neg")
    ops = [special if i == at else steps[i % 4] for i in range(count)]
    nodes = tuple(Node(op, (f"v{i}",), (f"v{i + 1}",), name=f"n{i}") for i, op in enumerate(ops))
    return Function((Value("v0", TYPE),), (Value(f"v{count}", TYPE),), nodes, opsets={"": 21})


def numbers() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
