"""Functions as the tests of engines write them, and what the process holds in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

__all__ = ["Array", "function", "node", "one", "resident", "tensor"]

Array = np.ndarray[Any, Any]


def tensor(*shape: int | str | None, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    """Return a node from names with blanks between them."""
    return Node(op, tuple(inputs.split()), tuple(outputs.split()), read_attributes(attributes))


def function(
    *nodes: Node,
    inputs: Mapping[str, TensorType | None],
    outputs: Mapping[str, TensorType | None] | Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    opset: int = 18,
    types: Mapping[str, TensorType] | None = None,
    aliases: tuple[tuple[str, str], ...] = (),
) -> Function:
    """Return the Function; outputs that are names alone are of unknown type."""
    typed = outputs if isinstance(outputs, Mapping) else None
    return Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name, typed[name] if typed else None) for name in outputs),
        nodes,
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset},
        types=types or {},
        aliases=aliases,
    )


def one(op_type: str, *shapes: TensorType, output: TensorType | None = None, opset: int = 18, **attributes: Any) -> Function:
    """Return the Function of one node, whose inputs x0, x1, ... are of those types."""
    names = [f"x{k}" for k in range(len(shapes))]
    single = Node(op_type, tuple(names), ("y",), read_attributes(attributes))
    return function(single, inputs=dict(zip(names, shapes, strict=True)), outputs={"y": output}, opset=opset)


def resident() -> int:
    """Return the bytes that the process holds in memory, by Linux's own account."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
