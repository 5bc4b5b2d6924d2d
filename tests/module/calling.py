"""Functions of values that cross between engines, and modules that make them cross."""

from __future__ import annotations

from typing import Any

import numpy as np

import xrt
from xrt.graph import DType, Function, Node, TensorType, Value

ENGINES = ["toy", "ort", "tvm"]
MIXTURES: list[Any] = [*ENGINES, ["ort", "toy"], ["tvm", "ort"], ["toy", "tvm"]]


def blocks(size: int = 64, count: int = 6) -> Function:
    """x and y through Add and Relu in turn, of size x size floats; the last value and one from the middle come out."""
    type_ = TensorType(DType.FLOAT32, (size, size))
    nodes = [Node("Add", ("x", "y"), ("v0",), name="n0")]
    for i in range(1, count):
        op, more = (("Relu", ()), ("Add", ("y",)))[i % 2]
        nodes.append(Node(op, (f"v{i - 1}", *more), (f"v{i}",), name=f"n{i}"))
    ends = [tuple(Value(n, type_) for n in names) for names in (("x", "y"), (f"v{count - 1}", "v2"))]
    return Function(*ends, tuple(nodes), opsets={"": 14}, name="blocks")


def by_hand(x: Any, y: Any, count: int = 6) -> tuple[Any, Any]:
    values = [x + y]
    for i in range(1, count):
        values.append(values[-1] + y if i % 2 else np.maximum(values[-1], 0))
    return values[-1], values[2]


def relu(shape: tuple[Any, ...] = (2, 3)) -> Function:
    type_ = TensorType(DType.FLOAT32, shape)
    return Function((Value("x", type_),), (Value("y", type_),), (Node("Relu", ("x",), ("y",)),), opsets={"": 14}, name="relu")


def module(engine: Any, function: Function) -> xrt.XRTModule:
    """Return a module whose nodes alternate between the engines, if there are several."""
    if isinstance(engine, str):
        return xrt.XRTModule(function, engine=engine, strict=True)
    pins = [f"name:{node.name}={engine[i % len(engine)]}" for i, node in enumerate(function.nodes)]
    return xrt.XRTModule(function, engine=engine, strict=True, pins=pins)


def random(size: int = 64, seed: int = 0) -> list[Any]:
    return list(np.random.default_rng(seed).standard_normal((2, size, size)).astype("float32"))


X = np.array([[-1, 0, 1], [2, -3, 4]], "float32")
