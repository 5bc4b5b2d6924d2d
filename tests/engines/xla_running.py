"""Functions for the xla engine, and running them on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.engines import CompileContext, Executable, RunOptions
from xrt.engines.xla import Xla
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, attributes_of

Array = np.ndarray[Any, Any]
XLA = Xla()
CONTEXT = CompileContext(threads=2)
FLOAT, INT = DType.FLOAT32, DType.INT64
WHOLE = TensorType(INT, (8,))


def tensor(*shape: int | str, dtype: DType = FLOAT) -> TensorType:
    return TensorType(dtype, shape)


def function(
    *nodes: Node,
    inputs: dict[str, TensorType | None],
    outputs: dict[str, TensorType | None],
    constants: dict[str, Array] | None = None,
    opset: int = 18,
    types: dict[str, TensorType] | None = None,
    aliases: tuple[tuple[str, str], ...] = (),
) -> Function:
    return Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name, type_) for name, type_ in outputs.items()),
        nodes,
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset},
        types=types or {},
        aliases=aliases,
    )


def one(op_type: str, *shapes: TensorType, output: TensorType | None = None, opset: int = 18, **attributes: Any) -> Function:
    names = [f"x{k}" for k in range(len(shapes))]
    node = Node(op_type, tuple(names), ("y",), attributes_of(attributes))
    return function(node, inputs=dict(zip(names, shapes, strict=True)), outputs={"y": output}, opset=opset)


def compiled(f: Function, threads: int = 2) -> Executable:
    executable = XLA.compile(f, CompileContext(threads=threads))
    executable.prepare()
    return executable


def run(f: Function, *inputs: Array, options: RunOptions = RunOptions()) -> list[Array]:
    return list(compiled(f).run(inputs, options))


def placed(size: int, dtype: str = "float32", offset: int = 0) -> Array:
    """Return an array so many bytes behind a multiple of 64, the addresses that XLA takes without a copy."""
    nbytes = size * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + nbytes].view(dtype)


def why(f: Function) -> str:
    return XLA.why_not(f.nodes[-1], f) or ""
