"""Functions as the tests of engines write them, one engine that compiles and runs them, and the memory of the process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xrt.engines import CompileContext, GraphCompiler, RunOptions
from xrt.graph import Constant, DType, Function, Node, TensorType, Type, Value, read_attributes
from xrt.testing.corpus.entry import node

__all__ = ["CONTEXT", "Array", "compiled", "function", "node", "one", "over_arrays", "resident", "run", "tensor", "why"]

Array = np.ndarray[Any, Any]
CONTEXT = CompileContext(threads=2)


def tensor(*shape: int | str | None, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


def function(
    *nodes: Node,
    inputs: Mapping[str, Type | None],
    outputs: Mapping[str, Type | None] | Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    opset: int = 18,
    types: Mapping[str, TensorType] | None = None,
    aliases: tuple[tuple[str, str], ...] = (),
    **domains: int,
) -> Function:
    """Return the Function; outputs that are names alone are of unknown type. ``domains`` are the opsets of other domains."""
    typed = outputs if isinstance(outputs, Mapping) else None
    return Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name, typed[name] if typed else None) for name in outputs),
        nodes,
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset, **domains},
        types=types or {},
        aliases=aliases,
    )


def one(op_type: str, *shapes: Type | None, output: Type | None = None, opset: int = 18, **attributes: Any) -> Function:
    """Return the Function of one node, whose inputs x0, x1, ... are of those types."""
    names = [f"x{k}" for k in range(len(shapes))]
    single = Node(op_type, tuple(names), ("y",), read_attributes(attributes))
    return function(single, inputs=dict(zip(names, shapes, strict=True)), outputs={"y": output}, opset=opset)


def over_arrays(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 24,
    n_outputs: int = 1,
    constants: Sequence[int] = (),
) -> Function:
    """Return the Function of one node over these arrays, some of which may be constants; None is a left-out input."""
    names = tuple("" if x is None else f"x{k}" for k, x in enumerate(inputs))
    arrays = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    held = {names[k]: arrays.pop(names[k]) for k in constants}
    outputs = tuple(f"y{k}" for k in range(n_outputs))
    single = Node(op_type, names, outputs, read_attributes(attributes or {}))
    types = {name: TensorType(DType.from_array(x), x.shape) for name, x in arrays.items()}
    return function(single, inputs=types, outputs=outputs, constants=held, opset=opset)


def why(engine: GraphCompiler, f: Function) -> str:
    """Return why the engine does not support the last node; empty if it does."""
    return engine.why_not(f.nodes[-1], f) or ""


def compiled(engine: GraphCompiler, f: Function, context: CompileContext = CONTEXT, *, is_supported: bool = False) -> Any:
    """Return the executable, prepared; with ``is_supported``, demand that the engine claims every node."""
    assert not is_supported or [engine.why_not(n, f) for n in f.nodes] == [None] * len(f.nodes)
    executable = engine.compile(f, context)
    executable.prepare()
    return executable


def run(
    engine: GraphCompiler, f: Function, *inputs: Any, options: RunOptions = RunOptions(), is_supported: bool = False
) -> list[Any]:
    return list(compiled(engine, f, is_supported=is_supported).run(inputs, options))


def resident() -> int:
    """Return the bytes that the process holds in memory, by Linux's own account."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
